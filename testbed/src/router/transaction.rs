//! What the router remembers of each session's transaction: which shards take part, which of them wrote, and the one
//! read time of a snapshot.
//!
//! A session's statements run one after the other (the session's gate). The state outlives the commit, so that a commit that
//! is sent again goes the same way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::error::{Failure, code, refuse};

/// How many idle sessions are remembered before old ones are dropped.
const SESSIONS_MAX: usize = 10_000;
/// A session as old as this is expired on the server, too.
const SESSION_LIFETIME: Duration = Duration::from_secs(30 * 60);

/// Where a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Statements may follow.
    Running,
    /// A commit has been sent at least once.
    Committing,
}

/// A shard that takes part.
#[derive(Debug, Clone)]
pub struct Participant {
    /// Its name.
    pub shard: String,
    /// What the shard last said; `None` before its first reply.
    pub read_only: Option<bool>,
}

/// One transaction.
#[derive(Debug, Clone)]
pub struct Transaction {
    /// `txnNumber`.
    pub number: i64,
    /// Where it stands.
    pub phase: Phase,
    /// The shards in the order they joined; the first coordinates.
    pub participants: Vec<Participant>,
    /// `readConcern` of the first statement.
    pub read_concern: Option<Bytes>,
    /// The read time for every shard, with readConcern snapshot.
    pub at_cluster_time: Option<u64>,
    /// A shard that wrote, for `recoveryToken`.
    pub recovery_shard: Option<String>,
    statement: u32,
}

/// What a statement must carry to one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// The shard's first statement; `coordinator` if it is the transaction's first shard.
    Start {
        /// This shard coordinates the commit.
        coordinator: bool,
    },
    /// It takes part already.
    Continue,
}

impl Transaction {
    /// A transaction without participants.
    pub fn new(number: i64, read_concern: Option<Bytes>, at_cluster_time: Option<u64>) -> Self {
        Transaction {
            number,
            phase: Phase::Running,
            participants: Vec::new(),
            read_concern,
            at_cluster_time,
            recovery_shard: None,
            statement: 0,
        }
    }

    /// Makes `shard` take part, if it doesn't yet.
    pub fn join(&mut self, shard: &str) -> Join {
        if self.participants.iter().any(|participant| participant.shard == shard) {
            return Join::Continue;
        }
        self.participants.push(Participant {
            shard: shard.to_owned(),
            read_only: None,
        });
        Join::Start {
            coordinator: self.participants.len() == 1,
        }
    }

    /// Takes over what a shard said of itself.
    pub fn note_read_only(&mut self, shard: &str, read_only: bool) {
        if let Some(participant) = self
            .participants
            .iter_mut()
            .find(|participant| participant.shard == shard)
        {
            participant.read_only = Some(read_only && participant.read_only != Some(false));
            if !read_only && self.recovery_shard.is_none() {
                self.recovery_shard = Some(shard.to_owned());
            }
        }
    }

    /// Whether the statement may start anew after a shard called its routing stale: only the first one of all, and only if it went to one
    /// shard. Otherwise requests to other shards may still be under way.
    pub fn may_restart_statement(&self) -> bool {
        self.statement == 0 && self.participants.len() == 1
    }

    /// Forgets the participant, which was told to abort.
    pub fn restart_statement(&mut self) {
        self.participants.clear();
        self.recovery_shard = None;
        self.phase = Phase::Running;
    }
}

/// One client session.
#[derive(Debug)]
pub struct Session {
    /// Held while one of its transaction's statements runs.
    pub gate: Arc<tokio::sync::Mutex<()>>,
    transaction: Mutex<Option<Transaction>>,
    used: Mutex<Instant>,
}

impl Session {
    fn new() -> Self {
        Session {
            gate: Arc::default(),
            transaction: Mutex::new(None),
            used: Mutex::new(Instant::now()),
        }
    }

    /// A session that no other command knows.
    pub fn for_one_command(transaction: Transaction) -> Self {
        let session = Session::new();
        *session.transaction() = Some(transaction);
        session
    }

    /// Its latest transaction.
    pub fn transaction(&self) -> MutexGuard<'_, Option<Transaction>> {
        self.transaction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses any command, an end included, of a transaction that a later one of the session has replaced.
    ///
    /// # Errors
    /// TransactionTooOld.
    pub fn refuse_older(&self, number: i64) -> Result<(), Failure> {
        match self.transaction().as_ref() {
            Some(last) if last.number > number => refuse(
                code::TRANSACTION_TOO_OLD,
                format!(
                    "txnNumber {number} is less than last txnNumber {} seen in session",
                    last.number
                ),
            ),
            _ => Ok(()),
        }
    }

    /// Starts a transaction, or continues the one of that number.
    ///
    /// # Errors
    /// What a `mongos` answers to a number that is older, unknown or in the wrong phase.
    pub fn begin_or_continue(&self, start: Option<Transaction>, number: i64) -> Result<(), Failure> {
        self.refuse_older(number)?;
        let mut current = self.transaction();
        let known = current.as_ref().map(|transaction| transaction.number);
        match (start, known == Some(number)) {
            (Some(_), true) => refuse(
                code::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("txnNumber {number} for session already started"),
            ),
            (Some(transaction), _) => {
                *current = Some(transaction);
                Ok(())
            }
            (None, true) => {
                if let Some(transaction) = current.as_mut() {
                    transaction.statement += 1;
                }
                Ok(())
            }
            (None, false) => refuse(
                code::NO_SUCH_TRANSACTION,
                format!(
                    "cannot continue txnId {} for session with txnNumber {number}",
                    known.unwrap_or(-1)
                ),
            ),
        }
    }
}

/// All sessions that have run a transaction here.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<Bytes, Arc<Session>>>);

impl Sessions {
    /// The session of an `lsid`, made if it isn't known.
    pub fn of(&self, lsid: &Bytes) -> Arc<Session> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() > SESSIONS_MAX {
            sessions.retain(|_, session| session.last_used().elapsed() < SESSION_LIFETIME);
        }
        let session = sessions.entry(lsid.clone()).or_insert_with(|| Arc::new(Session::new()));
        *session.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Arc::clone(session)
    }

    /// The session of an `lsid` if it is known, forgotten from now on.
    pub fn remove(&self, lsid: &[u8]) -> Option<Arc<Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(lsid)
    }
}

impl Session {
    fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_shard_coordinates_and_a_writer_stays_one() {
        let mut transaction = Transaction::new(1, None, None);
        assert_eq!(transaction.join("a"), Join::Start { coordinator: true });
        assert_eq!(transaction.join("b"), Join::Start { coordinator: false });
        assert_eq!(transaction.join("a"), Join::Continue);
        transaction.note_read_only("b", false);
        transaction.note_read_only("b", true);
        assert_eq!(transaction.participants[1].read_only, Some(false));
        assert_eq!(transaction.recovery_shard.as_deref(), Some("b"));
    }

    #[test]
    fn a_statement_starts_anew_only_if_it_is_the_first_and_went_to_one_shard() {
        let session = Session::new();
        session
            .begin_or_continue(Some(Transaction::new(1, None, None)), 1)
            .unwrap();
        let join = |shard: &str| {
            session
                .transaction()
                .as_mut()
                .map(|transaction| transaction.join(shard))
        };
        let may = || session.transaction().as_ref().map(Transaction::may_restart_statement);
        join("a");
        assert_eq!(may(), Some(true));
        join("b");
        assert_eq!(may(), Some(false));
        session
            .begin_or_continue(Some(Transaction::new(2, None, None)), 2)
            .unwrap();
        join("a");
        session.begin_or_continue(None, 2).unwrap();
        assert_eq!(may(), Some(false));
    }

    #[test]
    fn only_a_started_transaction_continues() {
        let session = Session::new();
        let started = || Some(Transaction::new(5, None, None));
        assert_eq!(
            session.begin_or_continue(None, 5).unwrap_err().code(),
            code::NO_SUCH_TRANSACTION
        );
        session.begin_or_continue(started(), 5).unwrap();
        session.begin_or_continue(None, 5).unwrap();
        let again = session.begin_or_continue(started(), 5).unwrap_err();
        assert_eq!(again.code(), code::CONFLICTING_OPERATION_IN_PROGRESS);
        assert_eq!(
            session.begin_or_continue(None, 4).unwrap_err().code(),
            code::TRANSACTION_TOO_OLD
        );
    }
}
