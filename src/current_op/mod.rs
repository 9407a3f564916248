//! Lists the builds of clients' constraints among the server's operations, and ends them for `killOp`.
//!
//! A build is one operation, on whichever Keyward it runs. The server runs the client's filter or pipeline over its own operations and the
//! builds together. So it also checks the client's right to see them.

mod build_operation;
mod command;

pub use command::{OperationCommand, killed_build};

use std::time::SystemTime;

use bson::oid::ObjectId;
use bson::{Document, doc};

use crate::authorization::logged_in_users;
use crate::client_constraints::{BuildUnderWay, SharedList, builds_under_way};
use crate::fleet::RegisterEntry;
use crate::indexes::IndexRefusal;
use crate::raw::Doc;
use crate::server::{code, reply};
use crate::session::Service;
use crate::upstream::Connection;
use crate::write::ForwardError;

/// Errors by which the server says that it doesn't know the operation that a `killOp` names. It says so only if the client may end any
/// operation. A shard may have the name that the `opid`s of builds begin with.
const OF_UNKNOWN_OPERATION: [i32; 4] = [
    code::SHARD_NOT_FOUND,
    code::FAILED_TO_PARSE,
    code::BAD_VALUE,
    code::OVERFLOW,
];

/// Serves a command about operations. Returns nothing if Keyward forwards it unchanged: there is no build.
pub async fn serve(
    command: OperationCommand,
    body: Doc<'_>,
    service: &Service,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let Some(list) = &service.client_list else {
        return Ok(None);
    };
    match command {
        OperationCommand::Kill(build) => kill(build, body, (service, list), upstream).await.map(Some),
        OperationCommand::List | OperationCommand::Aggregate => {
            list_operations(command, body, (service, list), upstream).await
        }
    }
}

/// Lists the server's operations with the builds. If the server refuses that, it answers the client's own command.
async fn list_operations(
    command: OperationCommand,
    body: Doc<'_>,
    (service, list): (&Service, &SharedList),
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let builds = match builds_under_way(service.upstream.client(), &list.store).await {
        Ok(builds) => builds,
        Err(error) => {
            tracing::debug!(%error, "builds of clients' constraints could not be listed");
            return Ok(None);
        }
    };
    if builds.is_empty() {
        return Ok(None);
    }
    let has_users = service.upstream.has_credential();
    let own_of = match command.asks_for_all_users(body)? || !has_users {
        true => None,
        false => Some(logged_in_users(has_users, body, upstream).await?),
    };
    let shown = builds.iter().filter_map(|build| {
        let client = service.waiting.of(build.command);
        let is_own = |users: &Vec<Document>| client.as_ref().is_some_and(|client| client.is_of(users));
        let is_shown = own_of.as_ref().is_none_or(is_own);
        is_shown.then(|| build_operation::operation(build, host_of(build, service), client.as_ref(), SystemTime::now()))
    });
    let shown: Vec<Vec<u8>> = shown.filter_map(|operation| operation.to_vec().ok()).collect();
    if shown.is_empty() {
        return Ok(None);
    }
    let answer = upstream.run(&command.listing_also(&shown, body)?).await?;
    match reply::is_ok(Doc::new(&answer)?)? {
        true => Ok(Some(command.reply(answer)?)),
        false => Ok(None),
    }
}

/// The address of the Keyward that builds, if the register had it lately.
fn host_of(build: &BuildUnderWay, service: &Service) -> Option<String> {
    let fleet = service.board.fleet()?;
    let builder = fleet.entries.iter().find(|entry| entry.id == build.builder);
    builder.map(|entry: &RegisterEntry| {
        let port = entry.address.rsplit_once(':').map_or("", |(_, port)| port);
        format!("{}:{port}", entry.host)
    })
}

/// Ends a build for a client that may end operations, or that waits for this build itself. As a server does, it doesn't say whether there
/// was such an operation.
async fn kill(
    build: ObjectId,
    body: Doc<'_>,
    (service, list): (&Service, &SharedList),
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let has_users = service.upstream.has_credential();
    let users = logged_in_users(has_users, body, upstream).await?;
    let client = service.waiting.of(build);
    if !client.is_some_and(|client| client.is_of(&users)) {
        let answer = upstream.run(body.bytes()).await?;
        let refusal = reply::code(Doc::new(&answer)?)?;
        if refusal.is_none_or(|code| !OF_UNKNOWN_OPERATION.contains(&code)) {
            return Ok(answer);
        }
    }
    let interrupted = Document::from_reader(IndexRefusal::Interrupted.error().body().as_slice()).unwrap_or_default();
    let ended = list.change(|list| {
        let entry = list.constraints.iter().find(|entry| entry.command == build)?.id;
        list.end_build(entry, &interrupted).then_some(())
    });
    match ended.await {
        Ok(_) => Ok(doc! { "info": "attempting to kill op", "ok": 1.0 }
            .to_vec()
            .unwrap_or_default()),
        Err(error) => Ok(IndexRefusal::from(error).error().body()),
    }
}
