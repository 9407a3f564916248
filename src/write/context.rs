//! Holds the shared state of all writes of one Keyward.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};

use super::catalog_epoch::{CatalogEpoch, CatalogEpochs, PastEpochs};
use super::insert::strict::Groups;
use super::txn::client_transactions::ClientTransactions;
use crate::catalog::Catalog;
use crate::claims::WritesUnderWay;
use crate::fleet::Enforced;
use crate::haste::{self, hastened};
use crate::limits::Limits;
use crate::metrics::GroupCommit;

/// How long a write may wait and retry if the client set no limit: the default of `transactionLifetimeLimitSeconds`. An insert
/// waits for the leases of other attempts without it.
pub(super) const TIME_MAX: Duration = Duration::from_secs(60);

/// The moment when Keyward gives up a statement that begins now, if the client set no limit.
pub(super) fn end_of_time() -> Instant {
    static LIMIT: LazyLock<Duration> = LazyLock::new(|| hastened(TIME_MAX, haste::STATEMENTS));
    Instant::now() + *LIMIT
}

/// The shared state of all writes of one Keyward.
#[derive(Debug)]
pub struct Context {
    pub(super) catalog: ArcSwap<Catalog>,
    /// How long Keyward presumes a reservation in flight if its owner doesn't exist yet.
    pub(super) lease: Duration,
    /// The writes under way in this process.
    pub(super) writes: WritesUnderWay,
    pub(super) epochs: CatalogEpochs,
    /// The constraints that are enforced.
    pub enforced: Enforced,
    /// Whether clients have to log in.
    pub(super) has_users: bool,
    /// The clients' transactions that this Keyward forwards.
    pub transactions: ClientTransactions,
    /// The strict inserts of several clients that one transaction carries.
    pub(super) groups: Arc<Groups>,
    documents_max: AtomicUsize,
    /// Whether constraints were defined otherwise since, and commands from before were not waited for.
    is_redefined: AtomicBool,
}

impl Context {
    /// How long Keyward presumes a reservation in flight if its owner doesn't exist yet.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Enforces the constraints of `catalog`, for clients that have to log in if the deployment `has_users`.
    pub fn new(catalog: Arc<Catalog>, lease: Duration, group_commit: GroupCommit, has_users: bool) -> Context {
        Context {
            catalog: ArcSwap::new(catalog),
            lease,
            writes: WritesUnderWay::default(),
            epochs: CatalogEpochs::new(lease),
            enforced: Enforced::default(),
            has_users,
            transactions: ClientTransactions::default(),
            groups: Arc::new(Groups::new(group_commit)),
            is_redefined: AtomicBool::new(false),
            documents_max: AtomicUsize::new(Limits::default().max_documents_per_statement),
        }
    }

    /// Limits the documents that one statement may change in one transaction to `max`.
    pub fn limit_documents(&self, max: usize) {
        self.documents_max.store(max, Ordering::Relaxed);
    }

    /// How many documents one statement may change in one transaction.
    pub(super) fn documents_max(&self) -> usize {
        self.documents_max.load(Ordering::Relaxed)
    }

    /// The constraints in force.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.catalog.load()
    }

    /// The catalog epochs, each from its start. A connection takes its epoch before it reads the catalog.
    pub fn epochs(&self) -> watch::Receiver<CatalogEpoch> {
        self.epochs.current.subscribe()
    }

    /// Notes that Keyward forwards a command of a client's transaction.
    pub fn note_transaction(&self) {
        self.epochs.unobserved_at.store(self.epochs.now(), Ordering::Relaxed);
    }

    /// Notes a write of unknown outcome: the connection broke before its reply arrived, or the reply leaves the outcome open.
    /// The server may execute the write for as long as a transaction may live, or for a lease if that is longer. Forwarded
    /// replies are not inspected.
    pub fn note_in_doubt(&self) {
        let now = self.epochs.now();
        self.epochs.unobserved_at.store(now, Ordering::Relaxed);
        self.epochs.in_doubt_at.store(now, Ordering::Relaxed);
    }

    /// The time by which every forwarded client transaction and every write of unknown outcome must have ended.
    pub fn unobserved_end(&self) -> Option<Instant> {
        self.epochs.end_of(&self.epochs.unobserved_at)
    }

    /// The time by which every write of unknown outcome must have ended.
    pub fn in_doubt_end(&self) -> Option<Instant> {
        self.epochs.end_of(&self.epochs.in_doubt_at)
    }

    /// From now on, refuses the commit of clients' transactions that began before the last change of the catalog. They can't be
    /// waited for: a server setting limits how long a transaction may be open, and a prepared transaction stays open until all
    /// of its shards answer. A commit that Keyward has forwarded is in progress until the returned epochs are over.
    fn refuse_older_transactions(&self) -> PastEpochs {
        self.transactions.refuse_older();
        self.epochs.begin()
    }

    /// From now on, refuses the commit of clients' transactions that have begun until now. This Keyward was out of the register: other
    /// Keywards may have enforced a constraint meanwhile, without the reservations of these transactions.
    pub fn refuse_transactions_until_now(&self) {
        self.transactions.note_change();
        self.transactions.refuse_older();
    }

    /// Waits until nothing takes effect any more that the catalogs before decided. Commands under way may each take `patience` to end.
    ///
    /// # Errors
    /// [`Elapsed`] if they take longer.
    pub async fn await_past(&self, past: PastEpochs, patience: Duration) -> Result<(), Elapsed> {
        timeout(patience, past.ended()).await?;
        if let Some(end) = self.unobserved_end() {
            tracing::info!(
                "waiting until no transaction from before can be open any more, nor a write of unknown outcome"
            );
            sleep_until(end).await;
        }
        // A transaction may be open for longer, but then it isn't committed any more. A commit that was forwarded
        // before has its answer.
        let past = self.refuse_older_transactions();
        timeout(patience, past.ended()).await?;
        if let Some(end) = self.in_doubt_end() {
            sleep_until(end).await;
        }
        Ok(())
    }

    /// Ends the epoch of the present catalog for new commands, which it goes on to decide.
    pub fn begin_epoch(&self) -> PastEpochs {
        self.transactions.note_change();
        self.epochs.begin()
    }

    /// Decides commands by the changed catalog from now on.
    pub fn change(&self, change: impl Fn(&Catalog) -> Catalog) {
        self.catalog.rcu(|catalog| {
            let changed = change(catalog);
            self.note_redefined(&changed, catalog);
            changed
        });
        drop(self.begin_epoch());
    }

    /// The same, where constraints were made anew: perhaps with the same definitions, but without the reservations from before.
    pub fn make_anew(&self, change: impl Fn(&Catalog) -> Catalog) {
        self.is_redefined.store(true, Ordering::Release);
        self.change(change);
    }

    /// Notes it if a constraint has another definition in `catalog` than `before`, ahead of the first command that `catalog` decides.
    fn note_redefined(&self, catalog: &Catalog, before: &Catalog) {
        if catalog.redefines(before) {
            self.is_redefined.store(true, Ordering::Release);
        }
    }

    /// Whether commands that former definitions decided may still be in progress.
    pub fn is_redefined(&self) -> bool {
        self.is_redefined.load(Ordering::Acquire)
    }

    /// Waits until nothing takes effect any more that former catalogs decided. Commands under way may each take `patience` to end.
    ///
    /// # Errors
    /// [`Elapsed`] if they take longer.
    pub async fn await_former(&self, patience: Duration) -> Result<(), Elapsed> {
        self.await_past(self.begin_epoch(), patience).await?;
        self.is_redefined.store(false, Ordering::Release);
        Ok(())
    }

    /// Decides commands by `catalog` from now on.
    pub fn replace(&self, catalog: Arc<Catalog>) -> PastEpochs {
        self.note_redefined(&catalog, &self.catalog());
        // The catalog comes first: a connection that holds the new epoch has decided no command by the old catalog.
        self.catalog.store(catalog);
        self.begin_epoch()
    }
}

#[cfg(test)]
mod tests {
    use bson::{Uuid, doc};
    use futures_util::FutureExt;

    use super::*;
    use crate::metrics::Metrics;
    use crate::raw::Doc;
    use crate::write::catalog_epoch::TRANSACTION_LIFE;
    use crate::write::txn::client_transactions::{CommitDecision, TransactionId};

    fn context() -> Context {
        context_with(Duration::from_secs(1))
    }

    fn context_with(lease: Duration) -> Context {
        Context::new(Arc::default(), lease, Metrics::new(&[]).group_commit, false)
    }

    #[tokio::test]
    async fn an_epoch_is_over_when_no_connection_holds_it() {
        let context = context();
        let mut epochs = context.epochs();
        let held = epochs.borrow_and_update().clone();
        let past = context.replace(Arc::new(Catalog::default()));
        assert!(epochs.has_changed().unwrap());
        let over = past.ended().shared();
        assert!(over.clone().now_or_never().is_none());
        drop(held);
        over.await;
        // No connection held the second epoch.
        context.replace(Arc::new(Catalog::default())).ended().await;
    }

    /// A reload that ended with an error, or that added nothing, may not have waited for the commands before it.
    #[tokio::test]
    async fn a_change_also_waits_for_the_commands_that_an_earlier_change_did_not_wait_for() {
        let context = context();
        let held = context.epochs().borrow_and_update().clone();
        drop(context.replace(Arc::new(Catalog::default())));
        let over = context.replace(Arc::new(Catalog::default())).ended().shared();
        assert!(over.clone().now_or_never().is_none());
        drop(held);
        over.await;
    }

    #[test]
    fn only_later_transactions_are_committed_after_the_keyward_was_out_of_the_register() {
        let context = context();
        let transaction = |number: i64| {
            let lsid = doc! { "id": Uuid::from_bytes([7; 16]) };
            let body = doc! { "commitTransaction": 1, "lsid": lsid, "txnNumber": number }
                .to_vec()
                .unwrap();
            let transaction = TransactionId::of(Doc::new(&body).unwrap()).unwrap();
            context.transactions.begin(transaction, true);
            context.transactions.note_started(transaction);
            transaction
        };
        let before = transaction(1);
        context.refuse_transactions_until_now();
        assert_eq!(context.transactions.decide_commit(before), CommitDecision::Refuse);
        let after = transaction(2);
        assert_eq!(context.transactions.decide_commit(after), CommitDecision::Forward);
    }

    #[test]
    fn transactions_are_waited_for_as_long_as_they_may_live() {
        let context = context();
        assert_eq!(context.unobserved_end(), None);
        let before = Instant::now();
        context.note_transaction();
        let end = context.unobserved_end().unwrap();
        let slack = Duration::from_millis(1);
        assert!(end + slack >= before + TRANSACTION_LIFE && end <= Instant::now() + TRANSACTION_LIFE + slack);
    }

    /// The server may execute a protected write until its lease is over.
    #[test]
    fn a_lost_write_is_waited_for_as_long_as_its_lease() {
        let lease = 4 * TRANSACTION_LIFE;
        let context = context_with(lease);
        let before = Instant::now();
        context.note_in_doubt();
        let slack = Duration::from_millis(1);
        assert!(context.in_doubt_end().unwrap() + slack >= before + lease);
    }
}
