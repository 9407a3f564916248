//! A throwaway sharded MongoDB cluster for tests and the demo: real `mongod`s as config server and shards, and a
//! `mongos`, the real one where it is installed, else a stand-in that runs inside the calling process.
//!
//! Everything started here ends with the process that started it, also when that is killed with -9. The calls block;
//! [`mongodb::Client`]s are made anew for each caller, because a client belongs to the runtime that it was made on.
//!
//! Reading order: [`fetch`] finds the programs, [`process`] runs one of them, [`command`] talks to it, a
//! [`replica_set`] is several of them, a [`cluster`] several of those and a router.

pub mod cluster;
pub mod command;
pub mod fail_point;
pub mod fetch;
pub mod process;
pub mod replica_set;
pub mod router;

mod alone;
mod deadline;
mod error;
mod prepared;

pub use alone::Alone;
pub use cluster::{Cluster, ClusterBuilder, StandIn};
pub use error::Error;
pub use fetch::{NodeProject, node_project, python, python_source, python_with};
pub use prepared::Prepared;
pub use replica_set::{ReplicaSet, ReplicaSetBuilder};
