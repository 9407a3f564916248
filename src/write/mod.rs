//! Carries writes on protected collections out: claims keys, forwards on the client's own connection, gives back.
//!
//! It runs the effects of [`crate::reservation`] against the cluster and makes one reply of the parts. What it can't
//! protect it refuses, naming the collection and the way out.

mod forward;
mod insert;
mod insert_command;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use crate::catalog::Catalog;
use crate::claims::InFlight;
use crate::classify::{Target, Write};
use crate::reply::{Refusal, Times};
use crate::upstream::Connection;
use crate::wire::OpMsg;

pub use forward::ForwardError;
use insert_command::InsertCommand;

/// What the writes of one Keyward have in common.
#[derive(Debug)]
pub struct Context {
    catalog: ArcSwap<Catalog>,
    /// How long a reservation whose owner isn't there yet is presumed in flight.
    lease: Duration,
    /// The attempts under way in this process.
    in_flight: InFlight,
}

impl Context {
    /// Enforces what stands in `catalog`.
    pub fn new(catalog: Catalog, lease: Duration) -> Context {
        Context {
            catalog: ArcSwap::from_pointee(catalog),
            lease,
            in_flight: InFlight::default(),
        }
    }

    /// The constraints that hold now.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.catalog.load()
    }
}

/// Carries out a write on protected data; gives the reply's body.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's connection has to go, too.
pub async fn serve(
    write: &Write<'_>,
    message: &OpMsg<'_>,
    context: &Context,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let target = match write {
        Write::Insert(target) => target,
        other => return Ok(refusal(other).body(&Times::default())),
    };
    // The constraint may have gone since the message was classified; the catalog is taken once for all that follows.
    let protected = context
        .catalog
        .load()
        .protected(target.database, target.collection)
        .cloned();
    let Some(protected) = protected else {
        return Ok(Refusal::ConstraintsChanged.body(&Times::default()));
    };
    match InsertCommand::parse(message) {
        Ok(command) => insert::insert(context, &protected, &command, upstream).await,
        Err(refusal) => Ok(refusal.body(&Times::default())),
    }
}

fn refusal(write: &Write<'_>) -> Refusal {
    let (what, target) = match write {
        Write::Insert(target) => ("insert", Some(target)),
        Write::Update(target) => ("update", Some(target)),
        Write::Delete(target) => ("delete", Some(target)),
        Write::FindAndModify(target) => ("findAndModify", Some(target)),
        Write::Drop(target) => ("drop", Some(target)),
        Write::BulkWrite => ("bulkWrite", None),
        Write::DropDatabase { .. } => ("dropDatabase", None),
    };
    let namespace = target.map(|Target { database, collection }| {
        format!(
            "{}.{}",
            String::from_utf8_lossy(database),
            String::from_utf8_lossy(collection)
        )
    });
    Refusal::NotYet { what, namespace }
}
