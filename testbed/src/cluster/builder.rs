//! What a cluster is started with, and starting it: all processes at once, then the shards are added.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use super::{Cluster, Mongos};
use bson::doc;

use crate::Error;
use crate::command;
use crate::process::{Port, Workspace};
use crate::replica_set::{Detour, ReplicaSet, ReplicaSetBuilder, Role};

/// What a cluster is started with.
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    shards: usize,
    replicas: usize,
    folder: Option<PathBuf>,
    port: Option<u16>,
    parameters: Vec<(String, String)>,
    detour: Option<Detour>,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        ClusterBuilder {
            shards: 2,
            replicas: 1,
            folder: None,
            port: None,
            parameters: Vec::new(),
            detour: None,
        }
    }
}

impl ClusterBuilder {
    /// How many shards it has; 2 by default.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// How many members each shard has; 1 by default. The config server has one.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Where data and logs lie, and stay; a temporary folder by default.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Where the router listens; any free port by default.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets a server parameter (`--setParameter name=value`) on every `mongod`; the last value given counts.
    ///
    /// `orphanCleanupDelaySecs` is 0 unless set here: the copies that a moved chunk leaves behind go at once.
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Has the router and the other members reach each member of a shard at another address: `detour` gives it for the address at
    /// which the member listens. For relays between them.
    pub fn detour(mut self, detour: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.detour = Some(Detour(Arc::new(detour)));
        self
    }

    /// Starts the cluster, and waits until it can be used through its router. The balancer is off.
    ///
    /// # Errors
    /// [`Error`] of the first part that failed; everything started so far is ended.
    pub fn start(self) -> Result<Cluster, Error> {
        let port = self.port.map_or_else(Port::lease, Port::lease_exactly)?;
        let workspace = self
            .folder
            .as_deref()
            .map_or_else(Workspace::temporary, Workspace::kept)?;
        let mut sets = self.start_replica_sets(&workspace)?;
        let config_server = sets.remove(0);
        add_shards(&config_server, &sets)?;
        shard_sessions(&config_server)?;
        stop_balancer(&config_server)?;
        let mongos = Mongos::start(port, &config_server, workspace.path())?;
        Ok(Cluster {
            mongos,
            shards: sets,
            config_server,
            workspace,
        })
    }

    /// The config server, then the shards.
    fn start_replica_sets(&self, workspace: &Workspace) -> Result<Vec<ReplicaSet>, Error> {
        let shards = (0..self.shards).map(|index| self.set(&format!("shard{index}"), self.replicas, Role::Shard));
        let sets: Vec<_> = std::iter::once(self.set("config", 1, Role::ConfigServer))
            .chain(shards)
            .collect();
        thread::scope(|scope| {
            let start = |set: ReplicaSetBuilder| scope.spawn(|| set.start_in(workspace.path()));
            let threads: Vec<_> = sets.into_iter().map(start).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("starting a set doesn't panic"))
                .collect()
        })
    }

    fn set(&self, name: &str, members: usize, role: Role) -> ReplicaSetBuilder {
        let detour = self.detour.as_ref().filter(|_| role == Role::Shard);
        ReplicaSetBuilder::new(name, role)
            .members(members)
            .parameters(&self.parameters)
            .detour(detour)
    }
}

/// Does on the config server what `addShard` asks of it, so that no router is needed yet.
fn add_shards(config_server: &ReplicaSet, shards: &[ReplicaSet]) -> Result<(), Error> {
    for shard in shards {
        let connection_string = shard.connection_string();
        let add = doc! {
            "_configsvrAddShard": connection_string, "name": shard.name(), "writeConcern": command::majority(),
        };
        config_server.run("admin", add)?;
    }
    Ok(())
}

/// Makes `config.system.sessions` now; by itself the config server would in some minutes, and sessions wouldn't be kept.
fn shard_sessions(config_server: &ReplicaSet) -> Result<(), Error> {
    config_server
        .run("admin", doc! { "refreshLogicalSessionCacheNow": 1 })
        .map(drop)
}

/// Chunks move when a test moves them (or sends `balancerStart`).
fn stop_balancer(config_server: &ReplicaSet) -> Result<(), Error> {
    config_server
        .run("admin", doc! { "_configsvrBalancerStop": 1 })
        .map(drop)
}
