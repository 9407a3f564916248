//! Looks up whether a document of the protected collection holds a key.
//!
//! The value decides: Keyward computes the keys of the documents it finds, with the constraint itself. A document with the
//! owner's `_id` but another key isn't the owner.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::LazyLock;

use bson::raw::CString;
use bson::spec::ElementType;
use bson::{Bson, Document, RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, cstr, rawdoc};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::filter::equal_to;
use super::find::{ALL_AT_ONCE, CursorReplies};
use super::fitting::Fitting;
use super::time_out::within;
use super::walk::id_of;
use super::{KEYS_MAX, Owner, ProxyCollection, Reservation, StoreError};
use crate::constraint::{Key, StoredKeys, id_identity, root_of};
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::{Scope, Token};
use crate::traces::{ProxyRequest, asking};

/// The time limit of a linearizable read, in milliseconds: it waits for a majority, which may be unreachable.
const LINEARIZABLE_MS_MAX: i32 = 10_000;

/// How many owners of a clustered collection are looked up alone at a time. If a shard has no majority, each of these reads occupies one of the
/// driver's ten connections for ten seconds.
const ALONE_AT_ONCE: usize = 2;
/// How many owners one look-up has at most, if each is looked up alone: all of them together must be found within the time limit.
const ALONE_MAX: usize = 200;

/// How many bytes of owners' `_id`s and routes one `find` has. The server takes 16 MB.
const OWNERS: Fitting = Fitting {
    items: usize::MAX,
    bytes: 8 << 20,
};

/// The name of a field that no document has. It is another one in each process, so that no client can give it to a document.
pub static ABSENT_FIELD: LazyLock<CString> = LazyLock::new(|| {
    let name = format!("keyward_absent_{:032x}", rand::random::<u128>());
    // It has no zero byte.
    CString::try_from(name).unwrap_or_else(|_| cstr!("keyward_absent").into())
});

impl Owner {
    /// The owner that `doc` is, in a collection with this shard key.
    ///
    /// # Errors
    /// [`Malformed`] if it is no BSON document.
    pub fn of(doc: Doc<'_>, shard_key: &[String]) -> Result<Owner, Malformed> {
        let id = match doc.get("_id")? {
            Some(id) => id.to_raw_bson().ok_or(Malformed::Unterminated)?,
            None => RawBson::Null,
        };
        let route = route_of(doc, shard_key)?;
        Ok(Owner { id, route })
    }

    /// Whether its route has exactly the fields of `shard_key`.
    pub fn has_route_by(&self, shard_key: &[String]) -> bool {
        let paths = self.route.iter().flat_map(|route| route.iter().flatten());
        paths
            .map(|(path, _)| path.as_str())
            .eq(shard_key.iter().map(String::as_str))
    }

    /// Whether `other` may be the same document. It isn't if it has another `_id`, or if both have a route by the `shard_key` and these are
    /// two places. A sharded collection may have an `_id` on each shard. Without a `shard_key` the `_id` decides.
    pub fn may_be(&self, other: &Owner, shard_key: Option<&[String]>) -> bool {
        let are_placed = shard_key.is_some_and(|by| self.has_route_by(by) && other.has_route_by(by));
        match are_placed {
            true => self == other,
            false => self.has_same_id_as(other),
        }
    }
}

impl ProxyCollection {
    /// Returns for each key whether its own owner holds it. An owner whose keys can't be found out counts as the holder.
    ///
    /// Another document of the same look-up that holds the key doesn't count.
    pub async fn look_up(&self, pairs: &[(&Key, &Owner)], scope: Scope) -> Result<Vec<bool>, StoreError> {
        let mut held = vec![false; pairs.len()];
        let by_owner = by_owner(pairs);
        let mut parts: VecDeque<_> = by_owner.chunks(self.owners_max()).collect();
        while let Some(part) = parts.pop_front() {
            let these = || part.iter().flatten().map(|position| (*position, pairs[*position]));
            let mut ids_of_owners: HashMap<Key, Vec<Vec<u8>>> = HashMap::new();
            let mut ids_of_unknown = HashSet::new();
            let asked: Vec<_> = these().map(|(_, pair)| pair).collect();
            let Some(owners) = self.owners(&asked, part.len() > 1, scope).await? else {
                let (first, rest) = part.split_at(part.len() / 2);
                parts.push_front(rest);
                parts.push_front(first);
                continue;
            };
            for (id, keys) in owners {
                match keys {
                    StoredKeys::These(keys) => {
                        for key in keys {
                            ids_of_owners.entry(key).or_default().push(id.clone());
                        }
                    }
                    StoredKeys::Unknown => {
                        ids_of_unknown.insert(id);
                    }
                }
            }
            let is_held = |(key, owner): &(&Key, &Owner)| {
                let (ids_of_owners, id) = (ids_of_owners.get(*key), id_identity(&owner.id));
                ids_of_unknown.contains(&id) || ids_of_owners.is_some_and(|ids_of_owners| ids_of_owners.contains(&id))
            };
            for (position, pair) in these() {
                held[position] = is_held(&pair);
            }
        }
        if scope == Scope::Linearizable {
            // Boxed: each insert would be larger by what few of them need.
            Box::pin(self.confirm_unheld(pairs, &mut held)).await?;
        }
        Ok(held)
    }

    /// Reads anew, as of one moment, the owners that a linearizable read has missed.
    ///
    /// That read sees each shard at a moment of its own. Another Keyward may not know yet that an updated field belongs to the shard key.
    /// Then its update moves a document to another shard, and the read may miss the document on both. The driver states the cluster
    /// times of that read, so this one doesn't see an earlier state.
    async fn confirm_unheld(&self, pairs: &[(&Key, &Owner)], held: &mut [bool]) -> Result<(), StoreError> {
        let missed: Vec<usize> = (0..pairs.len()).filter(|position| !held[*position]).collect();
        // One shard has all documents of a collection that isn't sharded.
        if missed.is_empty()
            || matches!(within(self.limit, self.sharding()).await, Ok(sharding) if sharding.key.is_empty())
        {
            return Ok(());
        }
        for positions in missed.chunks(self.owners_max()) {
            let pairs: Vec<_> = positions.iter().map(|position| pairs[*position]).collect();
            let by_id = |document: Doc<'_>| {
                let id = id_of(RawDocument::from_bytes(document.bytes()).ok()?).ok()?;
                Some(Owner { id, route: None })
            };
            let moments = self.at_one_moment(&pairs, &[], by_id);
            let moments = within(self.limit, moments);
            let moments = asking(ProxyRequest::LookUp, &self.constraint, pairs.len(), moments).await?;
            for ((position, (_, owner)), moment) in positions.iter().zip(pairs).zip(moments) {
                let is_it = |found: &Owner| id_identity(&found.id) == id_identity(&owner.id);
                held[*position] = moment.owners.iter().any(is_it);
            }
        }
        Ok(())
    }

    /// Reads the documents with the `_id`s of these owners, within `scope`: the identity of each `_id`, and its keys among those asked for.
    /// `None` if there `are_several` owners, and one reply doesn't have all of them, as a linearizable read must.
    async fn owners(
        &self,
        pairs: &[(&Key, &Owner)],
        are_several: bool,
        scope: Scope,
    ) -> Result<Option<Vec<(Vec<u8>, StoredKeys)>>, StoreError> {
        let found = self.find_owners(pairs, are_several, scope);
        asking(ProxyRequest::LookUp, &self.constraint, pairs.len(), found).await
    }

    async fn find_owners(
        &self,
        pairs: &[(&Key, &Owner)],
        are_several: bool,
        scope: Scope,
    ) -> Result<Option<Vec<(Vec<u8>, StoredKeys)>>, StoreError> {
        let asked: HashSet<&Key> = pairs.iter().map(|(key, _)| *key).collect();
        // A single one is in the first reply of its shard.
        let replies = match scope == Scope::Linearizable && are_several {
            true => CursorReplies::First,
            false => CursorReplies::All,
        };
        let take = |document: RawDocumentBuf| {
            let id = id_identity(&id_of(&document)?);
            Ok((id, self.keys_of(&document)?.among(&asked)))
        };
        let owners: Vec<&Owner> = pairs.iter().map(|(_, owner)| *owner).collect();
        let mut commands = Vec::new();
        for mut command in self.owner_reads(&owners, &[], scope)? {
            if scope == Scope::Linearizable {
                command.append(cstr!("readConcern"), rawdoc! { "level": "linearizable" });
                command.append(cstr!("maxTimeMS"), LINEARIZABLE_MS_MAX);
                // Later replies would ignore prepared transactions.
                command.append(cstr!("batchSize"), ALL_AT_ONCE);
            }
            commands.push(self.finder.find_each(command, replies, &take));
        }
        let found = stream::iter(commands).buffer_unordered(ALONE_AT_ONCE);
        let found: Vec<Option<Vec<_>>> = within(self.limit, found.try_collect()).await?;
        let found: Option<Vec<_>> = found.into_iter().collect();
        Ok(found.map(|found| found.into_iter().flatten().collect()))
    }

    /// How many owners one look-up may have.
    pub(super) fn owners_max(&self) -> usize {
        if self.is_clustered { ALONE_MAX } else { KEYS_MAX }
    }

    /// The `find` commands that together read the documents with the `_id`s of `owners`: the fields of the constraint and of `more`.
    ///
    /// It is a single command, unless the owners are large. But in a clustered collection it is one for each owner: there a server reads all
    /// documents for a filter of several `_id`s. For one `_id` it needs the hint, or it may read all documents of the same shard key.
    pub(super) fn owner_reads(
        &self,
        owners: &[&Owner],
        more: &[String],
        scope: Scope,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let projection = self.projection(more)?;
        let command = |filter: RawDocumentBuf, owners: &[&Owner]| {
            let mut command =
                rawdoc! { "find": self.protected.name(), "filter": filter, "projection": projection.clone() };
            append_collation(&mut command, owners, scope);
            command
        };
        // The owner of a key's document is often that of its reservation, too, and a document may have many keys. A server reads a document
        // for each filter.
        let mut asked = HashSet::new();
        let mut once: Vec<&Owner> = Vec::new();
        for owner in owners {
            if asked.insert(asked_as(owner, scope)) {
                once.push(owner);
            }
        }
        match once.as_slice() {
            [] => Ok(Vec::new()),
            owners if self.is_clustered => {
                let alone = |owner: &&Owner| {
                    let mut command = command(owner_filter(owner, scope), &[owner]);
                    command.append(cstr!("hint"), rawdoc! { "_id": 1 });
                    command
                };
                Ok(owners.iter().map(alone).collect())
            }
            owners => {
                let together = |owners: &[&Owner]| {
                    let mut filters = RawArrayBuf::new();
                    owners.iter().for_each(|owner| filters.push(owner_filter(owner, scope)));
                    command(rawdoc! { "$or": filters }, owners)
                };
                Ok(OWNERS.parts(owners, |owner| owner.bytes() + 64).map(together).collect())
            }
        }
    }

    /// Returns the reservations whose owner doesn't hold the key.
    pub async fn unheld<'r>(
        &self,
        mut reservations: Vec<(&'r Key, &'r Reservation)>,
        scope: Scope,
    ) -> Result<Vec<(&'r Key, &'r Reservation)>, StoreError> {
        if !reservations.is_empty() {
            let pairs: Vec<_> = reservations.iter().map(|(key, seen)| (*key, &seen.owner)).collect();
            let mut held = self.look_up(&pairs, scope).await?.into_iter();
            reservations.retain(|_| !held.next().unwrap_or(true));
        }
        Ok(reservations)
    }

    /// Releases the reservations with these tokens whose owner doesn't hold the key. A deposed primary, which may not know the
    /// owner yet, can't answer the read that finds out.
    ///
    /// # Errors
    /// [`StoreError`] if some may still exist.
    pub async fn release_unheld(&self, reserved: &[(&Key, &Owner, Token)]) -> Result<(), StoreError> {
        if reserved.is_empty() {
            return Ok(());
        }
        let pairs: Vec<_> = reserved.iter().map(|(key, owner, _)| (*key, *owner)).collect();
        let held = self.look_up(&pairs, Scope::Linearizable).await?;
        let unheld = reserved.iter().zip(held).filter(|(_, held)| !held);
        let unheld: Vec<_> = unheld.map(|((key, _, token), _)| (*key, *token)).collect();
        self.release_by_token(&unheld).await
    }

    /// Projects the top-level fields of the constraint and of `more`, so that large documents aren't sent whole.
    pub(super) fn projection(&self, more: &[String]) -> Result<RawDocumentBuf, StoreError> {
        let mut fields: Document = self
            .constraint
            .paths()
            .chain(more.iter().map(String::as_str))
            .map(|path| (root_of(path).to_owned(), Bson::Int32(1)))
            .collect();
        fields.insert("_id", 1);
        RawDocumentBuf::try_from(&fields).map_err(|_| StoreError::Unexpected("a projection"))
    }

    /// Projects the same fields so that it shows if a document has one of them twice.
    ///
    /// The server reads a document only until it has found as many fields as the projection names. If one comes twice, it doesn't find
    /// others behind it. This projection names one more, which no document has. So the second one of the same name is found.
    pub(super) fn projection_of_existing(&self, more: &[String]) -> Result<RawDocumentBuf, StoreError> {
        let mut projection = self.projection(more)?;
        projection.append(&*ABSENT_FIELD, 1);
        Ok(projection)
    }

    pub(super) fn keys_of(&self, document: &RawDocumentBuf) -> Result<StoredKeys, StoreError> {
        let document = Doc::new(document.as_bytes()).map_err(|_| StoreError::Unexpected("a document"))?;
        Ok(self.constraint.keys_of_stored(document))
    }
}

/// The positions of the pairs of each owner: one look-up of a document finds out about all of its keys.
fn by_owner(pairs: &[(&Key, &Owner)]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut group_of = HashMap::new();
    for (position, (_, owner)) in pairs.iter().enumerate() {
        let group = *group_of.entry(asked_as(owner, Scope::Route)).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(group) => group.push(position),
            None => groups.push(vec![position]),
        }
    }
    groups
}

/// One filter looks up all owners that are the same here. Equal `_id`s of several types aren't: their hashes may differ, so a router or a hashed
/// index may lead to another place.
fn asked_as(owner: &Owner, scope: Scope) -> (Vec<u8>, Option<&[u8]>) {
    let route = owner.route.as_ref().filter(|_| scope == Scope::Route);
    let id = rawdoc! { "": owner.id.clone() };
    (id.into_bytes(), route.map(|route| route.as_bytes()))
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

/// The values of the shard key, each under its path; a missing one is null, as the server has it.
fn route_of(doc: Doc<'_>, shard_key: &[String]) -> Result<Option<RawDocumentBuf>, Malformed> {
    if shard_key.is_empty() {
        return Ok(None);
    }
    let mut route = Builder::new();
    for path in shard_key {
        match doc.value_at(path)? {
            Some(value) => route.append(value.kind, path.as_bytes(), value.value),
            None => route.append(ElementType::Null, path.as_bytes(), &[]),
        };
    }
    Ok(RawDocumentBuf::from_bytes(route.finish()).ok())
}

/// Makes a look-up of these owners compare text by its bytes, if an index serves that. If the collection has a default collation, the
/// look-up may otherwise return documents with other `_id`s, too. Its caller must compare the `_id`s.
///
/// For text, the index on `_id` serves only the default collation: with the simple one, the server would read the whole collection. A
/// route with the `_id` is served by the index of the shard key, which always has the simple collation.
pub(super) fn append_collation(command: &mut RawDocumentBuf, owners: &[&Owner], scope: Scope) {
    let is_served = |owner: &Owner| {
        let paths = owner.route.iter().flat_map(|route| route.iter().flatten());
        !is_collated(&owner.id) || scope == Scope::Route && paths.into_iter().any(|(path, _)| path == "_id")
    };
    if owners.iter().all(|owner| is_served(owner)) {
        command.append(cstr!("collation"), rawdoc! { "locale": "simple" });
    }
}

/// Whether the value's comparison depends on the collation.
pub(super) fn is_collated(value: &RawBson) -> bool {
    matches!(value, RawBson::String(_) | RawBson::Document(_) | RawBson::Array(_))
}

#[cfg(test)]
mod tests {
    use bson::{Decimal128, doc};

    use super::*;
    use crate::constraint::{Constraint, IndexSpec};
    use crate::namespace::Namespace;

    #[test]
    fn an_owner_is_asked_for_once_and_an_equal_one_of_another_type_by_itself() {
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(Namespace::new("shop", "users"), spec).unwrap();
        let document = doc! { "email": ["a", "b", "c"] }.to_vec().unwrap();
        let keys = constraint.keys(Doc::new(&document).unwrap()).unwrap();
        let decimal: Decimal128 = "3.75".parse().unwrap();
        let [double, decimal] =
            [RawBson::Double(3.75), RawBson::Decimal128(decimal)].map(|id| Owner { id, route: None });
        assert_eq!(id_identity(&double.id), id_identity(&decimal.id));
        let pairs = [(&keys[0], &double), (&keys[1], &decimal), (&keys[2], &double)];
        assert_eq!(by_owner(&pairs), [vec![0, 2], vec![1]]);
    }
}
