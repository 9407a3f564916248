//! From a command's name to what runs it, and from what came of it to the reply: labels, times, the end of a transaction
//! that failed.

use std::sync::Arc;

use super::Shared;
use super::command::Command;
use super::ddl;
use super::default_concerns;
use super::diagnostics;
use super::error::{Failure, append_labels, code, is_not_primary, is_retryable, is_transient_in_transaction, refuse};
use super::find_and_modify;
use super::hello;
use super::operation::Operation;
use super::raw::{Builder, Doc};
use super::read;
use super::reply::timestamp_value;
use super::routing::Link;
use super::transaction::{Phase, Session, Transaction};
use super::transaction_end::{self, abort_participants, append_recovery_token, recovery_shard};
use super::write::{self, Kind};

/// What is known of a client's connection.
#[derive(Debug)]
pub struct Client {
    /// `connectionId`.
    pub connection_id: i64,
    /// Its address.
    pub peer: String,
    /// It has sent its metadata.
    pub has_metadata: bool,
    /// The application's name in its metadata.
    pub app_name: String,
    /// It comes from a load balancer, and its first `hello` must say that it knows.
    pub owes_balanced_hello: bool,
}

/// Runs a command; the reply is complete. Without one, the fail point closes the connection.
pub async fn run(shared: &Arc<Shared>, client: &mut Client, command: Command) -> Option<Vec<u8>> {
    let mut operation = Operation::new(Arc::clone(shared), command);
    hello::note_application(client, &operation.command);
    if let Some(injected) = shared.fail_command.before(&operation.command, &client.app_name) {
        if injected.closes_connection {
            return None;
        }
        if let Some(error) = injected.wait(operation.deadline).await {
            let labels = injected.labels_or(labels(&operation, error.code));
            return Some(finish(&operation, Ok(error.reply(&labels))).await);
        }
    }
    if shared.clock.now() == 0 && !hello::is_hello(&operation.command.name) {
        learn_time(shared).await;
    }
    let gate = match enter_transaction(&mut operation) {
        Some(session) => Some(session.lock_owned().await),
        None => None,
    };
    let outcome = prepare_and_run(&mut operation, client).await;
    let fail_command = &operation.router.fail_command;
    let outcome = outcome.map(|body| fail_command.after(&operation.command, &client.app_name, body));
    let body = finish(&operation, outcome).await;
    drop(gate);
    Some(body)
}

async fn prepare_and_run(operation: &mut Operation, client: &mut Client) -> Result<Vec<u8>, Failure> {
    if takes_concerns(&operation.command) {
        let concerns = default_concerns::current(&operation.router).await?;
        if let Some(concern) = concerns.read_for(&operation.command) {
            operation.command.read_concern = Some(concern);
        }
        operation.default_write_concern = concerns.write;
    }
    begin(operation)?;
    choose(operation, client).await
}

/// Whether the cluster's defaults can be about the command: a read, a write, or the first or the last one of a transaction.
fn takes_concerns(command: &Command) -> bool {
    !hello::is_hello(&command.name) && (!command.in_transaction || command.starts_transaction || is_end(&command.name))
}

/// Cluster time and shards, once; what fails here fails again where it is needed.
async fn learn_time(shared: &Shared) {
    let link = Link {
        pools: &shared.pools,
        clock: &shared.clock,
    };
    let _ = shared.catalog.load_shards(&link).await;
}

fn enter_transaction(operation: &mut Operation) -> Option<Arc<tokio::sync::Mutex<()>>> {
    let command = &operation.command;
    let lsid = command.lsid.as_ref().filter(|_| command.in_transaction)?;
    let session = operation.router.sessions.of(lsid);
    let gate = Arc::clone(&session.gate);
    operation.transaction = Some(session);
    Some(gate)
}

fn is_end(name: &str) -> bool {
    matches!(name, "commitTransaction" | "abortTransaction")
}

/// Starts or continues the transaction that the command belongs to.
fn begin(operation: &Operation) -> Result<(), Failure> {
    let command = &operation.command;
    let Some(session) = operation.transaction.as_ref().filter(|_| !is_end(&command.name)) else {
        return Ok(());
    };
    let Some(number) = command.txn_number else {
        return refuse(
            code::INVALID_OPTIONS,
            "'autocommit' field requires a transaction number to also be specified",
        );
    };
    if command.write_concern.is_some() {
        return refuse(
            code::INVALID_OPTIONS,
            "writeConcern is not allowed within a multi-statement transaction",
        );
    }
    let start = command.starts_transaction.then(|| {
        let snapshot = command.read_concern_level() == Some("snapshot");
        Transaction::new(
            number,
            command.read_concern.clone(),
            snapshot.then(|| transaction_time(operation)),
        )
    });
    session.begin_or_continue(start, number)
}

/// The one time at which a snapshot is read on every shard outside of transactions: what the client asks for, or the latest known.
pub fn read_time(operation: &Operation) -> u64 {
    asked_time(operation, "atClusterTime").unwrap_or_else(|| transaction_time(operation))
}

/// The one time of a transaction's snapshot: the latest known. A router heeds the client's `afterClusterTime` here, but not
/// `atClusterTime` (6.0, 7.0).
fn transaction_time(operation: &Operation) -> u64 {
    let latest = operation.router.clock.now();
    latest.max(asked_time(operation, "afterClusterTime").unwrap_or(0))
}

fn asked_time(operation: &Operation, name: &str) -> Option<u64> {
    let concern = Doc::new(operation.command.read_concern.as_ref()?).ok()?;
    timestamp_value(concern.get(name).ok().flatten())
}

async fn choose(operation: &mut Operation, client: &mut Client) -> Result<Vec<u8>, Failure> {
    let name = operation.command.name.clone();
    if operation.transaction.is_none() && operation.command.read_concern_level() == Some("snapshot") {
        operation.at_cluster_time = Some(read_time(operation));
    }
    match name.as_str() {
        _ if hello::is_hello(&name) => hello::hello(&operation.router, client, &operation.command).await,
        "insert" => write::run(operation, Kind::Insert).await,
        "update" => write::run(operation, Kind::Update).await,
        "delete" => write::run(operation, Kind::Delete).await,
        "findAndModify" | "findandmodify" => find_and_modify::run(operation).await,
        "commitTransaction" => transaction_end::commit(operation).await,
        "abortTransaction" => transaction_end::abort(operation).await,
        _ => match read::run(operation, &name).await {
            Some(outcome) => outcome,
            None => match ddl::run(operation, &name).await {
                Some(outcome) => outcome,
                None => diagnostics::run(operation, client, &name).await,
            },
        },
    }
}

/// The reply to the client: what came of the command, with what every reply carries.
async fn finish(operation: &Operation, outcome: Result<Vec<u8>, Failure>) -> Vec<u8> {
    let body = outcome.unwrap_or_else(|failure| error_reply(operation, &failure));
    let mut reply = Builder::from_document(&body);
    if operation.command.is_retryable_write() && concern_is_retryable(&body) {
        append_labels(&mut reply, &["RetryableWriteError"]);
    }
    if let Some(session) = operation
        .transaction
        .as_ref()
        .filter(|_| !is_end(&operation.command.name))
    {
        match ends_transaction(&body) {
            // Behind a commit that a coordinator may have by now, a router doesn't abort of its own accord.
            true if is_committing(session) => {}
            true => drop(abort_participants(operation, session).await),
            false => append_recovery_token(&mut reply, recovery_shard(session).as_deref()),
        }
    }
    operation.router.clock.append(&mut reply);
    if operation.operation_time() > 0 {
        reply.timestamp("operationTime", operation.operation_time());
    }
    reply.finish()
}

/// Whether the write was done but its write concern wasn't met for a reason that makes a driver send it again.
fn concern_is_retryable(body: &[u8]) -> bool {
    let code = || {
        let body = Doc::new(body).ok()?;
        let error = body.get("writeConcernError").ok()??.as_document_or_array().ok()??;
        let labelled = body.get("errorLabels").ok()?.is_some();
        let code = error.get("code").ok()??.as_whole_number()?;
        (!labelled).then_some(code as i32)
    };
    code().is_some_and(|code| code != 112 && is_retryable(code))
}

fn is_committing(session: &Session) -> bool {
    let transaction = session.transaction();
    transaction
        .as_ref()
        .is_some_and(|transaction| transaction.phase == Phase::Committing)
}

/// Whether a statement failed in any way: then so has its transaction.
fn ends_transaction(body: &[u8]) -> bool {
    let Ok(body) = Doc::new(body) else { return true };
    let ok = matches!(body.get("ok"), Ok(Some(ok)) if ok.is_truthy());
    !ok || matches!(body.get("writeErrors"), Ok(Some(_)))
}

fn error_reply(operation: &Operation, failure: &Failure) -> Vec<u8> {
    let shard_reply = match failure {
        Failure::Own(error) => {
            let labels = labels(operation, error.code);
            return error.reply(&labels);
        }
        Failure::Shard(reply) => reply.clone(),
        Failure::Stale(bytes) => super::reply::Reply::new(bytes.clone()),
    };
    let mut reply = Builder::new();
    if shard_reply.get("errorLabels").is_none() {
        append_labels(&mut reply, &labels(operation, shard_reply.code()));
    }
    for element in shard_reply.doc().elements().flatten() {
        let times = matches!(
            element.name,
            b"$clusterTime" | b"operationTime" | b"$configTime" | b"$topologyTime"
        );
        if !times && element.name != b"readOnly" && element.name != b"lastCommittedOpTime" {
            reply.element(&element);
        }
    }
    if shard_reply.get("codeName").is_none() && shard_reply.get("code").is_some() {
        reply.string("codeName", super::error::code_name(shard_reply.code()).as_bytes());
    }
    reply.finish()
}

/// The labels that a driver's retries go by.
fn labels(operation: &Operation, code: i32) -> Vec<&'static str> {
    let command = &operation.command;
    let commit = is_end(&command.name);
    if command.in_transaction && !commit && is_transient_in_transaction(code, false) {
        return vec!["TransientTransactionError"];
    }
    if commit && is_transient_in_transaction(code, true) {
        return vec!["TransientTransactionError"];
    }
    let retryable = is_retryable(code) && (code != 112 || is_not_primary(code));
    match retryable && (command.is_retryable_write() || commit) {
        true => vec!["RetryableWriteError"],
        false => Vec::new(),
    }
}
