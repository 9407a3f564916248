//! Runs commands in a transaction on the client's upstream connection: the client's own, or one of Keyward's.
//!
//! Keyward's commands join the client's transaction. In its own transaction, Keyward makes the server evaluate a statement that
//! Keyward can't evaluate. The transaction runs as the client's user. The first command sent carries `startTransaction` and the
//! fields that may stand only beside it.

pub mod client_transactions;
mod commit;
mod on_shards;
pub mod pipeline;

use bson::spec::{BinarySubtype, ElementType};
use tokio::time::Instant;

use super::cluster_time;
use super::forward_error::ForwardError;
use crate::catalog::Protected;
use crate::command::running::{API, append_fields, milliseconds, session_of};
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::{Times, WriteRefusal};
use crate::server::code::{INTERRUPTED, TRANSACTION_EXCEEDED_LIFETIME_LIMIT_SECONDS, TRANSACTION_TOO_OLD};
use crate::server::definite::{of_another_primary, refused_before_execution};
use crate::server::reply::{self, RETRYABLE_WRITE_ERROR, TRANSIENT_TRANSACTION_ERROR};
use crate::upstream::{self, Connection};
use crate::wire::{Draft, OutSequence};

/// An open transaction.
#[derive(Debug)]
pub struct Transaction {
    /// The fields of every command: `lsid`, `txnNumber`, `autocommit`, and the client's API version.
    fields: Vec<u8>,
    /// The fields of the first command only; `None` after it was sent.
    opening: Option<Vec<u8>>,
    /// The cluster time that the first command sent here brings to the router, and the router to the shards.
    time: Option<Times>,
    /// The part that only a transaction of Keyward's own has; `None` if it is the client's.
    own: Option<OwnTransaction>,
    /// Whether a commit was sent: from then on the servers decide its outcome among themselves.
    is_committing: bool,
    /// Whether a command that writes was sent.
    has_tried_to_write: bool,
    /// Whether a command that writes was answered, and not with `ok: 0`.
    has_written: bool,
    /// Whether all reservations of the documents that it writes are held, and stay so until its commit.
    has_all_reservations: bool,
}

/// The part of a transaction that only one of Keyward's own has.
#[derive(Debug)]
struct OwnTransaction {
    session: [u8; 16],
    /// Whether it is for a retryable command. The first try of the command uses the same session. If a command gets
    /// `Interrupted`, the server may have meant a transaction that the first try left.
    is_retryable: bool,
    /// A document with the client's `writeConcern`, if its command has one.
    concern: Vec<u8>,
    /// The moment when it must be over.
    deadline: Instant,
}

/// A command that failed as a whole inside a transaction.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no reply, or the reply isn't BSON.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The server's reply with `ok: 0`. The transaction is over, unless the server refused the command before it read the
    /// session ([`ErrorReply::is_before_execution`]).
    #[error("the server refused a command of a transaction")]
    ErrorReply(ErrorReply),
    /// It is unknown whether a transaction took effect: this one, whose commit got this reply, or the first try's, whose record
    /// lacks a part.
    #[error("it is unknown whether a transaction was committed")]
    InDoubt(ErrorReply),
    /// Keyward doesn't go on with the transaction, and has aborted it.
    #[error(transparent)]
    Refused(WriteRefusal),
}

/// A reply with `ok: 0`.
#[derive(Debug, Clone)]
pub struct ErrorReply {
    /// The reply's body.
    pub body: Vec<u8>,
}

impl Failure {
    /// The server's error, whether or not the outcome is known.
    pub fn into_reply(self) -> Result<ErrorReply, ForwardError> {
        match self {
            Failure::Forward(error) => Err(error),
            Failure::ErrorReply(reply) | Failure::InDoubt(reply) => Ok(reply),
            Failure::Refused(refusal) => Ok(ErrorReply {
                body: refusal.body(&Times::default()),
            }),
        }
    }
}

impl From<upstream::ConnectionError> for Failure {
    fn from(error: upstream::ConnectionError) -> Self {
        Failure::Forward(error.into())
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Failure::Forward(malformed.into())
    }
}

impl ErrorReply {
    /// The server's error for a transaction that conflicts with another one.
    pub fn transient() -> ErrorReply {
        ErrorReply {
            body: WriteRefusal::Conflict.body(&Times::default()),
        }
    }

    /// The same error for a client whose command may have taken effect. The client may resend a retryable command, and then
    /// learns its outcome.
    pub fn in_doubt(self, is_retryable: bool) -> ErrorReply {
        let mut body = reply::without_labels(&self.body);
        if is_retryable {
            reply::append_label(&mut body, RETRYABLE_WRITE_ERROR);
        }
        ErrorReply { body: body.finish() }
    }

    /// The error of a command whose reply reports a write error, or that no majority has its writes.
    pub fn of_part(error: Doc<'_>) -> Result<ErrorReply, Malformed> {
        let mut body = Builder::new();
        body.double("ok", 0.0);
        append_fields(&mut body, error, &["errmsg", "code", "codeName"])?;
        Ok(ErrorReply { body: body.finish() })
    }

    /// Whether another try on the same connection would fail, too.
    pub fn is_of_another_primary(&self) -> bool {
        self.code().is_some_and(of_another_primary)
    }

    /// Whether the server refuses the command for its shape or for a missing privilege.
    pub fn is_before_execution(&self) -> bool {
        self.code().is_some_and(refused_before_execution)
    }

    fn code(&self) -> Option<i32> {
        Doc::new(&self.body).and_then(reply::code).ok().flatten()
    }

    /// Whether the transaction had no effect and may be tried again as a whole.
    pub fn is_transient(&self) -> bool {
        let is_labelled = |body| reply::has_label(body, TRANSIENT_TRANSACTION_ERROR);
        Doc::new(&self.body).is_ok_and(is_labelled) || self.code() == Some(TRANSACTION_TOO_OLD)
    }

    /// Whether Keyward may run a transaction of its own again, whose command was refused so. The server doesn't label the end of a transaction
    /// that has lived too long. As the error of a commit, it leaves the outcome open. A shard may hold the transaction open still.
    pub fn may_run_again(&self) -> bool {
        self.is_transient() || self.code() == Some(TRANSACTION_EXCEEDED_LIFETIME_LIMIT_SECONDS)
    }
}

impl Transaction {
    /// Whether its commands may have fields of the stable API only.
    pub fn is_api_strict(&self) -> Result<bool, Malformed> {
        Doc::new(&self.fields)?.is_set("apiStrict")
    }

    /// A transaction of Keyward's own on `upstream`, for the client's command `body`. It ends any earlier transaction of the
    /// connection. The server ends its commands at the `deadline`.
    pub fn own(
        protected: &Protected,
        body: Doc<'_>,
        upstream: &mut Connection,
        deadline: Instant,
    ) -> Result<Transaction, Malformed> {
        let mut fields = Builder::new();
        let of_client = session_of_retryable(body)?;
        let (session, number) = upstream.next_transaction(of_client);
        fields
            .open(ElementType::EmbeddedDocument, b"lsid")
            .binary(b"id", BinarySubtype::Uuid, &session)
            .close();
        fields.int64("txnNumber", number).boolean("autocommit", false);
        append_fields(&mut fields, body, &API)?;
        let mut concern = Builder::new();
        append_fields(&mut concern, body, &["writeConcern"])?;
        let time = cluster_time::latest(protected, body, upstream)?;
        let mut opening = Builder::new();
        opening.boolean("startTransaction", true);
        // Independent of the cluster's default.
        append_read_concern(&mut opening, b"local");
        let own = OwnTransaction {
            session,
            is_retryable: of_client.is_some(),
            concern: concern.finish(),
            deadline,
        };
        Ok(Transaction::new(fields, Some(opening.finish()), time, Some(own)))
    }

    /// A transaction of which no command was sent here.
    fn new(fields: Builder, opening: Option<Vec<u8>>, time: Times, own: Option<OwnTransaction>) -> Transaction {
        Transaction {
            fields: fields.finish(),
            opening,
            time: Some(time),
            own,
            is_committing: false,
            has_tried_to_write: false,
            has_written: false,
            has_all_reservations: false,
        }
    }

    /// The same transaction, before its start, with one snapshot on all shards.
    pub fn at_one_moment(mut self) -> Transaction {
        assert!(
            self.opening.is_some(),
            "a transaction that has begun reads each shard at its own moment, and its checks could miss a takeover"
        );
        let mut opening = Builder::new();
        opening.boolean("startTransaction", true);
        append_read_concern(&mut opening, b"snapshot");
        self.opening = Some(opening.finish());
        self
    }

    /// Advances the time of a transaction, before its start, to the latest time that others `known` of the cluster.
    pub fn not_before(&mut self, known: Times) {
        let time = self.time.as_mut();
        time.expect("only a transaction's first command brings a time to the shards")
            .advance(known);
    }

    /// The client's transaction, if its command `body` is part of one.
    pub fn of_client(
        protected: &Protected,
        body: Doc<'_>,
        upstream: &Connection,
    ) -> Result<Option<Transaction>, Malformed> {
        if body.get("autocommit")?.is_none() {
            return Ok(None);
        }
        let mut fields = Builder::new();
        append_fields(&mut fields, body, &["lsid", "txnNumber", "autocommit"])?;
        append_fields(&mut fields, body, &API)?;
        let opening = match body.get("startTransaction")? {
            Some(_) => {
                let mut opening = Builder::new();
                append_fields(&mut opening, body, &["startTransaction"])?;
                match body.nested("readConcern")?.is_none_or(Doc::is_empty) {
                    // A write doesn't use the cluster's default for reads, but Keyward's first command may be a read.
                    true => append_read_concern(&mut opening, b"local"),
                    false => append_fields(&mut opening, body, &["readConcern"])?,
                }
                Some(opening.finish())
            }
            None => None,
        };
        let time = cluster_time::latest(protected, body, upstream)?;
        Ok(Some(Transaction::new(fields, opening, time, None)))
    }

    /// Whether it is the client's transaction, in which the client may have written before.
    pub fn is_clients(&self) -> bool {
        self.own.is_none()
    }

    /// Whether it is Keyward's own, for a retryable command.
    fn is_retryable(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.is_retryable)
    }

    /// Runs `command` in the transaction; returns the reply's body.
    pub async fn run(
        &mut self,
        upstream: &mut Connection,
        database: &str,
        command: Builder,
        sequence: Option<OutSequence<'_>>,
    ) -> Result<Vec<u8>, Failure> {
        let is_read = is_read(&command);
        self.send(upstream, database, command, sequence).await?;
        let reply = self.receive(upstream).await?;
        self.has_written |= !is_read;
        Ok(reply)
    }

    /// Notes that all reservations of the documents that it writes are held, and stay so until its commit: it has written or
    /// checked them.
    pub fn note_all_reservations(&mut self) {
        self.has_all_reservations = true;
    }

    /// Whether a write command was run here whose reply had `ok: 1`, with or without write errors.
    pub fn has_written(&self) -> bool {
        self.has_written
    }

    /// Whether no command that was run here has left an effect in the transaction; the server `refused` the last of them. If a
    /// replica set refuses a command, it keeps no effect: it has done nothing yet, or ends the transaction. A router may have
    /// forwarded the command to a shard.
    pub fn holds_nothing_of(&self, refused: &ErrorReply, is_on_one_replica_set: bool) -> bool {
        !self.has_written && (!self.has_tried_to_write || is_on_one_replica_set || refused.is_before_execution())
    }

    /// Sends `command` in the transaction; [`Transaction::receive`] reads the replies in the order of sending.
    pub async fn send(
        &mut self,
        upstream: &mut Connection,
        database: &str,
        mut command: Builder,
        sequence: Option<OutSequence<'_>>,
    ) -> Result<(), ForwardError> {
        self.has_tried_to_write |= !is_read(&command);
        self.limit(&mut command)?;
        command.elements(Doc::new(&self.fields)?)?;
        if let Some(own) = &self.own {
            upstream.note_open_transaction(own.session);
        }
        if let Some(opening) = self.opening.take() {
            command.elements(Doc::new(&opening)?)?;
        }
        if let Some(time) = self.time.take() {
            time.append_cluster_to(&mut command);
        }
        command.string("$db", database.as_bytes());
        let body = command.finish();
        let draft = Draft {
            sequences: sequence.into_iter().collect(),
            ..Draft::of_body(&body)
        };
        Ok(upstream.send(&draft).await?)
    }

    /// Makes the server end `command` at the deadline, if the client's own limit doesn't. An abort has no limit. A `getMore` has none
    /// either: the limit of its `find` counts.
    fn limit(&self, command: &mut Builder) -> Result<(), Malformed> {
        let Some(own) = &self.own else { return Ok(()) };
        let is_without = command.is_first("getMore") || command.is_first("abortTransaction");
        if !is_without && !command.has("maxTimeMS")? {
            let left = milliseconds(own.deadline.saturating_duration_since(Instant::now()));
            // Zero would be no limit.
            command.int32("maxTimeMS", left.max(1));
        }
        Ok(())
    }

    /// Returns the body of the reply to the first command that has none yet.
    pub async fn receive(&self, upstream: &mut Connection) -> Result<Vec<u8>, Failure> {
        let reply = upstream.receive().await.map_err(ForwardError::from)?;
        let body = reply.body();
        if self.is_clients() && reply::ends_transaction(body)? {
            upstream.note_ended();
        }
        match reply::is_ok(body)? {
            true => {
                // Another shard may still refuse a number that the first one took.
                if self.is_committing && !self.is_clients() {
                    upstream.note_high_enough();
                }
                match self.end_in_statement(body)? {
                    Some(end) => Err(Failure::ErrorReply(end)),
                    None => Ok(body.bytes().to_vec()),
                }
            }
            false => {
                let refused = ErrorReply {
                    body: body.bytes().to_vec(),
                };
                if refused.code() == Some(TRANSACTION_TOO_OLD) && !self.is_clients() {
                    upstream.catch_up();
                }
                // The error concerns the transaction that the first try had left.
                let is_meant_for_another =
                    self.is_retryable() && !self.is_committing && refused.code() == Some(INTERRUPTED);
                Err(Failure::ErrorReply(match is_meant_for_another {
                    true => ErrorReply::transient(),
                    false => refused,
                }))
            }
        }
    }

    /// The end of a transaction of Keyward's own that has lived too long. A router reports it as the error of one statement.
    fn end_in_statement(&self, reply: Doc<'_>) -> Result<Option<ErrorReply>, Malformed> {
        if self.is_clients() {
            return Ok(None);
        }
        let errors = reply::write_errors(reply)?;
        let mut errors = errors.iter();
        let end = errors.find(|error| error.code == TRANSACTION_EXCEEDED_LIFETIME_LIMIT_SECONDS);
        end.map(|end| ErrorReply::of_part(end.body)).transpose()
    }

    /// Aborts the transaction unless the server has done so. Never aborts after a commit: if the commit is about to take effect
    /// on several shards, an abort could undo it on one of them.
    pub async fn abort(&mut self, upstream: &mut Connection) -> Result<(), ForwardError> {
        if self.opening.is_some() || self.is_committing {
            return Ok(());
        }
        if self.is_clients() {
            // The transaction counts as interrupted even if the abort fails.
            upstream.note_broken_off();
        }
        let mut command = Builder::new();
        command.int32("abortTransaction", 1);
        match self.run(upstream, "admin", command, None).await {
            Err(Failure::Forward(error)) => Err(error),
            _ => {
                upstream.take_open_transaction();
                Ok(())
            }
        }
    }
}

fn is_read(command: &Builder) -> bool {
    ["find", "getMore", "killCursors"]
        .iter()
        .any(|name| command.is_first(name))
}

/// Appends the read concern of this level.
pub fn append_read_concern(command: &mut Builder, level: &[u8]) {
    command
        .open(ElementType::EmbeddedDocument, b"readConcern")
        .string("level", level)
        .close();
}

/// The client's session, if its command is retryable.
fn session_of_retryable(body: Doc<'_>) -> Result<Option<[u8; 16]>, Malformed> {
    match body.get("txnNumber")? {
        Some(_) => session_of(body),
        None => Ok(None),
    }
}
