//! What the writes of one Keyward have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use super::catalog_epoch::CatalogEpochs;
use super::insert::transactional::Groups;
use super::txn::client_transactions::{ClientTransactions, Commit, TransactionId};
use crate::catalog::Catalog;
use crate::claims::InFlight;
use crate::limits::Limits;
use crate::metrics::GroupCommit;

/// How long a write may wait and try again where the client set no limit: as long as a server's transaction may live.
pub(super) const TIME_MAX: Duration = Duration::from_secs(60);

/// What the writes of one Keyward have in common.
#[derive(Debug)]
pub struct Context {
    pub(super) catalog: ArcSwap<Catalog>,
    /// How long a reservation whose owner isn't there yet is presumed in flight.
    pub(super) lease: Duration,
    /// The attempts under way in this process.
    pub(super) in_flight: InFlight,
    pub(super) epochs: CatalogEpochs,
    /// Whether clients have to log in.
    pub(super) has_users: bool,
    /// The transactions of clients that pass.
    pub transactions: ClientTransactions,
    /// The strict inserts of several clients that go in by one transaction.
    pub(super) groups: Arc<Groups>,
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

    /// How many documents one statement may change in one transaction.
    pub(super) fn documents_max(&self) -> usize {
        self.documents_max.load(Ordering::Relaxed)
    }

    /// The constraints that hold now.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.catalog.load()
    }
}
