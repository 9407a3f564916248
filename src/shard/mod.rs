//! Carries out `keyward shard`: shards a collection whose unique indexes the server couldn't keep.
//!
//! Keyward takes these indexes over first:
//!
//! 1. The indexes become constraints, as with a client's `createIndexes`. From then on the server and every Keyward keep them unique.
//! 2. Documents and reservations are compared. They differ if something writes past Keyward.
//! 3. Each index is made anew without `unique`. Another index serves its queries meanwhile.
//! 4. The server shards the collection.
//! 5. Documents and reservations are compared again.
//!
//! If it is killed, the same command goes on from there. At every step, the server or Keyward keeps the fields unique. It looks after all
//! constraints on the collection, also after those that an earlier run or a client has made.

mod plan;
mod refusal;
mod run;
mod unique_index;

pub use plan::ShardPlan;
pub use refusal::ShardRefusal;
pub use unique_index::{IndexStep, Indexes, UniqueIndex};

use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;

use crate::client_constraints::SharedList;
use crate::constraint::Constraint;
use crate::fleet::{Register, RegisterEntry};
use crate::indexes::BuildContext;
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::verify::VerifySettings;

/// One collection that is to be sharded.
pub struct ShardTask<'a> {
    /// Keyward's own client at the deployment.
    pub client: &'a Client,
    /// The collection.
    pub namespace: &'a Namespace,
    /// The shard key.
    pub key: &'a Document,
    /// The constraints of the configuration file.
    pub of_file: &'a [Arc<Constraint>],
    /// How long a write may be in flight after its reservation.
    pub lease: Duration,
    /// How documents and reservations are compared.
    pub verification: VerifySettings,
    /// How long to wait before that for writes past Keyward.
    pub watch: Duration,
    /// Counts what the comparison asks.
    pub metrics: &'a Metrics,
}

impl ShardTask<'_> {
    fn context<'c>(&'c self, list: &'c SharedList) -> BuildContext<'c> {
        BuildContext {
            client: self.client,
            list,
            serving: None,
            waiting: None,
        }
    }

    /// A Keyward that follows the list of clients' constraints, and has renewed its entry in the register just now.
    async fn living_keyward(&self) -> Result<RegisterEntry, ShardRefusal> {
        let follows = |entry: &RegisterEntry| entry.clients_version.is_some() && !entry.has_left;
        let living = Register::of(self.client).renewed(follows).await?;
        living.ok_or(ShardRefusal::NoKeyward)
    }

    /// The collection's indexes.
    async fn indexes(&self, is_collated: bool) -> Result<Indexes<'_>, ShardRefusal> {
        let database = self.client.database(&self.namespace.database);
        let list = database.run_cursor_command(doc! { "listIndexes": &self.namespace.collection });
        Ok(Indexes {
            namespace: self.namespace,
            is_collated,
            listed: list.await?.try_collect().await?,
        })
    }
}
