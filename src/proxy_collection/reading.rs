//! Reads reservations, many in one `find`.

use std::collections::HashMap;
use std::sync::Arc;

use bson::spec::{BinarySubtype, ElementType};
use bson::{RawDocument, RawDocumentBuf};

use super::filter::{append_hint, append_keys};
use super::find::Finder;
use super::queue::BatchWork;
use super::{Reservation, StoreError};
use crate::constraint::{Constraint, Key};
use crate::raw::Builder;
use crate::reservation::Token;

/// Reads the reservations of keys.
#[derive(Debug)]
pub struct Reading {
    pub finder: Finder,
    pub name: String,
    pub constraint: Arc<Constraint>,
}

impl BatchWork for Reading {
    type Item = Key;
    type Answer = Result<Option<Reservation>, StoreError>;

    /// A shard that doesn't answer mustn't block the reads of the others permanently.
    const AT_ONCE: usize = 2;

    fn bytes(key: &Key) -> usize {
        key.reservation_id().as_bytes().len()
    }

    async fn run(&self, keys: Vec<Key>) -> Vec<Self::Answer> {
        let command = find_keys(&self.name, keys.iter());
        let by_key = self.finder.find(command).await.and_then(|found| self.by_key(&found));
        let by_key = match by_key {
            Ok(by_key) => by_key,
            Err(error) => return vec![Err(error); keys.len()],
        };
        // Several requests may ask for the same key.
        keys.iter().map(|key| by_key.get(key).cloned().transpose()).collect()
    }
}

impl Reading {
    fn by_key(&self, found: &[RawDocumentBuf]) -> Result<HashMap<Key, Result<Reservation, StoreError>>, StoreError> {
        let mut by_key = HashMap::with_capacity(found.len());
        for document in found {
            let unexpected = |_| StoreError::Unexpected("a reservation's _id");
            let key = key_of(&self.constraint, document).map_err(unexpected)?;
            let reservation = Reservation::from_document(document).ok_or(StoreError::Unexpected("a reservation"));
            by_key.insert(key, reservation);
        }
        Ok(by_key)
    }
}

/// The `find` of the reservations of `keys`.
pub(super) fn find_keys<'k>(collection: &str, keys: impl Iterator<Item = &'k Key> + Clone) -> RawDocumentBuf {
    let command = find_reservations(collection, keys, &[]).finish();
    RawDocumentBuf::from_bytes(command).unwrap_or_default()
}

/// The `find` of the reservations of `keys`. If there are `tokens`, it finds only those with one of them.
pub fn find_reservations<'k>(
    collection: &str,
    keys: impl Iterator<Item = &'k Key> + Clone,
    tokens: &[Token],
) -> Builder {
    let mut command = Builder::new();
    command.string("find", collection.as_bytes());
    command.open(ElementType::EmbeddedDocument, b"filter");
    append_keys(&mut command, keys);
    if !tokens.is_empty() {
        let tokens = tokens.iter().map(|token| token.to_bytes());
        command
            .open(ElementType::EmbeddedDocument, b"token")
            .array("$in", tokens, |array, index, token| {
                array.binary(index.as_bytes(), BinarySubtype::Generic, &token);
            })
            .close();
    }
    command.close();
    append_hint(&mut command);
    command
}

/// The key of a reservation; or the reason why its `_id` isn't a key.
pub(super) fn key_of(constraint: &Constraint, reservation: &RawDocument) -> Result<Key, String> {
    let id = reservation
        .get_document("_id")
        .map_err(|_| "it isn't a document".to_owned())?;
    Key::from_reservation_id(constraint, id).map_err(|error| error.to_string())
}
