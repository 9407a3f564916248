//! `hello` and its older names, as `mongos` answers them: `msg: "isdbgrid"`, no replica set.
//!
//! Nothing about a router changes while it runs, so a `hello` that awaits news waits its whole time.

use std::time::Duration;

use bson::{DateTime, doc};
use tokio::time::sleep;

use super::Shared;
use super::command::Command;
use super::dispatch::Client;
use super::error::{Failure, code, refuse};
use super::message::MESSAGE_BYTES_MAX;
use super::reply;

/// The wire version of server 6.0.
const WIRE_VERSION: i32 = 17;
const AWAIT_MS_MAX: i64 = 24 * 60 * 60 * 1000;

/// Whether the name is one of `hello`'s.
pub fn is_hello(name: &str) -> bool {
    matches!(name, "hello" | "isMaster" | "ismaster")
}

/// Whether it waits for news.
pub fn is_awaitable(command: &Command) -> bool {
    is_hello(&command.name) && command.get("maxAwaitTimeMS").is_some()
}

/// Notes the application's name, which a fail point may ask for before the first `hello` is answered.
pub fn note_application(client: &mut Client, command: &Command) {
    let metadata = command.nested("client").filter(|_| is_hello(&command.name));
    let application = metadata.and_then(|metadata| metadata.get("application").ok()??.as_document_or_array().ok()?);
    let name = application.and_then(|application| application.get("name").ok()??.as_str());
    if let Some(name) = name.filter(|_| !client.has_metadata) {
        client.app_name = name.to_owned();
    }
}

/// Answers it.
///
/// # Errors
/// For settings that don't go together, and a second set of client metadata.
pub async fn hello(shared: &Shared, client: &mut Client, command: &Command) -> Result<Vec<u8>, Failure> {
    if command.get("client").is_some() && std::mem::replace(&mut client.has_metadata, true) {
        return refuse(186, "The client metadata document may only be sent in the first hello");
    }
    // With the option, a client that doesn't come from a load balancer is served like any other.
    let is_first_balanced = client.owes_balanced_hello;
    if is_first_balanced && !command.flag("loadBalanced", false) {
        return refuse(
            code::LOAD_BALANCER_SUPPORT_MISMATCH,
            "The server is being accessed through a load balancer, but this driver does not have load balancing enabled",
        );
    }
    client.owes_balanced_hello = false;
    await_news(shared, command).await?;
    let mut answer = bson::Document::new();
    if command.flag("helloOk", false) {
        answer.insert("helloOk", true);
    }
    let writable = if command.name == "hello" {
        "isWritablePrimary"
    } else {
        "ismaster"
    };
    answer.insert(writable, true);
    answer.extend(doc! {
        "msg": "isdbgrid",
        "topologyVersion": { "processId": shared.process_id, "counter": 0_i64 },
        "maxBsonObjectSize": 16_777_216,
        "maxMessageSizeBytes": MESSAGE_BYTES_MAX as i32,
        "maxWriteBatchSize": 100_000,
        "localTime": DateTime::now(),
        "logicalSessionTimeoutMinutes": 30,
        "connectionId": client.connection_id,
        "maxWireVersion": WIRE_VERSION,
        "minWireVersion": 0,
    });
    if is_first_balanced {
        answer.insert("serviceId", shared.process_id);
    }
    Ok(reply::from_document(answer))
}

async fn await_news(shared: &Shared, command: &Command) -> Result<(), Failure> {
    let (known, limit) = (command.nested("topologyVersion"), command.number("maxAwaitTimeMS"));
    let (known, limit) = match (known, limit) {
        (None, None) => return Ok(()),
        (Some(known), Some(limit)) => (known, limit),
        (known, _) => {
            let missing = if known.is_some() {
                "maxAwaitTimeMS"
            } else {
                "topologyVersion"
            };
            return refuse(
                31368,
                format!("A request with '{}' must include '{missing}'", other_of(missing)),
            );
        }
    };
    let process = known.get("processId")?.map(|id| id.value.to_vec());
    let counter = known
        .get("counter")?
        .and_then(|counter| counter.as_whole_number())
        .unwrap_or(0);
    if process.as_deref() != Some(&shared.process_id.bytes()) {
        return Ok(());
    }
    if counter > 0 {
        return refuse(
            31382,
            format!(
                "Received a topology version with counter: {counter} which is greater than the mongos topology version counter: 0"
            ),
        );
    }
    let limit = limit.clamp(0, AWAIT_MS_MAX);
    sleep(Duration::from_millis(limit.unsigned_abs())).await;
    Ok(())
}

fn other_of(missing: &str) -> &'static str {
    match missing {
        "maxAwaitTimeMS" => "topologyVersion",
        _ => "maxAwaitTimeMS",
    }
}
