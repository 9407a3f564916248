//! Carries writes on protected collections out: claims keys, forwards on the client's own connection, gives back.
//!
//! It runs the effects of [`crate::reservation`] against the cluster and makes one reply of the parts. What it can't
//! protect it refuses, naming the collection and the way out.

mod back_off;
mod batch_command;
mod bulk;
mod drop;
mod era;
mod shard_key;
mod touch;
mod unusual;

mod forward;
mod insert;
mod refused_for_certain;
mod retried;

mod strict;

mod change;
mod clash;
mod client_transactions;
mod conclusion;
mod cursor;
mod image;
mod lease_left;
mod moves;
mod narrow;
mod plain;
pub mod record;
mod reserve;
mod standing;
mod statement;
mod transaction;

mod find_and_modify;
mod insert_within;
mod modify;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use crate::catalog::{Catalog, Protected};
use crate::claims::{Candidate, ConstrainedKey, InFlight};
use crate::classify::Write;
use crate::limits::Limits;
use crate::metrics::GroupCommit;
use crate::reply::{Refusal, Times};
use crate::upstream::Connection;
use crate::wire::OpMsg;

use back_off::BackOff;
use batch_command::BatchCommand;
use client_transactions::ClientTransactions;
pub use client_transactions::{TransactionId, end_if_open};
use era::Eras;
pub use era::{Era, Past, TRANSACTION_LIFE};
pub use forward::ForwardError;
use statement::Kind;
use strict::Groups;
use transaction::Transaction;

/// How long a write may wait and try again where the client set no limit: as long as a server's transaction may live.
const TIME_MAX: Duration = Duration::from_secs(60);

/// What the writes of one Keyward have in common.
#[derive(Debug)]
pub struct Context {
    catalog: ArcSwap<Catalog>,
    /// How long a reservation whose owner isn't there yet is presumed in flight.
    lease: Duration,
    /// The attempts under way in this process.
    in_flight: InFlight,
    eras: Eras,
    /// Whether clients have to log in.
    has_users: bool,
    /// The transactions of clients that pass.
    pub transactions: ClientTransactions,
    /// The strict inserts of several clients that go in by one transaction.
    groups: Arc<Groups>,
    documents_max: AtomicUsize,
}

impl Context {
    /// Enforces what stands in `catalog`.
    pub fn new(catalog: Arc<Catalog>, lease: Duration, group_commit: GroupCommit) -> Context {
        Context {
            catalog: ArcSwap::new(catalog),
            lease,
            in_flight: InFlight::default(),
            eras: Eras::new(),
            has_users: false,
            transactions: ClientTransactions::default(),
            groups: Arc::new(Groups::new(group_commit)),
            documents_max: AtomicUsize::new(Limits::default().max_documents_per_statement),
        }
    }

    /// The same where clients have to log in, if they `have_to`.
    #[must_use]
    pub fn with_users(self, have_to: bool) -> Context {
        Context {
            has_users: have_to,
            ..self
        }
    }

    /// Has one statement change no more than `max` documents in one transaction.
    pub fn limit_documents(&self, max: usize) {
        self.documents_max.store(max, Ordering::Relaxed);
    }

    /// Whether the commit of a client's transaction may go on as it came; else what is open of it is to be ended before.
    pub fn may_commit(&self, transaction: Option<TransactionId>) -> bool {
        transaction.is_some_and(|transaction| self.transactions.commit(transaction))
    }

    fn documents_max(&self) -> usize {
        self.documents_max.load(Ordering::Relaxed)
    }

    /// The constraints that hold now.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.catalog.load()
    }
}

/// What became of a write.
#[derive(Debug)]
pub enum Served {
    /// It was carried out, or refused: the reply's body.
    Reply(Vec<u8>),
    /// It can't change a key, and nothing of it was carried out: it may go on as it came.
    Untouched,
}

/// Carries out a write on protected data.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's connection has to go, too.
pub async fn serve(
    write: &Write<'_>,
    message: &OpMsg<'_>,
    context: &Context,
    upstream: &mut Connection,
) -> Result<Served, ForwardError> {
    let transaction = match message.body.get("autocommit")? {
        Some(_) => TransactionId::of(message.body),
        None => None,
    };
    let Some(transaction) = transaction else {
        return carry_out(write, message, context, upstream).await;
    };
    let Some(under_way) = context.transactions.enter(transaction) else {
        return Ok(Served::Reply(Refusal::Committed.body(&Times::default())));
    };
    let served = carry_out(write, message, context, upstream).await?;
    under_way.finish();
    Ok(served)
}

async fn carry_out(
    write: &Write<'_>,
    message: &OpMsg<'_>,
    context: &Context,
    upstream: &mut Connection,
) -> Result<Served, ForwardError> {
    let target = match write {
        Write::Insert(target)
        | Write::Update(target)
        | Write::Delete(target)
        | Write::FindAndModify(target)
        | Write::Drop(target) => target,
        Write::BulkWrite => {
            let reply = Box::pin(bulk::bulk_write(context, message, upstream)).await;
            return reply.map(Served::Reply);
        }
        Write::DropDatabase { database } => {
            let reply = drop::drop_database(context, database, message.body, upstream).await;
            return reply.map(Served::Reply);
        }
        Write::Reshape => {
            let reply = shard_key::reshape(context, message.body, upstream).await;
            return reply.map(Served::Reply);
        }
    };
    // The constraint may have gone since the message was classified; the catalog is taken once for all that follows.
    let protected = context
        .catalog
        .load()
        .protected(target.database, target.collection)
        .cloned();
    let Some(protected) = protected else {
        return Ok(Served::Reply(Refusal::ConstraintsChanged.body(&Times::default())));
    };
    if matches!(write, Write::Drop(_)) {
        let reply = drop::drop_collection(context, &protected, message.body, upstream).await;
        return reply.map(Served::Reply);
    }
    let kind = match write {
        Write::Insert(_) => None,
        Write::Update(_) => Some(Kind::Update),
        Write::Delete(_) => Some(Kind::Delete),
        _ => Some(Kind::FindAndModify),
    };
    if let Some(reply) = unusual::objection(message, kind, upstream).await? {
        return Ok(Served::Reply(reply));
    }
    let command = match write {
        Write::Insert(_) => BatchCommand::parse(message, "documents"),
        Write::Update(_) => BatchCommand::parse(message, "updates"),
        Write::Delete(_) => BatchCommand::parse(message, "deletes"),
        _ => BatchCommand::single(message.body),
    };
    let command = match command {
        Ok(command) => command,
        Err(refusal) => return Ok(Served::Reply(refusal.body(&Times::default()))),
    };
    if let Some(kind) = kind {
        for own in &command.documents {
            if !kind.can_read_query(*own)? {
                let refusal = Refusal::WrongType(kind.query_name());
                return Ok(Served::Reply(refusal.body(&Times::default())));
            }
        }
    }
    match write {
        Write::Insert(_) => {
            let reply = match Transaction::of_client(command.body)? {
                Some(transaction) => {
                    insert_within::insert_within(context, &protected, &command, transaction, upstream).await
                }
                None => insert::insert(context, &protected, &command, upstream).await,
            };
            reply.map(Served::Reply)
        }
        Write::Update(_) => modify::modify(context, &protected, &command, Kind::Update, upstream).await,
        Write::Delete(_) => modify::modify(context, &protected, &command, Kind::Delete, upstream).await,
        _ => find_and_modify::find_and_modify(context, &protected, &command, upstream).await,
    }
}

/// Counts the reservations that a write of unknown outcome leaves.
fn count_in_doubt(protected: &Protected, candidate: &Candidate<'_>) {
    for ConstrainedKey { constraint, .. } in &candidate.keys {
        protected.constraints[*constraint].metrics.in_doubt.inc();
    }
}
