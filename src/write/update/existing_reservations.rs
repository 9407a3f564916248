//! Reads the existing reservations of some keys, and whether their owners hold them, as a client's transaction sees it.
//!
//! Only the transaction itself sees its own earlier writes, and its first duplicate ends it. So Keyward reads the reservations
//! before it reserves keys in a client's transaction. A transaction of Keyward's own has one statement only, and needn't read
//! them.

use std::collections::BTreeMap;

use bson::{RawDocument, RawDocumentBuf, cstr, spec::ElementType};

use super::document_keys;
use crate::catalog::Protected;
use crate::claims::ConstrainedKey;
use crate::command::statement::Selection;
use crate::constraint::Key;
use crate::proxy_collection::{Owner, find_reservations, owner_in};
use crate::raw::{Doc, Element, Malformed};
use crate::server::cursor;
use crate::upstream::Connection;
use crate::write::txn::{Failure, Transaction};

/// The most keys in one read: one reply can hold their reservations.
const KEYS_AT_ONCE: usize = 1_000;

/// A reservation.
#[derive(Debug, Clone)]
pub struct ExistingReservation {
    /// Its owner's `_id`, as the document `{_id}`.
    pub owner: Vec<u8>,
    /// The document with that `_id` that holds the key, if there is one.
    pub holder: Option<Owner>,
}

/// The existing reservations of `keys`.
pub async fn existing_reservations(
    protected: &Protected,
    keys: &[&ConstrainedKey],
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<BTreeMap<ConstrainedKey, ExistingReservation>, Failure> {
    let mut all = BTreeMap::new();
    for constraint in 0..protected.constraints.len() {
        let keys: Vec<&Key> = keys
            .iter()
            .filter(|key| key.constraint == constraint)
            .map(|key| &key.key)
            .collect();
        for keys in keys.chunks(KEYS_AT_ONCE) {
            read(protected, constraint, keys, &mut all, transaction, upstream).await?;
        }
    }
    if all.is_empty() {
        return Ok(all);
    }
    let owners: Vec<Vec<u8>> = all.values().map(|existing| existing.owner.clone()).collect();
    let owners: Vec<&[u8]> = owners.iter().map(Vec::as_slice).collect();
    for document in document_keys::read_these(protected, &owners, Selection::default(), transaction, upstream).await? {
        for key in &document.keys {
            if let Some(existing) = all.get_mut(key) {
                existing.holder = Some(document.owner.clone());
            }
        }
    }
    Ok(all)
}

async fn read(
    protected: &Protected,
    constraint: usize,
    keys: &[&Key],
    all: &mut BTreeMap<ConstrainedKey, ExistingReservation>,
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<(), Failure> {
    let proxy = &protected.constraints[constraint].constraint;
    let collection = proxy.proxy_collection();
    let mut command = find_reservations(&collection.collection, keys.iter().copied(), &[]);
    command
        .open(ElementType::EmbeddedDocument, b"projection")
        .int32("owner", 1)
        .close();
    cursor::in_one_batch(&mut command, KEYS_AT_ONCE);
    let reply = transaction.run(upstream, &collection.database, command, None).await?;
    for reservation in cursor::batch(Doc::new(&reply)?)? {
        let id = reservation.nested("_id")?.unwrap_or(Doc::empty());
        let id = RawDocument::from_bytes(id.bytes()).map_err(|_| Malformed::Unterminated)?;
        // A reservation in a form that no version of Keyward writes matters only to a write that meets it.
        let Ok(key) = Key::from_reservation_id(proxy, id) else {
            continue;
        };
        let mut owner = RawDocumentBuf::new();
        if let Some(stored) = reservation.get("owner")?.and_then(Element::to_raw_bson) {
            owner.append(cstr!("_id"), owner_in(stored.as_raw_bson_ref()));
        }
        let existing = ExistingReservation {
            owner: owner.into_bytes(),
            holder: None,
        };
        all.insert(ConstrainedKey { constraint, key }, existing);
    }
    Ok(())
}
