//! Commits a transaction of Keyward's own, and finds out whether the commit took effect.

use super::{ErrorReply, Failure, Transaction};
use crate::raw::{Builder, Doc};
use crate::reply::{Times, WriteRefusal};
use crate::server::code::TRANSACTION_TOO_OLD;
use crate::server::reply;
use crate::upstream::Connection;
use crate::write::back_off::BackOff;
use crate::write::forward::Acknowledged;

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
        Acknowledged::ByMajority.append_concern(&mut command);
        let reply = match self.run(upstream, "admin", command, None).await {
            // The server labels a commit that definitely had no effect. For an unknown outcome the drivers have a label of
            // their own, which no server sends.
            Err(Failure::ErrorReply(refused)) if !refused.is_transient() => return Err(Failure::InDoubt(refused)),
            reply => reply?,
        };
        match reply::write_concern_error(Doc::new(&reply)?)? {
            Some(error) => Err(Failure::InDoubt(ErrorReply::of_part(error)?)),
            None => Ok(reply),
        }
    }

    /// Commits with majority. As long as the outcome is unknown, repeats the commit a few times. If the outcome stays unknown,
    /// the session is left to that transaction.
    ///
    /// # Errors
    /// [`Failure`]; [`Failure::ErrorReply`] if it hasn't taken effect.
    pub async fn commit_until_known(&mut self, upstream: &mut Connection) -> Result<Vec<u8>, Failure> {
        assert!(
            self.has_all_reservations || !self.has_tried_to_write,
            "a transaction commits a write whose reservations it has neither written nor checked: a duplicate could take effect"
        );
        // The commands of the transaction may have waited long.
        if !upstream.is_permitted_to_write() {
            self.abort(upstream).await?;
            let body = WriteRefusal::outlasted(self.is_retryable).body(&Times::default());
            return Err(Failure::ErrorReply(ErrorReply { body }));
        }
        let committed = self.commit_repeatedly(upstream).await;
        if !matches!(committed, Err(Failure::InDoubt(_) | Failure::Forward(_))) {
            upstream.take_open_transaction();
        }
        committed
    }

    async fn commit_repeatedly(&mut self, upstream: &mut Connection) -> Result<Vec<u8>, Failure> {
        let mut back_off = BackOff::default();
        let mut last = self.commit(upstream).await;
        for _ in 1..COMMITS_MAX {
            if !matches!(last, Err(Failure::InDoubt(_))) {
                return last;
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
