//! Makes the server evaluate a statement inside a transaction, and reads its documents before and after.
//!
//! The server evaluates the statement, so that Keyward reimplements no operator. Keyward pins a statement about one document to
//! the document that it read, which the server picks or could have picked as well. If a query may select other documents the
//! next time, Keyward pins a statement about many documents to all of them.

use std::collections::HashSet;
use std::slice;

use bson::spec::ElementType;

use super::document_keys::{self, DocumentKeys, with_same_keys};
use super::placement::conditions_on_shard_key;
use super::reservation_diff::ReservationDiff;
use super::result::{Evaluation, StatementResult};
use super::routed::AtOwner;
use crate::catalog::Protected;
use crate::claims::unregistered_token;
use crate::command::filter_rewriting::{both, equality, is_fickle, nothing, pin};
use crate::command::key_update::names_a_position;
use crate::command::statement::{Selection, Statement, StatementKind};
use crate::constraint::id_identity;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::route::{AskedFor, nowhere};
use crate::server::reply::{documents_affected, has_write_errors, is_count, upserted_id};
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::txn::{ErrorReply, Failure, Transaction};

/// Keyward doesn't compare more of a document than this when it deletes the document: the command has a limit.
const COMPARED_BYTES_MAX: usize = 1 << 20;

/// Whether documents are where Keyward expects them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// By the shard key that Keyward knows, `_id` and shard key name one document.
    Believed,
    /// A statement showed that this isn't so: another client has changed the shard key. Keyward reads all documents with the
    /// `_id`s, on all shards.
    Doubted,
}

/// The documents that a statement selects, and the query that selects them on the server.
struct Selected {
    /// The documents before the statement. If the statement may move them, all others with their `_id`s are included.
    before: Vec<DocumentKeys>,
    /// The documents that an upsert may get the `_id` of, if it is read again by that alone.
    beside: Vec<DocumentKeys>,
    /// Whether the statement moves none of them to another shard.
    stay_in_place: bool,
    /// The query that names these documents; none if the client's own query is sent.
    query: Option<Vec<u8>>,
    /// Whether the statement selects more documents, so that Keyward must run it again for them.
    is_part: bool,
    /// Whether the client's query may select other documents the next time.
    is_fickle: bool,
    /// Whether the statement can change only the one document of `before`, in its place, whatever the shard key is.
    is_alone: bool,
}

impl Selected {
    /// Whether the statement can change only one document, and `after` is it, at its place.
    fn is_alone_with(&self, after: &DocumentKeys) -> bool {
        self.is_alone && are_places_equal(&self.before, slice::from_ref(after))
    }
}

impl<'a> Statement<'a> {
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
            return Ok(Evaluation::Abandoned(StatementResult::Reply(undone(outcome)?)));
        }
        let affected = usize::try_from(documents_affected(outcome)?).unwrap_or(0);
        let inserted = upserted_id(outcome)?.map(id_document);
        let has_read_nothing = selected.before.is_empty() && inserted.is_none();
        if has_read_nothing && affected > 0 {
            // The statement has changed documents that Keyward hasn't read.
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
            (None, _) if selected.stay_in_place => {
                match self.read_in_place(op, &selected, affected, transaction).await? {
                    Some(after) => after,
                    None => return Ok(Evaluation::Misplaced { affected }),
                }
            }
            (None, _) => self.read_everywhere(op, &selected.before, transaction).await?,
        };
        let ran = match selected.is_part {
            true => StatementResult::Partial(reply),
            false => StatementResult::Reply(reply),
        };
        reserve(op, transaction, &selected.before, &after, ran).await
    }

    /// Reads the documents that the statement selects, and pins the statement to them. The inner error is the result of a
    /// statement that can't be evaluated.
    async fn select(
        self,
        op: &mut WriteOp<'_>,
        transaction: &mut Transaction,
        places: Places,
    ) -> Result<Result<Selected, Evaluation>, Failure> {
        let (protected, documents_max) = (op.protected, op.context.documents_max());
        let selection = self.selection_with_others(self.is_collated(protected)?)?;
        let mut documents = Vec::new();
        let is_compared = self.compares_document()?;
        let (most, keep) = (documents_max + 1, is_compared.then_some(&mut documents));
        let selected = self
            .read_selected(op, &selection, (most, places), keep, transaction)
            .await;
        let mut selected = match selected {
            Err(Failure::ErrorReply(refused)) if !refused.is_transient() => {
                return Ok(Err(Evaluation::ReadRefused(refused)));
            }
            selected => selected?,
        };
        let is_alone = self.drop_others(&mut selected) && !selection.is_single;
        let query = self.query()?.unwrap_or(Doc::empty());
        let can_be_named = document_keys::in_one_query(ids_of(&selected));
        let is_fickle = is_fickle(query)?;
        let most = match is_fickle || selected.len() > documents_max {
            true => documents_max.min(can_be_named),
            false => documents_max,
        };
        // On a server, too, a delete of many documents isn't atomic.
        let is_part = selected.len() > most && self.kind == StatementKind::Delete;
        if is_part {
            selected.truncate(most);
        } else if selected.len() > most {
            return Ok(Err(Evaluation::too_many(protected, documents_max)));
        }
        let names_ids = is_part || is_fickle && !selected.is_empty();
        let these = document_keys::by_ids(ids_of(&selected).filter(|_| names_ids))?;
        // A query that names documents only by `_id` may also select others with the same `_id`.
        let stay_in_place = places == Places::Believed
            && !self.is_collated(protected)?
            && (self.is_single || !names_ids)
            && self.leaves_in_place(protected, &selected)?
            && is_compared == self.deletes_one()?
            && documents.iter().all(|document| document.len() <= COMPARED_BYTES_MAX);
        let before = match stay_in_place {
            true => selected,
            false => self.all_with_these_ids(op, selected, places, transaction).await?,
        };
        let beside = self.beside_inserted(op, &before, transaction).await?;
        let query = match before.first().filter(|_| self.is_single) {
            Some(first) => {
                let document = documents.first().filter(|_| stay_in_place);
                Some(pinned(protected, query, first, document.map(Vec::as_slice))?)
            }
            None if names_ids => Some(both(Doc::new(&these)?, query)),
            None => self.without_documents(protected, transaction)?,
        };
        Ok(Ok(Selected {
            before,
            beside,
            stay_in_place,
            query,
            is_part,
            is_fickle,
            is_alone: is_alone && stay_in_place,
        }))
    }

    /// The documents with the `_id` of an upsert's query, on all shards, if it selects none, and doesn't determine the shard of a new
    /// document. The read of the new document then finds these, too.
    async fn beside_inserted(
        self,
        op: &mut WriteOp<'_>,
        selected: &[DocumentKeys],
        transaction: &mut Transaction,
    ) -> Result<Vec<DocumentKeys>, Failure> {
        let protected = op.protected;
        let ids_are_unique = protected.shard_key.is_empty() || protected.shard_key == ["_id"];
        if !self.is_upsert || !selected.is_empty() || ids_are_unique {
            return Ok(Vec::new());
        }
        // Under a collation no router finds the shard, so the new document is read on all of them.
        if !protected.is_collated && self.inserts_at(protected)?.is_some() {
            return Ok(Vec::new());
        }
        let Some(id) = equality(self.query()?.unwrap_or(Doc::empty()), "_id")? else {
            return Ok(Vec::new());
        };
        let id = id_document(Element { name: b"_id", ..id });
        document_keys::read_these(protected, &[&id], self.under(None)?, transaction, op.upstream).await
    }

    /// The query of a statement that selects no document, if Keyward doesn't send the client's own.
    fn without_documents(self, protected: &Protected, transaction: &Transaction) -> Result<Option<Vec<u8>>, Malformed> {
        let query = self.query()?.unwrap_or(Doc::empty());
        Ok(match is_fickle(query)? && !self.is_upsert {
            _ if !transaction.is_clients() && AskedFor::by_statement(self, protected).is_some() => {
                Some(nowhere(query, protected)?)
            }
            true => Some(nothing(query)?),
            false => None,
        })
    }

    /// Reads the documents that the statement selects. A document by a key is read at the key's owner first.
    async fn read_selected(
        self,
        op: &mut WriteOp<'_>,
        selection: &Selection<'_>,
        (most, places): (usize, Places),
        mut kept: Option<&mut Vec<Vec<u8>>>,
        transaction: &mut Transaction,
    ) -> Result<Vec<DocumentKeys>, Failure> {
        let protected = op.protected;
        let at_owner = match transaction.is_clients() || places == Places::Doubted {
            true => None,
            false => AtOwner::of(self, op).await?,
        };
        if let Some(at_owner) = at_owner {
            let selection = Selection {
                query: Some(Doc::new(&at_owner.query)?),
                ..*selection
            };
            let kept = kept.as_deref_mut();
            let found = document_keys::read(protected, &selection, most, kept, transaction, op.upstream).await?;
            at_owner.note(!found.is_empty(), op);
            if !found.is_empty() {
                return Ok(found);
            }
        }
        document_keys::read(protected, selection, most, kept, transaction, op.upstream).await
    }

    /// Reads the documents again at their places, which the statement doesn't change. `None` if it has changed other documents
    /// than these, or some of them aren't there: then the places that Keyward believes are wrong.
    async fn read_in_place(
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
            let after = document_keys::read(protected, &selection, 2, None, transaction, op.upstream).await?;
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
            // Other documents' `_id`s may equal these under the collection's collation.
            after.retain(|document| ids.contains(&document.id.as_slice()));
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
                .filter(|refused| !refused.is_transient())
                .map(|refused| StatementResult::ErrorReply(refused.body)),
        })
    }

    /// Whether Keyward pins the statement to the values of the one document that it deletes. That takes an expression, which the
    /// server refuses beside a positional projection.
    fn compares_document(self) -> Result<bool, Malformed> {
        Ok(self.deletes_one()? && !names_a_position(self.raw)?)
    }

    fn deletes_one(self) -> Result<bool, Malformed> {
        Ok(self.is_single && self.deletes()?)
    }

    /// Whether the server may take different `_id`s for equal.
    fn is_collated(self, protected: &Protected) -> Result<bool, Malformed> {
        let collation = self.raw.get("collation")?.filter(|option| !option.is_nothing());
        Ok(protected.is_collated || collation.is_some())
    }

    /// Reads all documents that have the `_id`s of the selected ones. On shards several documents may have one `_id`, and under
    /// a collation several `_id`s are equal. So the server may pick another document than the pinned one, and the read after
    /// the statement can't tell them apart. The read before it must therefore include all of them. The selected document stays
    /// first.
    async fn all_with_these_ids(
        self,
        op: &mut WriteOp<'_>,
        selected: Vec<DocumentKeys>,
        places: Places,
        transaction: &mut Transaction,
    ) -> Result<Vec<DocumentKeys>, Failure> {
        let collation = self.raw.get("collation")?.filter(|option| !option.is_nothing());
        let protected = op.protected;
        let is_collated = self.is_collated(protected)?;
        let is_by_id = protected.shard_key.is_empty() || protected.shard_key == ["_id"];
        let ids_are_unique = is_by_id && places == Places::Believed;
        if ids_are_unique && !is_collated || selected.is_empty() {
            return Ok(selected);
        }
        let ids: Vec<&[u8]> = ids_of(&selected).collect();
        let mut all =
            document_keys::read_these(protected, &ids, self.under(collation)?, transaction, op.upstream).await?;
        if let Some(first) = all.iter().position(|document| document.owner == selected[0].owner) {
            all.swap(0, first);
        }
        Ok(all)
    }
}

/// The documents' `{_id}`s.
fn ids_of(documents: &[DocumentKeys]) -> impl Iterator<Item = &[u8]> {
    documents.iter().map(|document| document.id.as_slice())
}

/// `query`, pinned to the document of `target`. If `document` is given, also to the values that its keys are made of. With the
/// values in the query, the server can only delete the document that Keyward read. If that document has no keys, the server may
/// delete another one without keys; that changes no reservation.
fn pinned(
    protected: &Protected,
    query: Doc<'_>,
    target: &DocumentKeys,
    document: Option<&[u8]>,
) -> Result<Vec<u8>, Malformed> {
    let query = pin(query, &target.id, &target.owner)?;
    match document {
        Some(document) => with_same_keys(
            protected.constraints.iter(),
            &[],
            Doc::new(&query)?,
            Doc::new(document)?,
        ),
        None => Ok(query),
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
    let token = unregistered_token();
    Ok(match diff.run(op.protected, token, transaction, op.upstream).await? {
        Some(conflict) => Evaluation::ReservationConflict(conflict),
        None => Evaluation::Ran(ran),
    })
}

/// Whether the documents `after` are exactly those `before`, at the same places.
fn are_places_equal(before: &[DocumentKeys], after: &[DocumentKeys]) -> bool {
    let places = |documents: &[DocumentKeys]| {
        let place = |document: &DocumentKeys| {
            let (_, route) = document.place();
            // A replacement may turn the `_id` 1 into 1.0.
            (id_identity(&document.owner.id), route.map(<[u8]>::to_vec))
        };
        let mut places: Vec<_> = documents.iter().map(place).collect();
        places.sort_unstable();
        places
    };
    places(before) == places(after)
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

/// An upserted `_id` as a document `{_id}`.
fn id_document(id: Element<'_>) -> Vec<u8> {
    let mut document = Builder::new();
    document.append(id.kind, b"_id", id.value);
    document.finish()
}
