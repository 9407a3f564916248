//! Reads documents and reservations of keys as of one moment.
//!
//! A document arrives after its reservation and goes before it. If Keyward reads one after the other, they may seem to
//! contradict each other although both are right. In one snapshot of all shards they can't.

use std::collections::HashSet;
use std::time::Duration;

use mongodb::ClientSession;

use super::find::find_in_transaction;
use super::reading::find_keys;
use super::transaction::{TransactionEnd, end, is_transient};
use super::walk::ProxyDocument;
use super::{Owner, ProxyCollection, StoreError};
use crate::constraint::Key;
use crate::raw::Doc;
use crate::reservation::Scope;

/// How often Keyward asks for a snapshot, which may be unavailable while chunks move.
const TRIES: u32 = 8;
/// How long to pause between tries.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of one key at one moment.
#[derive(Debug, Clone)]
pub struct Moment {
    /// The documents that hold it, among those read: the given owner, the reservation's owner, and those of the other keys. Under a
    /// default collation of the collection, also documents whose `_id` equals one of theirs.
    pub owners: Vec<Owner>,
    /// The document under its `_id` in the proxy collection.
    pub entry: Option<ProxyDocument>,
}

impl ProxyCollection {
    /// Reads each key's reservation, the given owner, and the owner that the reservation names, all as of one moment.
    ///
    /// A majority has the state of that moment. `owner_of` returns the `_id` and the route of a document.
    pub async fn at_one_moment(
        &self,
        pairs: &[(&Key, &Owner)],
        shard_key: &[String],
        owner_of: impl Fn(Doc<'_>) -> Option<Owner>,
    ) -> Result<Vec<Moment>, StoreError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut session = self.begin().await?;
            let moments = self.read_moment(&mut session, pairs, shard_key, &owner_of).await;
            // The commit fails if a primary that was deposed has answered.
            match end(&mut session, moments.map(TransactionEnd::Commit)).await {
                Err(error) if is_transient(&error) && tries < TRIES => {}
                outcome => return outcome,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn read_moment(
        &self,
        session: &mut ClientSession,
        pairs: &[(&Key, &Owner)],
        shard_key: &[String],
        owner_of: impl Fn(Doc<'_>) -> Option<Owner>,
    ) -> Result<Vec<Moment>, StoreError> {
        let keys: Vec<&Key> = pairs.iter().map(|(key, _)| *key).collect();
        let (entries, _) = find_in_transaction(
            session,
            &self.database,
            find_keys(self.reservations.name(), keys.iter().copied()),
        )
        .await?;
        let entries = entries.iter().map(|document| self.entry(document));
        let entries: Vec<ProxyDocument> = entries.collect::<Result<_, _>>()?;
        let reserved = |key: &Key| {
            let of_key = |entry: &&ProxyDocument| match &entry.read {
                Ok((other, _)) => other == key,
                Err(_) => entry.id.as_document().is_some_and(|id| *id == *key.reservation_id()),
            };
            entries.iter().find(of_key).cloned()
        };
        let named = entries.iter().filter_map(|entry| entry.read.as_ref().ok());
        let asked: Vec<&Owner> = named
            .map(|(_, reservation)| &reservation.owner)
            .chain(pairs.iter().map(|(_, owner)| *owner))
            .collect();
        let mut owners: Vec<(Owner, HashSet<Key>)> = Vec::new();
        for command in self.owner_reads(&asked, shard_key, Scope::Everywhere)? {
            let (documents, _) = find_in_transaction(session, &self.database, command).await?;
            for document in documents {
                let document = Doc::new(document.as_bytes()).map_err(|_| StoreError::Unexpected("a document"))?;
                let owner = owner_of(document).ok_or(StoreError::Unexpected("a document"))?;
                let keys = self.constraint.keys_of_stored(document).into_iter().collect();
                // Read alone, owners whose `_id`s a default collation calls equal are found several times.
                let is_it = |(found, its_keys): &(Owner, HashSet<Key>)| {
                    (&found.id, &found.route, its_keys) == (&owner.id, &owner.route, &keys)
                };
                if !self.is_clustered || !owners.iter().any(is_it) {
                    owners.push((owner, keys));
                }
            }
        }
        let moment = |key: &Key| Moment {
            owners: owners
                .iter()
                .filter(|(_, keys)| keys.contains(key))
                .map(|(owner, _)| owner.clone())
                .collect(),
            entry: reserved(key),
        };
        Ok(keys.into_iter().map(moment).collect())
    }
}
