//! Looks owners up: does a document of the protected collection hold this key?
//!
//! "Holds" is judged on the value: the documents found are run through the constraint itself. A document that has the
//! owner's `_id` but another key is no owner.

use std::collections::HashSet;

use bson::{Bson, Document, doc};

use super::{Owner, ProxyCollection, StoreError};
use crate::constraint::Key;
use crate::raw::Doc;
use crate::reservation::Scope;

/// How long a linearizable read may take, in milliseconds: it waits for a majority, which may not be there.
const FENCED_MS_MAX: i32 = 10_000;

impl ProxyCollection {
    /// Whether, for each key, its owner holds it; all with one read.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
    pub async fn look_up(&self, claims: &[(&Key, &Owner)], scope: Scope) -> Result<Vec<bool>, StoreError> {
        let owners = claims.iter().map(|(_, owner)| owner_filter(owner, scope));
        let mut command = doc! {
            "find": self.protected.name(),
            "filter": { "$or": owners.collect::<Result<Vec<_>, _>>()? },
            "projection": self.projection(),
            // A default collation of the collection must not make one `_id` match another.
            "collation": { "locale": "simple" },
        };
        if scope == Scope::Fenced {
            command.insert("readConcern", doc! { "level": "linearizable" });
            command.insert("maxTimeMS", FENCED_MS_MAX);
        }
        let found = self.find(command).await?;
        let held = self.keys_of(&found.documents)?;
        Ok(claims.iter().map(|(key, _)| held.contains(*key)).collect())
    }

    /// The top-level fields that the constraint reads, so that large documents don't travel whole.
    fn projection(&self) -> Document {
        let root = |path: &str| path.split('.').next().unwrap_or(path).to_owned();
        let mut fields: Document = self
            .constraint
            .paths()
            .map(|path| (root(path), Bson::Int32(1)))
            .collect();
        fields.insert("_id", 1);
        fields
    }

    fn keys_of(&self, documents: &[Document]) -> Result<HashSet<Key>, StoreError> {
        let mut keys = HashSet::new();
        for document in documents {
            let bytes = document.to_vec().map_err(|_| StoreError::Unexpected("a document"))?;
            let document = Doc::new(&bytes).map_err(|_| StoreError::Unexpected("a document"))?;
            // A document that the constraint can't index (parallel arrays, say) was written past it and holds no key.
            keys.extend(self.constraint.keys(document).unwrap_or_default());
        }
        Ok(keys)
    }
}

fn owner_filter(owner: &Owner, scope: Scope) -> Result<Document, StoreError> {
    let unreadable = |_| StoreError::Unexpected("an owner");
    let mut filter = doc! { "_id": { "$eq": Bson::try_from(owner.id.clone()).map_err(unreadable)? } };
    if let (Scope::Route, Some(route)) = (scope, &owner.route) {
        for (path, value) in Document::try_from(route).map_err(unreadable)? {
            filter.insert(path, doc! { "$eq": value });
        }
    }
    Ok(filter)
}
