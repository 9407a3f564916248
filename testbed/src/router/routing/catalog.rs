//! The router's copy of the config server's metadata: shards, databases, collections. Loaded when first asked for,
//! dropped when a shard says that it is stale, loaded again by the next one who asks.
//!
//! It reads with majority, so that it never believes what a failover could take back. A copy is never changed in place:
//! who holds one keeps a consistent view.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use bson::spec::ElementType;
use bson::{Bson, Document, doc};
use bytes::Bytes;

use super::shard_key::{ShardKey, compare_points};
use super::table::{Chunk, Collection, Routing, Version};
use crate::router::clock::Clock;
use crate::router::error::{Failure, ServerError, code, is_not_primary};
use crate::router::message::Outgoing;
use crate::router::raw::{Builder, Doc};
use crate::router::reply::{Reply, encode, timestamp_value};
use crate::router::shard::{CallError, Pools, Preference, ReplicaSet, Shards};

const ATTEMPTS_MAX: usize = 3;
/// The config server's name among the shards.
pub const CONFIG: &str = "config";

/// A database as the config server knows it.
#[derive(Debug, Clone)]
pub struct Database {
    /// Its primary shard.
    pub primary: Arc<str>,
    /// `version`.
    pub version: Vec<u8>,
}

impl Database {
    fn routing(&self) -> Routing {
        Routing::Unsharded {
            shard: Arc::clone(&self.primary),
            version: Version::Unsharded {
                database: self.version.clone(),
            },
        }
    }
}

/// The config server and what it has told.
#[derive(Debug)]
pub struct Catalog {
    /// The config server's replica set.
    pub config: Arc<ReplicaSet>,
    /// The shards.
    pub shards: Shards,
    databases: RwLock<HashMap<String, Database>>,
    collections: RwLock<HashMap<String, Routing>>,
    /// Held by the one who loads a collection, so that the others needn't.
    loading: tokio::sync::Mutex<()>,
}

impl Catalog {
    /// A catalog that knows nothing but the config server.
    pub fn new(config: ReplicaSet) -> Self {
        Catalog {
            config: Arc::new(config),
            shards: Shards::default(),
            databases: RwLock::default(),
            collections: RwLock::default(),
            loading: tokio::sync::Mutex::new(()),
        }
    }

    /// Forgets what was used, unless it has been loaded anew meanwhile.
    pub fn invalidate_used(&self, namespace: &str, used: &Routing) {
        let current = read(&self.collections).get(namespace).cloned();
        match (current, used) {
            (Some(Routing::Sharded(current)), Routing::Sharded(used)) if !Arc::ptr_eq(&current, used) => (),
            (Some(Routing::Sharded(_)), Routing::Unsharded { .. }) => (),
            _ => self.invalidate(namespace),
        }
    }

    /// Forgets a collection and its database, so that both are loaded anew.
    pub fn invalidate(&self, namespace: &str) {
        write(&self.collections).remove(namespace);
        self.invalidate_database(namespace.split_once('.').map_or(namespace, |(db, _)| db));
    }

    /// Forgets a database and all its unsharded collections.
    pub fn invalidate_database(&self, db: &str) {
        write(&self.databases).remove(db);
        let prefix = format!("{db}.");
        write(&self.collections).retain(|namespace, routing| {
            !(namespace.starts_with(&prefix) && matches!(routing, Routing::Unsharded { .. }))
        });
    }

    /// Forgets everything but the shards.
    pub fn clear(&self) {
        write(&self.databases).clear();
        write(&self.collections).clear();
    }

    /// Where a namespace's documents are; `None` if its database doesn't exist.
    ///
    /// # Errors
    /// The failure to read the config server.
    pub async fn routing(&self, link: &Link<'_>, namespace: &str) -> Result<Option<Routing>, Failure> {
        if let Some(routing) = on_config_server(namespace) {
            return Ok(Some(routing));
        }
        if let Some(routing) = read(&self.collections).get(namespace) {
            return Ok(Some(routing.clone()));
        }
        let _loading = self.loading.lock().await;
        if let Some(routing) = read(&self.collections).get(namespace) {
            return Ok(Some(routing.clone()));
        }
        let db = namespace.split_once('.').map_or(namespace, |(db, _)| db);
        let Some(database) = self.database(link, db).await? else {
            return Ok(None);
        };
        let routing = match self.load_collection(link, namespace).await? {
            Some(collection) => Routing::Sharded(Arc::new(collection)),
            None => database.routing(),
        };
        write(&self.collections).insert(namespace.to_owned(), routing.clone());
        Ok(Some(routing))
    }

    /// A database; `None` if there is none of that name.
    ///
    /// # Errors
    /// The failure to read the config server.
    pub async fn database(&self, link: &Link<'_>, db: &str) -> Result<Option<Database>, Failure> {
        if let Some(database) = read(&self.databases).get(db) {
            return Ok(Some(database.clone()));
        }
        let filter = doc! { "_id": db };
        let Some(found) = self.find(link, "databases", filter, doc! {}).await?.into_iter().next() else {
            return Ok(None);
        };
        let found = Doc::new(&found)?;
        let text = |name| found.get(name).ok().flatten().and_then(|field| field.as_str());
        let version = found.get("version")?.map(|field| field.value.to_vec());
        let database = Database {
            primary: text("primary").unwrap_or_default().into(),
            version: version.unwrap_or_default(),
        };
        self.know_shard(link, &database.primary).await?;
        write(&self.databases).insert(db.to_owned(), database.clone());
        Ok(Some(database))
    }

    /// Reads `config.shards` anew.
    ///
    /// # Errors
    /// The failure to read the config server.
    pub async fn load_shards(&self, link: &Link<'_>) -> Result<(), Failure> {
        let listed = self.find(link, "shards", doc! {}, doc! {}).await?;
        let text = |document: &Bytes, name: &str| {
            let field = Doc::new(document).ok()?.get(name).ok()??;
            field.as_str().map(str::to_owned)
        };
        let pairs: Vec<_> = listed
            .iter()
            .filter_map(|shard| Some((text(shard, "_id")?, text(shard, "host")?)))
            .collect();
        self.shards.replace(&pairs);
        Ok(())
    }

    async fn know_shard(&self, link: &Link<'_>, shard: &str) -> Result<(), Failure> {
        match self.shards.find(shard) {
            Some(_) => Ok(()),
            None => self.load_shards(link).await,
        }
    }

    async fn load_collection(&self, link: &Link<'_>, namespace: &str) -> Result<Option<Collection>, Failure> {
        // Between the two reads the collection may be dropped and made anew: then its chunks aren't whole.
        for _ in 0..ATTEMPTS_MAX {
            let filter = doc! { "_id": namespace };
            let Some(entry) = self
                .find(link, "collections", filter, doc! {})
                .await?
                .into_iter()
                .next()
            else {
                return Ok(None);
            };
            let decoded = Document::from_reader(entry.as_ref()).map_err(|_| unreadable(namespace))?;
            let uuid = decoded.get("uuid").cloned().unwrap_or(Bson::Null);
            let entry = Doc::new(&entry)?;
            let chunks = self
                .find(link, "chunks", doc! { "uuid": uuid }, doc! { "min": 1 })
                .await?;
            let collection = read_collection(namespace, entry, &chunks)?;
            if collection_is_whole(&collection) {
                for shard in collection.versions.keys() {
                    self.know_shard(link, shard).await?;
                }
                return Ok(Some(collection));
            }
        }
        Err(unreadable(namespace).into())
    }

    /// Reads documents of the `config` database.
    ///
    /// # Errors
    /// The failure to read the config server.
    pub async fn find(
        &self,
        link: &Link<'_>,
        collection: &str,
        filter: Document,
        sort: Document,
    ) -> Result<Vec<Bytes>, Failure> {
        let command = doc! {
            "find": collection, "filter": filter, "sort": sort, "readConcern": { "level": "majority" }, "$db": "config",
        };
        let mut reply = self.run(link, &command).await?.success()?;
        let mut documents = Vec::new();
        loop {
            let cursor = reply.nested("cursor").unwrap_or_else(Doc::empty);
            let batch = cursor.get("firstBatch")?.or(cursor.get("nextBatch")?);
            if let Some(batch) = batch.map(|batch| batch.as_document_or_array()).transpose()?.flatten() {
                let copies = batch
                    .elements()
                    .flatten()
                    .map(|element| Bytes::copy_from_slice(element.value));
                documents.extend(copies);
            }
            let id = cursor.get("id")?.and_then(|id| id.as_whole_number()).unwrap_or(0);
            if id == 0 {
                return Ok(documents);
            }
            let more = doc! { "getMore": id, "collection": collection, "$db": "config" };
            reply = self.run(link, &more).await?.success()?;
        }
    }

    /// Runs a command on the config server's primary, again if that changes meanwhile: only for what may run twice.
    ///
    /// # Errors
    /// The failure to get any reply.
    pub async fn run(&self, link: &Link<'_>, command: &Document) -> Result<Reply, Failure> {
        let mut body = Builder::new();
        for element in Doc::new(&encode(command))?.elements() {
            body.element(&element?);
        }
        link.clock.append(&mut body);
        let outgoing = Outgoing {
            body: body.finish(),
            sequence: None,
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let Some(host) = self.config.select(link.pools, Preference::Primary, None).await else {
                let message =
                    "Could not find host matching read preference { mode: \"primary\" } for the config server";
                return Err(ServerError::new(code::FAILED_TO_SATISFY_READ_PREFERENCE, message).into());
            };
            match link.pools.call(&host, &outgoing, None).await {
                Ok(reply) if is_not_primary(reply.code()) && attempt < ATTEMPTS_MAX => {
                    self.config.forget_primary(&host);
                }
                Ok(reply) => {
                    link.clock.observe(reply.doc());
                    return Ok(reply);
                }
                Err(error) => {
                    self.config.forget_primary(&host);
                    link.pools.drop_idle(&host);
                    let sent = !matches!(error, CallError::NotSent { .. });
                    if attempt >= ATTEMPTS_MAX && sent {
                        return Err(ServerError::new(code::HOST_UNREACHABLE, error.to_string()).into());
                    }
                }
            }
        }
    }
}

/// What the catalog reads the config server with.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    /// Connections.
    pub pools: &'a Pools,
    /// The cluster's time.
    pub clock: &'a Clock,
}

/// `admin` and `config` live on the config server, but for the one collection there that is sharded.
fn on_config_server(namespace: &str) -> Option<Routing> {
    let db = namespace.split_once('.').map_or(namespace, |(db, _)| db);
    let internal = matches!(db, "admin" | "config" | "local") && namespace != "config.system.sessions";
    internal.then(|| Routing::Unsharded {
        shard: CONFIG.into(),
        version: Version::Unchecked,
    })
}

fn unreadable(namespace: &str) -> ServerError {
    ServerError::new(code::INTERNAL_ERROR, format!("the chunks of {namespace} can't be read"))
}

fn read_collection(namespace: &str, entry: Doc<'_>, chunks: &[Bytes]) -> Result<Collection, Failure> {
    let key = entry
        .get("key")?
        .map(|key| key.as_document_or_array())
        .transpose()?
        .flatten();
    let key = ShardKey::new(key.ok_or_else(|| unreadable(namespace))?)?;
    let epoch = entry.get("lastmodEpoch")?.and_then(|epoch| epoch.value.try_into().ok());
    let mut collection = Collection {
        namespace: namespace.to_owned(),
        key,
        collation: entry.get("defaultCollation")?.map(|collation| collation.value.to_vec()),
        epoch: bson::oid::ObjectId::from_bytes(epoch.unwrap_or_default()),
        timestamp: timestamp_value(entry.get("timestamp")?).unwrap_or(0),
        chunks: Vec::with_capacity(chunks.len()),
        versions: BTreeMap::new(),
    };
    for chunk in chunks {
        add_chunk(&mut collection, Doc::new(chunk)?)?;
    }
    collection
        .chunks
        .sort_by(|left, right| compare_points(&left.min, &right.min));
    Ok(collection)
}

fn add_chunk(collection: &mut Collection, chunk: Doc<'_>) -> Result<(), Failure> {
    let bound = |name| -> Result<Doc<'_>, Failure> {
        let bound = chunk
            .get(name)?
            .filter(|bound| bound.kind == ElementType::EmbeddedDocument);
        Ok(Doc::new(bound.ok_or_else(|| unreadable(&collection.namespace))?.value)?)
    };
    let (min, max) = (bound("min")?, bound("max")?);
    let owner: Arc<str> = chunk
        .get("shard")?
        .and_then(|shard| shard.as_str())
        .unwrap_or_default()
        .into();
    let version = timestamp_value(chunk.get("lastmod")?).unwrap_or(0);
    let known = collection.versions.entry(Arc::clone(&owner)).or_default();
    *known = version.max(*known);
    collection.chunks.push(Chunk {
        min: collection.key.bound(min)?,
        max: collection.key.bound(max)?,
        bounds: (min.bytes().to_vec(), max.bytes().to_vec()),
        shard: owner,
        history: read_history(chunk)?,
    });
    Ok(())
}

/// `[{validAfter, shard}, …]`, the latest first.
fn read_history(chunk: Doc<'_>) -> Result<Vec<(u64, Arc<str>)>, Failure> {
    let mut history = Vec::new();
    let entries = chunk
        .get("history")?
        .map(|entries| entries.as_document_or_array())
        .transpose()?
        .flatten();
    for entry in entries.iter().flat_map(|entries| entries.elements()) {
        let entry = Doc::new(entry?.value)?;
        let since = timestamp_value(entry.get("validAfter")?).unwrap_or(0);
        let owner = entry.get("shard")?.and_then(|shard| shard.as_str()).unwrap_or_default();
        history.push((since, owner.into()));
    }
    Ok(history)
}

/// Whether the chunks follow one another without gaps.
fn collection_is_whole(collection: &Collection) -> bool {
    !collection.chunks.is_empty()
        && collection
            .chunks
            .windows(2)
            .all(|pair| compare_points(&pair[0].max, &pair[1].min).is_eq())
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
