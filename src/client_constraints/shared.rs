//! Shares one Keyward's view of the list between its connections and the tasks that follow the list.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bson::Document;
use bson::oid::ObjectId;
use tokio::sync::Notify;

use super::{ClientConstraintStore, ClientConstraints};
use crate::proxy_collection::StoreError;

/// Whether the list that this Keyward applies is the newest, if it follows one.
///
/// # Errors
/// [`StoreError`] if that can't be known.
pub async fn is_current(list: Option<&Arc<SharedList>>) -> Result<bool, StoreError> {
    match list {
        Some(list) => list.is_current().await,
        None => Ok(true),
    }
}

/// The list in the cluster, for a connection that changes it.
#[derive(Debug)]
pub struct SharedList {
    /// The list.
    pub store: ClientConstraintStore,
    changed: Notify,
    /// The version that this Keyward applies, or has applied.
    basis: AtomicI64,
    /// The entries whose builds this Keyward has begun.
    begun: Mutex<HashSet<ObjectId>>,
    /// The replies for clients that wait for constraints which held before, and which documents violate.
    violated: Mutex<HashMap<ObjectId, Document>>,
}

impl SharedList {
    /// The list in `store`, of which this Keyward applies the version `basis`.
    pub fn new(store: ClientConstraintStore, basis: i64) -> SharedList {
        SharedList {
            store,
            changed: Notify::new(),
            basis: AtomicI64::new(basis),
            begun: Mutex::default(),
            violated: Mutex::default(),
        }
    }

    /// Changes the list, as [`ClientConstraintStore::change`] does, and has this Keyward read it at once.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that the change took effect: it may have, or may yet.
    pub async fn change<T>(
        &self,
        change: impl FnMut(&mut ClientConstraints) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        let changed = self.store.change(change).await;
        self.note_change();
        changed
    }

    /// Removes these entries, as far as they are there.
    ///
    /// # Errors
    /// The same.
    pub async fn remove(&self, entries: &[ObjectId]) -> Result<(), StoreError> {
        let removed = self.change(|list| {
            let removed = entries.iter().filter(|id| list.remove(**id)).count();
            (removed > 0).then_some(())
        });
        removed.await.map(drop)
    }

    /// Removes these entries from `list`, which was read before. Returns whether it was the current one still.
    ///
    /// # Errors
    /// The same.
    pub async fn remove_from(&self, mut list: ClientConstraints, entries: &[ObjectId]) -> Result<bool, StoreError> {
        let removed = entries.iter().filter(|id| list.remove(**id)).count();
        if removed == 0 {
            return Ok(true);
        }
        let is_removed = self.store.replace(list).await;
        self.note_change();
        is_removed
    }

    /// Makes this Keyward read the list at once.
    pub fn note_change(&self) {
        self.changed.notify_one();
    }

    /// Waits for such a note; one that came before counts.
    pub async fn noted(&self) {
        self.changed.notified().await;
    }

    /// Notes that this Keyward applies this version from now on.
    pub fn note_applying(&self, version: i64) {
        self.basis.store(version, Ordering::Release);
    }

    /// Whether the version that this Keyward applies is the newest, now or later than now.
    ///
    /// # Errors
    /// [`StoreError`] if that can't be known.
    pub async fn is_current(&self) -> Result<bool, StoreError> {
        Ok(self.store.read_current().await?.version == self.basis.load(Ordering::Acquire))
    }

    /// Whether this Keyward applies that there is no list: none was made yet, or it is lost.
    pub fn is_gone(&self) -> bool {
        self.basis.load(Ordering::Acquire) == 0
    }

    /// Notes that the build of this entry has begun.
    pub fn begin(&self, id: ObjectId) {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// Whether this Keyward has begun the build of this entry.
    pub fn has_begun(&self, id: ObjectId) -> bool {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Notes the `reply` for a client that waits for this entry, which held before: documents violate it. The constraint stays.
    pub fn note_violated(&self, id: ObjectId, reply: Document) {
        self.violations().insert(id, reply);
    }

    /// The reply for a client that waits for this entry, if documents violated it when they were read last.
    pub fn violated(&self, id: ObjectId) -> Option<Document> {
        self.violations().get(&id).cloned()
    }

    /// Forgets what is known of documents that violate this entry: they are read again.
    pub fn forget_violated(&self, id: ObjectId) {
        self.violations().remove(&id);
    }

    fn violations(&self) -> MutexGuard<'_, HashMap<ObjectId, Document>> {
        self.violated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
