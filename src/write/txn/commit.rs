//! Commits a transaction of Keyward's own, finds out whether the commit took effect, and waits for the client's write concern.
//!
//! A majority must have the transaction, so that no step-down undoes it. If the client asks for more members, or for named ones,
//! Keyward sends the commit once more with the client's own concern. The server has committed the transaction by then, and only
//! waits.

use bson::spec::ElementType;
use tokio::time::Instant;

use super::{ErrorReply, Failure, Transaction};
use crate::command::running::{append_fields, asks_beyond_majority};
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::{Times, WriteRefusal};
use crate::server::code::{MAX_TIME_MS_EXPIRED, NO_SUCH_TRANSACTION, TRANSACTION_TOO_OLD};
use crate::server::reply;
use crate::upstream::Connection;
use crate::write::acknowledged::Acknowledged;
use crate::write::back_off::BackOff;

/// How often a commit of unknown outcome is sent: each repetition asks the server for the outcome.
const COMMITS_MAX: usize = 5;

impl Transaction {
    /// Commits with majority; returns the reply's body.
    ///
    /// # Errors
    /// [`Failure`]; [`Failure::ErrorReply`] if it hasn't taken effect.
    async fn commit(&mut self, upstream: &mut Connection) -> Result<Vec<u8>, Failure> {
        self.is_committing = true;
        let mut command = Builder::new();
        command.int32("commitTransaction", 1);
        Acknowledged::ByMajority.append_concern_of(self.concern()?, &mut command)?;
        let reply = match self.run(upstream, "admin", command, None).await {
            // The server labels a commit that definitely had no effect. For an unknown outcome the drivers have a label of
            // their own, which no server sends.
            Err(Failure::ErrorReply(refused)) if !refused.is_transient() => {
                return Err(Failure::InDoubt(unconfirmed(refused)?));
            }
            reply => reply?,
        };
        match reply::write_concern_error(Doc::new(&reply)?)? {
            // The server has committed the transaction.
            Some(error) if reply::is_acknowledged_late(error)? => Ok(reply),
            Some(error) => Err(Failure::InDoubt(ErrorReply::of_part(error)?)),
            None => Ok(reply),
        }
    }

    /// Commits with majority. As long as the outcome is unknown, repeats the commit a few times. If the outcome stays unknown,
    /// the session is left to that transaction. If the transaction is committed and too few members have it, the reply has a
    /// `writeConcernError`: at the deadline, after the client's `wtimeout`, or for a stronger concern.
    ///
    /// # Errors
    /// [`Failure`]; [`Failure::ErrorReply`] if it hasn't taken effect.
    pub async fn commit_until_known(&mut self, upstream: &mut Connection) -> Result<Vec<u8>, Failure> {
        assert!(
            self.has_all_reservations || !self.has_tried_to_write,
            "a transaction commits a write whose reservations it has neither written nor checked: a duplicate could take effect"
        );
        // The commands of the transaction may have waited long.
        let refusal = match upstream.is_permitted_to_write() {
            true => self.is_late().then_some(WriteRefusal::TimeLimit),
            false => Some(WriteRefusal::outlasted(self.is_retryable())),
        };
        if let Some(refusal) = refusal {
            self.abort(upstream).await?;
            let body = refusal.body(&Times::default());
            return Err(Failure::ErrorReply(ErrorReply { body }));
        }
        let committed = match self.commit_repeatedly(upstream).await {
            Ok(reply) => self.wait_for_clients_concern(reply, upstream).await,
            failed => failed,
        };
        if !matches!(committed, Err(Failure::InDoubt(_) | Failure::Forward(_))) {
            upstream.take_open_transaction();
        }
        committed
    }

    /// Ends a transaction that has only read. A majority then has confirmed that it read from primaries that weren't deposed.
    ///
    /// It needs no permit to write. The client's write concern doesn't count: it is about writes.
    pub async fn confirm_reads(&mut self, upstream: &mut Connection) -> Result<(), Failure> {
        assert!(
            !self.has_tried_to_write,
            "a transaction that has written isn't one of reads"
        );
        if let Some(own) = &mut self.own {
            own.concern = Builder::new().finish();
        }
        let committed = self.commit_repeatedly(upstream).await;
        if !matches!(committed, Err(Failure::InDoubt(_) | Failure::Forward(_))) {
            upstream.take_open_transaction();
        }
        match reply::write_concern_error(Doc::new(&committed?)?)? {
            None => Ok(()),
            Some(error) => Err(Failure::InDoubt(ErrorReply::of_part(error)?)),
        }
    }

    /// Waits until as many members have the committed transaction as the client asks for; `committed` is the reply to the commit
    /// with majority. If the server refuses to wait, the reply has its error as a `writeConcernError`.
    async fn wait_for_clients_concern(
        &mut self,
        committed: Vec<u8>,
        upstream: &mut Connection,
    ) -> Result<Vec<u8>, Failure> {
        let concern = self.concern()?;
        if !asks_beyond_majority(concern)? || reply::write_concern_error(Doc::new(&committed)?)?.is_some() {
            return Ok(committed);
        }
        let mut command = Builder::new();
        command.int32("commitTransaction", 1).elements(concern)?;
        let refused = match self.run(upstream, "admin", command, None).await {
            Err(Failure::ErrorReply(refused)) => refused,
            waited => return waited,
        };
        let mut reply = Builder::from_document(&committed);
        reply.open(ElementType::EmbeddedDocument, b"writeConcernError");
        append_fields(&mut reply, Doc::new(&refused.body)?, &["code", "codeName", "errmsg"])?;
        reply.close();
        Ok(reply.finish())
    }

    fn is_late(&self) -> bool {
        self.own.as_ref().is_some_and(|own| Instant::now() >= own.deadline)
    }

    /// A document with the client's `writeConcern`, if its command has one.
    fn concern(&self) -> Result<Doc<'_>, Malformed> {
        self.own.as_ref().map_or(Ok(Doc::empty()), |own| Doc::new(&own.concern))
    }

    async fn commit_repeatedly(&mut self, upstream: &mut Connection) -> Result<Vec<u8>, Failure> {
        let mut back_off = BackOff::default();
        let mut last = self.commit(upstream).await;
        for _ in 1..COMMITS_MAX {
            if !matches!(last, Err(Failure::InDoubt(_))) {
                return last;
            }
            if self.is_late() {
                break;
            }
            tokio::time::sleep(back_off.next()).await;
            last = match self.commit(upstream).await {
                // Another transaction of the session has begun meanwhile, so the server no longer knows the outcome.
                Err(Failure::ErrorReply(refused)) if refused.code() == Some(TRANSACTION_TOO_OLD) => {
                    return Err(Failure::InDoubt(refused));
                }
                last => last,
            };
        }
        if matches!(last, Err(Failure::InDoubt(_))) {
            upstream.leave_session();
        }
        last
    }
}

/// The error of a commit that has failed in an unknown way. The server may have aborted the transaction, but have got no majority to
/// confirm the abort before the time limit. Then the error is that of the limit: a client knows nothing of a transaction of Keyward's own.
fn unconfirmed(refused: ErrorReply) -> Result<ErrorReply, Malformed> {
    let reply = Doc::new(&refused.body)?;
    let reason = reply::write_concern_error(reply)?
        .map(reply::code)
        .transpose()?
        .flatten();
    let is_at_limit = refused.code() == Some(NO_SUCH_TRANSACTION) && reason == Some(MAX_TIME_MS_EXPIRED);
    if !is_at_limit {
        return Ok(refused);
    }
    Ok(ErrorReply {
        body: WriteRefusal::TimeLimit.body(&Times::of_reply(&refused.body)),
    })
}
