//! Ends transactions: commit as the number of writing shards demands, abort everywhere.
//!
//! As a `mongos`, the router doesn't remember that a transaction was aborted. After an error it sends aborts and ignores the
//! answers; what comes afterwards goes to the participants, and only they know that the transaction is over.
//!
//! - No shard wrote: commit on each. One wrote: commit on the others, then on it. Several: two-phase commit by the
//!   coordinator, which is MongoDB's own.
//! - A crash before the writing shard's commit leaves nothing; a coordinator's decision is carried on by the shards.
//! - A repeated commit of which one shard of several wrote asks that shard for its decision, which aborts what is still open.

use std::sync::atomic::Ordering;

use bson::spec::ElementType;

use super::error::{Failure, code, refuse};
use super::message::Outgoing;
use super::operation::Operation;
use super::raw::{Builder, Doc};
use super::reply::{self, Reply};
use super::shard::Preference;
use super::transaction::{Participant, Phase, Session, Transaction};

/// `commitTransaction`.
///
/// # Errors
/// A shard's refusal, or the failure to reach it: then the outcome is unknown and the client commits again.
pub async fn commit(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let Some(session) = &operation.transaction else {
        return refuse(
            50768,
            "txnNumber may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided",
        );
    };
    let number = operation.command.txn_number.unwrap_or(-1);
    session.refuse_older(number)?;
    let transaction = session.transaction().clone().filter(|known| known.number == number);
    let Some(transaction) = transaction else {
        return recover(operation).await;
    };
    if let Some(transaction) = session.transaction().as_mut() {
        transaction.phase = Phase::Committing;
    }
    let outcome = commit_known(operation, &transaction).await?;
    Ok(with_recovery_token(outcome, transaction.recovery_shard.as_deref()))
}

/// What the server says of an aborted transaction.
pub fn aborted(number: i64) -> String {
    format!("Transaction with {{ txnNumber: {number} }} has been aborted.")
}

async fn commit_known(operation: &Operation, transaction: &Transaction) -> Result<Reply, Failure> {
    let participants = &transaction.participants;
    if let Some(failed) = participants.iter().find(|participant| participant.read_only.is_none()) {
        let message = format!(
            "Failed to commit transaction because a previous statement on the transaction participant {} was unsuccessful.",
            failed.shard
        );
        return refuse(code::NO_SUCH_TRANSACTION, message);
    }
    let is_writer = |participant: &&Participant| participant.read_only == Some(false);
    let writers: Vec<_> = participants.iter().filter(is_writer).collect();
    if let ([writer], true, Phase::Committing) = (&writers[..], participants.len() > 1, transaction.phase) {
        return coordinate(operation, &writer.shard, &[]).await;
    }
    if writers.len() > 1 {
        let shards: Vec<_> = participants
            .iter()
            .map(|participant| participant.shard.as_str())
            .collect();
        return coordinate(operation, shards[0], &shards).await;
    }
    // The writer last: until it commits, nothing has happened.
    let mut in_order: Vec<_> = participants.iter().collect();
    in_order.sort_by_key(|participant| participant.read_only == Some(false));
    let mut last = Reply::new(reply::ok().into());
    for participant in in_order {
        let command = end_command(operation, "commitTransaction", &participant.shard);
        last = call_end(operation, &participant.shard, command).await?.success()?;
    }
    Ok(last)
}

async fn coordinate(operation: &Operation, coordinator: &str, participants: &[&str]) -> Result<Reply, Failure> {
    let mut command = end_command(operation, "coordinateCommitTransaction", coordinator);
    command.open(ElementType::Array, b"participants");
    for (index, shard) in participants.iter().enumerate() {
        command.open(ElementType::EmbeddedDocument, index.to_string().as_bytes());
        command.string("shardId", shard.as_bytes());
        command.close();
    }
    command.close();
    call_end(operation, coordinator, command).await?.success()
}

/// A commit of a transaction that this router didn't run: the shard named by the client's token knows the decision.
async fn recover(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let token = operation.command.nested("recoveryToken");
    let Some(token) = token else {
        return refuse(50940, "Cannot recover the transaction decision without a recoveryToken");
    };
    let shard = token.get("recoveryShardId")?.and_then(|shard| shard.as_str());
    let Some(shard) = shard else {
        return refuse(
            code::NO_SUCH_TRANSACTION,
            "Recovery token is empty, meaning the transaction only performed reads and can be safely retried",
        );
    };
    let reply = coordinate(operation, shard, &[]).await?;
    Ok(with_recovery_token(reply, Some(shard)))
}

/// `abortTransaction`.
///
/// # Errors
/// NoSuchTransaction where there is none to abort.
pub async fn abort(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let number = operation.command.txn_number.unwrap_or(-1);
    let Some(session) = &operation.transaction else {
        return refuse(code::NO_SUCH_TRANSACTION, aborted(number));
    };
    session.refuse_older(number)?;
    let known = session.transaction().clone().filter(|known| known.number == number);
    match known {
        // Behind a commit, too, as a router does: it may undo on one shard what is about to take effect on all.
        Some(known) if !known.participants.is_empty() => {
            let mut last = Reply::new(reply::ok().into());
            for answer in abort_participants(operation, session).await {
                last = answer?.success()?;
            }
            Ok(with_recovery_token(last, known.recovery_shard.as_deref()))
        }
        Some(_) => refuse(
            code::NO_SUCH_TRANSACTION,
            "no known command has been sent by this router for this transaction",
        ),
        _ => refuse(code::NO_SUCH_TRANSACTION, aborted(number)),
    }
}

/// Tells every participant to abort; what can't be reached ends by its own time limit. Gives the answers, which a router
/// looks at only where a client asked for the abort.
pub async fn abort_participants(operation: &Operation, session: &Session) -> Vec<Result<Reply, Failure>> {
    if operation.router.loses_aborts.load(Ordering::SeqCst) {
        return Vec::new();
    }
    let shards: Vec<_> = match session.transaction().as_ref() {
        Some(transaction) => transaction
            .participants
            .iter()
            .map(|participant| participant.shard.clone())
            .collect(),
        None => return Vec::new(),
    };
    let aborts = shards
        .iter()
        .map(|shard| call_end(operation, shard, end_command(operation, "abortTransaction", shard)));
    futures_util::future::join_all(aborts).await
}

/// `name`, with the session's fields and the write concern that every end of a transaction carries.
fn end_command(operation: &Operation, name: &str, shard: &str) -> Builder {
    let mut body = Builder::new();
    body.int32(name, 1).string("$db", b"admin");
    operation.append_session(&mut body, shard);
    operation.append_write_concern(&mut body);
    operation.router.clock.append(&mut body);
    body
}

async fn call_end(operation: &Operation, shard: &str, body: Builder) -> Result<Reply, Failure> {
    let shard = operation.shard(shard)?;
    let outgoing = Outgoing {
        body: body.finish(),
        sequence: None,
    };
    Ok(operation.send(&shard, Preference::Primary, &outgoing, true).await?.0)
}

/// A statement's or a commit's reply with the token that lets any router find the outcome.
fn with_recovery_token(reply: Reply, shard: Option<&str>) -> Vec<u8> {
    let mut body = reply.public_fields_without(&["recoveryToken"]);
    append_recovery_token(&mut body, shard);
    body.double("ok", f64::from(u8::from(reply.is_ok())));
    body.finish()
}

/// Appends `recoveryToken`.
pub fn append_recovery_token(body: &mut Builder, shard: Option<&str>) {
    body.open(ElementType::EmbeddedDocument, b"recoveryToken");
    if let Some(shard) = shard {
        body.string("recoveryShardId", shard.as_bytes());
    }
    body.close();
}

/// A private session's transaction for the router's own use inside one command.
pub fn begin_own(operation: &mut Operation, number: i64) {
    let session = Session::for_one_command(Transaction::new(number, None, None));
    operation.transaction = Some(session.into());
}

/// Commits a transaction that [`begin_own`] began.
///
/// # Errors
/// As [`commit`].
pub async fn commit_own(operation: &Operation) -> Result<(), Failure> {
    let Some(session) = &operation.transaction else {
        return Ok(());
    };
    let transaction = session.transaction().clone();
    match transaction {
        Some(transaction) => commit_known(operation, &transaction).await.map(|_| ()),
        None => Ok(()),
    }
}

/// The shard to name in `recoveryToken` for the current transaction.
pub fn recovery_shard(session: &Session) -> Option<String> {
    session.transaction().as_ref()?.recovery_shard.clone()
}

/// A field of an error reply that holds a document.
pub fn error_document(reply: &Reply, name: &str) -> Option<Vec<u8>> {
    reply.nested(name).map(Doc::bytes).map(<[u8]>::to_vec)
}
