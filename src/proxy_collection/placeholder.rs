//! Takes a reservation from an absent owner in strict mode, so that the owner can't come later.
//!
//! A look-up of the owner proves nothing about a write that is still on its way. So one transaction changes the reservation,
//! inserts a placeholder with the owner's `_id` and shard key, and deletes it again. The transaction that inserts the owner
//! reads the reservation. So only one of the two can commit, in whatever order they run. Only readers of change streams ever
//! see the placeholder. If Keyward is killed before the commit, nothing is left behind.
//!
//! The placeholder must go to the shard that the owner's insert goes to. So Keyward reads the shard key before each
//! transaction. It reads it again once the placeholder exists, which keeps the collection from being dropped or sharded
//! anew. If the sharding changed in between, Keyward begins again. An insert that began before such a change can't commit
//! after it.

use std::time::Duration;

use bson::raw::{CString, cstr};
use bson::{Bson, Document, RawBson, RawDocumentBuf, doc, oid::ObjectId, rawdoc};
use mongodb::ClientSession;
use mongodb::error::Error;

use super::filter::{equal_to, seen_filter};
use super::find::find_in_transaction;
use super::owner::{append_collation, is_collated, owner_filter};
use super::time_out::within;
use super::transaction::{TransactionEnd, end, is_transient};
use super::{Owner, ProxyCollection, Reservation, ReservationVersion, StoreError};
use crate::constraint::Key;
use crate::raw::Doc;
use crate::reservation::Scope;
use crate::server::code;
use crate::server::driver::{
    code_of, decode_lossily, error_code, first_batch, first_write_error, write_error_in_words,
};
use crate::upstream::CollectionSharding;

/// The outcome of a takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenOver {
    /// The reservation is changed, and a majority has the change.
    Done,
    /// The reservation was changed after it was seen.
    Changed,
    /// Its owner exists, and holds the key.
    OwnerHolds,
    /// A write of its owner is under way, or its collection doesn't exist.
    Busy,
}

/// How often Keyward tries a transaction that meets unexplained conflicts, or needs another placeholder.
const TRIES: u32 = 8;
/// How long to pause after a conflict.
const PAUSE: Duration = Duration::from_millis(10);

/// How a transaction makes sure that the owner can't come.
#[derive(Debug, Clone)]
enum Proof {
    /// A placeholder. It has fresh values at the `filled` paths, so that it doesn't violate unique indexes.
    Placeholder { filled: Vec<String> },
    /// Documents exist that leave no room for the owner: they have its values at these paths, which a unique index covers. But they hold
    /// other keys. The transaction writes to them, so that none can be deleted meanwhile to make way for the owner. One of them must lie
    /// on the owner's shard: each shard may have a document with the owner's `_id`.
    Touch { paths: Vec<String> },
    /// The server refuses every document with such an `_id` or shard key.
    Needless,
}

/// A reservation to take from its absent owner.
struct Settling<'s> {
    key: &'s Key,
    seen: &'s Reservation,
    /// The reservation that replaces it, and whose it is.
    anew: Option<(&'s Owner, RawDocumentBuf)>,
}

/// The step after a transaction: another transaction with this proof, or the end.
enum Next {
    With(Proof),
    /// Documents have the owner's values, but on other shards. Another transaction begins with a placeholder.
    Elsewhere,
    Done(TakenOver),
}

impl ProxyCollection {
    /// Gives the reservation of `key` to the owner of `anew`, or deletes it if there is none.
    ///
    /// It does so only if the reservation still is the one that was `seen`, and its owner neither exists nor can come. The new owner may
    /// exist, and may be what leaves no room for the other.
    ///
    /// # Errors
    /// [`StoreError`] if it is unknown whether it was changed, or if nothing can be proved.
    pub async fn settle_absent(
        &self,
        key: &Key,
        seen: &Reservation,
        anew: Option<(&Owner, ReservationVersion)>,
    ) -> Result<TakenOver, StoreError> {
        if self.is_gone() {
            return Err(StoreError::Unsure);
        }
        let anew = anew.map(|(owner, version)| (owner, self.reservation(key, owner, version)));
        within(self.limit, self.try_to_settle(&Settling { key, seen, anew })).await
    }

    async fn try_to_settle(&self, settling: &Settling<'_>) -> Result<TakenOver, StoreError> {
        let mut proof = Proof::Placeholder { filled: Vec::new() };
        let mut is_elsewhere = false;
        for _ in 0..TRIES {
            let sharding = self.sharding().await?;
            if !settling.seen.owner.has_route_by(&sharding.key) {
                return Err(StoreError::Unroutable);
            }
            let mut session = self.begin().await?;
            let mut next = self
                .in_one_transaction(&mut session, settling, &sharding.key, proof.clone())
                .await;
            let is_settled = matches!(next, Ok(Next::Done(TakenOver::Done)));
            if is_settled && self.sharding().await.ok() != Some(sharding) {
                next = Ok(Next::With(proof.clone()));
            }
            let ending = next.map(|next| match next {
                Next::Done(TakenOver::Done) => TransactionEnd::Commit(next),
                next => TransactionEnd::Abort(next),
            });
            match end(&mut session, ending).await {
                Ok(Next::Done(taken)) => return Ok(taken),
                Ok(Next::With(other)) => proof = other,
                Ok(Next::Elsewhere) if !is_elsewhere => {
                    is_elsewhere = true;
                    proof = Proof::Placeholder { filled: Vec::new() };
                }
                Ok(Next::Elsewhere) => return Err(StoreError::OrphanInTheWay),
                Err(error) if is_transient(&error) => tokio::time::sleep(PAUSE).await,
                // The write that asks for the takeover creates the collection first.
                Err(StoreError::Driver(error)) if is_unsupported(&error) && !self.protected_exists().await? => {
                    return Ok(TakenOver::Busy);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(TakenOver::Busy)
    }

    /// How the protected collection is sharded now.
    pub(super) async fn sharding(&self) -> Result<CollectionSharding, StoreError> {
        Ok(CollectionSharding::of(&self.client, self.constraint.namespace()).await?)
    }

    /// Whether the protected collection exists, or a view of its name.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say so.
    pub async fn protected_exists(&self) -> Result<bool, StoreError> {
        let command = doc! { "listCollections": 1, "nameOnly": true, "filter": { "name": self.protected.name() } };
        let asked = async { Ok::<_, StoreError>(self.database.run_command(command).await?) };
        let reply = within(self.limit, asked).await?;
        let batch = first_batch(&reply).ok_or(StoreError::Unexpected("the list of collections"))?;
        Ok(!batch.is_empty())
    }

    async fn in_one_transaction(
        &self,
        session: &mut ClientSession,
        settling: &Settling<'_>,
        shard_key: &[String],
        proof: Proof,
    ) -> Result<Next, StoreError> {
        let filter = seen_filter(settling.key, settling.seen);
        let name = self.reservations.name();
        let change = match &settling.anew {
            Some((_, anew)) => rawdoc! { "update": name, "updates": [{ "q": filter, "u": anew.clone() }] },
            None => rawdoc! { "delete": name, "deletes": [{ "q": filter, "limit": 1 }] },
        };
        if count(&self.in_transaction(session, change).await?)? == 0 {
            return Ok(Next::Done(TakenOver::Changed));
        }
        match proof {
            Proof::Placeholder { filled } => self.insert_placeholder(session, &settling.seen.owner, filled).await,
            Proof::Touch { paths } => self.touch(session, settling, shard_key, &paths).await,
            Proof::Needless => Ok(Next::Done(TakenOver::Done)),
        }
    }

    async fn insert_placeholder(
        &self,
        session: &mut ClientSession,
        owner: &Owner,
        mut filled: Vec<String>,
    ) -> Result<Next, StoreError> {
        let name = self.protected.name();
        let insert = rawdoc! {
            "insert": name, "documents": [placeholder(owner, &filled)], "bypassDocumentValidation": true,
        };
        let reply = self.in_transaction(session, insert).await?;
        if let Some(error) = first_write_error(&reply) {
            return match error_code(error) {
                Some(code::DUPLICATE_KEY) => {
                    let paths: Vec<String> = match error.get_document("keyPattern") {
                        Ok(pattern) => pattern.keys().cloned().collect(),
                        Err(_) => return Err(refused(error)),
                    };
                    let is_given = |path: &String| {
                        is_of_id(path) || filled.contains(path) || routes(owner).any(|(given, _)| given == path)
                    };
                    match paths.iter().find(|path| !is_given(path)) {
                        Some(path) => {
                            filled.push(path.clone());
                            Ok(Next::With(Proof::Placeholder { filled }))
                        }
                        // All fields of the index have the owner's values: another document has the owner's place in any case.
                        None if self.is_wholly_unique(&paths, &filled).await? => Ok(Next::With(Proof::Touch { paths })),
                        None => Err(refused(error)),
                    }
                }
                // The server accepts no document with such an `_id` or shard key.
                Some(code::DOLLAR_PREFIXED_FIELD_NAME | code::INVALID_ID_FIELD | code::SHARD_KEY_NOT_FOUND) => {
                    Ok(Next::With(Proof::Needless))
                }
                Some(code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION) if !self.protected_exists().await? => {
                    Ok(Next::Done(TakenOver::Busy))
                }
                _ => Err(refused(error)),
            };
        }
        let mut statement = rawdoc! { "q": owner_filter(owner, Scope::Route), "limit": 1 };
        // Of the documents with an `_id` that a default collation calls equal, a shard has only one. But with that collation a router finds
        // no shard by text.
        match routes(owner).any(|(_, value)| is_collated(&value)) {
            true => statement.append(cstr!("collation"), rawdoc! { "locale": "simple" }),
            false => append_collation(&mut statement, &[owner], Scope::Route),
        }
        let delete = rawdoc! { "delete": name, "deletes": [statement] };
        match count(&self.in_transaction(session, delete).await?)? {
            1 => Ok(Next::Done(TakenOver::Done)),
            _ => Err(StoreError::Unexpected("the placeholder of an owner")),
        }
    }

    /// Whether no two documents of a shard can have the same values at these `paths`, none of which was `filled`: the owner may lack what a
    /// partial or sparse index needs.
    async fn is_wholly_unique(&self, paths: &[String], filled: &[String]) -> Result<bool, StoreError> {
        if paths == ["_id"] {
            return Ok(true);
        }
        if paths.iter().any(|path| filled.contains(path)) {
            return Ok(false);
        }
        let reply = self
            .database
            .run_command(doc! { "listIndexes": self.protected.name() })
            .await?;
        let indexes = first_batch(&reply).ok_or(StoreError::Unexpected("the list of indexes"))?;
        let is_it = |index: &Document| {
            let is_of_paths = index.get_document("key").is_ok_and(|key| key.keys().eq(paths));
            let options = ["partialFilterExpression", "sparse", "collation"];
            is_of_paths
                && index.get_bool("unique").unwrap_or(false)
                && !options.iter().any(|option| index.contains_key(option))
        };
        Ok(indexes.iter().filter_map(Bson::as_document).any(is_it))
    }

    async fn touch(
        &self,
        session: &mut ClientSession,
        settling: &Settling<'_>,
        shard_key: &[String],
        paths: &[String],
    ) -> Result<Next, StoreError> {
        let name = self.protected.name();
        // By the collection's own collation and on every shard: these are the documents in the placeholder's way.
        let filter = place_filter(&settling.seen.owner, paths)?;
        let find = rawdoc! { "find": name, "filter": filter.clone() };
        let (documents, _) = find_in_transaction(session, &self.database, find).await?;
        if documents.is_empty() {
            return Ok(Next::With(Proof::Placeholder { filled: Vec::new() }));
        }
        let mut others = Vec::with_capacity(documents.len());
        let mut places = Vec::with_capacity(documents.len());
        for document in &documents {
            let owner = Doc::new(document.as_bytes()).and_then(|document| Owner::of(document, shard_key));
            let owner = owner.map_err(|_| StoreError::Unexpected("a document"))?;
            if settling.anew.as_ref().is_none_or(|(new, _)| **new != owner) {
                others.push(document.clone());
            }
            places.push(owner);
        }
        for other in &others {
            if self.keys_of(other)?.may_have(settling.key) {
                return Ok(Next::Done(TakenOver::OwnerHolds));
            }
        }
        // The server skips an update that changes nothing, so one update sets the field and another removes it.
        for operator in ["$set", "$unset"] {
            let change = RawDocumentBuf::try_from(&doc! { operator: { TOUCHED: 1 } })
                .map_err(|_| StoreError::Unexpected("an update"))?;
            let update = rawdoc! {
                "update": name, "updates": [{ "q": filter.clone(), "u": change, "multi": true }],
                "bypassDocumentValidation": true,
            };
            if usize::try_from(count(&self.in_transaction(session, update).await?)?) != Ok(documents.len()) {
                return Err(StoreError::Unexpected("a document that was read"));
            }
        }
        let is_on_one_shard = shard_key.is_empty();
        match is_on_one_shard || self.is_one_beside(&places, &settling.seen.owner).await? {
            true => Ok(Next::Done(TakenOver::Done)),
            false => Ok(Next::Elsewhere),
        }
    }

    /// Whether one of these documents lies on the shard to which the absent owner would come. The transaction has written to them. Until it
    /// ends, their shards lose no chunk of the collection, so the answer stays true.
    async fn is_one_beside(&self, written: &[Owner], absent: &Owner) -> Result<bool, StoreError> {
        if written.iter().any(|document| document.route == absent.route) {
            return Ok(true);
        }
        let Some(shard) = self.shard_of(absent).await? else {
            return Ok(false);
        };
        for document in written {
            if self.shard_of(document).await?.as_ref() == Some(&shard) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The one shard that can have a document with this `_id` and shard key, as the router says and that shard confirms.
    async fn shard_of(&self, owner: &Owner) -> Result<Option<String>, StoreError> {
        let find = rawdoc! {
            "find": self.protected.name(), "filter": owner_filter(owner, Scope::Route),
            "collation": { "locale": "simple" },
        };
        let explain = rawdoc! { "explain": find, "verbosity": "queryPlanner" };
        let plan = decode_lossily(self.database.run_raw_command(explain).await)?;
        let plan = plan
            .get_document("queryPlanner")
            .and_then(|plan| plan.get_document("winningPlan"));
        let shards = plan.and_then(|plan| plan.get_array("shards"));
        let shards = shards.map_err(|_| StoreError::Unexpected("the plan of a look-up"))?;
        let shard = match &shards[..] {
            [Bson::Document(shard)] => shard.get_str("shardName").ok(),
            _ => None,
        };
        Ok(shard.map(str::to_owned))
    }

    async fn in_transaction(
        &self,
        session: &mut ClientSession,
        command: RawDocumentBuf,
    ) -> Result<Document, StoreError> {
        let answer = self.database.run_raw_command(command).session(session).await;
        // An error may name the owner's `_id` or shard key.
        Ok(decode_lossily(answer)?)
    }
}

/// Whether the server doesn't let the transaction create the collection that the placeholder is to be in.
fn is_unsupported(error: &Error) -> bool {
    code_of(error) == Some(code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION)
}

/// The number of documents that a write matched; an error if the write failed for any.
fn count(reply: &Document) -> Result<i32, StoreError> {
    match (first_write_error(reply), reply.get_i32("n")) {
        (None, Ok(count)) => Ok(count),
        _ => Err(StoreError::Unexpected("the reply to a write of a takeover")),
    }
}

fn refused(error: &Document) -> StoreError {
    let error = write_error_in_words(error);
    tracing::warn!(error, "the placeholder of an absent owner was refused");
    StoreError::Unexpected("the placeholder of an absent owner")
}

/// The field that a document has briefly, inside a transaction.
const TOUCHED: &str = "keyward_touched";

fn routes(owner: &Owner) -> impl Iterator<Item = (&str, RawBson)> {
    let elements = owner.route.iter().flat_map(|route| route.iter().flatten());
    elements.map(|(path, value)| (path.as_str(), value.into()))
}

/// Whether the path is `_id` or below.
fn is_of_id(path: &str) -> bool {
    path == "_id" || path.starts_with("_id.")
}

/// The condition that a document has the owner's values at these `paths`.
fn place_filter(owner: &Owner, paths: &[String]) -> Result<RawDocumentBuf, StoreError> {
    let unexpected = |_| StoreError::Unexpected("an owner");
    let owners = placeholder(owner, &[]);
    let owners = Doc::new(owners.as_bytes()).map_err(unexpected)?;
    let mut filter = RawDocumentBuf::new();
    for path in paths {
        let value = owners.value_at(path).map_err(unexpected)?;
        let value = value.and_then(|value| value.to_raw_bson()).unwrap_or(RawBson::Null);
        let path = CString::try_from(path.as_str()).map_err(|_| StoreError::Unexpected("a path"))?;
        filter.append(path, equal_to(value));
    }
    Ok(filter)
}

/// A document with the owner's `_id` and shard key, and fresh values at the `filled` paths.
fn placeholder(owner: &Owner, filled: &[String]) -> RawDocumentBuf {
    let of_route = routes(owner).map(|(path, value)| (path.to_owned(), value));
    let of_filled = filled
        .iter()
        .map(|path| (path.clone(), RawBson::ObjectId(ObjectId::new())));
    let mut fields = vec![("_id".to_owned(), owner.id.clone())];
    fields.extend(of_route.chain(of_filled).filter(|(path, _)| !is_of_id(path)));
    nested(fields)
}

/// The document with these values at these paths.
fn nested(fields: Vec<(String, RawBson)>) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    let mut rest = fields;
    while !rest.is_empty() {
        let first = rest[0].0.split('.').next().unwrap_or_default().to_owned();
        let is_of_first = |path: &str| path == first || path.starts_with(&format!("{first}."));
        let (of_first, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(path, _)| is_of_first(path));
        rest = others;
        let Ok(name) = CString::try_from(first.clone()) else {
            continue;
        };
        match of_first.iter().find(|(path, _)| *path == first) {
            Some((_, value)) => document.append(name, value.clone()),
            None => {
                let below = |(path, value): (String, RawBson)| Some((path.split_once('.')?.1.to_owned(), value));
                document.append(name, nested(of_first.into_iter().filter_map(below).collect()));
            }
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_has_the_owners_id_and_route_and_something_of_its_own_where_it_must() {
        let owner = Owner {
            id: RawBson::Int32(7),
            route: Some(rawdoc! { "place.region": "a", "_id": 7, "place.town": 5 }),
        };
        let made = placeholder(&owner, &["place.x.y".to_owned(), "n".to_owned()]);
        let made = Document::try_from(&made).unwrap();
        assert_eq!(made.get_i32("_id").unwrap(), 7);
        let place = made.get_document("place").unwrap();
        assert_eq!(
            (place.get_str("region").unwrap(), place.get_i32("town").unwrap()),
            ("a", 5)
        );
        assert!(place.get_document("x").unwrap().get_object_id("y").is_ok());
        assert!(made.get_object_id("n").is_ok());
        assert_eq!(made.len(), 3);
    }

    #[test]
    fn an_owner_is_routable_only_by_the_whole_shard_key_of_today() {
        let owner = |route| Owner {
            id: RawBson::Int32(7),
            route,
        };
        let key = ["a".to_owned(), "b".to_owned()];
        assert!(owner(Some(rawdoc! { "a": 1, "b": null })).has_route_by(&key));
        assert!(!owner(Some(rawdoc! { "a": 1 })).has_route_by(&key));
        assert!(!owner(None).has_route_by(&key));
        assert!(owner(None).has_route_by(&[]));
    }
}
