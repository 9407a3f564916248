//! Prepares adjacent statements in place of one command together, and then forwards them one after the other.
//!
//! Keyward reads the documents of all of them at once, and reserves all their new keys at once. Each statement is a command of its own,
//! because a reply has only sums. Keyward releases the old keys of all of them at the end of the slice. So a statement of a batch takes
//! little more than one command.
//!
//! A statement must see the effects of those before it. So a slice ends before a second statement about a document, and before one
//! whose new key an earlier statement gets or frees. It also ends before a statement that can't be prepared, for example because
//! another write has its key. That statement runs alone: it may have to wait, and meanwhile Keyward holds no keys for later statements.
//!
//! If Keyward is killed at any point, this leaves reservations whose owners don't hold them: the next write that meets one finds
//! that out.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::time::Duration;

use bson::spec::ElementType;
use futures_util::future::join;
use tokio::time::timeout;

use super::change::{Change, PlannedChange, change_of};
use super::document_keys::{DocumentAsRead, read_several_outside};
use super::first_try::may_be_done_elsewhere;
use super::in_place::write;
use super::old_reservations::{LostKeys, OldReservation, read_old, release_old};
use super::result::StatementResult;
use super::sending::InPlaceOutcome;
use super::statement_run::StatementRun;
use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey, WriteGuard, advance_attempts, run_releases};
use crate::command::filter_rewriting::{equality, is_short};
use crate::command::key_update::KeyUpdate;
use crate::command::statement::Statement;
use crate::constraint::id_identity;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::route::AskedFor;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::plan::{StatementPlan, Way};

/// The most statements in a slice. The keys of the last one stay reserved while all others are forwarded.
pub const STATEMENTS_MAX: usize = 100;
/// The most bytes of the statements of a slice: Keyward holds each of them twice.
const STATEMENTS_BYTES_MAX: usize = 1 << 20;

/// How long a statement may take before the slice gives the keys of the later ones back.
const PATIENCE: Duration = Duration::from_secs(1);

/// Statements that are prepared.
#[derive(Default)]
pub struct Slice {
    statements: Vec<PreparedStatement>,
    /// The attempt of each statement.
    candidates: Vec<Candidate<'static>>,
    old: Vec<OldReservation>,
    next: usize,
}

/// A statement whose document is read and whose new keys are held.
struct PreparedStatement {
    /// Its position in the command.
    index: usize,
    rewritten: Vec<u8>,
    seen: DocumentAsRead,
    /// `None` once the statement has its outcome.
    guard: Option<WriteGuard>,
    frees_old: bool,
}

/// How many of the first of `plans`, at most `most`, can be prepared together: each one is about another document, by `_id`.
pub fn count_together(protected: &Protected, plans: &[StatementPlan<'_>], most: usize) -> Result<usize, Malformed> {
    let (mut ids, mut bytes) = (HashSet::new(), 0);
    for plan in plans.iter().take(most) {
        bytes += plan.statement.raw.bytes().len();
        let id = match plan.way {
            Way::InPlace(_) if bytes <= STATEMENTS_BYTES_MAX => named_id(plan.statement, protected)?,
            _ => None,
        };
        if !id.is_some_and(|id| ids.insert(identity(&id))) {
            break;
        }
    }
    Ok(ids.len())
}

impl Slice {
    /// Prepares the statements of `plans`, of which the first one is at position `first` of the command, up to the first that must run
    /// alone.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone. Nothing was written.
    pub async fn prepare<'a>(
        op: &mut WriteOp<'a>,
        plans: &[StatementPlan<'a>],
        first: usize,
    ) -> Result<Slice, ForwardError> {
        let mut slice = Slice::default();
        let changes = changes(op.protected, plans, read(op, plans).await?)?;
        let statements = plans.iter().take(changes.len()).enumerate();
        let statements: Vec<_> = statements.map(|(at, plan)| (first + at, plan.statement)).collect();
        if changes.is_empty() || may_be_done_elsewhere(op, &statements).await? {
            return Ok(slice);
        }
        let mut lost = Vec::new();
        for ((index, statement), (seen, change)) in statements.into_iter().zip(changes) {
            let guard = op.context.writes.begin();
            let token = StatementRun::new(op, index, statement).token(&guard);
            let owner = seen.document_keys.owner.clone();
            let candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), owner, change.new);
            slice.candidates.push(candidate);
            slice.statements.push(PreparedStatement {
                index,
                rewritten: change.rewritten,
                seen,
                guard: Some(guard),
                frees_old: false,
            });
            lost.push(change.old);
        }
        slice.reserve(op, &lost).await;
        Ok(slice)
    }

    /// Reserves the new keys, and reads the reservations of the `lost` ones. Drops the statements from the first one whose keys aren't all
    /// held.
    async fn reserve(&mut self, op: &WriteOp<'_>, lost: &[Vec<ConstrainedKey>]) {
        let statements = self.statements.iter().zip(lost);
        let lost = statements.map(|(statement, keys)| LostKeys {
            owner: &statement.seen.document_keys.owner,
            keys,
        });
        let lost: Vec<LostKeys<'_>> = lost.collect();
        let check = op.takeover_check();
        let reserving = advance_attempts(op.protected, &mut self.candidates, &check);
        let not_enforced = op.not_enforced();
        (_, self.old) = join(reserving, read_old((op.protected, &not_enforced), &lost)).await;
        let is_held = |candidate: &&Candidate<'_>| candidate.attempt.may_forward();
        let held = self.candidates.iter().take_while(is_held).count();
        let mut unheld = self.candidates.split_off(held);
        unheld.iter_mut().for_each(Candidate::withdraw);
        op.release(&mut unheld).await;
        self.statements.truncate(held);
        self.old.retain(|old| old.position < held);
    }

    /// The position of the next statement in the command.
    pub fn next(&self) -> Option<usize> {
        self.statements.get(self.next).map(|statement| statement.index)
    }

    /// Forwards the next statement, that of `run`. `None` if it must run alone after the slice has ended: its document has changed, or
    /// too little of the lease is left.
    ///
    /// If the statement waits in the server, for example for an open transaction, the slice ends with it: others may wait for the keys of
    /// the later statements.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone: the outcome is unknown then.
    pub async fn forward(&mut self, run: &mut StatementRun<'_, '_>) -> Result<Option<StatementResult>, ForwardError> {
        let (protected, at) = (run.op.protected, self.next);
        self.next += 1;
        let (candidates, rest) = self.candidates.split_at_mut(self.next);
        let (statement, candidate) = (&mut self.statements[at], &mut candidates[at]);
        let (written, waits) = {
            let mut writing = pin!(write(run, &statement.rewritten, &statement.seen, candidate));
            match timeout(PATIENCE, &mut writing).await {
                Ok(written) => (written, false),
                Err(_) => {
                    rest.iter_mut().for_each(Candidate::withdraw);
                    let (written, ()) = join(writing, run_releases(protected, rest)).await;
                    (written, true)
                }
            }
        };
        run.op.release(std::slice::from_mut(candidate)).await;
        statement.guard = None;
        if waits {
            self.statements.truncate(self.next);
            self.candidates.truncate(self.next);
            self.old.retain(|old| old.position < self.next);
        }
        let written = written?;
        self.statements[at].frees_old = written.frees_old;
        Ok(match written.outcome {
            InPlaceOutcome::Ran(result) => Some(result),
            InPlaceOutcome::Again | InPlaceOutcome::Missed(_) => None,
        })
    }

    /// Releases the old keys of the statements that were carried out, and the new keys of those that were not forwarded.
    pub async fn end(mut self, op: &WriteOp<'_>) {
        let rest = &mut self.candidates[self.next..];
        rest.iter_mut().for_each(Candidate::withdraw);
        op.release(rest).await;
        let is_free = |old: &&OldReservation| self.statements[old.position].frees_old;
        release_old(op.protected, self.old.iter().filter(is_free)).await;
    }
}

/// The `_id` that a statement names, if its document can be read together with others.
fn named_id<'a>(statement: Statement<'a>, protected: &Protected) -> Result<Option<Element<'a>>, Malformed> {
    let [sort, collation, hint, ..] = statement.selection()?.options;
    let has_options = [sort, collation, hint].iter().any(Option::is_some);
    if has_options || !has_only_equalities(statement)? || AskedFor::by_statement(statement, protected).is_some() {
        return Ok(None);
    }
    named(statement, "_id")
}

/// Whether the query consists of equalities only. The server may refuse another query, but Keyward would learn that only after it has reserved
/// keys.
fn has_only_equalities(statement: Statement<'_>) -> Result<bool, Malformed> {
    let query = statement.query()?.unwrap_or(Doc::empty());
    if !is_short(query) {
        return Ok(false);
    }
    query.all(|condition| {
        let path = std::str::from_utf8(condition.name);
        let Some(path) = path.ok().filter(|path| !path.starts_with('$')) else {
            return Ok(false);
        };
        let value = equality(query, path)?;
        Ok(value.is_some_and(|value| value.kind != ElementType::Undefined))
    })
}

/// The value that the statement's query asks for at `path`, if `$in` takes it for this value.
fn named<'a>(statement: Statement<'a>, path: &str) -> Result<Option<Element<'a>>, Malformed> {
    let value = equality(statement.query()?.unwrap_or(Doc::empty()), path)?;
    let is_pattern = |value: &Element<'_>| value.kind == ElementType::RegularExpression;
    Ok(value.filter(|value| !is_pattern(value)))
}

/// Equal for values that the server calls equal.
fn identity(value: &Element<'_>) -> Option<Vec<u8>> {
    value.to_raw_bson().map(|value| id_identity(&value))
}

/// Reads the documents that the statements of `plans` name. Returns them up to the first statement for which there isn't exactly one.
async fn read(op: &mut WriteOp<'_>, plans: &[StatementPlan<'_>]) -> Result<Vec<DocumentAsRead>, ForwardError> {
    let query = query(op.protected, plans)?;
    let found = read_several_outside(op, Doc::new(&query)?).await?;
    let mut by_id: HashMap<Vec<u8>, Option<DocumentAsRead>> = HashMap::new();
    for document in found {
        let id = id_identity(&document.document_keys.owner.id);
        // Documents on different shards may have the same `_id`.
        by_id
            .entry(id)
            .and_modify(|other| *other = None)
            .or_insert(Some(document));
    }
    let mut documents = Vec::with_capacity(plans.len());
    for plan in plans {
        let id = named(plan.statement, "_id")?.and_then(|id| identity(&id));
        match id.and_then(|id| by_id.remove(&id)).flatten() {
            Some(document) if is_at_named_place(plan.statement, &document)? => documents.push(document),
            _ => break,
        }
    }
    Ok(documents)
}

/// The query for the documents that the statements name, on no more shards than they name.
fn query(protected: &Protected, plans: &[StatementPlan<'_>]) -> Result<Vec<u8>, Malformed> {
    let mut query = Builder::new();
    let first = protected.shard_key.first().map(String::as_str);
    for path in ["_id"].into_iter().chain(first.filter(|first| *first != "_id")) {
        let values = plans.iter().map(|plan| named(plan.statement, path));
        let Some(values) = values.collect::<Result<Option<Vec<_>>, _>>()? else {
            continue;
        };
        query
            .open(ElementType::EmbeddedDocument, path.as_bytes())
            .array("$in", values, |array, index, value| {
                array.append(value.kind, index.as_bytes(), value.value);
            })
            .close();
    }
    Ok(query.finish())
}

/// Whether the document lies where the statement's query looks for it, as far as the query names the shard key.
fn is_at_named_place(statement: Statement<'_>, document: &DocumentAsRead) -> Result<bool, Malformed> {
    let Some(route) = &document.document_keys.owner.route else {
        return Ok(true);
    };
    for value in Doc::new(route.as_bytes())?.elements() {
        let value = value?;
        let path = std::str::from_utf8(value.name).unwrap_or_default();
        let named = named(statement, path)?;
        if named.is_some_and(|named| identity(&named) != identity(&value)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The changes of the statements of `plans`, up to the first one that must run alone.
fn changes(
    protected: &Protected,
    plans: &[StatementPlan<'_>],
    documents: Vec<DocumentAsRead>,
) -> Result<Vec<(DocumentAsRead, Change)>, Malformed> {
    let mut changes = Vec::with_capacity(documents.len());
    let mut changed_before: HashSet<ConstrainedKey> = HashSet::new();
    for (plan, seen) in plans.iter().zip(documents) {
        let Some(change) = change(protected, plan, &seen)? else {
            break;
        };
        if change.new.iter().any(|key| changed_before.contains(key)) {
            break;
        }
        changed_before.extend(change.new.iter().chain(&change.old).cloned());
        changes.push((seen, change));
    }
    Ok(changes)
}

fn change(protected: &Protected, plan: &StatementPlan<'_>, seen: &DocumentAsRead) -> Result<Option<Change>, Malformed> {
    let Way::InPlace(key_update) = &plan.way else {
        return Ok(None);
    };
    // The read may not show all of its fields.
    if seen.document_keys.unindexable.is_some() {
        return Ok(None);
    }
    let key_update: &KeyUpdate<'_> = key_update;
    Ok(match change_of(plan.statement, protected, key_update, seen)? {
        PlannedChange::Sendable(change) => Some(change),
        PlannedChange::Refused | PlannedChange::Unindexable(_) | PlannedChange::TooLarge => None,
    })
}
