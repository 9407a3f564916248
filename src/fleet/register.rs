//! Reads and writes the register in the cluster: a small collection with a document for each Keyward.
//!
//! Every write uses the write concern majority. Reads that decide something are linearizable: a primary that has been replaced
//! and doesn't know it yet would show an old register.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::ReadConcern;
use mongodb::{Client, Collection};

use super::RegisterEntry;
use crate::proxy_collection::{READ_MAX, StoreError, answered};

/// The register's database.
pub const DATABASE: &str = "keyward";
/// Its collection.
pub const COLLECTION: &str = "keywards";

/// How long to leave it between two polls of an entry that is to be forgotten.
const POLL: Duration = Duration::from_secs(1);

/// The result of forgetting an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Forgotten {
    /// It is taken away.
    Gone,
    /// There is none.
    Unknown,
    /// It was renewed meanwhile.
    Lives(Box<RegisterEntry>),
}

/// A Keyward's own entry, with what the register must still have of it.
#[derive(Debug)]
pub(super) struct OwnEntry {
    /// Names the entry.
    pub id: ObjectId,
    /// The beat of the last update that was sent.
    sent: AtomicI64,
    /// The greatest beat that the cluster has confirmed.
    confirmed: AtomicI64,
}

impl OwnEntry {
    /// A new entry.
    pub(super) fn new(id: ObjectId) -> OwnEntry {
        OwnEntry {
            id,
            sent: AtomicI64::new(0),
            confirmed: AtomicI64::new(0),
        }
    }

    /// The beat that the next update gives the entry. No other update gives the same, so an entry without this one has a smaller beat.
    pub(super) fn next_beat(&self) -> i64 {
        self.sent.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// The register.
#[derive(Debug, Clone)]
pub struct Register {
    collection: Collection<Document>,
}

impl Register {
    /// The register in the deployment of `client`.
    pub fn of(client: &Client) -> Register {
        Register {
            collection: client.database(DATABASE).collection(COLLECTION),
        }
    }

    /// All entries as of now or later.
    ///
    /// # Errors
    /// [`StoreError`] if they can't be had, or one is none.
    pub async fn current(&self) -> Result<Vec<RegisterEntry>, StoreError> {
        self.read(ReadConcern::linearizable()).await
    }

    /// All entries as they were a short time ago.
    ///
    /// # Errors
    /// The same.
    pub async fn recent(&self) -> Result<Vec<RegisterEntry>, StoreError> {
        self.read(ReadConcern::majority()).await
    }

    async fn read(&self, concern: ReadConcern) -> Result<Vec<RegisterEntry>, StoreError> {
        let find = self.collection.find(doc! {}).read_concern(concern).max_time(READ_MAX);
        let found: Vec<Document> = answered(answered(find.into_future()).await?.try_collect()).await?;
        found.iter().map(RegisterEntry::read).collect()
    }

    pub(super) async fn insert(&self, entry: &RegisterEntry) -> Result<(), StoreError> {
        answered(self.collection.insert_one(entry.document()).into_future()).await?;
        Ok(())
    }

    /// Records that the Keyward lives. Returns whether its entry exists, as for [`Register::update_own`].
    pub(super) async fn renew(&self, own: &OwnEntry) -> Result<bool, StoreError> {
        self.update_own(own, Document::new()).await
    }

    /// Adds collections and constraints to an entry; returns whether it is there.
    pub(super) async fn add(
        &self,
        own: &OwnEntry,
        collections: &BTreeSet<String>,
        is_everywhere: bool,
        constraints: &BTreeSet<ObjectId>,
    ) -> Result<bool, StoreError> {
        let collections: Vec<&String> = collections.iter().collect();
        let constraints: Vec<ObjectId> = constraints.iter().copied().collect();
        let mut update = doc! { "$addToSet": {
            "collections": { "$each": collections }, "constraints": { "$each": constraints },
        } };
        if is_everywhere {
            update.insert("$set", doc! { "everywhere": true });
        }
        self.update_own(own, update).await
    }

    /// Takes constraints out of an entry; returns whether it is there.
    pub(super) async fn take_out(&self, own: &OwnEntry, constraints: &[ObjectId]) -> Result<bool, StoreError> {
        self.update_own(own, doc! { "$pull": { "constraints": { "$in": constraints } } })
            .await
    }

    /// Notes the version of the list of clients' constraints that the Keyward has applied; returns whether its entry is there.
    pub(super) async fn note_clients_version(&self, own: &OwnEntry, version: i64) -> Result<bool, StoreError> {
        self.update_own(own, doc! { "$set": { "clientsVersion": version } })
            .await
    }

    /// Prevents that an entry is removed because it isn't renewed.
    pub(super) async fn pin(&self, id: ObjectId) -> Result<bool, StoreError> {
        self.update(id, doc! { "$set": { "pinned": true } }).await
    }

    /// Notes that the Keyward has ended, though not all that it sent is known to be done.
    pub(super) async fn leave(&self, id: ObjectId) -> Result<bool, StoreError> {
        self.update(id, doc! { "$set": { "left": true } }).await
    }

    /// Updates the Keyward's own entry. Returns whether it exists with all confirmed updates. If the register was restored to an earlier
    /// state, the entry there may lack collections and constraints, so it counts as gone.
    async fn update_own(&self, own: &OwnEntry, mut update: Document) -> Result<bool, StoreError> {
        let confirmed = own.confirmed.load(Ordering::Acquire);
        let beat = own.next_beat();
        update.insert("$max", doc! { "beat": beat });
        let filter = doc! { "_id": own.id, "beat": { "$gte": confirmed } };
        let update = self.collection.update_one(filter, update);
        let is_there = answered(update.into_future()).await?.matched_count == 1;
        if is_there {
            own.confirmed.fetch_max(beat, Ordering::AcqRel);
        }
        Ok(is_there)
    }

    async fn update(&self, id: ObjectId, update: Document) -> Result<bool, StoreError> {
        let update = self.collection.update_one(doc! { "_id": id }, update);
        Ok(answered(update.into_future()).await?.matched_count == 1)
    }

    /// Takes an entry away; returns whether it was there.
    pub(super) async fn remove(&self, id: ObjectId) -> Result<bool, StoreError> {
        let delete = self.collection.delete_one(doc! { "_id": id });
        Ok(answered(delete.into_future()).await?.deleted_count == 1)
    }

    /// Takes an entry away at an operator's word, unless it is renewed meanwhile: it is watched for as long as its Keyward may write
    /// without renewing it. One that lives is so never taken for one that is gone.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say what stands there.
    pub async fn forget(&self, id: ObjectId) -> Result<Forgotten, StoreError> {
        let find = async || {
            let mut entries = self.recent().await?;
            entries.retain(|entry| entry.id == id);
            Ok::<_, StoreError>(entries.pop())
        };
        let Some(first) = find().await? else {
            return Ok(Forgotten::Unknown);
        };
        let begun = Instant::now();
        while begun.elapsed() <= first.terms.lease {
            tokio::time::sleep(POLL).await;
            match find().await? {
                None => return Ok(Forgotten::Unknown),
                Some(entry) if entry.beat != first.beat => return Ok(Forgotten::Lives(Box::new(entry))),
                Some(_) => {}
            }
        }
        let delete = self.collection.delete_one(doc! { "_id": id, "beat": first.beat });
        Ok(match answered(delete.into_future()).await?.deleted_count {
            1 => Forgotten::Gone,
            _ => Forgotten::Lives(Box::new(first)),
        })
    }

    /// Watches the entries that are `meant` for as long as their Keywards may write without renewing them. Returns the first that is new
    /// or renewed, so its Keyward lives; none if all of them have ended.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say what stands there.
    pub async fn renewed(&self, meant: impl Fn(&RegisterEntry) -> bool) -> Result<Option<RegisterEntry>, StoreError> {
        let find = async || {
            let mut entries = self.recent().await?;
            entries.retain(|entry| meant(entry));
            Ok::<_, StoreError>(entries)
        };
        let before = find().await?;
        let longest = before.iter().map(|entry| entry.terms.lease).max().unwrap_or_default();
        let begun = Instant::now();
        while !before.is_empty() && begun.elapsed() <= longest {
            tokio::time::sleep(POLL).await;
            let is_as_before = |now: &RegisterEntry| before.iter().any(|one| one.id == now.id && one.beat == now.beat);
            if let Some(entry) = find().await?.into_iter().find(|now| !is_as_before(now)) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Takes `entry` away unless it has changed; returns whether it did.
    pub(super) async fn evict(&self, entry: &RegisterEntry) -> Result<bool, StoreError> {
        let mut filter = doc! { "_id": entry.id, "beat": entry.beat, "left": entry.has_left };
        if !entry.has_left {
            filter.insert("pinned", false);
        }
        let delete = self.collection.delete_one(filter);
        Ok(answered(delete.into_future()).await?.deleted_count == 1)
    }
}
