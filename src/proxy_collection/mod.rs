//! The proxy collection of one constraint: reservations are written, read, taken over and released here, by Keyward's
//! own user.
//!
//! Every change of a reservation names the token it expects, so no change can hit a reservation that somebody else has
//! written since. Nothing here decides anything: that is [`crate::reservation`]'s.

mod find;
mod owner;
mod queue;
mod reservation;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use mongodb::{
    Client, Collection, Database,
    options::{CollectionOptions, ReadPreference, SelectionCriteria, WriteConcern},
};

use crate::constraint::{Constraint, Key};
use crate::metrics::ConstraintMetrics;
use crate::reply::Times;
use crate::reservation::Token;

pub use queue::Reserved;
pub use reservation::{Owner, Reservation, document as reservation_document};

/// Why the cluster gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The driver failed, or the server refused.
    #[error("{0}")]
    Driver(#[from] mongodb::error::Error),
    /// Keyward is shutting down.
    #[error("shutting down")]
    Closed,
    /// A reply, or a document of a proxy collection, isn't what it must be.
    #[error("{0} is not what it must be")]
    Unexpected(&'static str),
}

/// A reservation with the cluster time at which it was read.
#[derive(Debug, Clone)]
pub struct Read {
    /// The reservation.
    pub reservation: Reservation,
    /// The cluster time of its shard when it was read.
    pub now: Timestamp,
}

/// The managed collection of one constraint, and the protected collection that it guards.
#[derive(Debug, Clone)]
pub struct ProxyCollection {
    /// The constraint.
    pub constraint: Arc<Constraint>,
    /// What is counted of it.
    pub metrics: ConstraintMetrics,
    client: Client,
    database: Database,
    reservations: Collection<RawDocumentBuf>,
    protected: Collection<RawDocumentBuf>,
    queue: queue::Queue,
    times: Arc<Mutex<Times>>,
}

impl ProxyCollection {
    /// The proxy collection of `constraint`, through `client`; needs a tokio runtime for its queue.
    pub fn new(client: &Client, constraint: Arc<Constraint>, metrics: ConstraintMetrics) -> ProxyCollection {
        let namespace = constraint.proxy_collection();
        let database = client.database(&namespace.database);
        // Whatever the URI says: a reservation counts once a majority has it, and only a primary knows the latest.
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let reservations = database.collection_with_options(&namespace.collection, options);
        ProxyCollection {
            client: client.clone(),
            queue: queue::Queue::start(reservations.clone()),
            protected: database.collection(&constraint.namespace().collection),
            reservations,
            times: Arc::default(),
            database,
            constraint,
            metrics,
        }
    }

    /// Inserts a reservation for each key, in the order given; several clients' travel in one command.
    ///
    /// # Errors
    /// [`StoreError::Closed`] during shutdown; whatever else goes wrong is an outcome of its own.
    pub async fn reserve(&self, claims: &[(&Key, &Owner, Token)]) -> Result<Vec<Reserved>, StoreError> {
        let documents = claims
            .iter()
            .map(|(key, owner, token)| reservation::document(key, owner, *token));
        self.queue.reserve(documents.collect()).await
    }

    /// Reads the reservations of `keys`, in their order.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer for some of them.
    pub async fn read(&self, keys: &[&Key]) -> Result<Vec<Option<Read>>, StoreError> {
        let ids = keys.iter().map(|key| id_value(key)).collect::<Result<Vec<_>, _>>()?;
        let command = doc! { "find": self.reservations.name(), "filter": { "_id": { "$in": ids } } };
        let found = self.find(command).await?;
        let now = now_of(&found)?;
        let mut by_key = HashMap::with_capacity(found.documents.len());
        for document in &found.documents {
            let reservation = Reservation::from_document(document).ok_or(StoreError::Unexpected("a reservation"))?;
            let key = self
                .key_of(document)
                .ok_or(StoreError::Unexpected("a reservation's _id"))?;
            by_key.insert(key, Read { reservation, now });
        }
        Ok(keys.iter().map(|key| by_key.get(*key).cloned()).collect())
    }

    /// Reads at most `limit` reservations after the `_id` `after`, in the order of their keys, each with its `_id`.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer, or a document isn't a reservation.
    pub async fn page(&self, after: Option<&Document>, limit: i64) -> Result<Vec<(Document, Key, Read)>, StoreError> {
        let filter = after
            .map(|after| doc! { "_id": { "$gt": after.clone() } })
            .unwrap_or_default();
        let command = doc! { "find": self.reservations.name(), "filter": filter, "sort": { "_id": 1 }, "limit": limit };
        let found = self.find(command).await?;
        let now = now_of(&found)?;
        let read = |document: &Document| {
            let reservation = Reservation::from_document(document).ok_or(StoreError::Unexpected("a reservation"))?;
            let key = self
                .key_of(document)
                .ok_or(StoreError::Unexpected("a reservation's _id"))?;
            let id = document.get_document("_id").cloned().unwrap_or_default();
            Ok((id, key, Read { reservation, now }))
        };
        found.documents.iter().map(read).collect()
    }

    /// Replaces the reservation of `key` that still has the token `seen` by one for `owner`; whether it was there.
    ///
    /// # Errors
    /// [`StoreError`] if nobody knows whether it was replaced.
    pub async fn take_over(&self, key: &Key, seen: Token, owner: &Owner, token: Token) -> Result<bool, StoreError> {
        let filter = doc! { "_id": id_value(key)?, "token": reservation::token_value(seen) };
        let replacement = reservation::document(key, owner, token);
        let result = self.reservations.replace_one(filter, replacement).await?;
        Ok(result.matched_count == 1)
    }

    /// Deletes the reservations of `keys` that still have these tokens, with one command.
    ///
    /// Acknowledged by the primary only: a release that is lost leaves a reservation without an owner, which the next
    /// conflict or sweep settles.
    ///
    /// # Errors
    /// [`StoreError`] if some may still be there.
    pub async fn release(&self, keys: &[(&Key, Token)]) -> Result<(), StoreError> {
        let mut deletes = Vec::with_capacity(keys.len());
        for (key, token) in keys {
            let filter = doc! { "_id": id_value(key)?, "token": reservation::token_value(*token) };
            deletes.push(doc! { "q": filter, "limit": 1 });
        }
        let command = doc! { "delete": self.reservations.name(), "deletes": deletes, "ordered": false };
        self.database.run_command(command).await?;
        Ok(())
    }

    /// The latest cluster times that this collection's reads told.
    pub fn times(&self) -> Times {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads with Keyward's own user and notes the times of the replies.
    async fn find(&self, command: Document) -> Result<find::Found, StoreError> {
        let found = find::find(&self.client, &self.database, command).await?;
        self.times
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .advance(found.times.clone());
        Ok(found)
    }

    fn key_of(&self, reservation: &Document) -> Option<Key> {
        let id = RawDocumentBuf::try_from(reservation.get_document("_id").ok()?).ok()?;
        Key::from_reservation_id(&self.constraint, &id).ok()
    }
}

fn id_value(key: &Key) -> Result<Bson, StoreError> {
    let id = Document::try_from(key.reservation_id()).map_err(|_| StoreError::Unexpected("a key"))?;
    Ok(Bson::Document(id))
}

/// The cluster time at which a read was answered.
fn now_of(found: &find::Found) -> Result<Timestamp, StoreError> {
    found
        .times
        .operation
        .ok_or(StoreError::Unexpected("a reply without operationTime"))
}
