//! Reads and changes the list of clients' constraints in the cluster: one document, by compare-and-set on its version.
//!
//! If the document is gone, the list is empty, and has the version 0. A list that is made anew begins with a version that no former list had:
//! a Keyward may still apply a former one, and its entry in the register says so by the version alone.

use std::future::IntoFuture;
use std::time::{SystemTime, UNIX_EPOCH};

use bson::{Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{Client, Collection};

use super::ClientConstraints;
use crate::fleet::{DATABASE, Register};
use crate::proxy_collection::{READ_MAX, StoreError, answered};
use crate::server::{code, driver};

/// The list's collection, in the database of the register of Keywards.
pub const COLLECTION: &str = "clientConstraints";
/// The `_id` of its only document.
const LIST: &str = "list";

/// The list of a deployment.
pub enum FoundList {
    /// Its store, and the list as it is.
    There(ClientConstraintStore, ClientConstraints),
    /// Keyward's user may not read it.
    Unreadable,
    /// A replica set has none: the server keeps every index unique there.
    None,
}

impl FoundList {
    /// Its store, if it can be followed, and the list as far as it is known.
    pub fn into_parts(self) -> (Option<ClientConstraintStore>, ClientConstraints) {
        match self {
            FoundList::There(store, list) => (Some(store), list),
            FoundList::None | FoundList::Unreadable => (None, ClientConstraints::default()),
        }
    }
}

/// The list in the cluster.
#[derive(Debug, Clone)]
pub struct ClientConstraintStore {
    collection: Collection<Document>,
    register: Register,
}

impl ClientConstraintStore {
    /// The store in the deployment of `client`.
    fn of(client: &Client) -> ClientConstraintStore {
        ClientConstraintStore {
            collection: client.database(DATABASE).collection(COLLECTION),
            register: Register::of(client),
        }
    }

    /// The store of the deployment of `client`, and its list.
    ///
    /// # Errors
    /// [`StoreError`] if a list exists that this version can't keep, or the deployment doesn't answer.
    pub async fn of_deployment(client: &Client) -> Result<FoundList, StoreError> {
        let admin = client.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 });
        let hello = answered(hello.into_future()).await?;
        if !driver::is_of_router(&hello) {
            return Ok(FoundList::None);
        }
        let store = ClientConstraintStore::of(client);
        match store.read().await {
            Ok(list) => Ok(FoundList::There(store, list)),
            Err(StoreError::Driver(error)) if driver::code_of(&error) == Some(code::UNAUTHORIZED) => {
                tracing::warn!(
                    "Keyward's user may not read keyward.clientConstraints: clients can't make constraints by createIndexes; \
                     docs/security.md lists the privileges"
                );
                Ok(FoundList::Unreadable)
            }
            Err(error) => Err(error),
        }
    }

    /// The list, as a majority had it a short time ago.
    ///
    /// # Errors
    /// [`StoreError`] if it can't be had, or this version can't keep one of its constraints.
    pub async fn read(&self) -> Result<ClientConstraints, StoreError> {
        let find = self.collection.find_one(doc! { "_id": LIST });
        let find = find.read_concern(ReadConcern::majority());
        let found = answered(find.into_future()).await?;
        let list = found.as_ref().map(ClientConstraints::read).transpose()?;
        Ok(list.unwrap_or_default())
    }

    /// The list as [`ClientConstraintStore::read`] returns it, or nothing if it still has this version.
    ///
    /// # Errors
    /// The same.
    pub async fn read_unless(&self, version: i64) -> Result<Option<ClientConstraints>, StoreError> {
        // The list may be long, and seldom changes.
        let find = self.collection.find_one(doc! { "_id": LIST });
        let find = find.projection(doc! { "version": 1 });
        let find = find.read_concern(ReadConcern::majority());
        let there = answered(find.into_future()).await?;
        if there.map_or(Some(0), |there| there.get_i64("version").ok()) == Some(version) {
            return Ok(None);
        }
        let list = self.read().await?;
        Ok((list.version != version).then_some(list))
    }

    /// The list, now or later than now: a deposed primary can't answer this read.
    ///
    /// # Errors
    /// The same.
    pub async fn read_current(&self) -> Result<ClientConstraints, StoreError> {
        let find = self.collection.find_one(doc! { "_id": LIST });
        let find = find.read_concern(ReadConcern::linearizable()).max_time(READ_MAX);
        let found = answered(find.into_future()).await?;
        let list = found.as_ref().map(ClientConstraints::read).transpose()?;
        Ok(list.unwrap_or_default())
    }

    /// Changes the list by `change`, which returns nothing if there is nothing to change, and may be called several times. Returns what
    /// the change that took effect returned.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that the change took effect: it may have, or may yet.
    pub async fn change<T>(
        &self,
        mut change: impl FnMut(&mut ClientConstraints) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        loop {
            let mut list = self.read().await?;
            let Some(changed) = change(&mut list) else {
                return Ok(None);
            };
            if self.replace(list).await? {
                return Ok(Some(changed));
            }
        }
    }

    /// Replaces the list by `list`, which was read and changed; returns whether that was the current one.
    pub(super) async fn replace(&self, mut list: ClientConstraints) -> Result<bool, StoreError> {
        let before = list.version;
        if before == 0 {
            let first = doc! { "$setOnInsert": ClientConstraints::default().document() };
            let upsert = self.collection.update_one(doc! { "_id": LIST }, first).upsert(true);
            answered(upsert.into_future()).await?;
        }
        list.version = self.version_before_next(before).await? + 1;
        let current = doc! { "_id": LIST, "version": before };
        let replace = self.collection.replace_one(current, list.document());
        Ok(answered(replace.into_future()).await?.matched_count == 1)
    }

    /// The version of the list, or a higher one that a Keyward has noted as applied. A former list may have been applied before it was deleted,
    /// or before this one was put back from a backup.
    async fn version_before_next(&self, current: i64) -> Result<i64, StoreError> {
        let entries = self.register.recent().await?;
        let noted = entries.iter().filter_map(|entry| entry.clients_version).max();
        let applied = noted.map_or(current, |noted| noted.max(current));
        if current > 0 {
            return Ok(applied);
        }
        // A list changes less than once in a millisecond. The register makes up for a clock that was set back.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_millis()).unwrap_or_default();
        Ok(applied.max(now))
    }
}
