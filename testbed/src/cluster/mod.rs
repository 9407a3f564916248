//! A sharded cluster: a config server, shards and a router, all on this machine.

mod builder;
mod mongos;

use bson::{Document, doc};

use crate::Error;
use crate::command::{self, majority};
use crate::process::Workspace;
use crate::replica_set::{ReplicaSet, direct_client};

pub use builder::ClusterBuilder;
pub use mongos::Mongos;

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

    /// The router.
    pub fn mongos(&self) -> &Mongos {
        &self.mongos
    }

    /// `127.0.0.1:port` of the router.
    pub fn router_address(&self) -> String {
        self.mongos.address()
    }

    /// The URI with which a driver reaches the router.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.router_address())
    }

    /// The config server.
    pub fn config_server(&self) -> &ReplicaSet {
        &self.config_server
    }

    /// The shards, in the order of their names.
    pub fn shards(&self) -> &[ReplicaSet] {
        &self.shards
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
        direct_client(&self.router_address())
    }

    /// Runs `command` on the router's `database` and gives the successful reply.
    ///
    /// # Errors
    /// [`Error::Command`] if it is refused.
    pub fn run(&self, database: &str, command: Document) -> Result<Document, Error> {
        Ok(command::run(&self.router_address(), database, command)?)
    }

    fn add_shards(&self) -> Result<(), Error> {
        for shard in &self.shards {
            let add = doc! {
                "_configsvrAddShard": shard.connection_string(), "name": shard.name(), "writeConcern": majority(),
            };
            self.config_server.run("admin", add)?;
        }
        Ok(())
    }
}
