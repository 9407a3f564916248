//! Carries writes on protected collections out: claims keys, forwards on the client's own connection, gives back.
//!
//! It runs the effects of [`crate::reservation`] against the cluster and makes one reply of the parts. What it can't
//! protect it refuses, naming the collection and the way out.

mod back_off;
mod bulk;
mod catalog_epoch;
mod command_shape;
mod drop;
mod shard_key_change;

mod forward;
mod insert;
pub mod plan;
mod retried;
mod txn;
mod update;

mod lease_left;
pub mod record;
mod reserve;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use crate::catalog::{Catalog, Protected};
use crate::claims::{Candidate, ConstrainedKey, InFlight};
use crate::classify::{Target, Write};
use crate::limits::Limits;
use crate::metrics::GroupCommit;
use crate::raw::Doc;
use crate::reply::{Refusal, Times};
use crate::upstream::Connection;
use crate::wire::OpMsg;

pub use crate::command::affected_keys::overlap;
use crate::command::batch::BatchCommand;
use crate::command::statement::StatementKind;
use back_off::BackOff;
use catalog_epoch::CatalogEpochs;
pub use catalog_epoch::{CatalogEpoch, PastEpoch, TRANSACTION_LIFE};
pub use forward::ForwardError;
use insert::transactional::Groups;
use txn::Transaction;
use txn::client_transactions::ClientTransactions;
pub use txn::client_transactions::{Commit, TransactionId};
use txn::client_transactions::{ask_to_end, commit_unseen};

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
    epochs: CatalogEpochs,
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
            epochs: CatalogEpochs::new(lease),
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

    /// What becomes of the commit of a client's transaction; one that names none, the server refuses.
    pub fn commit(&self, transaction: Option<TransactionId>) -> Commit {
        transaction.map_or(Commit::GoesOn, |transaction| self.transactions.commit(transaction))
    }

    fn documents_max(&self) -> usize {
        self.documents_max.load(Ordering::Relaxed)
    }

    /// The protected collection that a write is about: looked up once, for all that follows. Its constraints may have gone since
    /// the message was classified.
    fn protected(&self, target: &Target<'_>) -> Result<Arc<Protected>, Refusal> {
        let catalog = self.catalog.load();
        let protected = catalog.protected(target.database, target.collection).cloned();
        protected.ok_or(Refusal::ConstraintsChanged)
    }

    /// Takes note of a write of unknown outcome: its reservations stay, and it may take effect yet.
    fn note_in_doubt(&self, protected: &Protected, candidate: &Candidate<'_>) {
        self.note_lost();
        for ConstrainedKey { constraint, .. } in &candidate.keys {
            protected.constraints[*constraint].metrics.in_doubt.inc();
        }
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
    // Commands of Keyward's take the place of the client's, without it.
    if let Some(concern) = message.body.nested("writeConcern")?
        && concern.elements().next().is_some()
    {
        let refusal = Refusal::WriteConcernInTransaction;
        return Ok(Served::Reply(refusal.body(&Times::default())));
    }
    let under_way = match context.transactions.enter(transaction) {
        Ok(under_way) => under_way,
        Err(refusal) => return Ok(Served::Reply(refusal.body(&Times::default()))),
    };
    let served = carry_out(write, message, context, upstream).await?;
    match upstream.take_broken_off() {
        true => under_way.break_off(),
        false => under_way.finish(),
    }
    Ok(served)
}

/// What a client is told whose commit mustn't go on as it came; none if it may after all.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's connection has to go, too.
pub async fn refuse_commit(
    commit: Doc<'_>,
    transaction: Option<TransactionId>,
    context: &Context,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    // Outside a transaction the server refuses it.
    let is_within = commit.get("autocommit")?.is_some() && !commit.is_set("autocommit")?;
    let Some(transaction) = transaction.filter(|_| is_within) else {
        return Ok(None);
    };
    let transactions = &context.transactions;
    Ok(match transactions.commit(transaction) {
        Commit::GoesOn => None,
        Commit::Unknown => {
            let is_on_one = context.catalog().is_on_one_replica_set();
            commit_unseen(transaction, commit, transactions, is_on_one, upstream).await?
        }
        Commit::Refused => {
            // So that nobody has to wait for what it has locked. It isn't committed whatever the answer is.
            ask_to_end(commit, upstream).await?;
            let number = commit.whole_number("txnNumber")?.unwrap_or_default();
            Some(Refusal::NoSuchTransaction { number }.body(&Times::default()))
        }
    })
}

async fn carry_out(
    write: &Write<'_>,
    message: &OpMsg<'_>,
    context: &Context,
    upstream: &mut Connection,
) -> Result<Served, ForwardError> {
    let (target, kind) = match write {
        Write::Insert(target) => (target, None),
        Write::Update(target) => (target, Some(StatementKind::Update)),
        Write::Delete(target) => (target, Some(StatementKind::Delete)),
        Write::FindAndModify(target) => (target, Some(StatementKind::FindAndModify)),
        Write::BulkWrite => {
            let reply = Box::pin(bulk::bulk_write(context, message, upstream)).await;
            return reply.map(Served::Reply);
        }
        Write::Drop(target) => {
            let reply = match context.protected(target) {
                Ok(protected) => drop::drop_collection(context, &protected, message.body, upstream).await?,
                Err(refusal) => refusal.body(&Times::default()),
            };
            return Ok(Served::Reply(reply));
        }
        Write::DropDatabase { database } => {
            let reply = drop::drop_database(context, database, message.body, upstream).await;
            return reply.map(Served::Reply);
        }
        Write::ShardKeyChange => {
            let reply = shard_key_change::change_shard_key(context, message.body, upstream).await;
            return reply.map(Served::Reply);
        }
    };
    let protected = match context.protected(target) {
        Ok(protected) => protected,
        Err(refusal) => return Ok(Served::Reply(refusal.body(&Times::default()))),
    };
    if let Some(reply) = command_shape::server_objection(message, kind, upstream).await? {
        return Ok(Served::Reply(reply));
    }
    let command = match kind.map_or(Some("documents"), StatementKind::list) {
        Some(list) => BatchCommand::parse(message, list),
        None => BatchCommand::single(message.body),
    };
    let command = match command {
        Ok(command) => command,
        Err(refusal) => return Ok(Served::Reply(refusal.body(&Times::default()))),
    };
    let Some(kind) = kind else {
        let reply = match Transaction::of_client(&protected, command.body, upstream)? {
            Some(transaction) => insert::insert_within(context, &protected, &command, transaction, upstream).await,
            None => insert::insert(context, &protected, &command, upstream).await,
        };
        return reply.map(Served::Reply);
    };
    for own in &command.documents {
        if !kind.can_read_query(*own)? {
            let refusal = Refusal::WrongType(kind.query_name());
            return Ok(Served::Reply(refusal.body(&Times::default())));
        }
    }
    match kind {
        StatementKind::Update | StatementKind::Delete => {
            update::modify(context, &protected, &command, kind, upstream).await
        }
        StatementKind::FindAndModify => update::find_and_modify(context, &protected, &command, upstream).await,
    }
}
