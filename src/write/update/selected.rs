//! Reads the documents that a statement selects, and pins the statement to them.
//!
//! Keyward pins a statement about one document to the document that it read, which the server picks or could have picked as well. If a
//! query may select other documents the next time, Keyward pins a statement about many documents to all of them.

use std::collections::VecDeque;
use std::slice;

use bson::spec::ElementType;

use super::document_keys::{self, DocumentKeys, Most, with_same_keys};
use super::placement::conditions_on_shard_key;
use super::result::Evaluation;
use super::routed::AtOwner;
use crate::catalog::Protected;
use crate::command::affected_keys::names_matched_position_in;
use crate::command::filter_rewriting::{both, is_fickle, nothing, pin};
use crate::command::key_update::names_a_position;
use crate::command::statement::{Selection, Statement, StatementKind};
use crate::constraint::id_identity;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::route::{AskedFor, nowhere};
use crate::write::operation::WriteOp;
use crate::write::txn::{Failure, Transaction};

/// Keyward doesn't compare more of a document than this when it deletes the document: the command has a limit.
const COMPARED_BYTES_MAX: usize = 1 << 20;
/// The most `_id`s of an upsert that Keyward looks for. Documents inside its new document may have others.
const NAMED_IDS_MAX: usize = 16;
/// The longest of these `_id`s, in bytes: all of them fit into one query.
const ID_BYTES_MAX: usize = 1 << 19;

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
pub struct Selected {
    /// The documents before the statement. If the statement may move them, all others with their `_id`s are included.
    pub before: Vec<DocumentKeys>,
    /// The documents that an upsert may get the `_id` of, if it is read again by that alone.
    pub beside: Vec<DocumentKeys>,
    /// Whether the statement moves none of them to another shard.
    pub stay_on_shard: bool,
    /// The query that names these documents; none if the client's own query is sent.
    pub query: Option<Vec<u8>>,
    /// Whether the statement selects more documents, so that Keyward must run it again for them.
    pub is_part: bool,
    /// Whether the client's query may select other documents the next time.
    pub is_fickle: bool,
    /// Whether the statement can change only the one document of `before`, in its place, whatever the shard key is.
    pub is_alone: bool,
}

impl Selected {
    /// Whether the statement can change only one document, and `after` is it, at its place.
    pub fn is_alone_with(&self, after: &DocumentKeys) -> bool {
        self.is_alone && are_places_equal(&self.before, slice::from_ref(after))
    }
}

impl Statement<'_> {
    /// Reads the documents that the statement selects, and pins the statement to them. The inner error is the result of a
    /// statement that can't be evaluated.
    pub async fn select(
        self,
        op: &mut WriteOp<'_>,
        transaction: &mut Transaction,
        places: Places,
    ) -> Result<Result<Selected, Evaluation>, Failure> {
        let (protected, documents_max) = (op.protected, op.context.documents_max());
        let selection = self.selection_with_others(self.is_collated(protected)?)?;
        let mut documents = Vec::new();
        let keep = self.compares_document()?.then_some(&mut documents);
        let most = Most {
            documents: documents_max + 1,
            are_keys_limited: self.limits_keys()?,
        };
        let selected = self
            .read_selected(op, &selection, (most, places), keep, transaction)
            .await;
        let mut selected = match selected {
            Err(Failure::ErrorReply(refused)) if !refused.may_run_again() => {
                return Ok(Err(Evaluation::ReadRefused(refused)));
            }
            selected => selected?,
        };
        let is_alone = self.drop_others(&mut selected) && !selection.is_single;
        let Some(is_part) = self.drop_too_many(&mut selected, documents_max)? else {
            return Ok(Err(Evaluation::too_many(protected, documents_max)));
        };
        let query = self.query()?.unwrap_or(Doc::empty());
        let is_fickle = is_fickle(query)?;
        let selected_count = selected.len();
        let names_ids = is_part || is_fickle && !selected.is_empty();
        let these = document_keys::by_ids(ids_of(&selected).filter(|_| names_ids))?;
        // A query that names documents only by `_id` may also select others with the same `_id`.
        let stay_on_shard = places == Places::Believed
            && (self.is_single || !names_ids)
            && self.stay_on_shard(protected, &selected, &documents)?;
        let before = match stay_on_shard {
            true => selected,
            false => self.all_with_these_ids(op, selected, places, transaction).await?,
        };
        let beside = self.beside_inserted(op, &before, transaction).await?;
        // The documents are as they were read, so the query needn't choose among them again: by chance it would drop some.
        let are_chosen = is_fickle && before.len() == selected_count && self.needs_only_ids(protected, &before)?;
        let on_shard_key = conditions_on_shard_key(query, &protected.shard_key)?.finish();
        let choosing = match are_chosen {
            true => Doc::new(&on_shard_key)?,
            false => query,
        };
        let query = match before.first().filter(|_| self.is_single) {
            Some(first) => {
                let document = documents.first().filter(|_| stay_on_shard);
                Some(pinned(protected, choosing, first, document.map(Vec::as_slice))?)
            }
            None if names_ids => Some(both(Doc::new(&these)?, choosing)),
            None => self.without_documents(protected, transaction)?,
        };
        Ok(Ok(Selected {
            before,
            beside,
            stay_on_shard,
            query,
            is_part,
            is_fickle,
            is_alone: is_alone && stay_on_shard,
        }))
    }

    /// Drops the documents of a delete of many that don't fit into one evaluation, and returns whether there were any. `None` if
    /// another statement selects more.
    fn drop_too_many(self, selected: &mut Vec<DocumentKeys>, documents_max: usize) -> Result<Option<bool>, Malformed> {
        let can_be_named = document_keys::in_one_query(ids_of(selected));
        let documents_max = match self.limits_keys()? {
            true => documents_max.min(document_keys::with_few_keys(selected)),
            false => documents_max,
        };
        let is_named = selected.len() > documents_max || is_fickle(self.query()?.unwrap_or(Doc::empty()))?;
        let most = match is_named {
            true => documents_max.min(can_be_named),
            false => documents_max,
        };
        let is_part = selected.len() > most;
        selected.truncate(most);
        // On a server, too, a delete of many documents isn't atomic.
        Ok((!is_part || self.kind == StatementKind::Delete).then_some(is_part))
    }

    /// Whether it is done in parts if its documents have many keys. A query that chooses by chance would choose once more for each part.
    fn limits_keys(self) -> Result<bool, Malformed> {
        let deletes_many = self.kind == StatementKind::Delete && !self.is_single;
        let by_chance: [&[u8]; 4] = [b"$sampleRate", b"$rand", b"$where", b"$function"];
        Ok(deletes_many && !self.query()?.unwrap_or(Doc::empty()).mentions(&by_chance)?)
    }

    /// Whether the statement moves none of the `selected` documents to another shard. The `documents` are those that it is compared with.
    fn stay_on_shard(
        self,
        protected: &Protected,
        selected: &[DocumentKeys],
        documents: &[Vec<u8>],
    ) -> Result<bool, Malformed> {
        Ok(!self.is_collated(protected)?
            && self.leaves_on_shard(protected, selected)?
            && self.compares_document()? == self.deletes_one()?
            && documents.iter().all(|document| document.len() <= COMPARED_BYTES_MAX))
    }

    /// The documents with an `_id` that an upsert may give a new document, on all shards. Only for an upsert that selects none, and whose query
    /// doesn't determine the shard of a new one: the read of the new document then finds these, too.
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
        let ids = named_ids(self)?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<&[u8]> = ids.iter().map(Vec::as_slice).collect();
        document_keys::read_these(protected, &ids, self.under(None)?, transaction, op.upstream).await
    }

    /// Whether the `_id`s of the selected documents can stand for the query.
    ///
    /// The server takes more from the query if the statement names the array element that it matched, or has a hint. Under
    /// a collation, other `_id`s equal these. And nothing else tells a deleted document without keys from another one at its place.
    fn needs_only_ids(self, protected: &Protected, before: &[DocumentKeys]) -> Result<bool, Malformed> {
        let names_position = match self.update()? {
            Some(update) => names_matched_position_in(&update)?,
            None => false,
        };
        let has_hint = self.raw.get("hint")?.is_some_and(|hint| !hint.is_nothing());
        // The server refuses an expression in an upsert's query.
        let is_refused = self.is_upsert && self.query()?.unwrap_or(Doc::empty()).mentions(&[b"$expr"])?;
        let takes_more = names_position || names_a_position(self.raw)? || has_hint || is_refused;
        let is_vague = self.deletes_one()? && before.iter().any(|document| document.keys.is_empty());
        Ok(!takes_more && !is_vague && !self.is_collated(protected)?)
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
        (most, places): (Most, Places),
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

/// The `_id`s that a statement names anywhere, each as a document `{_id}`; those at its top come first. Unless the server computes the `_id` of a
/// new document, it is among these.
fn named_ids(statement: Statement<'_>) -> Result<Vec<Vec<u8>>, Malformed> {
    let update = statement.update()?.map(|update| update.as_document_or_array());
    let mut left: VecDeque<Doc<'_>> = [statement.query()?, update.transpose()?.flatten()]
        .into_iter()
        .flatten()
        .collect();
    let mut ids = Vec::new();
    while let Some(document) = left.pop_front().filter(|_| ids.len() < NAMED_IDS_MAX) {
        for element in document.elements() {
            let element = element?;
            let nested = element.as_document_or_array()?;
            left.extend(nested);
            if element.name != b"_id" || ids.len() >= NAMED_IDS_MAX {
                continue;
            }
            ids.push(element);
            for operator in nested.into_iter().flat_map(Doc::elements).take(NAMED_IDS_MAX) {
                let operator = operator?;
                match (operator.name, operator.as_document_or_array()?) {
                    (b"$eq" | b"$literal", _) => ids.push(operator),
                    (b"$in" | b"$all", Some(values)) => {
                        for value in values.elements().take(NAMED_IDS_MAX) {
                            ids.push(value?);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    let mut named = Vec::new();
    for id in ids {
        let first = id.as_document_or_array()?.and_then(|nested| nested.elements().next());
        let is_expression = first.transpose()?.is_some_and(|first| first.name.starts_with(b"$"));
        if can_be_id(&id) && !is_expression && named.len() < NAMED_IDS_MAX {
            named.push(id_document(Element { name: b"_id", ..id }));
        }
    }
    Ok(named)
}

/// Whether the server accepts this `_id`, and a query of Keyward's has room for it.
fn can_be_id(id: &Element<'_>) -> bool {
    let is_refused = matches!(
        id.kind,
        ElementType::Array | ElementType::RegularExpression | ElementType::Undefined
    );
    !is_refused && id.value.len() <= ID_BYTES_MAX
}

/// A query, pinned to the document of `target`. If `document` is given, also to the values that its keys are made of. With the
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

/// The documents' `{_id}`s.
pub fn ids_of(documents: &[DocumentKeys]) -> impl Iterator<Item = &[u8]> {
    documents.iter().map(|document| document.id.as_slice())
}

/// Whether the documents `after` are exactly those `before`, at the same places.
pub fn are_places_equal(before: &[DocumentKeys], after: &[DocumentKeys]) -> bool {
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

/// An upserted `_id` as a document `{_id}`.
pub fn id_document(id: Element<'_>) -> Vec<u8> {
    let mut document = Builder::new();
    document.append(id.kind, b"_id", id.value);
    document.finish()
}
