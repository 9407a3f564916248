//! Carries out writes on protected collections, and decides on the commits of clients' transactions.
//!
//! A write reserves keys, writes on the client's own connection, and releases keys. [`crate::claims`] reserves and releases; this module
//! makes one reply of the parts. Keyward refuses a write that it can't protect. The refusal names the collection and the way out.

mod absent_collection;
mod acknowledged;
mod back_off;
mod bulk;
mod catalog_epoch;
mod client_body;
mod cluster_time;
mod command;
mod context;
mod drop;
mod forward;
mod forward_error;
mod insert;
mod lease_left;
mod operation;
pub mod plan;
mod reserve;
pub mod retry;
mod server_probe;
mod shard_key_change;
mod txn;
mod update;

use mongodb::Client;

use crate::raw::Doc;
use crate::reply::{Times, WriteRefusal};
use crate::upstream::Connection;
use crate::wire::OpMsg;

pub use catalog_epoch::{CatalogEpoch, PastEpochs, TRANSACTION_LIFE};
pub use context::Context;
pub use forward_error::ForwardError;
use plan::Plan;
pub use txn::client_transactions::{CommitDecision, TransactionId};
use txn::client_transactions::{ask_to_end, commit_unseen};

/// How a write was served.
#[derive(Debug)]
pub enum Served {
    /// The write was carried out or refused; the reply's body.
    Reply(Vec<u8>),
    /// The write can't change a key, and no part of it was carried out: Keyward may forward it unchanged.
    Untouched,
}

/// Carries out a write on protected data.
pub async fn serve(
    plan: Plan<'_>,
    message: &OpMsg<'_>,
    context: &Context,
    upstream: &mut Connection,
) -> Result<Served, ForwardError> {
    let transaction = match message.body.get("autocommit")? {
        Some(_) => TransactionId::of(message.body),
        None => None,
    };
    let Some(transaction) = transaction else {
        return carry_out(plan, message, context, upstream).await;
    };
    // Keyward's own commands replace the client's and carry no write concern.
    if let Some(concern) = message.body.nested("writeConcern")?
        && concern.elements().next().is_some()
    {
        let refusal = WriteRefusal::WriteConcernInTransaction;
        return Ok(Served::Reply(refusal.body(&Times::default())));
    }
    let is_start = message.body.is_set("startTransaction")?;
    let under_way = match context.transactions.enter(transaction, is_start) {
        Ok(under_way) => under_way,
        Err(refusal) => return Ok(Served::Reply(refusal.body(&Times::default()))),
    };
    if is_start {
        upstream.await_start();
    }
    upstream.take_ended();
    // An error leaves the statement unfinished. So its transaction is never committed.
    let served = carry_out(plan, message, context, upstream).await?;
    let has_started = upstream.take_start();
    if has_started {
        context.transactions.note_started(transaction);
    }
    // A server also refuses the start of a transaction that is open, and leaves it open.
    if upstream.take_ended() && (has_started || !is_start) {
        context.transactions.note_aborted(transaction);
    }
    match upstream.take_broken_off() {
        true => under_way.break_off(),
        false => under_way.finish(),
    }
    Ok(served)
}

/// Decides on a commit ([`txn::client_transactions::ClientTransactions::decide_commit`] records the decision), and ends the transaction if Keyward refuses
/// it. Keyward asks the shards through `client`. Returns the client's reply; `None` if Keyward forwards the commit unchanged.
pub async fn answer_commit(
    commit: Doc<'_>,
    transaction: Option<TransactionId>,
    context: &Context,
    client: &Client,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    // The server refuses a commit outside a transaction.
    let is_within = commit.get("autocommit")?.is_some() && !commit.is_set("autocommit")?;
    let Some(transaction) = transaction.filter(|_| is_within) else {
        return Ok(None);
    };
    let transactions = &context.transactions;
    Ok(match transactions.decide_commit(transaction) {
        CommitDecision::Forward => None,
        CommitDecision::Unseen => {
            let is_on_one = context.catalog().is_on_one_replica_set();
            commit_unseen(transaction, commit, transactions, is_on_one, client, upstream).await?
        }
        CommitDecision::Refuse => {
            // The server releases the transaction's locks, so that no other client waits for them. It doesn't commit the transaction, with
            // either answer.
            ask_to_end(commit, upstream).await?;
            let number = commit.whole_number("txnNumber")?.unwrap_or_default();
            Some(WriteRefusal::NoSuchTransaction { number }.body(&Times::default()))
        }
    })
}

async fn carry_out(
    plan: Plan<'_>,
    message: &OpMsg<'_>,
    context: &Context,
    upstream: &mut Connection,
) -> Result<Served, ForwardError> {
    let reply = match plan {
        Plan::Forward => return Ok(Served::Untouched),
        Plan::Command(plan) => command::carry_out_command(&plan, message, false, context, upstream).await?,
        Plan::Bulk(Ok(bulk), catalog) => bulk::bulk_write(context, &bulk, &catalog, upstream).await?,
        Plan::Bulk(Err(refusal), _) => refusal.body(&Times::default()),
        Plan::Drop(protected) => drop::drop_collection(context, &protected, message.body, upstream).await?,
        Plan::DropDatabase(database, catalog) => {
            drop::drop_database(context, &catalog, database, message.body, upstream).await?
        }
        Plan::ShardKeyChange => shard_key_change::forward_and_renew_shard_keys(context, message.body, upstream).await?,
    };
    Ok(Served::Reply(reply))
}
