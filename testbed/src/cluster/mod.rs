//! A sharded cluster: a config server, shards and a router, all on this machine.

mod builder;
mod chunks;
mod mongos;
mod stand_in;

use std::sync::{Mutex, OnceLock};

use bson::Document;

use crate::Error;
use crate::alone::Alone;
use crate::command;
use crate::process::{Port, Process, Workspace};
use crate::replica_set::{ReplicaSet, direct_client};

pub use builder::ClusterBuilder;
pub use mongos::Mongos;
pub use stand_in::StandIn;

/// A running sharded cluster; dropping it ends its processes and removes its temporary folder.
#[derive(Debug)]
pub struct Cluster {
    // In the order in which they go: the router first, the folder last.
    mongos: Mongos,
    shards: Vec<ReplicaSet>,
    config_server: ReplicaSet,
    workspace: Workspace,
}

impl Cluster {
    /// A cluster to be started.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Starts a cluster of two shards with one member each.
    ///
    /// # Errors
    /// As [`ClusterBuilder::start`].
    pub fn start() -> Result<Cluster, Error> {
        Cluster::builder().start()
    }

    /// A cluster of two shards that all tests of one binary share, started at the first call. Each test takes databases of
    /// its own, and leaves the processes running.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn shared() -> &'static Cluster {
        static SHARED: OnceLock<Result<Cluster, Error>> = OnceLock::new();
        let shared = SHARED.get_or_init(Cluster::start).as_ref();
        shared.unwrap_or_else(|error| panic!("the shared cluster can't be started: {error}"))
    }

    /// A cluster like the shared one that no other test uses meanwhile, for fail points and server parameters.
    ///
    /// # Errors
    /// As [`ClusterBuilder::start`].
    pub fn alone() -> Result<Alone<Cluster>, Error> {
        static FREE: Mutex<Vec<&Cluster>> = Mutex::new(Vec::new());
        Alone::take(&FREE, Cluster::start)
    }

    /// The router.
    pub fn mongos(&self) -> &Mongos {
        &self.mongos
    }

    /// `127.0.0.1:port` of the router.
    pub fn router_address(&self) -> String {
        self.mongos.address()
    }

    /// Starts another router, which ends when it is dropped.
    ///
    /// # Errors
    /// [`Error`] if it doesn't start.
    pub fn start_router(&self) -> Result<Mongos, Error> {
        let port = Port::lease()?;
        let folder = self.workspace.path().join(format!("router-{}", port.number()));
        Mongos::start(port, &self.config_server, &folder)
    }

    /// The URI with which a driver reaches the router.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.router_address())
    }

    /// Starts a further router for this cluster: the testbed's own, whatever the first one is.
    ///
    /// # Errors
    /// If it can't listen.
    pub fn another_router(&self) -> Result<StandIn, Error> {
        let config_server = self.config_server.members().first().map(Process::address);
        StandIn::start(Port::lease()?, config_server.unwrap_or_default())
    }

    /// Starts two further routers as [`Cluster::another_router`], the second one on the port after the first one's: there the
    /// drivers' tests look for it.
    ///
    /// # Errors
    /// If they can't listen.
    pub fn two_routers(&self) -> Result<[StandIn; 2], Error> {
        let config_server = self.config_server.members().first().map(Process::address);
        let config_server = config_server.unwrap_or_default();
        let [first, second] = Port::lease_two()?;
        let first = StandIn::start(first, config_server.clone())?;
        Ok([first, StandIn::start(second, config_server)?])
    }

    /// The config server.
    pub fn config_server(&self) -> &ReplicaSet {
        &self.config_server
    }

    /// The shards, in the order of their names.
    pub fn shards(&self) -> &[ReplicaSet] {
        &self.shards
    }

    /// The shard called `name`.
    ///
    /// # Errors
    /// [`Error::UnknownPart`] if there is none.
    pub fn shard(&self, name: &str) -> Result<&ReplicaSet, Error> {
        let shard = self.shards.iter().find(|shard| shard.name() == name);
        shard.ok_or_else(|| Error::UnknownPart(name.to_owned()))
    }

    /// Every `mongod` of the cluster.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        std::iter::once(&self.config_server)
            .chain(&self.shards)
            .flat_map(ReplicaSet::members)
    }

    /// Where data and logs lie.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// A new client for the router, on the caller's tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn client(&self) -> mongodb::Client {
        direct_client(&self.router_address(), None)
    }

    /// Runs `command` on the router's `database` and gives the successful reply.
    ///
    /// # Errors
    /// [`Error::Command`] if it is refused.
    pub fn run(&self, database: &str, command: Document) -> Result<Document, Error> {
        Ok(command::run(&self.router_address(), database, command)?)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.processes().for_each(Process::begin_kill);
    }
}
