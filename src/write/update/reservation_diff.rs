//! Computes and runs the changes of reservations that a statement causes, in the statement's own transaction.
//!
//! Keyward releases the keys that documents lost, and reserves the new ones. A key that moves from one document to another
//! changes its owner. Commit and abort then carry documents and reservations alike. Keyward reserves keys in one order, so that
//! two transactions don't deadlock. If a key is already reserved, the transaction ends with [`ReservationConflict`].

use std::collections::{BTreeMap, HashSet};

use bson::spec::ElementType;
use bson::{RawArrayBuf, rawdoc};

use super::document_keys::DocumentKeys;
use super::existing_reservations::existing_reservations;
use super::old_reservations::read_or_warn;
use super::result::{ReservationConflict, StatementResult};
use crate::catalog::Protected;
use crate::claims::ConstrainedKey;
use crate::constraint::Key;
use crate::proxy_collection::{Fitting, Owner, ProxyCollection, Refused, key_filter, stored_owner};
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::Token;
use crate::server::code::DUPLICATE_KEY;
use crate::server::reply::{StatementError, documents_affected, write_errors};
use crate::upstream::Connection;
use crate::wire::OutSequence;
use crate::write::txn::{ErrorReply, Failure, Transaction};

/// The most that goes into one command: well below the server's limit.
const COMMAND_MAX: Fitting = Fitting {
    items: 10_000,
    bytes: 8 << 20,
};

/// The reservations to delete and to insert.
#[derive(Debug, Default)]
pub struct ReservationDiff {
    released: BTreeMap<ConstrainedKey, Owner>,
    reserved: BTreeMap<ConstrainedKey, Owner>,
}

impl ReservationDiff {
    /// The difference between the keys that documents held `before` and hold `after`.
    ///
    /// # Errors
    /// The statement's result if a native index would refuse the documents `after`.
    pub fn between(before: &[DocumentKeys], after: &[DocumentKeys]) -> Result<ReservationDiff, StatementResult> {
        let mut diff = ReservationDiff::default();
        for document in before {
            for key in &document.keys {
                diff.released.insert(key.clone(), document.owner.clone());
            }
        }
        let mut kept = HashSet::new();
        for document in after {
            if let Some(error) = &document.unindexable {
                return Err(StatementResult::Unindexable(error.clone()));
            }
            for key in &document.keys {
                // Several documents are one owner if Keyward knows an old shard key.
                if kept.contains(key) {
                    return Err(StatementResult::Duplicate(key.clone()));
                }
                if diff.released.get(key) == Some(&document.owner) {
                    diff.released.remove(key);
                    kept.insert(key.clone());
                } else if diff.reserved.insert(key.clone(), document.owner.clone()).is_some() {
                    return Err(StatementResult::Duplicate(key.clone()));
                }
            }
        }
        Ok(diff)
    }

    /// The first of the keys to reserve that a document already holds, as the client's `transaction` sees it.
    pub async fn duplicate(
        &self,
        protected: &Protected,
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<Option<ConstrainedKey>, Failure> {
        let keys: Vec<&ConstrainedKey> = self.reserved.keys().collect();
        for (key, existing) in existing_reservations(protected, &keys, transaction, upstream).await? {
            let is_released = match self.released.get(&key) {
                Some(owner) => is_id(&existing.owner, owner)?,
                None => false,
            };
            let Some((key, owner)) = self.reserved.get_key_value(&key) else {
                continue;
            };
            // If another try left a reservation for this same existing document, it is stale, and not a duplicate.
            let is_held = existing.holder.is_some_and(|holder| holder != *owner);
            if is_held && !is_released {
                // The key in the form of the new document, which gets the error.
                return Ok(Some(key.clone()));
            }
        }
        Ok(None)
    }

    /// Writes the changes in `transaction`; `Some` if a key is already reserved, which ends the transaction. The constraints at the positions
    /// `not_enforced` may lack reservations.
    pub async fn run(
        self,
        (protected, not_enforced): (&Protected, &[usize]),
        token: Token,
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<Option<ReservationConflict>, Failure> {
        for (constraint, proxy) in protected.constraints.iter().enumerate() {
            let released = of_constraint(&self.released, constraint);
            let shard_key = not_enforced.contains(&constraint).then_some(&protected.shard_key[..]);
            let count = release((proxy, shard_key), &released, transaction, upstream).await?;
            if count < released.len() && count < count_decided((proxy, shard_key), &released).await {
                transaction.abort(upstream).await?;
                return Err(Failure::ErrorReply(ErrorReply::transient()));
            }
            let reserved = of_constraint(&self.reserved, constraint);
            let reservations: Vec<Vec<u8>> = reserved
                .iter()
                .map(|(key, owner)| proxy.reservation(&key.key, owner, token).into_bytes())
                .collect();
            let mut first = 0;
            for reservations in COMMAND_MAX.parts(&reservations, Vec::len) {
                let reply = run_part(proxy, ("insert", "documents"), reservations, transaction, upstream).await?;
                let errors = write_errors(Doc::new(&reply)?)?;
                let refused = proxy.note_refused(&errors);
                if refused != Refused::No {
                    transaction.abort(upstream).await?;
                    return Err(Failure::ErrorReply(
                        match refused == Refused::Gone && !transaction.is_clients() {
                            // Not tried again here: the reservations are made anew only once this statement has ended.
                            true => ErrorReply {
                                body: protected.unsure(constraint, false).body(&protected.times()),
                            },
                            false => ErrorReply::transient(),
                        },
                    ));
                }
                if let Some(index) = duplicate_index(&errors) {
                    let (key, owner) = reserved.get(first + index).ok_or(Malformed::Unterminated)?;
                    return Ok(Some(ReservationConflict {
                        key: (*key).clone(),
                        owner: (*owner).clone(),
                    }));
                }
                if let Some(error) = errors.first() {
                    transaction.abort(upstream).await?;
                    return Err(Failure::ErrorReply(ErrorReply::of_part(error.body)?));
                }
                first += reservations.len();
            }
        }
        transaction.note_all_reservations();
        Ok(None)
    }
}

/// Deletes the reservations that belong to these owners; returns how many there were.
async fn release(
    (proxy, shard_key): (&ProxyCollection, Option<&[String]>),
    released: &[(&ConstrainedKey, &Owner)],
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<usize, Failure> {
    let deletes = released.iter().map(|(key, owner)| delete(key, owner, shard_key));
    let deletes: Vec<Vec<u8>> = deletes.collect();
    let mut count = 0;
    for deletes in COMMAND_MAX.parts(&deletes, Vec::len) {
        let reply = run_part(proxy, ("delete", "deletes"), deletes, transaction, upstream).await?;
        count += usize::try_from(documents_affected(Doc::new(&reply)?)?).unwrap_or(0);
    }
    Ok(count)
}

/// Runs one command on the proxy collection in the transaction, with these documents as its list; returns the reply's body.
async fn run_part(
    proxy: &ProxyCollection,
    (command, list): (&str, &str),
    documents: &[Vec<u8>],
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<Vec<u8>, Failure> {
    let collection = proxy.constraint.proxy_collection();
    let mut body = Builder::new();
    body.string(command, collection.collection.as_bytes());
    if command == "insert" && !transaction.is_api_strict()? {
        proxy.append_uuid(&mut body);
    }
    let sequence = OutSequence::of(list, documents.iter().map(Vec::as_slice));
    transaction
        .run(upstream, &collection.database, body, Some(sequence))
        .await
}

/// How many of these reservations there are, whatever the transaction sees. Each shard has a snapshot of its own. The transaction that
/// gave a document its key may be committed on the document's shard and still be prepared on the key's shard.
async fn count_decided(
    (proxy, shard_key): (&ProxyCollection, Option<&[String]>),
    released: &[(&ConstrainedKey, &Owner)],
) -> usize {
    let keys: Vec<_> = released.iter().map(|(key, _)| &key.key).collect();
    let decided = read_or_warn(proxy, proxy.read_decided(&keys).await);
    let owners: BTreeMap<&Key, &Owner> = decided.iter().map(|(key, read)| (key, &read.owner)).collect();
    let is_there = |(key, owner): &&(&ConstrainedKey, &Owner)| {
        let read = owners.get(&key.key);
        read.is_some_and(|read| read.may_be(owner, shard_key))
    };
    released.iter().filter(is_there).count()
}

fn of_constraint(keys: &BTreeMap<ConstrainedKey, Owner>, constraint: usize) -> Vec<(&ConstrainedKey, &Owner)> {
    keys.iter().filter(|(key, _)| key.constraint == constraint).collect()
}

/// Whether `id`, a document `{_id}`, is the owner's `_id`.
fn is_id(id: &[u8], owner: &Owner) -> Result<bool, Malformed> {
    let mut own = bson::RawDocumentBuf::new();
    own.append(bson::cstr!("_id"), owner.id.clone());
    Ok(id == own.as_bytes())
}

/// Deletes the key's reservation if it belongs to the owner, as [`Owner::may_be`] has it. The `shard_key` counts while the constraint isn't
/// enforced: another document with the same `_id` may have reserved the key, of which this one has no reservation yet.
fn delete(key: &ConstrainedKey, owner: &Owner, shard_key: Option<&[String]>) -> Vec<u8> {
    let mut query = key_filter(&key.key);
    let mut eq = bson::RawDocumentBuf::new();
    eq.append(bson::cstr!("$eq"), stored_owner(&owner.id));
    query.append(bson::cstr!("owner"), eq);
    if let (Some(route), Some(shard_key)) = (&owner.route, shard_key)
        && shard_key != ["_id"]
        && owner.has_route_by(shard_key)
    {
        let paths: RawArrayBuf = shard_key.iter().map(String::as_str).collect();
        let names = rawdoc! { "$map": { "input": { "$objectToArray": "$route" }, "in": "$$this.k" } };
        let is_by_former = rawdoc! { "$ne": [names, { "$literal": paths }] };
        let is_same = rawdoc! { "$eq": ["$route", { "$literal": route.clone() }] };
        query.append(bson::cstr!("$expr"), rawdoc! { "$or": [is_by_former, is_same] });
    }
    let mut delete = Builder::new();
    delete
        .append(ElementType::EmbeddedDocument, b"q", query.as_bytes())
        .int32("limit", 1);
    delete.finish()
}

/// The position of a batch's duplicate, if there is one.
fn duplicate_index(errors: &[StatementError<'_>]) -> Option<usize> {
    let duplicate = errors.iter().find(|error| error.code == DUPLICATE_KEY);
    duplicate.and_then(|error| error.index)
}
