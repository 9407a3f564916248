//! Holds one write operation: a client's command on a protected collection, with everything needed to carry it out.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::time::Instant;

use super::cluster_time;
use super::context::{Context, TIME_MAX, end_of_time};
use super::lease_left::LeaseLeft;
use super::txn::Transaction;
use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey, TakeoverCheck, run_releases};
use crate::command::batch::BatchCommand;
use crate::constraint::{Key, Strategy};
use crate::fleet::CommandPermit;
use crate::proxy_collection::{ProxyCollection, StoreError};
use crate::raw::Malformed;
use crate::reply::{CommandTerms, Times, WriteRefusal};
use crate::reservation::Event;
use crate::upstream::Connection;

/// Takeovers of a client's write. The permit suffices: no other definition is enforced while this Keyward may write
/// by its own.
struct Permitted<'a>(Option<&'a CommandPermit>);

impl TakeoverCheck for Permitted<'_> {
    fn is_defined<'c>(&'c self, _: &'c ProxyCollection) -> BoxFuture<'c, Result<bool, StoreError>> {
        ready(Ok(true)).boxed()
    }

    fn may_write(&self) -> bool {
        self.0.is_none_or(CommandPermit::holds)
    }
}

/// A client's command under way on the client's own upstream connection.
pub struct WriteOp<'a> {
    /// The shared state of this Keyward's writes.
    pub context: &'a Context,
    /// The collection, with the constraints that the command was planned with.
    pub protected: &'a Protected,
    /// The command.
    pub command: &'a BatchCommand<'a>,
    /// The client's own time limit.
    pub client_deadline: Option<Instant>,
    /// The moment when Keyward gives up: the client's own limit, or [`TIME_MAX`](super::context::TIME_MAX) from the start of the
    /// statement.
    pub deadline: Instant,
    /// Whether other parts of the client's command have results, which a refusal of this whole part would hide.
    pub others_have_results: bool,
    /// Whether Keyward has found during this command that the collection exists.
    pub has_checked_collection: bool,
    /// The client's upstream connection; nothing else uses it meanwhile.
    pub upstream: &'a mut Connection,
}

impl<'a> WriteOp<'a> {
    /// Starts the operation of `command`, which may be a part of the client's; its time runs from now.
    pub fn new(
        context: &'a Context,
        protected: &'a Protected,
        command: &'a BatchCommand<'a>,
        others_have_results: bool,
        upstream: &'a mut Connection,
    ) -> WriteOp<'a> {
        let now = Instant::now();
        let client_deadline = command.max_time.map(|limit| now + limit);
        let mut op = WriteOp {
            context,
            protected,
            command,
            client_deadline,
            deadline: now,
            others_have_results,
            has_checked_collection: false,
            upstream,
        };
        op.begin_statement();
        op
    }

    /// Begins the next statement of the command. If the client set no limit, each statement has its own time: a long batch takes
    /// longer than one statement may.
    pub fn begin_statement(&mut self) {
        self.deadline = self.end_from_now();
    }

    /// The moment when Keyward gives up a part of the command that begins now: the client's own limit, or
    /// [`TIME_MAX`](super::context::TIME_MAX) from now.
    pub fn end_from_now(&self) -> Instant {
        self.client_deadline.unwrap_or_else(end_of_time)
    }

    /// Whether the driver may send the command again. It doesn't repeat a statement of a transaction, which has a number, too.
    pub fn is_retryable(&self) -> bool {
        self.command.retry.is_some() && !self.command.is_in_transaction().is_ok_and(|is_within| is_within)
    }

    /// The terms on which one part of the command may fail it as a whole.
    pub fn terms(&self) -> CommandTerms {
        CommandTerms {
            is_retryable: self.is_retryable(),
            has_limit: self.client_deadline.is_some(),
        }
    }

    /// A transaction of Keyward's own, under the client's user. It ends within the client's own limit, or within [`TIME_MAX`].
    pub fn own_transaction(&mut self) -> Result<Transaction, Malformed> {
        let deadline = self.end_from_now();
        Transaction::own(self.protected, self.command.body, self.upstream, deadline)
    }

    /// The latest time that Keyward learned when it read and wrote reservations, if the client may repeat that time.
    pub fn reservation_times(&self) -> Times {
        cluster_time::known_times(self.protected, self.upstream)
    }

    /// Asserts that a write is forwarded only while all its keys are held: otherwise it could make a duplicate.
    pub fn assert_held<'c>(candidates: impl IntoIterator<Item = &'c Candidate<'c>>) {
        let holds_all = |candidate: &Candidate<'_>| candidate.attempt.may_forward();
        assert!(
            candidates.into_iter().all(holds_all),
            "a write is to be sent without one of its keys"
        );
    }

    /// The positions of the constraints under which existing documents may have no reservations yet, if an insert has to
    /// know. In strict mode it needn't: no one can release its reservation between the insert's last look at it and its commit.
    pub fn unenforced(&self) -> Vec<usize> {
        match self.protected.strategy() {
            Strategy::Strict => Vec::new(),
            Strategy::Compensating => self.not_enforced(),
        }
    }

    /// The positions of the constraints under which existing documents may have no reservations yet.
    pub fn not_enforced(&self) -> Vec<usize> {
        let constraints = self.protected.constraints.iter().enumerate();
        let unenforced = constraints.filter(|(_, proxy)| !self.context.enforced.has(&proxy.constraint));
        unenforced.map(|(position, _)| position).collect()
    }

    /// The rest of this `lease`, which began at `since` ([`LeaseLeft::new`]).
    pub fn lease_left(&self, lease: Duration, since: Option<Instant>) -> LeaseLeft {
        LeaseLeft::new(lease, since, self.upstream.may_be_to_router())
    }

    /// The lease of the keys of `candidates`. If they reserve nothing, they need none: the write may wait as long as any other statement.
    pub fn lease_of<'c>(&self, candidates: impl IntoIterator<Item = &'c Candidate<'c>>) -> Duration {
        let reserves_nothing = |candidate: &Candidate<'_>| candidate.keys.is_empty();
        match candidates.into_iter().all(reserves_nothing) {
            true => self.context.lease.max(TIME_MAX),
            false => self.context.lease,
        }
    }

    /// Confirms takeovers by this Keyward's permit to write.
    pub fn takeover_check(&self) -> impl TakeoverCheck {
        Permitted(self.upstream.permit.as_ref())
    }

    /// Runs the releases that the candidates' attempts ask for.
    pub async fn release(&self, candidates: &mut [Candidate<'_>]) {
        run_releases(self.protected, candidates).await;
    }

    /// Releases keys of candidates whose documents were written before this command, unless the documents still hold them. `held`
    /// are known to be held.
    pub async fn release_unheld(&self, candidates: &[&Candidate<'_>], held: &[ConstrainedKey]) {
        for (constraint, proxy) in self.protected.constraints.iter().enumerate() {
            let held = held.iter().filter(|held| held.constraint == constraint);
            let held: HashSet<&Key> = held.map(|held| &held.key).collect();
            let is_held = |key: &Key| held.contains(key);
            let mut reserved = Vec::new();
            for candidate in candidates {
                let token = candidate.attempt.ended_token();
                let keys = candidate.keys_under(constraint).filter(|key| !is_held(key));
                reserved.extend(keys.map(|key| (key, &candidate.owner, token)));
            }
            // Boxed, because it is seldom needed: its state would be most of what every write allocates.
            Box::pin(proxy.log_failed_release(proxy.release_unheld(&reserved))).await;
        }
    }

    /// Notes a write of unknown outcome: its reservations stay, because it may still take effect.
    pub fn note_in_doubt(&self, candidate: &mut Candidate<'_>) {
        candidate.step(&Event::InDoubt);
        self.context.note_in_doubt();
        for ConstrainedKey { constraint, .. } in &candidate.keys {
            self.protected.constraints[*constraint].metrics.in_doubt.inc();
        }
    }

    /// The refusal if the cluster gave no sure answer about a key of the constraint at this position. If Keyward may not write any more, it
    /// hasn't taken the key over, and the refusal says so.
    pub fn unsure(&self, constraint: usize) -> WriteRefusal {
        match self.upstream.is_permitted_to_write() {
            true => self.protected.unsure(constraint, self.is_retryable()),
            false => WriteRefusal::outlasted(self.is_retryable()),
        }
    }
}
