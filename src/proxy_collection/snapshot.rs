//! Reads documents and reservations of keys as of one moment.
//!
//! A document arrives after its reservation and goes before it. If Keyward reads one after the other, they may seem to
//! contradict each other although both are right. In one snapshot of all shards they can't.

use std::collections::HashSet;
use std::time::Duration;

use bson::cstr;
use mongodb::ClientSession;

use super::find::{ALL_AT_ONCE, find_in_transaction};
use super::reading::find_keys;
use super::transaction::{TransactionEnd, end, is_transient};
use super::walk::ProxyDocument;
use super::{Owner, ProxyCollection, StoreError};
use crate::constraint::{Key, StoredKeys};
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
    /// default collation of the collection, also documents whose `_id` equals one of theirs. If the keys of the first two can't be found
    /// out, they count as holders.
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
        let mut command = find_keys(self.reservations.name(), keys.iter().copied());
        // Later replies would ignore prepared transactions.
        command.append(cstr!("batchSize"), ALL_AT_ONCE);
        let (entries, _) = find_in_transaction(session, &self.database, command).await?;
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
        let keys: HashSet<&Key> = keys.into_iter().collect();
        let mut owners: Vec<(Owner, StoredKeys)> = Vec::new();
        let reads = self.owner_reads(&asked, shard_key, Scope::Everywhere)?;
        let is_one_read = reads.len() == 1;
        for mut command in reads {
            command.append(cstr!("batchSize"), ALL_AT_ONCE);
            let (documents, _) = find_in_transaction(session, &self.database, command).await?;
            for document in documents {
                let document = Doc::new(document.as_bytes()).map_err(|_| StoreError::Unexpected("a document"))?;
                let owner = owner_of(document).ok_or(StoreError::Unexpected("a document"))?;
                let keys = self.constraint.keys_of_stored(document).among(&keys);
                // By several reads, an owner is found several times that is asked for in each, or whose `_id` a default collation calls equal.
                let is_it = |(found, its_keys): &(Owner, StoredKeys)| {
                    (&found.id, &found.route, its_keys) == (&owner.id, &owner.route, &keys)
                };
                if is_one_read || !owners.iter().any(is_it) {
                    owners.push((owner, keys));
                }
            }
        }
        let moment = |&(key, owner): &(&Key, &Owner)| moment_of((key, owner), reserved(key), &owners);
        Ok(pairs.iter().map(moment).collect())
    }
}

/// The state of the key, with its `entry` in the proxy collection and the documents `read`. The key was asked for with this owner.
fn moment_of((key, asked): (&Key, &Owner), entry: Option<ProxyDocument>, read: &[(Owner, StoredKeys)]) -> Moment {
    let reservation = entry.as_ref().and_then(|entry| entry.read.as_ref().ok());
    let named = reservation.map(|(_, reservation)| &reservation.owner);
    let holds = |(document, keys): &&(Owner, StoredKeys)| match keys {
        StoredKeys::These(keys) => keys.contains(key),
        // It would count for the keys of all others, too.
        StoredKeys::Unknown => [Some(asked), named]
            .into_iter()
            .flatten()
            .any(|owner| document.has_same_id_as(owner)),
    };
    let owners = read.iter().filter(holds).map(|(owner, _)| owner.clone()).collect();
    Moment { owners, entry }
}

#[cfg(test)]
mod tests {
    use bson::{RawBson, doc};

    use super::*;
    use crate::constraint::{Constraint, IndexSpec};
    use crate::namespace::Namespace;

    #[test]
    fn a_document_of_unknown_keys_may_hold_only_the_key_that_it_was_read_for() {
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(Namespace::new("db", "users"), spec).unwrap();
        let document = doc! { "email": "x" }.to_vec().unwrap();
        let document = Doc::new(&document).unwrap();
        let key = constraint.keys(document).unwrap().remove(0);
        let owner = |id: i32| Owner {
            id: RawBson::Int32(id),
            route: None,
        };
        let read = [
            (owner(1), StoredKeys::Unknown),
            (owner(2), constraint.keys_of_stored(document)),
        ];
        let holders = |asked: i32| moment_of((&key, &owner(asked)), None, &read).owners;
        assert!(holders(1) == [owner(1), owner(2)]);
        assert!(holders(2) == [owner(2)]);
    }
}
