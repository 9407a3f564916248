//! Writes, reads, takes over and releases the reservations of one constraint as Keyward's own user.
//!
//! Every change of a reservation names the token it expects. So it can't hit a reservation that another attempt has written
//! since. Nothing here decides: [`crate::reservation`] does.

mod absent;
mod conflict_predictor;
mod decided;
mod deleting;
mod documents;
mod expected;
mod filter;
mod find;
mod fitting;
mod owner;
mod placeholder;
mod queue;
mod reading;
mod recent_owners;
mod renewing;
mod reroute;
mod reservation;
mod reserving;
mod sessions;
mod snapshot;
mod sort_keys;
mod store_error;
mod time_out;
mod transaction;
mod walk;
mod watch;
mod writing;

use std::sync::Arc;
use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Bson, RawDocumentBuf, Uuid};
use mongodb::{
    Client, Collection, Database,
    options::{CollectionOptions, ReadPreference, SelectionCriteria, WriteConcern},
};
use tokio::time::timeout;

use crate::constraint::{Constraint, DuplicateKey, Key};
use crate::metrics::ConstraintMetrics;
use crate::raw::Builder;
use crate::reply::Times;
use crate::reservation::Token;
use crate::server::reply::StatementError;
use crate::traces::{ProxyRequest, asking};

use conflict_predictor::ConflictPredictor;
use deleting::Deleting;
pub use documents::AllDocuments;
use expected::{ExpectedCollection, UUID_FIELD};
pub use expected::{Refused, uuid_of};
pub use filter::key_filter;
use filter::{seen_filters, token_filter, version_filter};
use find::Finder;
use queue::{BatchWork, Queue};
use reading::Reading;
pub use reading::find_reservations;
use recent_owners::RecentOwners;
use reserving::Reserving;
use sessions::Sessions;
use watch::LeaseWatch;

pub use fitting::Fitting;
pub use owner::ABSENT_FIELD;
pub use placeholder::TakenOver;
pub use reservation::{Owner, Reservation, ReservationVersion, owner_in, stored_owner};
pub use reserving::Reserved;
pub use snapshot::Moment;
pub use store_error::StoreError;
pub use time_out::{READ_MAX, answered};
pub use walk::{ProxyDocument, Unreadable, id_of};

/// The maximum number of keys in one command: a document may have thousands, and a command ends at 16 MB and 100,000
/// statements.
const KEYS_MAX: usize = 1_000;

/// How long Keyward waits for a key's owner, if it can search all shards instead.
const OWNER_PATIENCE: Duration = Duration::from_secs(1);

/// The managed collection of one constraint, and the protected collection that it guards.
#[derive(Debug, Clone)]
pub struct ProxyCollection {
    /// The constraint.
    pub constraint: Arc<Constraint>,
    /// The constraint's metrics.
    pub metrics: ConstraintMetrics,
    /// Guesses whether the next key is taken.
    pub conflict_predictor: Arc<ConflictPredictor>,
    /// The owners of the keys that were refused last.
    pub recent_owners: Arc<RecentOwners>,
    client: Client,
    database: Database,
    reservations: Collection<RawDocumentBuf>,
    protected: Collection<RawDocumentBuf>,
    reserve_now: Reserving,
    reserve_queue: Queue<Reserving>,
    reading: Queue<Reading>,
    deleting: Queue<Deleting>,
    /// Only where the constraint has a collation.
    sort_keys: Option<sort_keys::SortKeys>,
    lease: Duration,
    /// Tracks how long reservations have existed.
    watch: Arc<LeaseWatch>,
    expected: ExpectedCollection,
    /// Whether the protected collection is clustered.
    is_clustered: bool,
    /// How long to wait for the answer to a command.
    limit: Duration,
    finder: Finder,
}

impl ProxyCollection {
    /// The proxy collection of `constraint`, through `client`. Its reservations may be in flight for `lease`.
    ///
    /// Needs a tokio runtime for its tasks.
    pub fn new(
        client: &Client,
        constraint: Arc<Constraint>,
        metrics: ConstraintMetrics,
        lease: Duration,
    ) -> ProxyCollection {
        let namespace = constraint.proxy_collection();
        let database = client.database(&namespace.database);
        // These options override the URI's: a reservation counts once a majority has it, and only a primary knows the
        // latest.
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let reservations = database.collection_with_options(&namespace.collection, options);
        let limit = time_out::limit(lease);
        let sessions = Sessions::new(client);
        let finder = Finder::new(sessions.clone(), &database, limit);
        let watch = LeaseWatch::start(finder.clone(), namespace.collection.clone(), lease);
        let expected = ExpectedCollection::default();
        let place = (database.clone(), namespace.collection.clone());
        let reserving = Reserving::new(sessions, place, expected.clone(), limit);
        ProxyCollection {
            client: client.clone(),
            sort_keys: constraint
                .collation()
                .and_then(|collation| sort_keys::SortKeys::new(client, &database, collation)),
            reserve_queue: Queue::start(reserving.clone()),
            reserve_now: reserving,
            reading: Queue::start(Reading {
                finder: finder.clone(),
                name: namespace.collection.clone(),
                constraint: constraint.clone(),
            }),
            deleting: Queue::start(Deleting {
                finder: finder.clone(),
                name: namespace.collection,
            }),
            protected: database.collection(&constraint.namespace().collection),
            reservations,
            watch: Arc::new(watch),
            expected,
            is_clustered: false,
            lease,
            limit,
            finder,
            database,
            constraint,
            metrics,
            conflict_predictor: Arc::default(),
            recent_owners: Arc::default(),
        }
    }

    /// Keyward's own client, which this proxy collection uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Checks that the server has the constraint's collation as Keyward knows it, and prepares the questions for sort keys.
    ///
    /// # Errors
    /// [`StoreError`], with the server's refusal if it doesn't have the collation.
    pub async fn prepare_collation(&self) -> Result<(), StoreError> {
        match &self.sort_keys {
            Some(sort_keys) => sort_keys.create().await,
            None => Ok(()),
        }
    }

    /// Counts a refused document, and returns the client's error: the document's `key` is taken.
    pub async fn refuse(&self, key: &Key) -> DuplicateKey {
        self.metrics.duplicates.inc();
        self.duplicate(key).await
    }

    /// The error, in the server's bytes, for a document whose `key` is taken.
    ///
    /// If the cluster doesn't answer, the error lacks the server's sort keys only.
    pub async fn duplicate(&self, key: &Key) -> DuplicateKey {
        let strings = self.constraint.collated_strings(key);
        let (Some(sort_keys), false) = (&self.sort_keys, strings.is_empty()) else {
            return self.constraint.duplicate(key);
        };
        match sort_keys.of(strings).await {
            Ok(sort_keys) => self.constraint.duplicate_showing(key, &sort_keys),
            Err(error) => {
                let constraint = self.constraint.name();
                tracing::warn!(%error, constraint, "a duplicate is reported without the server's sort keys");
                self.constraint.duplicate(key)
            }
        }
    }

    /// Inserts a reservation for each key, in the order given.
    ///
    /// One command carries the reservations of several clients. A backfill's reservations get commands of their own: they
    /// come in thousands, and no client should wait for them.
    ///
    /// # Errors
    /// [`StoreError::Closed`] during shutdown. Every other failure is an outcome of its own.
    pub async fn reserve(&self, wanted: &[(&Key, &Owner, ReservationVersion)]) -> Result<Vec<Reserved>, StoreError> {
        let documents = wanted
            .iter()
            .map(|(key, owner, version)| reservation::document(key, owner, *version, self.lease));
        let documents: Vec<_> = documents.collect();
        let reserved = async {
            if self.reserve_now.is_busy(&documents) {
                return Ok(self.reserve_now.each_alone(&documents).await);
            }
            match wanted.iter().any(|(_, _, version)| version.in_flight) {
                true => self.reserve_queue.ask(documents).await,
                false => Ok(self.reserve_now.run(documents).await),
            }
        };
        asking(ProxyRequest::Reserve, &self.constraint, wanted.len(), reserved).await
    }

    /// Reads the reservations of `keys`, in their order. One command carries the reads of several clients.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer for some of them.
    pub async fn read(&self, keys: &[&Key]) -> Result<Vec<Option<Reservation>>, StoreError> {
        let reads = async {
            let mut reads = Vec::with_capacity(keys.len());
            for keys in keys.chunks(KEYS_MAX) {
                let keys = keys.iter().map(|key| (*key).clone()).collect();
                for read in self.reading.ask(keys).await? {
                    reads.push(read?);
                }
            }
            Ok(reads)
        };
        asking(ProxyRequest::Read, &self.constraint, keys.len(), reads).await
    }

    /// The owner of `key`, so that its document is read on one shard first. `None` without a reservation, and if no answer
    /// comes soon: a search on all shards is quicker then.
    pub async fn reserved_owner(&self, key: &Key) -> Option<Owner> {
        let reads = timeout(OWNER_PATIENCE, self.read(&[key])).await.ok()?;
        reads.ok()?.pop()?.map(|reservation| reservation.owner)
    }

    /// Notes that the proxy collection was created just now.
    pub fn note_made(&self) {
        self.watch.begin_anew();
    }

    /// Notes the uuid that the proxy collection has. Reservations are written to no other from now on.
    pub fn note_uuid(&mut self, uuid: Option<&Bson>) {
        self.expected.note(uuid);
    }

    /// Notes whether the protected collection is clustered.
    pub fn note_clustered(&mut self, is_clustered: bool) {
        self.is_clustered = is_clustered;
    }

    /// Goes on from `before`, whose constraint has its reservations in the same place. A change of the constraints makes new values of
    /// this type. So this one knows the ages of reservations, and abandoned keys needn't wait for a whole lease again. And it writes reservations
    /// only to the collection that `before` wrote them to: another one lacks them.
    pub fn go_on_from(&mut self, before: &ProxyCollection) {
        if self.constraint.proxy_collection() == before.constraint.proxy_collection()
            && self.expected.go_on_from(&before.expected)
        {
            self.watch = before.watch.clone();
        }
    }

    /// Makes a command that inserts reservations in a transaction name the collection that it is meant for.
    pub fn append_uuid(&self, insert: &mut Builder) {
        if let Some(uuid) = self.expected.name() {
            insert.binary(UUID_FIELD.as_bytes(), BinarySubtype::Uuid, &uuid.bytes());
        }
    }

    /// Notes whether the server has refused such a command for the name, by the errors in its reply.
    pub fn note_refused(&self, errors: &[StatementError<'_>]) -> Refused {
        let said = |error: &StatementError<'_>| {
            let message = error.body.get("errmsg").ok().flatten();
            let message = message.and_then(|message| message.as_str().map(str::to_owned));
            (error.code, message.unwrap_or_default())
        };
        self.expected.note_errors(errors.iter().map(said))
    }

    /// The uuid of the collection that reservations are written to, if it is known.
    pub fn uuid(&self) -> Option<Uuid> {
        self.expected.uuid()
    }

    /// Returns true once, for the log line that the collection is gone.
    pub fn report_gone(&self) -> bool {
        self.expected.report()
    }

    /// Whether the collection with the reservations was dropped or replaced past Keyward. Nothing is reserved or taken over then.
    pub fn is_gone(&self) -> bool {
        self.expected.is_gone()
    }

    /// Notes that the reservations are complete in the collection with this uuid.
    pub fn note_complete_in(&self, uuid: Uuid) {
        if !self.expected.may_be(uuid) {
            self.expected.note_gone();
        }
    }

    /// How long a write may be in flight after its reservation, at least.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether the lease of a reservation that was read is over: this process knows that the reservation has existed for
    /// longer.
    ///
    /// The writer's lease may differ from this Keyward's. A reservation that was never in flight has no lease to wait for.
    pub fn is_over(&self, reservation: &Reservation) -> bool {
        let lease = self.lease.max(reservation.lease);
        !self.may_be_in_flight(reservation) || self.watch.is_older(reservation.at, lease)
    }

    /// Whether the write of a reservation that was read may still take effect, whenever it was written.
    pub fn may_be_in_flight(&self, reservation: &Reservation) -> bool {
        reservation.may_be_in_flight(self.lease)
    }

    /// Deletes the reservations of `keys` that still have these tokens; their attempts reserve nothing more under them.
    ///
    /// Only the primary acknowledges it. A lost release leaves a reservation without an owner, which the next conflict or
    /// sweep settles.
    ///
    /// # Errors
    /// [`StoreError`] if some may still exist.
    pub async fn release_by_token(&self, keys: &[(&Key, Token)]) -> Result<(), StoreError> {
        self.release_all(keys.iter().map(|(key, token)| token_filter(key, *token)).collect())
            .await
    }

    /// Works as [`ProxyCollection::release_by_token`], but releases only reservations of the given generations.
    ///
    /// # Errors
    /// [`StoreError`] if some may still exist.
    pub async fn release_by_version(&self, keys: &[(&Key, ReservationVersion)]) -> Result<(), StoreError> {
        self.release_all(
            keys.iter()
                .map(|(key, version)| version_filter(key, *version))
                .collect(),
        )
        .await
    }

    /// Deletes the reservations of `keys` that are unchanged since they were seen; acknowledged and counted like a release.
    ///
    /// # Errors
    /// [`StoreError`] if some may still exist.
    pub async fn release_seen(&self, keys: &[(&Key, &Reservation)]) -> Result<(), StoreError> {
        self.release_all(seen_filters(keys)).await
    }

    /// Carries out and counts every release.
    async fn release_all(&self, filters: Vec<RawDocumentBuf>) -> Result<(), StoreError> {
        let count = filters.len();
        asking(ProxyRequest::Release, &self.constraint, count, self.delete(filters)).await?;
        self.metrics.released.inc_by(count as u64);
        Ok(())
    }

    async fn delete(&self, filters: Vec<RawDocumentBuf>) -> Result<(), StoreError> {
        let mut deleted = Ok(());
        for filters in filters.chunks(KEYS_MAX) {
            let outcomes = self.deleting.ask(filters.to_vec()).await?;
            // The others may be on other shards.
            deleted = outcomes.into_iter().fold(deleted, Result::and);
        }
        deleted
    }

    /// The document that reserves `key` for `owner`.
    pub fn reservation(&self, key: &Key, owner: &Owner, version: impl Into<ReservationVersion>) -> RawDocumentBuf {
        reservation::document(key, owner, version.into(), self.lease)
    }

    /// The latest `operationTime` of this collection's reads, and the latest `$clusterTime` of its reads and writes.
    pub fn times(&self) -> Times {
        self.finder.times()
    }

    /// Reads as Keyward's own user, and notes the cluster times of the replies.
    async fn find(&self, command: RawDocumentBuf) -> Result<Vec<RawDocumentBuf>, StoreError> {
        self.finder.find(command).await
    }
}
