//! Makes the server evaluate a statement inside a transaction, and reads the documents after it.
//!
//! The server evaluates the statement, so that Keyward reimplements no operator.

use std::collections::HashSet;

use bson::spec::ElementType;

use super::document_keys::{self, DocumentKeys, Most};
use super::placement::conditions_on_shard_key;
use super::reservation_diff::ReservationDiff;
use super::result::{Evaluation, StatementResult};
use super::selected::{Places, Selected, are_places_equal, id_document, ids_of};
use crate::claims::unregistered_token;
use crate::command::filter_rewriting::pin;
use crate::command::statement::{Selection, Statement};
use crate::constraint::id_identity;
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::WriteRefusal;
use crate::server::code::DUPLICATE_KEY;
use crate::server::reply::{documents_affected, has_write_errors, is_count, upserted_id, write_errors};
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::txn::{ErrorReply, Failure, Transaction};

impl Statement<'_> {
    /// Makes the server evaluate the statement and updates the reservations, all in `transaction`.
    pub async fn evaluate(
        self,
        op: &mut WriteOp<'_>,
        transaction: &mut Transaction,
        places: Places,
    ) -> Result<Evaluation, Failure> {
        match self.evaluate_by(op, transaction, places).await? {
            // The statement has changed no document, so the transaction goes on.
            Evaluation::Misplaced { affected: 0 } => self.evaluate_by(op, transaction, Places::Doubted).await,
            evaluation => Ok(evaluation),
        }
    }

    async fn evaluate_by(
        self,
        op: &mut WriteOp<'_>,
        transaction: &mut Transaction,
        places: Places,
    ) -> Result<Evaluation, Failure> {
        let mut selected = match self.select(op, transaction, places).await? {
            Ok(selected) => selected,
            Err(evaluation) => return Ok(evaluation),
        };
        let database = &op.protected.namespace.database;
        let command = self.command(selected.query.as_deref())?;
        let reply = transaction.run(op.upstream, database, command, None).await?;
        let outcome = Doc::new(&reply)?;
        if has_write_errors(outcome)? {
            // By chance the query hasn't matched again, and the new document has the `_id` of one that it matched before.
            if self.is_upsert && selected.is_fickle && !selected.before.is_empty() && refuses_id(outcome)? {
                transaction.abort(op.upstream).await?;
                return Err(Failure::ErrorReply(ErrorReply::transient()));
            }
            return Ok(Evaluation::Abandoned(StatementResult::Reply(undone(outcome)?)));
        }
        let affected = usize::try_from(documents_affected(outcome)?).unwrap_or(0);
        let inserted = upserted_id(outcome)?.map(id_document);
        // The statement has changed documents that Keyward hasn't read, or has inserted one beside those that it has. By chance (`$sampleRate`) a
        // query may match documents once and not again.
        let is_unread = selected.before.is_empty() && inserted.is_none() && affected > 0;
        if is_unread || inserted.is_some() && !selected.before.is_empty() {
            transaction.abort(op.upstream).await?;
            return Err(Failure::ErrorReply(ErrorReply::transient()));
        }
        let after = match (inserted, self.shown(op.protected, outcome)?) {
            (Some(_), Some(shown)) if selected.before.is_empty() => vec![shown],
            (None, Some(shown)) if selected.is_alone_with(&shown) => vec![shown],
            (Some(id), _) => {
                selected
                    .before
                    .extend(selected.beside.extract_if(.., |beside| beside.id == id));
                self.read_inserted(op, &id, transaction).await?
            }
            (None, _) if selected.stay_on_shard => {
                match self.read_on_shard(op, &selected, affected, transaction).await? {
                    Some(after) => after,
                    None => return Ok(Evaluation::Misplaced { affected }),
                }
            }
            (None, _) => {
                let after = self.read_everywhere(op, &selected.before, transaction).await?;
                // With another form of an `_id` that the shard key hashes, the document may lie where the former one doesn't lead.
                if after.len() < selected.before.len() && !self.deletes()? {
                    let namespace = op.protected.namespace.clone();
                    let refusal = WriteRefusal::OutOfSight { namespace };
                    return Ok(Evaluation::Abandoned(StatementResult::Refused(refusal)));
                }
                after
            }
        };
        let ran = match selected.is_part {
            true => StatementResult::Partial(reply),
            false => StatementResult::Reply(reply),
        };
        reserve(op, transaction, &selected.before, &after, ran).await
    }

    /// Reads the documents again at their places, which the statement doesn't change. `None` if it has changed other documents
    /// than these, or some of them aren't there: then the places that Keyward believes are wrong.
    async fn read_on_shard(
        self,
        op: &mut WriteOp<'_>,
        selected: &Selected,
        affected: usize,
        transaction: &mut Transaction,
    ) -> Result<Option<Vec<DocumentKeys>>, Failure> {
        let (protected, before) = (op.protected, &selected.before);
        if affected == 0 && (selected.is_fickle || before.is_empty()) {
            return Ok(Some(before.clone()));
        }
        if affected != before.len() {
            return Ok(None);
        }
        if self.deletes()? {
            return Ok(Some(Vec::new()));
        }
        let under = self.under(None)?;
        if let [only] = before.as_slice() {
            let query = pin(Doc::empty(), &only.id, &only.owner)?;
            let selection = Selection {
                query: Some(Doc::new(&query)?),
                ..under
            };
            // It reads up to two documents: a second one shows that the shard key is another one.
            let after = document_keys::read(protected, &selection, Most::of(2), None, transaction, op.upstream).await?;
            return Ok(Some(after).filter(|after| are_places_equal(before, after)));
        }
        let query = self.query()?.unwrap_or(Doc::empty());
        let on_shard_key = conditions_on_shard_key(query, &protected.shard_key)?.finish();
        let selection = Selection {
            query: Some(Doc::new(&on_shard_key)?),
            ..under
        };
        let ids: Vec<&[u8]> = ids_of(before).collect();
        let mut after = document_keys::read_these(protected, &ids, selection, transaction, op.upstream).await?;
        // On other shards, other documents may have these `_id`s.
        let places: HashSet<_> = before.iter().map(DocumentKeys::place).collect();
        after.retain(|document| places.contains(&document.place()));
        Ok(Some(after).filter(|after| are_places_equal(before, after)))
    }

    /// Reads all documents again that have the `_id`s of the selected ones.
    async fn read_everywhere(
        self,
        op: &mut WriteOp<'_>,
        before: &[DocumentKeys],
        transaction: &mut Transaction,
    ) -> Result<Vec<DocumentKeys>, Failure> {
        let ids: Vec<&[u8]> = ids_of(before).collect();
        let under = self.under(None)?;
        let mut after = document_keys::read_these(op.protected, &ids, under, transaction, op.upstream).await?;
        if op.protected.is_collated {
            // Other documents' `_id`s may equal these under the collection's collation. A replacement may turn the `_id` 1 into 1.0.
            let identity = |document: &DocumentKeys| id_identity(&document.owner.id);
            let identities: HashSet<_> = before.iter().map(identity).collect();
            after.retain(|document| identities.contains(&identity(document)));
        }
        Ok(after)
    }

    /// Reads the document that the statement inserted, by the `{_id}` in the server's reply.
    async fn read_inserted(
        self,
        op: &mut WriteOp<'_>,
        id: &[u8],
        transaction: &mut Transaction,
    ) -> Result<Vec<DocumentKeys>, Failure> {
        let protected = op.protected;
        let under = self.under(None)?;
        let route = self.inserts_at(protected)?;
        if let Some(route) = route.filter(|_| !protected.is_collated) {
            let selection = Selection {
                query: Some(Doc::new(&route)?),
                ..under
            };
            let there = document_keys::read_these(protected, &[id], selection, transaction, op.upstream).await?;
            if !there.is_empty() {
                return Ok(there);
            }
        }
        let mut after = document_keys::read_these(protected, &[id], under, transaction, op.upstream).await?;
        after.retain(|document| document.id == id);
        Ok(after)
    }

    /// The server's answer to the statement itself, in a transaction that changes nothing, if the server refused to read the
    /// documents. `None` if the server refuses nothing.
    pub async fn refusal(self, op: &mut WriteOp<'_>) -> Result<Option<StatementResult>, ForwardError> {
        let mut transaction = op.own_transaction()?;
        let database = &op.protected.namespace.database;
        let reply = transaction.run(op.upstream, database, self.command(None)?, None).await;
        transaction.abort(op.upstream).await?;
        Ok(match reply {
            Ok(reply) => {
                let outcome = Doc::new(&reply)?;
                match has_write_errors(outcome)? {
                    true => Some(StatementResult::Reply(undone(outcome)?)),
                    false => None,
                }
            }
            Err(failure) => Some(failure.into_reply()?)
                .filter(|refused| !refused.may_run_again())
                .map(|refused| StatementResult::ErrorReply(refused.body)),
        })
    }
}

/// Updates the reservations from the keys `before` to those `after` the statement, whose result is `ran`.
async fn reserve(
    op: &mut WriteOp<'_>,
    transaction: &mut Transaction,
    before: &[DocumentKeys],
    after: &[DocumentKeys],
    ran: StatementResult,
) -> Result<Evaluation, Failure> {
    let diff = match ReservationDiff::between(before, after) {
        Ok(diff) => diff,
        Err(refused) => return Ok(Evaluation::Abandoned(refused)),
    };
    if transaction.is_clients()
        && let Some(key) = diff.duplicate(op.protected, transaction, op.upstream).await?
    {
        return Ok(Evaluation::Abandoned(StatementResult::Duplicate(key)));
    }
    let (token, collection) = (unregistered_token(), (op.protected, &op.not_enforced()[..]));
    Ok(match diff.run(collection, token, transaction, op.upstream).await? {
        Some(conflict) => Evaluation::ReservationConflict(conflict),
        None => Evaluation::Ran(ran),
    })
}

/// Whether the server has refused a document because another one has its `_id`.
fn refuses_id(reply: Doc<'_>) -> Result<bool, Malformed> {
    for error in write_errors(reply)? {
        let pattern = error
            .body
            .nested("keyPattern")?
            .and_then(|pattern| pattern.elements().next());
        if error.code == DUPLICATE_KEY && pattern.transpose()?.is_some_and(|first| first.name == b"_id") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The reply to a refused statement without any effect left: a router also counts the effects on the other shards.
fn undone(reply: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let mut undone = Builder::new();
    for element in reply.elements() {
        let element = element?;
        match element.name {
            name if is_count(name) => undone.append(ElementType::Int32, name, &0_i32.to_le_bytes()),
            b"recoveryToken" => continue,
            _ => undone.element(&element),
        };
    }
    Ok(undone.finish())
}
