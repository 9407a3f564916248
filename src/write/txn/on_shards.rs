//! Ends a client's transaction on the shards, and asks their primaries whether it is over.
//!
//! A router sends `killSessions` to every member of every shard. It fails if one of them is down, and may send the command to that one
//! later, while the session's next transaction is open. Older routers ignore the error of a shard. So Keyward kills a session only if a
//! primary has its transaction open, and then the primaries' answer counts.

use std::future::IntoFuture;
use std::time::Duration;

use bson::spec::{BinarySubtype, ElementType};
use bson::{Binary, doc};
use mongodb::Client;

use super::ErrorReply;
use crate::command::running::append_fields;
use crate::proxy_collection::{StoreError, answered};
use crate::raw::{Builder, Doc};
use crate::reply::{Times, WriteRefusal};
use crate::server::{code, driver, reply};
use crate::upstream::Connection;
use crate::write::forward_error::ForwardError;

/// How often the primaries are asked whether a killed transaction is over.
const LOOKS_AFTER_KILL: u32 = 20;
/// How long to leave it between two of these looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Makes sure that no shard has the transaction `number` of the client's `session` open, which the commit `body` is about. Returns `Some`
/// reply if that isn't certain.
pub async fn end_on_shards(
    session: [u8; 16],
    number: i64,
    body: Doc<'_>,
    client: &Client,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let unended = |reason: String| Ok(Some(WriteRefusal::UnendedTransaction(reason).body(&Times::default())));
    match is_open(client, session, number).await {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        // A user for a deployment without constraints needs no such privilege. Then the router's answer counts.
        Err(StoreError::Driver(error)) if driver::code_of(&error) == Some(code::UNAUTHORIZED) => {
            let killed = kill(session, body, upstream).await?;
            let is_ok = reply::is_ok(Doc::new(&killed)?)?;
            return Ok((!is_ok).then(|| ErrorReply { body: killed }.in_doubt(true).body));
        }
        Err(error) => return unended(error.to_string()),
    }
    kill(session, body, upstream).await?;
    for _ in 0..LOOKS_AFTER_KILL {
        match is_open(client, session, number).await {
            Ok(true) => tokio::time::sleep(BETWEEN_LOOKS).await,
            Ok(false) => return Ok(None),
            Err(error) => return unended(error.to_string()),
        }
    }
    unended("a shard has it open still".to_owned())
}

/// Makes the deployment end the open transactions of the client's `session`. Returns the answer.
async fn kill(session: [u8; 16], body: Doc<'_>, upstream: &mut Connection) -> Result<Vec<u8>, ForwardError> {
    let mut command = Builder::new();
    command.open(ElementType::Array, b"killSessions");
    command
        .open(ElementType::EmbeddedDocument, b"0")
        .binary(b"id", BinarySubtype::Uuid, &session)
        .close();
    command.close();
    append_fields(&mut command, body, &["apiVersion"])?;
    command.string("$db", b"admin");
    Ok(upstream.run(&command.finish()).await?)
}

/// Whether a shard's primary has the transaction open. A server lists running operations first and then idle sessions. One look misses a
/// transaction whose next statement begins between the two lists. So Keyward looks twice in sequence.
///
/// # Errors
/// As [`is_seen_open`].
async fn is_open(client: &Client, session: [u8; 16], number: i64) -> Result<bool, StoreError> {
    Ok(is_seen_open(client, session, number).await? || is_seen_open(client, session, number).await?)
}

/// Whether one look shows the transaction open at a shard's primary. A prepared one doesn't count: its commit was sent earlier, and the
/// shards decide about it.
///
/// # Errors
/// [`StoreError`] if a shard doesn't answer, or Keyward's user may not ask.
async fn is_seen_open(client: &Client, session: [u8; 16], number: i64) -> Result<bool, StoreError> {
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: session.to_vec(),
    };
    let open = doc! {
        "lsid.id": id, "transaction.parameters.txnNumber": number, "transaction.parameters.autocommit": false,
        "transaction.timePreparedMicros": { "$exists": false },
    };
    let pipeline = vec![
        doc! { "$currentOp": { "allUsers": true, "idleSessions": true } },
        doc! { "$match": open },
        doc! { "$project": { "type": 1 } },
    ];
    // Stated, because a cluster may have another default.
    let local = doc! { "level": "local" };
    let look = doc! { "aggregate": 1, "pipeline": pipeline, "cursor": {}, "readConcern": local };
    let admin = client.database("admin");
    let reply = answered(admin.run_command(look).into_future()).await?;
    let cursor = reply.get_document("cursor");
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
    match batch {
        Ok(batch) => Ok(!batch.is_empty()),
        Err(_) => Err(StoreError::Unexpected("the open transactions")),
    }
}
