//! Ends the transaction that Keyward left open on a connection that broke.
//!
//! Otherwise other writes would wait for the server's limit.
//!
//! Keyward ends its session with its own rights and on a connection of its own. A prepared transaction stays as it is, so a commit
//! on several shards takes effect on all of them or on none. A driver's retry finds out its outcome as always. That retry uses
//! the same session, so the client learns of the loss only after the session has ended, unless that takes long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use mongodb::Client;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{Instrument, debug, warn};

use crate::raw::Doc;
use crate::server::{code, driver};
use crate::upstream::{Connection, Upstream};

/// The longest time before the client learns that its connection is lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long Keyward tries to end a session.
const ENDING_MAX: Duration = Duration::from_secs(10);
/// The wait between two tries: the connections of Keyward's own client may be lost, too.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether Keyward has logged that it can't end sessions.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Ends the transaction that the lost `connection` may have left open. Keyward doesn't wait for a slow end.
pub(super) async fn end(connection: &mut Connection, upstream: &Upstream) {
    let Some(session) = connection.take_open_transaction() else {
        return;
    };
    let command = command(session, connection.users());
    let ending = tokio::spawn(end_session(upstream.client().clone(), command).in_current_span());
    let _ = timeout(PATIENCE, ending).await;
}

async fn end_session(client: Client, command: Document) {
    let deadline = Instant::now() + ENDING_MAX;
    let reason = loop {
        match timeout_at(deadline, client.database("admin").run_command(command.clone())).await {
            Ok(Ok(_)) => {
                debug!("ended the session of a transaction whose connection was lost");
                return;
            }
            Ok(Err(error)) => match driver::code_of(&error) {
                Some(code::UNAUTHORIZED) => break "its user lacks killAnySession on the cluster".to_owned(),
                _ if Instant::now() + PAUSE < deadline => tokio::time::sleep(PAUSE).await,
                _ => break driver::in_words(&error),
            },
            Err(_) => break format!("no answer within {}", humantime::format_duration(ENDING_MAX)),
        }
    };
    if !WARNED.swap(true, Ordering::Relaxed) {
        warn!(
            reason,
            "a transaction whose connection was lost can't be ended; the servers end such after transactionLifetimeLimitSeconds"
        );
    }
}

/// The command that ends `session`. The session belongs to the client's user, or to the empty name if there are no users.
fn command(session: [u8; 16], users: &[u8]) -> Document {
    let owners = user(users).into_iter().chain([String::new()]);
    let pattern = |owner: String| doc! { "lsid": { "id": uuid(&session), "uid": digest(&owner) } };
    doc! { "killAllSessionsByPattern": owners.map(pattern).collect::<Vec<_>>() }
}

fn uuid(session: &[u8; 16]) -> Bson {
    let bytes = session.to_vec();
    let subtype = BinarySubtype::Uuid;
    Bson::Binary(Binary { subtype, bytes })
}

/// The digest of a user's name in the names of its sessions.
fn digest(user: &str) -> Bson {
    let bytes = Sha256::digest(user.as_bytes()).to_vec();
    let subtype = BinarySubtype::Generic;
    Bson::Binary(Binary { subtype, bytes })
}

/// The name of the only user who can have a session.
fn user(users: &[u8]) -> Option<String> {
    let users = Doc::new(users).ok()?.nested("authenticatedUsers").ok()??;
    let first = users.elements().next()?.ok()?.as_document_or_array().ok()??;
    let part = |name| Some(first.get(name).ok()??.as_str()?.to_owned());
    Some(format!("{}@{}", part("user")?, part("db")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_as_the_server_names_it() {
        let roles = doc! { "authenticatedUsers": [{ "user": "ann", "db": "admin" }], "authenticatedUserRoles": [] };
        assert_eq!(user(&roles.to_vec().unwrap()).as_deref(), Some("ann@admin"));
        assert_eq!(user(Doc::empty().bytes()), None);
        assert_eq!(user(&doc! { "authenticatedUsers": [] }.to_vec().unwrap()), None);
        let nobody = command([1; 16], Doc::empty().bytes());
        let patterns = nobody.get_array("killAllSessionsByPattern").unwrap();
        assert_eq!(patterns.len(), 1);
        let lsid = patterns[0].as_document().unwrap().get_document("lsid").unwrap();
        let uid = lsid.get_binary_generic("uid").unwrap();
        assert_eq!(uid[..4], [0xe3, 0xb0, 0xc4, 0x42]);
    }
}
