//! Computes from a document its `_id`, its place and its keys, under all constraints of its collection.

use std::borrow::Cow;

use bson::spec::ElementType;

use crate::catalog::Protected;
use crate::constraint::{DuplicateKey, Key, KeyError, root_of};
use crate::proxy_collection::Owner;
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::Token;

/// A key together with the constraint that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConstrainedKey {
    /// The constraint's position among the collection's.
    pub constraint: usize,
    /// The key.
    pub key: Key,
}

impl Protected {
    /// Counts a refused document, and returns the client's error: the document's `key` is taken.
    pub async fn refuse(&self, key: &ConstrainedKey) -> DuplicateKey {
        self.constraints[key.constraint].refuse(&key.key).await
    }
}

/// A document's keys under all constraints of its collection.
#[derive(Debug, Clone, Default)]
pub struct KeysOfDocument {
    /// The keys by constraint, then in index order. There are none under a constraint that can't index the document.
    pub keys: Vec<ConstrainedKey>,
    /// Why the first such constraint can't index it, if there is one.
    pub unindexable: Option<KeyError>,
}

impl KeysOfDocument {
    /// The keys of a document that every constraint can index.
    ///
    /// # Errors
    /// [`KeyError`] if one can't.
    pub fn all(self) -> Result<Vec<ConstrainedKey>, KeyError> {
        match self.unindexable {
            Some(error) => Err(error),
            None => Ok(self.keys),
        }
    }
}

/// A document's keys. A document that was written past Keyward, or before a constraint was made, may be unindexable under that
/// constraint. It still holds its keys under the others.
pub fn keys_of(protected: &Protected, doc: Doc<'_>) -> KeysOfDocument {
    let mut all = KeysOfDocument::default();
    for (constraint, proxy) in protected.constraints.iter().enumerate() {
        match proxy.constraint.keys(doc) {
            Ok(keys) => all
                .keys
                .extend(keys.into_iter().map(|key| ConstrainedKey { constraint, key })),
            Err(error) => all.unindexable = all.unindexable.or(Some(error)),
        }
    }
    // Fields that are hidden may make up the other error.
    all.unindexable = check_unrepeated(protected, doc).err().or(all.unindexable);
    all
}

/// The keys that an existing document has under the constraint at this position.
///
/// # Errors
/// [`KeyError`] if the constraint can't index the document, or a reader may not see all of its fields.
pub fn keys_under(protected: &Protected, constraint: usize, doc: Doc<'_>) -> Result<Vec<Key>, KeyError> {
    check_unrepeated(protected, doc)?;
    protected.constraints[constraint].constraint.keys(doc)
}

/// Checks that the document has each field once that keys and its place are made of.
fn check_unrepeated(protected: &Protected, doc: Doc<'_>) -> Result<(), KeyError> {
    let roots: Vec<&str> = protected.paths().map(root_of).collect();
    let mut seen: Vec<&[u8]> = Vec::new();
    for element in doc.elements() {
        let name = element?.name;
        if !roots.iter().any(|root| root.as_bytes() == name) {
            continue;
        }
        if seen.contains(&name) {
            let field = String::from_utf8_lossy(name).into_owned();
            return Err(KeyError::Repeated { field });
        }
        seen.push(name);
    }
    Ok(())
}

/// The keys of a document that is yet to be inserted: by constraint, then in index order.
///
/// # Errors
/// [`KeyError`] if the document can't be indexed, or the server would change its keys.
pub fn keys_of_new(protected: &Protected, doc: Doc<'_>) -> Result<Vec<ConstrainedKey>, KeyError> {
    for proxy in &protected.constraints {
        if proxy.constraint.server_fills_in(doc)? {
            return Err(KeyError::FilledIn {
                constraint: proxy.constraint.name().to_owned(),
            });
        }
    }
    keys_of(protected, doc).all()
}

/// The document as an owner of keys.
pub fn owner_of(protected: &Protected, doc: Doc<'_>) -> Result<Owner, Malformed> {
    Owner::of(doc, &protected.shard_key)
}

/// The document with an `_id`: the server's drivers send one; where one is missing it is added in front, as the server
/// does. A retry of the same statement gets the same one, so that the two are one document.
pub fn with_id(document: &[u8], token: Token) -> Result<Cow<'_, [u8]>, Malformed> {
    let doc = Doc::new(document)?;
    if doc.get("_id")?.is_some() {
        return Ok(Cow::Borrowed(document));
    }
    let id = match token.retry_id {
        None => bson::oid::ObjectId::new().bytes(),
        Some(_) => {
            let stable = Token {
                write: crate::reservation::WriteId([0; 16]),
                ..token
            };
            let digest = xxhash_rust::xxh3::xxh3_128(&stable.to_bytes()).to_be_bytes();
            let mut id = [0; 12];
            id.copy_from_slice(&digest[..12]);
            id
        }
    };
    let mut builder = Builder::new();
    builder.append(ElementType::ObjectId, b"_id", &id);
    builder.elements(doc)?;
    Ok(Cow::Owned(builder.finish()))
}
