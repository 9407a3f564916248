//! What drivers and shells ask a server about itself; sessions' housekeeping; and the answer to everything else:
//! CommandNotFound.

use bson::spec::ElementType;
use bson::{Bson, Document, doc};
use futures_util::future::join_all;

use super::command::Command;
use super::ddl::decode;
use super::dispatch::Client;
use super::error::{Failure, code, refuse};
use super::message::Outgoing;
use super::operation::Operation;
use super::operations;
use super::raw::{Builder, Doc};
use super::reply::{self, encode};
use super::transaction::Phase;
use super::transaction_end::abort_participants;

/// Runs the command if it is known at all.
///
/// # Errors
/// CommandNotFound for everything else.
pub async fn run(operation: &Operation, client: &Client, name: &str) -> Result<Vec<u8>, Failure> {
    let answer = match name {
        "ping" => doc! {},
        "buildInfo" | "buildinfo" => return build_info(operation).await,
        "getParameter" => return parameters(operation).await,
        "serverStatus" => server_status(operation),
        "connectionStatus" => doc! { "authInfo": { "authenticatedUsers": [], "authenticatedUserRoles": [] } },
        "getCmdLineOpts" => doc! { "argv": ["mongos"], "parsed": {} },
        "getLog" => log(operation)?,
        "hostInfo" => return from_config(operation, "hostInfo").await,
        "features" => return from_config(operation, "features").await,
        "whatsmyuri" => doc! { "you": &client.peer },
        "isdbgrid" => doc! { "isdbgrid": 1, "hostname": operation.router.address.to_string() },
        "getDefaultRWConcern" => return from_config_as_it_came(operation).await,
        "setDefaultRWConcern" => return set_default_concerns(operation).await,
        "startSession" => start_session(),
        "endSessions" => return end_sessions(operation).await,
        "refreshSessions" | "logout" => doc! {},
        // Each member aborts what is open of them and not prepared. As with a `mongos`, one that doesn't answer is an error.
        "killSessions" | "killAllSessions" | "killAllSessionsByPattern" => return everywhere(operation).await,
        "currentOp" => return operations::list(operation).await,
        "killOp" => return operations::kill(operation).await,
        "configureFailPoint" => return operation.router.fail_command.configure(&operation.command),
        "getFreeMonitoringStatus" => doc! { "state": "undecided" },
        "explain" => return super::read::explain(operation).await,
        _ => return unknown(&operation.command),
    };
    Ok(reply::from_document(answer))
}

fn unknown(command: &Command) -> Result<Vec<u8>, Failure> {
    refuse(code::COMMAND_NOT_FOUND, format!("no such command: '{}'", command.name))
}

async fn build_info(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let router = &operation.router;
    let command = doc! { "buildInfo": 1, "$db": "admin" };
    let reply = router.catalog.run(&router.link(), &command).await?.success()?;
    Ok(reply
        .public_fields_without(&["storageEngines"])
        .double("ok", 1.0)
        .clone()
        .finish())
}

async fn from_config(operation: &Operation, name: &str) -> Result<Vec<u8>, Failure> {
    let router = &operation.router;
    let reply = router
        .catalog
        .run(&router.link(), &doc! { name: 1, "$db": "admin" })
        .await?;
    Ok(reply.success()?.public())
}

async fn from_config_as_it_came(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let mut command = decode(operation.command.doc());
    for generic in ["lsid", "$clusterTime", "$readPreference"] {
        command.remove(generic);
    }
    let router = &operation.router;
    Ok(router.catalog.run(&router.link(), &command).await?.success()?.public())
}

/// The router that sets them knows them at once; the others once they ask again.
async fn set_default_concerns(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let mut own = operation.own();
    let mut command = Builder::from_document(own.command.doc().bytes());
    // What a majority doesn't have yet, nobody would read.
    if own.command.write_concern.is_none() {
        let majority = encode(&doc! { "w": "majority" });
        command.append(ElementType::EmbeddedDocument, b"writeConcern", &majority);
    }
    own.command.body = command.finish().into();
    let answer = from_config_as_it_came(&own).await;
    operation.router.default_concerns.forget().await;
    answer
}

/// The parameters that drivers and shells read; another one is an unknown option, as on any server.
async fn parameters(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let mut answer = Document::new();
    let all = operation.command.text("getParameter") == Some("*");
    if all || operation.command.get("featureCompatibilityVersion").is_some() {
        let router = &operation.router;
        let command = doc! { "getParameter": 1, "featureCompatibilityVersion": 1, "$db": "admin" };
        let reply = decode(router.catalog.run(&router.link(), &command).await?.success()?.doc());
        let version = reply.get("featureCompatibilityVersion").cloned();
        answer.insert("featureCompatibilityVersion", version.unwrap_or(Bson::Null));
    }
    for (name, value) in [
        (
            "authenticationMechanisms",
            Bson::Array(vec!["SCRAM-SHA-256".into(), "SCRAM-SHA-1".into()]),
        ),
        ("enableTestCommands", true.into()),
        ("requireApiVersion", false.into()),
    ] {
        if all || operation.command.get(name).is_some() {
            answer.insert(name, value);
        }
    }
    match answer.is_empty() {
        true => refuse(code::INVALID_OPTIONS, "no option found to get"),
        false => Ok(reply::from_document(answer)),
    }
}

fn server_status(operation: &Operation) -> Document {
    let router = &operation.router;
    let uptime = router.started.elapsed();
    doc! {
        "host": router.address.to_string(), "version": "6.0.5", "process": "mongos", "pid": i64::from(std::process::id()),
        "uptime": uptime.as_secs_f64(), "uptimeMillis": uptime.as_millis() as i64,
        "uptimeEstimate": uptime.as_secs() as i64, "localTime": bson::DateTime::now(),
        "connections": { "totalCreated": router.last_connection.load(std::sync::atomic::Ordering::Relaxed) },
        "sharding": { "configsvrConnectionString": router.catalog.config.connection_string() },
    }
}

fn log(operation: &Operation) -> Result<Document, Failure> {
    match operation.command.text("getLog") {
        Some("*") => Ok(doc! { "names": ["global", "startupWarnings"] }),
        Some("global" | "startupWarnings") => Ok(doc! { "totalLinesWritten": 0, "log": [] }),
        other => refuse(
            code::INVALID_OPTIONS,
            format!("no RamLog named: {}", other.unwrap_or_default()),
        ),
    }
}

fn start_session() -> Document {
    let id = bson::Binary {
        subtype: bson::spec::BinarySubtype::Uuid,
        bytes: bson::Uuid::new().bytes().to_vec(),
    };
    doc! { "id": { "id": id }, "timeoutMinutes": 30 }
}

/// Sessions that end abort their open transactions.
async fn end_sessions(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let ended = operation
        .command
        .nested(&operation.command.name)
        .unwrap_or_else(Doc::empty);
    for lsid in ended.elements().flatten() {
        let Some(session) = operation.router.sessions.remove(lsid.value) else {
            continue;
        };
        let transaction = session.transaction().clone();
        let Some(transaction) = transaction.filter(|transaction| transaction.phase == Phase::Running) else {
            continue;
        };
        let mut own = operation.own();
        own.command.lsid = Some(bytes::Bytes::copy_from_slice(lsid.value));
        own.command.txn_number = Some(transaction.number);
        own.transaction = Some(session.clone());
        let gate = session.gate.lock().await;
        abort_participants(&own, &session).await;
        drop(gate);
    }
    Ok(reply::ok())
}

async fn everywhere(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let router = &operation.router;
    router.catalog.load_shards(&router.link()).await?;
    let mut body = operation.command.forward(&[]);
    body.string("$db", b"admin");
    let outgoing = Outgoing {
        body: body.finish(),
        sequence: None,
    };
    let shards = router.catalog.shards.all();
    let members: Vec<String> = shards.iter().flat_map(|shard| shard.members()).collect();
    // To all of them, also if one fails.
    let sent = members.iter().map(|member| operation.send_to(member, &outgoing));
    for answer in join_all(sent).await {
        answer?.success()?;
    }
    Ok(reply::ok())
}
