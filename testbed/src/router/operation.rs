//! One client command under way: what every message to a shard carries (session, transaction, concerns, versions,
//! cluster time), how often it may be sent, and the times that the reply to the client reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::spec::ElementType;
use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::Shared;
use super::command::{API_PARAMETERS, Command};
use super::default_concerns::marked;
use super::error::{Failure, ServerError, code, is_not_primary};
use super::message::{Outgoing, Sequence};
use super::raw::{Builder, Doc};
use super::reply::{Reply, timestamp_value};
use super::routing::{CONFIG, Version};
use super::shard::{CallError, Preference, ReplicaSet};
use super::transaction::{Join, Session};

/// How often a command that may run twice is sent before its error is reported (as `mongos` does).
const ATTEMPTS_MAX: usize = 3;

/// Whether a shard command reads or writes: decides about concerns and about sending it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Carries the client's read concern.
    Read,
    /// Carries the client's write concern, or the cluster's default.
    Write,
    /// Carries no concern; may be sent again.
    Plain,
    /// For the router inside a shard's server: no session, the client's concerns, not sent again.
    InnerRouter,
}

/// A command to one shard, without what [`Operation::call`] adds.
#[derive(Debug)]
pub struct ShardCommand {
    /// The shard's name.
    pub shard: String,
    /// What the router believes about the collection there.
    pub version: Version,
    /// The body so far.
    pub body: Builder,
    /// Documents outside the body.
    pub sequence: Option<Sequence>,
    /// Which concern it carries.
    pub access: Access,
}

/// One client command under way.
#[derive(Debug)]
pub struct Operation {
    /// The router.
    pub router: Arc<Shared>,
    /// The command.
    pub command: Command,
    /// When it must be over.
    pub deadline: Option<Instant>,
    /// The session whose transaction this is part of.
    pub transaction: Option<Arc<Session>>,
    /// The one read time of a snapshot read outside transactions.
    pub at_cluster_time: Option<u64>,
    /// The cluster's default write concern, if it has one.
    pub default_write_concern: Option<Bytes>,
    operation_time: Arc<AtomicU64>,
}

impl Operation {
    /// Starts a command.
    pub fn new(router: Arc<Shared>, command: Command) -> Self {
        router.clock.observe(command.doc());
        Operation {
            deadline: command.time_limit.map(|limit| Instant::now() + limit),
            router,
            command,
            transaction: None,
            at_cluster_time: None,
            default_write_concern: None,
            operation_time: Arc::default(),
        }
    }

    /// The same command once more, free to take another database, session or transaction; its times count for this one.
    pub fn own(&self) -> Self {
        Operation {
            router: Arc::clone(&self.router),
            command: self.command.clone(),
            deadline: self.deadline,
            transaction: None,
            at_cluster_time: None,
            default_write_concern: self.default_write_concern.clone(),
            operation_time: Arc::clone(&self.operation_time),
        }
    }

    /// `operationTime` for the reply: the latest that a shard told, else the cluster's time.
    pub fn operation_time(&self) -> u64 {
        match self.operation_time.load(Ordering::Relaxed) {
            0 => self.router.clock.now(),
            time => time,
        }
    }

    /// The cluster time that everything is read at, if there is one: of this read, or of its transaction.
    pub fn read_time(&self) -> Option<u64> {
        let of_transaction = || self.transaction.as_ref()?.transaction().as_ref()?.at_cluster_time;
        self.at_cluster_time.or_else(of_transaction)
    }

    /// The shard of that name.
    ///
    /// # Errors
    /// ShardNotFound.
    pub fn shard(&self, name: &str) -> Result<Arc<ReplicaSet>, Failure> {
        let found = match name {
            CONFIG => Some(Arc::clone(&self.router.catalog.config)),
            _ => self.router.catalog.shards.find(name),
        };
        found.ok_or_else(|| ServerError::new(code::SHARD_NOT_FOUND, format!("Shard {name} not found")).into())
    }

    /// Sends a command to a shard's primary (or to what `$readPreference` allows, for reads outside transactions).
    ///
    /// # Errors
    /// The failure to get any reply; a reply that reports an error is a reply.
    pub async fn call(&self, command: ShardCommand) -> Result<(Reply, String), Failure> {
        let shard = self.shard(&command.shard)?;
        let preference = match (command.access, &self.transaction) {
            (Access::Read, None) => Preference::from_command(self.command.nested("$readPreference")),
            _ => Preference::Primary,
        };
        let repeatable = match command.access {
            Access::Read => self.transaction.is_none(),
            Access::Write => self.command.is_retryable_write() && self.transaction.is_none(),
            Access::Plain => true,
            Access::InnerRouter => false,
        };
        let outgoing = self.complete(command);
        let answer = self.send(&shard, preference, &outgoing, repeatable).await;
        if let (Ok((reply, _)), Some(session)) = (&answer, &self.transaction) {
            note_participant(session, &shard.name, reply);
        }
        answer
    }

    /// Sends commands to several shards at once; the answers stand in the same order.
    pub async fn call_all(&self, commands: Vec<ShardCommand>) -> Vec<Result<(Reply, String), Failure>> {
        join_all(commands.into_iter().map(|command| self.call(command))).await
    }

    /// Sends a complete command until it is answered, as often as it may be.
    pub async fn send(
        &self,
        shard: &ReplicaSet,
        preference: Preference,
        command: &Outgoing,
        repeatable: bool,
    ) -> Result<(Reply, String), Failure> {
        let pools = &self.router.pools;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let Some(host) = shard.select(pools, preference, self.deadline).await else {
                return Err(no_host(shard, preference));
            };
            let last = attempt >= ATTEMPTS_MAX;
            match pools.call(&host, command, self.deadline).await {
                Ok(reply) => {
                    self.observe(&reply);
                    if !is_not_primary(self.first_error_code(&reply)) {
                        return Ok((reply, host));
                    }
                    shard.forget_primary(&host);
                    if last || !repeatable {
                        return Ok((reply, host));
                    }
                }
                Err(CallError::TimeLimit) => {
                    return Err(ServerError::new(code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit").into());
                }
                Err(error) => {
                    shard.forget_primary(&host);
                    pools.drop_idle(&host);
                    let sent = !matches!(error, CallError::NotSent { .. });
                    if last || (sent && !repeatable) {
                        return Err(ServerError::new(code::HOST_UNREACHABLE, error.to_string()).into());
                    }
                }
            }
        }
    }

    /// Sends a complete command to one certain member, once.
    ///
    /// # Errors
    /// HostUnreachable, MaxTimeMSExpired.
    pub async fn send_to(&self, host: &str, command: &Outgoing) -> Result<Reply, Failure> {
        match self.router.pools.call(host, command, self.deadline).await {
            Ok(reply) => {
                self.observe(&reply);
                Ok(reply)
            }
            Err(CallError::TimeLimit) => {
                Err(ServerError::new(code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit").into())
            }
            Err(error) => Err(ServerError::new(code::HOST_UNREACHABLE, error.to_string()).into()),
        }
    }

    fn observe(&self, reply: &Reply) {
        self.router.clock.observe(reply.doc());
        if let Some(time) = timestamp_value(reply.get("operationTime")) {
            self.operation_time.fetch_max(time, Ordering::Relaxed);
        }
    }

    /// The command's error, or that of its first write: a stepped-down primary may report itself there.
    fn first_error_code(&self, reply: &Reply) -> i32 {
        if !reply.is_ok() {
            return reply.code();
        }
        let first = || {
            reply
                .nested("writeErrors")?
                .elements()
                .next()?
                .ok()?
                .as_document_or_array()
                .ok()?
        };
        let code = first().and_then(|error| error.get("code").ok()?);
        code.and_then(|code| code.as_whole_number()).unwrap_or(0) as i32
    }

    fn complete(&self, command: ShardCommand) -> Outgoing {
        let mut body = command.body;
        body.string("$db", self.command.db.as_bytes());
        command.version.append(&mut body);
        if command.access != Access::InnerRouter {
            self.append_session(&mut body, &command.shard);
        }
        match (command.access, &self.transaction) {
            (Access::InnerRouter, _) => {
                self.append_read_concern(&mut body);
                if let Some(concern) = &self.command.write_concern {
                    body.append(ElementType::EmbeddedDocument, b"writeConcern", concern);
                } else if self.default_write_concern.is_some() && self.command.writes_by_pipeline() {
                    self.append_write_concern(&mut body);
                }
            }
            (Access::Read, None) => self.append_read_concern(&mut body),
            (Access::Write, None) => self.append_write_concern(&mut body),
            _ => (),
        }
        self.router.clock.append(&mut body);
        Outgoing {
            body: body.finish(),
            sequence: command.sequence,
        }
    }

    /// `lsid`, the API version, and the fields of a retryable write or a transaction; joining `shard` to the latter.
    pub fn append_session(&self, body: &mut Builder, shard: &str) {
        for parameter in API_PARAMETERS.iter().filter_map(|name| self.command.get(name)) {
            body.element(&parameter);
        }
        if let Some(lsid) = &self.command.lsid {
            body.append(ElementType::EmbeddedDocument, b"lsid", lsid);
        }
        if let Some(number) = self.command.txn_number {
            body.int64("txnNumber", number);
        }
        let Some(session) = &self.transaction else { return };
        body.boolean("autocommit", false);
        let mut transaction = session.transaction();
        let Some(transaction) = transaction.as_mut() else {
            return;
        };
        if let Join::Start { coordinator } = transaction.join(shard) {
            body.boolean("startTransaction", true);
            if coordinator {
                body.boolean("coordinator", true);
            }
            if let Some(concern) = read_concern(transaction.read_concern.as_ref(), transaction.at_cluster_time) {
                body.append(ElementType::EmbeddedDocument, b"readConcern", &concern);
            }
        }
    }

    fn append_read_concern(&self, body: &mut Builder) {
        if let Some(concern) = read_concern(self.command.read_concern.as_ref(), self.at_cluster_time) {
            body.append(ElementType::EmbeddedDocument, b"readConcern", &concern);
        }
    }

    /// The client's write concern, or the cluster's default. A shard is never asked for `w: 0`: the router needs to see what
    /// became of the write.
    pub fn append_write_concern(&self, body: &mut Builder) {
        let stated = self
            .command
            .write_concern
            .as_ref()
            .and_then(|stated| Doc::new(stated).ok());
        let default = self.default_write_concern.as_ref();
        let default = default.and_then(|default| Doc::new(default).ok());
        let concern = match (stated, default) {
            (None, Some(default)) => marked(default),
            (stated, default) => with_w(stated.unwrap_or_else(Doc::empty), default),
        };
        body.append(ElementType::EmbeddedDocument, b"writeConcern", &concern.finish());
    }
}

/// The write concern that the client states, with the default's `w` where it states none.
fn with_w(stated: Doc<'_>, default: Option<Doc<'_>>) -> Builder {
    let w_of = |concern: Doc<'_>| concern.get("w").ok().flatten().map(|w| (w.kind, w.value.to_vec()));
    let mut merged = Builder::new();
    let is_zero = stated
        .get("w")
        .ok()
        .flatten()
        .is_some_and(|w| w.as_whole_number() == Some(0));
    match w_of(stated).or_else(|| w_of(default?)) {
        _ if is_zero => merged.int32("w", 1),
        Some((kind, value)) => merged.append(kind, b"w", &value),
        None => merged.string("w", b"majority"),
    };
    for element in stated.elements().flatten() {
        if element.name != b"w" {
            merged.element(&element);
        }
    }
    merged
}

/// A read concern with the one read time that all shards share.
fn read_concern(concern: Option<&Bytes>, at_cluster_time: Option<u64>) -> Option<Bytes> {
    let Some(time) = at_cluster_time else {
        return concern.cloned();
    };
    let mut merged = Builder::new();
    for element in Doc::new(concern?).ok()?.elements().flatten() {
        // The shared time already lies after the one that the client asked for.
        if element.name != b"afterClusterTime" && element.name != b"atClusterTime" {
            merged.element(&element);
        }
    }
    merged.timestamp("atClusterTime", time);
    Some(merged.finish().into())
}

fn note_participant(session: &Session, shard: &str, reply: &Reply) {
    let read_only = reply.get("readOnly").map(|flag| flag.is_truthy());
    if let (Some(read_only), Some(transaction)) = (read_only, session.transaction().as_mut()) {
        transaction.note_read_only(shard, read_only);
    }
}

fn no_host(shard: &ReplicaSet, preference: Preference) -> Failure {
    let mode = match preference {
        Preference::Primary => "primary",
        Preference::Secondary => "secondary",
        Preference::SecondaryPreferred => "secondaryPreferred",
    };
    let message = format!(
        "Could not find host matching read preference {{ mode: \"{mode}\" }} for set {}",
        shard.name
    );
    ServerError::new(code::FAILED_TO_SATISFY_READ_PREFERENCE, message).into()
}
