//! Carries out an `insert` inside a client's transaction: writes the reservations before the documents, so that commit or abort
//! carries both.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::TURN;
use crate::catalog::Protected;
use crate::claims::{ConstrainedKey, keys_of_new, owner_of, unregistered_token, with_id};
use crate::command::running::append_fields;
use crate::constraint::KeyError;
use crate::raw::{Doc, Malformed};
use crate::reply::{WriteError, WriteRefusal, WriteReply};
use crate::reservation::Token;
use crate::server::reply::has_write_errors;
use crate::wire::OutSequence;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::reserve::ReserveOutcome;
use crate::write::txn::{Failure, Transaction};
use crate::write::update::document_keys::DocumentKeys;
use crate::write::update::existing_reservations::{ExistingReservation, existing_reservations};
use crate::write::update::reservation_conflict::resolve;
use crate::write::update::reservation_diff::ReservationDiff;
use crate::write::update::result::ReservationConflict;

/// The most bytes of keys that the documents of one command may have: twice as many as one document may.
const KEY_BYTES_MAX: usize = 512 << 20;

/// Carries out the insert; returns the reply's body. A transaction's batch stops at its first error, whether ordered or
/// unordered.
pub async fn insert_in_clients_transaction(
    mut op: WriteOp<'_>,
    mut transaction: Transaction,
) -> Result<Vec<u8>, ForwardError> {
    match run(&mut op, &mut transaction).await {
        Ok(reply) => Ok(reply),
        Err(failure) => {
            let refused = failure.into_reply()?;
            // The refused command may have left the transaction open, with a part of the insert. If the server refused a read
            // or the first command that reserves, Keyward doesn't abort. That command may at most have left a reservation
            // without a document, which does no harm. The transaction then stays as the server left it, as without Keyward.
            if transaction.has_written() || refused.is_transient() {
                transaction.abort(op.upstream).await?;
            }
            Ok(refused.body)
        }
    }
}

async fn run(op: &mut WriteOp<'_>, transaction: &mut Transaction) -> Result<Vec<u8>, Failure> {
    let protected = op.protected;
    if let Some(refused) = op.create_for_transaction().await? {
        return Ok(refused.body);
    }
    let token = unregistered_token();
    let Some((documents, new_documents)) = documents_with_keys(op, token).await? else {
        let refusal = WriteRefusal::TooManyKeys {
            namespace: protected.namespace.clone(),
            bytes_max: KEY_BYTES_MAX,
        };
        // As a server does after any error.
        transaction.abort(op.upstream).await?;
        return Ok(refusal.body(&protected.times()));
    };
    let keys: Vec<&ConstrainedKey> = new_documents.iter().flat_map(|new| &new.keys).collect();
    let existing_reservations = existing_reservations(protected, &keys, transaction, op.upstream).await?;
    let refused = first_refused(&new_documents, &existing_reservations);
    let accepted = refused.as_ref().map_or(new_documents.len(), |(position, _)| *position);
    let conflict = match &refused {
        Some((_, InsertObstacle::ReservationConflict(conflict))) => Some(conflict.clone()),
        _ => {
            // No two of these documents hold one key, and each can be indexed.
            let diff = ReservationDiff::between(&[], &new_documents[..accepted]).unwrap_or_default();
            diff.run((protected, &[]), token, transaction, op.upstream).await?
        }
    };
    if let Some(conflict) = conflict {
        transaction.abort(op.upstream).await?;
        let holds = |new: &DocumentKeys| new.owner == conflict.owner;
        let position = new_documents.iter().position(holds).unwrap_or(accepted);
        return Ok(match resolve(op, &conflict).await {
            ReserveOutcome::Duplicate(_) => failed(protected, position, duplicate(protected, &conflict.key).await)?,
            _ => WriteRefusal::Conflict.body(&protected.times()),
        });
    }
    // Keyward sends the refused document, too: without Keyward, the server's own reasons to refuse it come first.
    let sent = documents
        .iter()
        .take(accepted + 1)
        .map(|document| &**document)
        .collect();
    let reply = insert(op, sent, transaction).await?;
    let Some((position, reason)) = refused else {
        return Ok(reply);
    };
    if has_write_errors(Doc::new(&reply)?)? {
        return Ok(reply);
    }
    transaction.abort(op.upstream).await?;
    let error = match &reason {
        InsertObstacle::Unindexable(error) => WriteError::unindexable(error),
        InsertObstacle::Duplicate(key) | InsertObstacle::ReservationConflict(ReservationConflict { key, .. }) => {
            duplicate(protected, key).await
        }
    };
    Ok(failed(protected, position, error)?)
}

/// The documents of the command, each with an `_id`, and their keys. `None` if these are too large.
async fn documents_with_keys<'a>(
    op: &WriteOp<'a>,
    token: Token,
) -> Result<Option<(Vec<Cow<'a, [u8]>>, Vec<DocumentKeys>)>, Malformed> {
    let documents = &op.command.documents;
    let (mut with_ids, mut keys) = (Vec::with_capacity(documents.len()), Vec::with_capacity(documents.len()));
    let (mut key_bytes, mut turn) = (0, Instant::now());
    for document in documents {
        if turn.elapsed() > TURN {
            tokio::task::yield_now().await;
            turn = Instant::now();
        }
        let document = with_id(document.bytes(), token)?;
        let new = new_document(op.protected, Doc::new(&document)?)?;
        key_bytes += new.key_bytes();
        if key_bytes > KEY_BYTES_MAX {
            return Ok(None);
        }
        keys.push(new);
        with_ids.push(document);
    }
    Ok(Some((with_ids, keys)))
}

/// The keys of a document that is yet to be inserted.
fn new_document(protected: &Protected, document: Doc<'_>) -> Result<DocumentKeys, Malformed> {
    let (keys, unindexable) = match keys_of_new(protected, document) {
        Ok(keys) => (keys, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    Ok(DocumentKeys {
        id: Vec::new(),
        owner: owner_of(protected, document)?,
        keys,
        unindexable,
    })
}

/// Why the server can't insert a document.
enum InsertObstacle {
    Unindexable(KeyError),
    Duplicate(ConstrainedKey),
    /// A reservation is in the way, and the transaction sees no document that holds the key.
    ReservationConflict(ReservationConflict),
}

/// The first document that can't be inserted, and the reason.
fn first_refused(
    new_documents: &[DocumentKeys],
    existing_reservations: &BTreeMap<ConstrainedKey, ExistingReservation>,
) -> Option<(usize, InsertObstacle)> {
    let mut taken = BTreeSet::new();
    for (position, new) in new_documents.iter().enumerate() {
        if let Some(error) = &new.unindexable {
            return Some((position, InsertObstacle::Unindexable(error.clone())));
        }
        for key in &new.keys {
            let reason = match existing_reservations.get(key) {
                Some(existing) if existing.holder.is_none() => {
                    InsertObstacle::ReservationConflict(ReservationConflict {
                        key: key.clone(),
                        owner: new.owner.clone(),
                    })
                }
                None if taken.insert(key) => continue,
                _ => InsertObstacle::Duplicate(key.clone()),
            };
            return Some((position, reason));
        }
    }
    None
}

async fn insert(
    op: &mut WriteOp<'_>,
    documents: Vec<&[u8]>,
    transaction: &mut Transaction,
) -> Result<Vec<u8>, Failure> {
    let mut body = op.command.insert_body()?;
    append_fields(&mut body, op.command.body, &["maxTimeMS"])?;
    let sequence = OutSequence::of("documents", documents);
    transaction
        .run(op.upstream, &op.protected.namespace.database, body, Some(sequence))
        .await
}

async fn duplicate(protected: &Protected, key: &ConstrainedKey) -> WriteError {
    WriteError::duplicate(&protected.refuse(key).await)
}

/// The reply of a batch that was undone at `position`. As without Keyward, the documents before it are counted.
fn failed(protected: &Protected, position: usize, error: WriteError) -> Result<Vec<u8>, Malformed> {
    let mut reply = WriteReply::default();
    reply.count(position);
    reply.error(position, error);
    reply.advance(protected.times());
    reply.body()
}
