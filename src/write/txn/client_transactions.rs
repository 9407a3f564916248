//! Tracks clients' transactions that this Keyward forwards, and commits none in which a statement was started but not finished.
//!
//! In a client's transaction an update takes effect before its reservations do: only the server knows which keys it gives
//! documents. If the connection breaks in between, or Keyward is killed, the client could commit the update without its
//! reservations.
//!
//! - A transaction with an interrupted statement is never committed through this process, whatever the server reports. A router
//!   forgets that it has aborted a transaction, and doesn't check whether its shards have.
//! - A transaction that began before the constraints changed isn't committed either, once the backfill of the existing
//!   documents is about to start ([`ClientTransactions::refuse_older`]).
//! - The same is true of a transaction that began before this Keyward was out of the register: other Keywards may have enforced a
//!   constraint meanwhile.
//! - A transaction whose start this process hasn't seen is unseen. Keyward writes nothing protected in it, and forwards its
//!   commit only if the commit can only repeat an earlier one ([`commit_unseen`]).
//! - A transaction that the client aborts here is unseen from then on: its number may start again elsewhere, because a server lets it. The same
//!   is true of one that the server aborts at an error of a statement.
//! - A start counts once the server has carried it out. If the server refuses it, a transaction with the same number may be open that
//!   began elsewhere, and stays open.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bson::spec::ElementType;
use dashmap::DashMap;
use dashmap::mapref::one::RefMut;
use mongodb::Client;
use tokio::time::Instant;

use super::ErrorReply;
use super::on_shards::end_on_shards;
use crate::command::running::{API, append_fields, session_of};
use crate::raw::{Builder, Doc};
use crate::reply::{Times, WriteRefusal};
use crate::server::{code, cursor, definite, reply};
use crate::upstream::Connection;
use crate::write::catalog_epoch::TRANSACTION_LIFE;
use crate::write::forward_error::ForwardError;

/// How long a transaction without further commands is remembered. If it is open for longer, its commit ends it.
const MEMORY: Duration = Duration::from_secs(3600);
/// How long a transaction is remembered after its commit was forwarded. After that, Keyward asks the server when the commit
/// comes again.
const MEMORY_OF_COMMITTED: Duration = Duration::from_secs(60);
/// How long to wait until a majority confirms that a transaction isn't committed: as long as a driver's repeated commit waits for one.
const CONFIRMED_WITHIN_MS: i32 = 10_000;
/// After this many new transactions, expired ones are forgotten.
const FORGET_EVERY: usize = 1 << 12;
/// The most transactions that are remembered: far more than there can be clients at once.
const SESSIONS_MAX: usize = 1 << 17;

/// One client transaction, by the `lsid.id` and the `txnNumber` of its commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionId {
    session: [u8; 16],
    number: i64,
}

impl TransactionId {
    /// The transaction of a command's body; `None` if the server will refuse the command, or Keyward does because of its session.
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
    by_session: DashMap<[u8; 16], SeenTransaction>,
    begun: AtomicUsize,
    /// How often the constraints have changed.
    changes: AtomicU64,
    /// Transactions that began before this many changes aren't committed.
    oldest: AtomicU64,
}

/// The decision on a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitDecision {
    /// Keyward forwards it unchanged.
    Forward,
    /// Keyward refuses it: a statement was interrupted, or since the transaction began, the constraints have changed or this Keyward was out
    /// of the register.
    Refuse,
    /// This process hasn't seen the transaction's start. Or it has forwarded the commit before the constraints changed, and the commit may not
    /// have reached the server: then the transaction is still open.
    Unseen,
}

#[derive(Debug)]
struct SeenTransaction {
    number: i64,
    /// The number of statements that were started and not finished: in progress, or interrupted.
    unfinished: usize,
    /// Whether the transaction must never be committed.
    is_doomed: bool,
    /// Whether the server has carried out the command that starts it.
    is_started: bool,
    /// Whether its commit came before its start, or it was aborted, by the client or the server: with its number, a transaction may be open
    /// that began elsewhere.
    is_unseen: bool,
    is_committed: bool,
    /// How often the constraints had changed when the transaction began.
    changes: u64,
    /// When it began, last went on with a write on a protected collection, or was committed.
    at: Instant,
}

impl SeenTransaction {
    fn new(number: i64, changes: u64) -> SeenTransaction {
        SeenTransaction {
            number,
            unfinished: 0,
            is_doomed: false,
            is_started: false,
            is_unseen: false,
            is_committed: false,
            changes,
            at: Instant::now(),
        }
    }
}

/// A statement in progress in a client's transaction. Unless it is finished, the transaction must not be committed.
#[must_use]
#[derive(Debug)]
pub struct StatementUnderWay<'t> {
    transactions: &'t ClientTransactions,
    id: TransactionId,
}

impl ClientTransactions {
    /// Notes that Keyward forwards a command that starts a transaction. Without access control, clients needn't authenticate;
    /// they get at most half of the room, so that they can't displace authenticated clients.
    pub fn begin(&self, id: TransactionId, is_authenticated: bool) {
        self.remember(SeenTransaction::new(id.number, self.changes()), id, is_authenticated);
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    fn remember(&self, new: SeenTransaction, id: TransactionId, is_authenticated: bool) {
        let room = if is_authenticated {
            SESSIONS_MAX
        } else {
            SESSIONS_MAX / 2
        };
        let is_nearly_full = self.by_session.len() >= room;
        let every = if is_nearly_full {
            FORGET_EVERY / 64
        } else {
            FORGET_EVERY
        };
        if self.begun.fetch_add(1, Ordering::Relaxed) % every == every - 1 {
            self.forget(Instant::now());
        }
        match self.by_session.get_mut(&id.session) {
            Some(mut seen) if seen.number < id.number => *seen = new,
            Some(_) => {}
            None if is_nearly_full => {}
            None => drop(self.by_session.insert(id.session, new)),
        }
    }

    /// Notes that the server has carried out the command that starts the transaction: it began there, and nothing was written in it before.
    pub fn note_started(&self, id: TransactionId) {
        if let Some(mut seen) = self.by_session.get_mut(&id.session)
            && seen.number == id.number
        {
            seen.is_started = true;
        }
    }

    /// Forgets the transactions that have expired by `now`.
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

    /// Notes that a statement on protected documents begins, which starts the transaction if `is_start`.
    ///
    /// # Errors
    /// [`WriteRefusal`] if Keyward has already forwarded a commit of the transaction, or if the transaction must never be committed.
    /// Also if this process hasn't seen its start, like a `mongos`, which knows its own transactions only.
    pub fn enter(&self, id: TransactionId, is_start: bool) -> Result<StatementUnderWay<'_>, WriteRefusal> {
        self.seen(id, is_start)?.unfinished += 1;
        Ok(StatementUnderWay { transactions: self, id })
    }

    /// Notes that a statement that can change no key goes on in the transaction, or starts it.
    ///
    /// # Errors
    /// The same as those of [`ClientTransactions::enter`].
    pub fn go_on(&self, id: TransactionId, is_start: bool) -> Result<(), WriteRefusal> {
        self.seen(id, is_start).map(drop)
    }

    /// The transaction, which goes on now, or starts.
    fn seen(&self, id: TransactionId, is_start: bool) -> Result<RefMut<'_, [u8; 16], SeenTransaction>, WriteRefusal> {
        let no_such = WriteRefusal::NoSuchTransaction { number: id.number };
        let seen = self.by_session.get_mut(&id.session);
        let mut seen = seen.filter(|seen| seen.number == id.number).ok_or(no_such.clone())?;
        if seen.is_committed {
            return Err(WriteRefusal::Committed);
        }
        let is_seen = !seen.is_unseen && (seen.is_started || is_start);
        if !is_seen || seen.is_doomed || self.is_older(&seen) {
            return Err(no_such);
        }
        seen.at = Instant::now();
        Ok(seen)
    }

    /// Decides on a commit, and records the decision. If Keyward forwards the commit, it writes nothing more in the transaction.
    /// If Keyward refuses it, it refuses all later commits, too.
    pub fn decide_commit(&self, id: TransactionId) -> CommitDecision {
        match self.by_session.get_mut(&id.session) {
            Some(mut seen) if seen.number == id.number => {
                let is_older = !seen.is_unseen && self.is_older(&seen);
                // Only the server knows the outcome of a commit that was forwarded.
                if !seen.is_committed && (seen.is_doomed || seen.unfinished > 0 || is_older) {
                    seen.is_doomed = true;
                    return CommitDecision::Refuse;
                }
                if seen.is_unseen || !seen.is_started || is_older {
                    return CommitDecision::Unseen;
                }
                if !seen.is_committed {
                    seen.is_committed = true;
                    seen.at = Instant::now();
                }
                CommitDecision::Forward
            }
            _ => CommitDecision::Unseen,
        }
    }

    /// Prevents further writes in a transaction whose commit came before its start.
    fn shut_out(&self, id: TransactionId) {
        let mut new = SeenTransaction::new(id.number, self.changes());
        // At once: a statement of the transaction may come between two steps.
        new.is_unseen = true;
        self.remember(new, id, true);
        self.note_aborted(id);
    }

    /// Notes that the client aborts the transaction, or that the server has done so: nothing more is written in it here, and a commit counts as
    /// unseen.
    pub fn note_aborted(&self, id: TransactionId) {
        if let Some(mut seen) = self.by_session.get_mut(&id.session)
            && seen.number == id.number
        {
            seen.is_unseen = true;
        }
    }

    /// Notes that the constraints have changed: transactions that begin from now on are decided by the new ones.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Prevents the commit of transactions that began before the last change. Their commits may have been forwarded already.
    pub fn refuse_older(&self) {
        let changes = self.changes.load(Ordering::SeqCst);
        self.oldest.fetch_max(changes, Ordering::SeqCst);
    }

    fn is_older(&self, seen: &SeenTransaction) -> bool {
        seen.changes < self.oldest.load(Ordering::SeqCst)
    }
}

impl StatementUnderWay<'_> {
    /// The statement has ended: with its reservations, or with the whole transaction.
    pub fn finish(self) {
        self.end(|seen| seen.unfinished = seen.unfinished.saturating_sub(1));
    }

    /// The statement was interrupted: the transaction must never be committed, whether or not the server has ended it.
    pub fn break_off(self) {
        self.end(|seen| seen.is_doomed = true);
    }

    fn end(self, note: impl FnOnce(&mut SeenTransaction)) {
        if let Some(mut seen) = self.transactions.by_session.get_mut(&self.id.session)
            && seen.number == self.id.number
        {
            note(&mut seen);
        }
    }
}

/// Decides on the commit `body` of a transaction whose start this process hasn't seen. `None` if Keyward may forward it,
/// because it can only repeat an earlier commit.
///
/// First Keyward ends the transaction by a command that fails in it. A replica set's answer shows whether the transaction was
/// committed. If it wasn't, Keyward doesn't forward the commit: it could commit a transaction that a late statement starts only
/// then. A majority must confirm that answer: a primary that was deposed meanwhile doesn't know of the commit. A router's answer
/// doesn't report commits, and the router ignores the results of its aborts. So behind a router Keyward makes sure that no shard has
/// the transaction open. Committed effects stay, and the router answers the commit.
pub async fn commit_unseen(
    id: TransactionId,
    body: Doc<'_>,
    transactions: &ClientTransactions,
    is_on_one_replica_set: bool,
    client: &Client,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    transactions.shut_out(id);
    let answer = ask_to_end(body, upstream).await?;
    let code = reply::code(Doc::new(&answer)?)?.filter(|code| definite::of_closed_transaction(*code));
    Ok(match code {
        None => Some(in_doubt_reply(answer)),
        Some(code) if definite::of_decided_transaction(code) => None,
        Some(_) if is_on_one_replica_set => Some(confirmed_end(id, body, upstream).await?),
        Some(_) => end_on_shards(id.session, id.number, body, client, upstream).await?,
    })
}

/// Makes the server end the transaction of the command `body` if it is still open, by a command that fails in it. Unlike
/// `abortTransaction`, this spares a transaction that is about to commit on several shards. Returns the server's answer.
pub async fn ask_to_end(body: Doc<'_>, upstream: &mut Connection) -> Result<Vec<u8>, ForwardError> {
    // No cursor has this number. To get that answer, a client must only have logged in.
    let mut command = cursor::get_more(b"keyward", i64::MIN);
    append_fields(&mut command, body, &["lsid", "txnNumber", "autocommit"])?;
    append_fields(&mut command, body, &API)?;
    command.string("$db", b"keyward");
    Ok(upstream.run(&command.finish()).await?)
}

/// The reply to a commit whose transaction the primary of a replica set doesn't know. The server waits for a majority before it says so of
/// an abort. Nothing of the transaction can be prepared there, so the abort undoes no half of it.
async fn confirmed_end(id: TransactionId, body: Doc<'_>, upstream: &mut Connection) -> Result<Vec<u8>, ForwardError> {
    let mut command = Builder::new();
    command.int32("abortTransaction", 1);
    append_fields(&mut command, body, &["lsid", "txnNumber", "autocommit"])?;
    append_fields(&mut command, body, &API)?;
    command
        .open(ElementType::EmbeddedDocument, b"writeConcern")
        .string("w", b"majority")
        .int32("wtimeout", CONFIRMED_WITHIN_MS)
        .close();
    command.string("$db", b"admin");
    let answer = upstream.run(&command.finish()).await?;
    let reply = Doc::new(&answer)?;
    let is_aborted = reply::is_ok(reply)? || reply::code(reply)? == Some(code::NO_SUCH_TRANSACTION);
    Ok(match is_aborted && reply::write_concern_error(reply)?.is_none() {
        true => WriteRefusal::NoSuchTransaction { number: id.number }.body(&Times::default()),
        false => in_doubt_reply(answer),
    })
}

/// The reply to a commit if Keyward can't find out whether it may forward it. It carries no label for running the transaction
/// again: a driver would follow it although the transaction may be committed.
fn in_doubt_reply(answer: Vec<u8>) -> Vec<u8> {
    ErrorReply { body: answer }.in_doubt(true).body
}

#[cfg(test)]
mod tests;
