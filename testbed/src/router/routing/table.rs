//! A sharded collection's chunks, and the versions by which a shard checks that the router knows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::spec::ElementType;

use super::query::KeyRange;
use super::shard_key::{KeyValue, ShardKey, compare_points};
use crate::router::display::display;
use crate::router::raw::{Builder, Doc};

/// One chunk: from `min` (inclusive) to `max` (exclusive).
#[derive(Debug, Clone)]
pub struct Chunk {
    /// The lower bound.
    pub min: Vec<KeyValue<'static>>,
    /// The upper bound.
    pub max: Vec<KeyValue<'static>>,
    /// The bounds as `config.chunks` holds them.
    pub bounds: (Vec<u8>, Vec<u8>),
    /// The shard that owns it.
    pub shard: Arc<str>,
    /// Who has owned it since when (a cluster time), the latest first.
    pub history: Vec<(u64, Arc<str>)>,
}

impl Chunk {
    /// The shard that owned it at a cluster time; now, if there is none.
    pub fn owner(&self, at: Option<u64>) -> &Arc<str> {
        let Some(at) = at else { return &self.shard };
        let then = self.history.iter().find(|(since, _)| *since <= at);
        // Older than what is known: the first owner that is.
        then.or(self.history.last()).map_or(&self.shard, |(_, owner)| owner)
    }
}

/// A sharded collection as of one refresh.
#[derive(Debug)]
pub struct Collection {
    /// `db.collection`.
    pub namespace: String,
    /// Its shard key.
    pub key: ShardKey,
    /// Its default collation, if it isn't simple.
    pub collation: Option<Vec<u8>>,
    /// `lastmodEpoch`.
    pub epoch: ObjectId,
    /// `timestamp`.
    pub timestamp: u64,
    /// By lower bound; without gaps from MinKey to MaxKey.
    pub chunks: Vec<Chunk>,
    /// The highest chunk version of each shard that owns chunks.
    pub versions: BTreeMap<Arc<str>, u64>,
}

impl Collection {
    /// The chunk that a point lies in, for a statement that names it.
    ///
    /// # Errors
    /// The router's text if the point doesn't tell: a collation has a say in it, or no chunk ends above it.
    pub fn chunk_for(&self, point: &[KeyValue<'_>], simple_collation: bool) -> Result<&Chunk, String> {
        let fields = || self.key.fields.iter().zip(point);
        let collated = fields().find(|(field, value)| field.hashed || value.is_collatable());
        if let (false, Some((field, _))) = (simple_collation, collated) {
            let (path, namespace) = (&field.path, &self.namespace);
            return Err(format!(
                "Cannot target single shard due to collation of key {path} for namespace {namespace}"
            ));
        }
        if self
            .chunks
            .last()
            .is_some_and(|last| compare_points(&last.max, point).is_le())
        {
            let mut key = Builder::new();
            for (field, value) in fields() {
                let value = value.as_element();
                key.append(value.kind, field.path.as_bytes(), value.value);
            }
            let (key, namespace) = (key.finish(), &self.namespace);
            let key = Doc::new(&key).map(display).unwrap_or_default();
            return Err(format!(
                "Cannot target single shard using key {key} for namespace {namespace}"
            ));
        }
        Ok(self.chunk_at(point))
    }

    /// The chunk that a point lies in.
    pub fn chunk_at(&self, point: &[KeyValue<'_>]) -> &Chunk {
        let after = self
            .chunks
            .partition_point(|chunk| compare_points(&chunk.min, point).is_le());
        &self.chunks[after.saturating_sub(1)]
    }

    /// The shards that own, or owned at a cluster time, any part of the ranges; by name.
    ///
    /// A snapshot is read where the documents were then: a shard that got them later doesn't show them at that time.
    pub fn shards_in(&self, ranges: &[KeyRange], at: Option<u64>) -> Vec<Arc<str>> {
        let mut shards = std::collections::BTreeSet::new();
        for range in ranges {
            let first = self
                .chunks
                .partition_point(|chunk| compare_points(&chunk.max, &range.min).is_le());
            let overlapping = self.chunks[first..]
                .iter()
                .take_while(|chunk| compare_points(&chunk.min, &range.max).is_le());
            shards.extend(overlapping.map(|chunk| Arc::clone(chunk.owner(at))));
            if at.is_none() && shards.len() == self.versions.len() {
                break;
            }
        }
        shards.into_iter().collect()
    }

    /// All shards that own chunks, by name.
    pub fn shards(&self) -> Vec<Arc<str>> {
        self.versions.keys().cloned().collect()
    }

    /// The version to send to a shard.
    pub fn version(&self, shard: &str) -> Version {
        Version::Sharded {
            epoch: self.epoch,
            timestamp: self.timestamp,
            version: self.versions.get(shard).copied().unwrap_or(0),
        }
    }
}

/// Where a namespace's documents are.
#[derive(Debug, Clone)]
pub enum Routing {
    /// All on the database's primary shard.
    Unsharded {
        /// That shard.
        shard: Arc<str>,
        /// The version to send it.
        version: Version,
    },
    /// Spread by a shard key.
    Sharded(Arc<Collection>),
}

impl Routing {
    /// Every shard that may hold documents.
    pub fn shards(&self) -> Vec<Arc<str>> {
        match self {
            Routing::Unsharded { shard, .. } => vec![Arc::clone(shard)],
            Routing::Sharded(collection) => collection.shards(),
        }
    }

    /// The version to send to a shard.
    pub fn version(&self, shard: &str) -> Version {
        match self {
            Routing::Unsharded { version, .. } => version.clone(),
            Routing::Sharded(collection) => collection.version(shard),
        }
    }
}

/// What a command tells a shard about the routing it is based on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// Nothing: the shard doesn't check.
    Unchecked,
    /// Part of a write to all shards, which is right whatever moves meanwhile.
    Ignored,
    /// The collection isn't sharded and its database is of this version.
    Unsharded {
        /// `config.databases`' `version`.
        database: Vec<u8>,
    },
    /// Only the database's version.
    Database {
        /// `config.databases`' `version`.
        database: Vec<u8>,
    },
    /// The shard's highest chunk version.
    Sharded {
        /// `lastmodEpoch`.
        epoch: ObjectId,
        /// `timestamp` of the collection.
        timestamp: u64,
        /// `lastmod`; 0 where the shard owns nothing.
        version: u64,
    },
}

impl Version {
    /// Appends `shardVersion` and `databaseVersion`.
    pub fn append(&self, command: &mut Builder) {
        match self {
            Version::Unchecked => (),
            // The epoch and timestamp that the server reserves for "don't check".
            Version::Ignored => {
                let epoch = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
                append_shard_version(command, epoch, u64::MAX, 0);
            }
            Version::Unsharded { database } => {
                append_shard_version(command, [0; 12], 0, 0);
                command.append(ElementType::EmbeddedDocument, b"databaseVersion", database);
            }
            Version::Database { database } => {
                command.append(ElementType::EmbeddedDocument, b"databaseVersion", database);
            }
            Version::Sharded {
                epoch,
                timestamp,
                version,
            } => {
                append_shard_version(command, epoch.bytes(), *timestamp, *version);
            }
        }
    }
}

fn append_shard_version(command: &mut Builder, epoch: [u8; 12], timestamp: u64, version: u64) {
    command.open(ElementType::EmbeddedDocument, b"shardVersion");
    command.append(ElementType::ObjectId, b"e", &epoch);
    command.timestamp("t", timestamp).timestamp("v", version);
    command.close();
}
