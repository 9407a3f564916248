//! Looks owners up: does a document of the protected collection hold this key?
//!
//! "Holds" is judged on the value: the documents found are run through the constraint itself. A document that has the
//! owner's `_id` but another key is no owner.

use std::collections::{HashMap, HashSet};

use bson::{Bson, Document, RawArrayBuf, RawBson, RawDocumentBuf, cstr, rawdoc};

use super::decided::ALL_AT_ONCE;
use super::walk::id_of;
use super::{KEYS_MAX, Owner, ProxyCollection, Reservation, StoreError};
use crate::constraint::{Key, id_identity};
use crate::raw::Doc;
use crate::reservation::Scope;
use crate::traces::{Step, asking};

/// How long a linearizable read may take, in milliseconds: it waits for a majority, which may not be there.
const FENCED_MS_MAX: i32 = 10_000;

impl ProxyCollection {
    /// Whether, for each key, its owner holds it: that another document does, which happens to be looked for, too, doesn't count.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
    pub async fn look_up(&self, claims: &[(&Key, &Owner)], scope: Scope) -> Result<Vec<bool>, StoreError> {
        let mut held = Vec::with_capacity(claims.len());
        for claims in claims.chunks(KEYS_MAX) {
            let mut holders: HashMap<Key, Vec<Vec<u8>>> = HashMap::new();
            for document in self.owners(claims, scope).await? {
                let id = id_identity(&id_of(&document)?);
                for key in self.keys_of(&[document])? {
                    holders.entry(key).or_default().push(id.clone());
                }
            }
            let is_held = |(key, owner): &(&Key, &Owner)| {
                let holders = holders.get(*key);
                holders.is_some_and(|holders| holders.contains(&id_identity(&owner.id)))
            };
            held.extend(claims.iter().map(is_held));
        }
        Ok(held)
    }

    /// The documents that have the `_id`s of these owners, as far as `scope` reaches.
    async fn owners(&self, claims: &[(&Key, &Owner)], scope: Scope) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let found = self.find_owners(claims, scope);
        asking(Step::LookForOwner, &self.constraint, claims.len(), found).await
    }

    async fn find_owners(&self, claims: &[(&Key, &Owner)], scope: Scope) -> Result<Vec<RawDocumentBuf>, StoreError> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let mut owners = RawArrayBuf::new();
        claims
            .iter()
            .for_each(|(_, owner)| owners.push(owner_filter(owner, scope)));
        let mut command = rawdoc! {
            "find": self.protected.name(),
            "filter": { "$or": owners },
            "projection": self.projection(&[])?,
            // A default collation of the collection must not make one `_id` match another.
            "collation": { "locale": "simple" },
        };
        if scope == Scope::Linearizable {
            command.append(cstr!("readConcern"), rawdoc! { "level": "linearizable" });
            command.append(cstr!("maxTimeMS"), FENCED_MS_MAX);
            // Later replies would pass by what is prepared.
            command.append(cstr!("batchSize"), ALL_AT_ONCE);
        }
        Ok(self.find(command).await?.documents)
    }

    /// Those of the reservations whose owner doesn't hold the key.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
    pub async fn unheld<'r>(
        &self,
        mut reservations: Vec<(&'r Key, &'r Reservation)>,
        scope: Scope,
    ) -> Result<Vec<(&'r Key, &'r Reservation)>, StoreError> {
        if !reservations.is_empty() {
            let claims: Vec<_> = reservations.iter().map(|(key, seen)| (*key, &seen.owner)).collect();
            let mut held = self.look_up(&claims, scope).await?.into_iter();
            reservations.retain(|_| !held.next().unwrap_or(true));
        }
        Ok(reservations)
    }

    /// The top-level fields that the constraint reads, and those of `more`, so that large documents don't travel whole.
    pub(super) fn projection(&self, more: &[String]) -> Result<RawDocumentBuf, StoreError> {
        let root = |path: &str| path.split('.').next().unwrap_or(path).to_owned();
        let mut fields: Document = self
            .constraint
            .paths()
            .chain(more.iter().map(String::as_str))
            .map(|path| (root(path), Bson::Int32(1)))
            .collect();
        fields.insert("_id", 1);
        RawDocumentBuf::try_from(&fields).map_err(|_| StoreError::Unexpected("a projection"))
    }

    pub(super) fn keys_of(&self, documents: &[RawDocumentBuf]) -> Result<HashSet<Key>, StoreError> {
        let mut keys = HashSet::new();
        for document in documents {
            let document = Doc::new(document.as_bytes()).map_err(|_| StoreError::Unexpected("a document"))?;
            // A document that the constraint can't index (parallel arrays, say) was written past it and holds no key.
            keys.extend(self.constraint.keys(document).unwrap_or_default());
        }
        Ok(keys)
    }
}

pub(super) fn owner_filter(owner: &Owner, scope: Scope) -> RawDocumentBuf {
    let mut filter = rawdoc! { "_id": equal_to(owner.id.clone()) };
    if let (Scope::Route, Some(route)) = (scope, &owner.route) {
        for (path, value) in route.iter().flatten() {
            filter.append(path, equal_to(value.into()));
        }
    }
    filter
}

/// The condition that a field has this value. The server compares nothing with undefined; as an `_id` it refuses it, but a
/// reservation is there before it does.
pub(super) fn equal_to(value: RawBson) -> RawDocumentBuf {
    match value {
        RawBson::Undefined => rawdoc! { "$type": "undefined" },
        value => rawdoc! { "$eq": value },
    }
}
