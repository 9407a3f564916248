//! Reads and writes the register in the cluster: a small collection with a document for each Keyward.
//!
//! Every write uses the write concern majority. Reads that decide something are linearizable: a primary that has been replaced
//! and doesn't know it yet would show an old register.

use std::collections::BTreeSet;
use std::future::IntoFuture;
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

    /// Records that the Keyward lives. Returns whether its entry exists.
    pub(super) async fn renew(&self, id: ObjectId) -> Result<bool, StoreError> {
        self.update(id, doc! { "$inc": { "beat": 1_i64 } }).await
    }

    /// Adds collections and constraints to an entry; gives whether it is there.
    pub(super) async fn add(
        &self,
        id: ObjectId,
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
        self.update(id, update).await
    }

    /// Takes constraints out of an entry; gives whether it is there.
    pub(super) async fn take_out(&self, id: ObjectId, constraints: &[ObjectId]) -> Result<bool, StoreError> {
        self.update(id, doc! { "$pull": { "constraints": { "$in": constraints } } })
            .await
    }

    /// Notes the version of the list of clients' constraints that the Keyward has applied; gives whether its entry is there.
    pub(super) async fn note_clients_version(&self, id: ObjectId, version: i64) -> Result<bool, StoreError> {
        self.update(id, doc! { "$set": { "clientsVersion": version } }).await
    }

    /// Prevents that an entry is removed because it isn't renewed.
    pub(super) async fn pin(&self, id: ObjectId) -> Result<bool, StoreError> {
        self.update(id, doc! { "$set": { "pinned": true } }).await
    }

    /// Notes that the Keyward has ended, though not all that it sent is known to be done.
    pub(super) async fn leave(&self, id: ObjectId) -> Result<bool, StoreError> {
        self.update(id, doc! { "$set": { "left": true } }).await
    }

    async fn update(&self, id: ObjectId, update: Document) -> Result<bool, StoreError> {
        let update = self.collection.update_one(doc! { "_id": id }, update);
        Ok(answered(update.into_future()).await?.matched_count == 1)
    }

    /// Takes an entry away; gives whether it was there.
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

    /// Takes `entry` away unless it has changed; gives whether it did.
    pub(super) async fn evict(&self, entry: &RegisterEntry) -> Result<bool, StoreError> {
        let mut filter = doc! { "_id": entry.id, "beat": entry.beat, "left": entry.has_left };
        if !entry.has_left {
            filter.insert("pinned", false);
        }
        let delete = self.collection.delete_one(filter);
        Ok(answered(delete.into_future()).await?.deleted_count == 1)
    }
}
