//! Clients' transactions as they pass through this Keyward, so that none is committed in which a statement was begun and not
//! brought to its end.
//!
//! In a client's transaction a statement takes effect before its reservations do: which keys it gives documents only the
//! server can say. If the connection breaks in between, or Keyward is killed, the client could commit the one without the
//! other. So of a transaction in which that may have happened, or of which this process hasn't seen the beginning, the server
//! is first asked to end it if it is open still ([`end_if_open`]), and says so itself when the commit comes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::spec::ElementType;
use dashmap::DashMap;
use tokio::time::Instant;

use super::ForwardError;
use super::era::TRANSACTION_LIFE;
use super::transaction::{API, Refused, append_fields, session_of};
use crate::raw::{Builder, Doc, Malformed};
use crate::upstream::Connection;

/// How long a transaction is remembered of which nothing is heard any more; one that is open for so long is ended by its commit.
const MEMORY: Duration = Duration::from_secs(3600);
/// How long one is remembered whose commit has passed: without, the server is asked when the commit comes again.
const MEMORY_OF_COMMITTED: Duration = Duration::from_secs(60);
/// After so many new ones those are forgotten whose time is over.
const FORGET_EVERY: usize = 1 << 12;
/// More aren't remembered: far more than there can be clients at once.
const SESSIONS_MAX: usize = 1 << 17;

/// What the server answers to `getMore` where it ends the transaction; or where it isn't open, be it committed, aborted, about
/// to commit, or forgotten: CursorNotFound, NoSuchTransaction, TransactionCommitted, PreparedTransactionInProgress,
/// TransactionTooOld.
const NOT_OPEN: [i64; 5] = [43, 251, 256, 267, 225];

/// One transaction of a client's, by the `lsid.id` and the `txnNumber` of its commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionId {
    session: [u8; 16],
    number: i64,
}

impl TransactionId {
    /// That of a command's body; `None` if the server will refuse it, too.
    pub fn of(body: Doc<'_>) -> Option<TransactionId> {
        Some(TransactionId {
            session: session_of(body).ok()??,
            number: body.get("txnNumber").ok()??.as_whole_number()?,
        })
    }
}

/// The last transaction of each session.
#[derive(Debug, Default)]
pub struct ClientTransactions {
    by_session: DashMap<[u8; 16], Seen>,
    begun: AtomicUsize,
}

#[derive(Debug)]
struct Seen {
    number: i64,
    /// Its statements that were begun and not brought to their end: those under way, and those that never will be.
    unfinished: usize,
    is_committed: bool,
    at: Instant,
}

impl Seen {
    fn new(number: i64) -> Seen {
        Seen {
            number,
            unfinished: 0,
            is_committed: false,
            at: Instant::now(),
        }
    }
}

/// A statement that is under way in a client's transaction. Unless it is finished, the transaction is not to be committed.
#[must_use]
#[derive(Debug)]
pub struct UnderWay<'t> {
    transactions: &'t ClientTransactions,
    id: TransactionId,
    /// Whether it counts: of what isn't remembered nothing is committed without asking anyhow.
    is_noted: bool,
}

impl ClientTransactions {
    /// Notes that a command passes with which a transaction begins, of a client that has authenticated or one that hasn't, and
    /// needn't where there is no access control: those can't take the room of the others.
    pub fn begin(&self, id: TransactionId, is_authenticated: bool) {
        let room = if is_authenticated {
            SESSIONS_MAX
        } else {
            SESSIONS_MAX / 2
        };
        let is_crowded = self.by_session.len() >= room;
        let every = if is_crowded { FORGET_EVERY / 64 } else { FORGET_EVERY };
        if self.begun.fetch_add(1, Ordering::Relaxed) % every == every - 1 {
            self.forget(Instant::now());
        }
        match self.by_session.get_mut(&id.session) {
            Some(mut seen) if seen.number < id.number => *seen = Seen::new(id.number),
            Some(_) => {}
            None if is_crowded => {}
            None => drop(self.by_session.insert(id.session, Seen::new(id.number))),
        }
    }

    /// Forgets those whose time is over by `now`.
    fn forget(&self, now: Instant) {
        let memory = match self.by_session.len() >= SESSIONS_MAX / 2 {
            true => TRANSACTION_LIFE,
            false => MEMORY,
        };
        self.by_session.retain(|_, seen| {
            let memory = if seen.is_committed { MEMORY_OF_COMMITTED } else { memory };
            now.saturating_duration_since(seen.at) < memory
        });
    }

    /// Notes that a statement on protected documents begins; `None` if a commit of the transaction has passed already.
    pub fn enter(&self, id: TransactionId) -> Option<UnderWay<'_>> {
        let seen = self.by_session.get_mut(&id.session);
        let mut seen = seen.filter(|seen| seen.number == id.number);
        match &mut seen {
            Some(seen) if seen.is_committed => return None,
            Some(seen) => seen.unfinished += 1,
            None => {}
        }
        Some(UnderWay {
            transactions: self,
            id,
            is_noted: seen.is_some(),
        })
    }

    /// Whether a commit may go on as it came; if so, no statement may any more.
    pub fn commit(&self, id: TransactionId) -> bool {
        match self.by_session.get_mut(&id.session) {
            Some(mut seen) if seen.number == id.number && seen.unfinished == 0 => {
                seen.is_committed = true;
                true
            }
            _ => false,
        }
    }
}

impl UnderWay<'_> {
    /// The statement is at its end: with its reservations, or with the whole transaction.
    pub fn finish(self) {
        if self.is_noted
            && let Some(mut seen) = self.transactions.by_session.get_mut(&self.id.session)
            && seen.number == self.id.number
        {
            seen.unfinished = seen.unfinished.saturating_sub(1);
        }
    }
}

/// Has the server end the transaction of the command `body` if it is open still, by a command that fails in it. Unlike
/// `abortTransaction` this leaves one alone that is about to commit on several shards. `Some` reply if that isn't certain.
///
/// # Errors
/// [`ForwardError`] if the connection is gone.
pub async fn end_if_open(body: Doc<'_>, upstream: &mut Connection) -> Result<Option<Vec<u8>>, ForwardError> {
    let mut command = Builder::new();
    // No cursor has this number; and to be told so one must have logged in, no more.
    command.append(ElementType::Int64, b"getMore", &i64::MIN.to_le_bytes());
    command.string("collection", b"keyward");
    append_fields(&mut command, body, &["lsid", "txnNumber", "autocommit"])?;
    append_fields(&mut command, body, &API)?;
    command.string("$db", b"keyward");
    let command = command.finish();
    let reply = upstream.run(&command).await?;
    Ok(match is_not_open(Doc::new(&reply)?)? {
        true => None,
        // Told by the driver from the label that the transaction can be run again, a client would do so though it may be committed.
        false => Some(Refused { body: reply }.in_doubt(true).body),
    })
}

fn is_not_open(reply: Doc<'_>) -> Result<bool, Malformed> {
    let code = reply.whole_number("code")?;
    Ok(code.is_some_and(|code| NOT_OPEN.contains(&code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: i64) -> TransactionId {
        TransactionId {
            session: [7; 16],
            number,
        }
    }

    #[test]
    fn a_transaction_is_committed_once_all_of_it_is_at_its_end() {
        let transactions = ClientTransactions::default();
        transactions.begin(id(1), true);
        let (first, second) = (transactions.enter(id(1)).unwrap(), transactions.enter(id(1)).unwrap());
        first.finish();
        assert!(!transactions.commit(id(1)));
        second.finish();
        assert!(transactions.commit(id(1)));
        // A driver's retry.
        assert!(transactions.commit(id(1)));
        // What comes behind the commit would take effect without its reservations.
        assert!(transactions.enter(id(1)).is_none());
    }

    #[test]
    fn what_was_broken_off_is_never_committed() {
        let transactions = ClientTransactions::default();
        transactions.begin(id(1), true);
        let _ = transactions.enter(id(1)).unwrap();
        assert!(!transactions.commit(id(1)));
        // Sent again, its beginning is no other.
        transactions.begin(id(1), true);
        assert!(!transactions.commit(id(1)));
        // The session's next one is.
        transactions.begin(id(2), true);
        assert!(!transactions.commit(id(1)));
        assert!(transactions.commit(id(2)));
    }

    #[test]
    fn of_what_began_elsewhere_nobody_knows() {
        let transactions = ClientTransactions::default();
        assert!(!transactions.commit(id(1)));
        transactions.enter(id(1)).unwrap().finish();
        assert!(!transactions.commit(id(1)));
        transactions.begin(id(3), true);
        transactions.enter(id(4)).unwrap().finish();
        assert!(!transactions.commit(id(4)));
    }

    #[test]
    fn what_began_long_ago_is_forgotten() {
        let transactions = ClientTransactions::default();
        transactions.begin(id(1), true);
        transactions.forget(Instant::now() + MEMORY_OF_COMMITTED);
        assert!(transactions.commit(id(1)));
        transactions.forget(Instant::now() + MEMORY_OF_COMMITTED);
        assert!(!transactions.commit(id(1)));
        transactions.begin(id(2), true);
        transactions.forget(Instant::now() + MEMORY);
        assert!(!transactions.commit(id(2)));
    }

    #[test]
    fn no_more_are_remembered_than_there_can_be() {
        let transactions = ClientTransactions::default();
        for session in 0..=SESSIONS_MAX as u128 {
            let session = session.to_le_bytes();
            transactions.begin(TransactionId { session, number: 1 }, false);
        }
        assert_eq!(transactions.by_session.len(), SESSIONS_MAX / 2);
        for session in 0..=SESSIONS_MAX as u128 {
            let session = session.to_be_bytes();
            transactions.begin(TransactionId { session, number: 1 }, true);
        }
        assert_eq!(transactions.by_session.len(), SESSIONS_MAX);
        // Those that are there may begin others.
        let first = TransactionId {
            session: [0; 16],
            number: 2,
        };
        transactions.begin(first, true);
        assert!(transactions.commit(first));
        transactions.forget(Instant::now() + TRANSACTION_LIFE);
        assert_eq!(transactions.by_session.len(), 0);
    }
}
