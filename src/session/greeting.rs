//! The first bytes of a client: a message, or another protocol altogether; and the upstream connection for it.
//!
//! Upstream is connected to once a whole message is there, so that a port scan or a health check costs it nothing. If
//! that fails, the client's first message gets an error that says so.

use tokio::time::timeout;
use tracing::debug;

use super::End;
use super::requests::read_message;
use crate::limits::Limits;
use crate::stream::{Incoming, Outgoing};
use crate::upstream::{Connection, NoConnection, Upstream};
use crate::wire::{Header, Rejection, Request, ServerError};

/// What mongod 6.0.5 answers to HTTP on its port.
const HTTP_ANSWER: &[u8] =
    b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 85\r\n\r\n\
    It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n";

/// Connects to upstream once the client's first message is there, which stays in its inbox.
///
/// # Errors
/// [`End`] if the client speaks another protocol, leaves, or no upstream connection comes about.
pub async fn connect(
    client_in: &mut Incoming,
    client_out: &mut Outgoing,
    upstream: &Upstream,
    limits: &Limits,
    length_max: usize,
) -> Result<Connection, End> {
    let first = first_message(client_in, client_out, length_max);
    match timeout(limits.handshake_timeout, first).await {
        Ok(first) => first?,
        Err(_) => return Err(End::NoHandshake),
    }
    match upstream.connect(limits.upstream_timeout).await {
        Ok(connection) => Ok(connection),
        Err(none) => {
            if let Err(error) = tell(client_in, client_out, &none).await {
                debug!(%error, "the client couldn't be told that upstream is missing");
            }
            Err(none.into())
        }
    }
}

/// Waits until a whole message is there.
async fn first_message(client_in: &mut Incoming, client_out: &mut Outgoing, length_max: usize) -> Result<(), End> {
    loop {
        match read_message(client_in, length_max).await {
            Ok(false) if is_tls(client_in.inbox.bytes()) => return Err(End::Tls),
            Ok(false) => {}
            Ok(true) => return Ok(()),
            Err(End::Refused(Rejection::Length(_))) => return Err(foreign(client_in.inbox.bytes(), client_out).await),
            Err(End::TooLong(..)) if is_tls(client_in.inbox.bytes()) => return Err(End::Tls),
            Err(end) => return Err(end),
        }
    }
}

/// Whether the bytes begin a TLS handshake. Read as a header it could state a length within the limits, but as the
/// server knows, a first message that answers another one is none.
fn is_tls(bytes: &[u8]) -> bool {
    let answers = bytes.get(8..12);
    bytes.starts_with(&[0x16, 0x03]) && answers.is_some_and(|answers| answers != [0; 4] && answers != [0xff; 4])
}

/// Tells what else was sent instead of a message; HTTP is answered.
async fn foreign(bytes: &[u8], client: &mut Outgoing) -> End {
    if bytes.starts_with(b"GET ") {
        return match client.write_pieces([HTTP_ANSWER].into_iter()).await {
            Ok(()) => End::Http,
            Err(error) => End::Client(error),
        };
    }
    match Header::read(bytes) {
        _ if is_tls(bytes) => End::Tls,
        Err(rejection) => End::Refused(rejection),
        Ok(_) => End::ClientClosed,
    }
}

/// Answers the first message with what a `mongos` says when it can't reach what it needs.
async fn tell(client_in: &Incoming, client_out: &mut Outgoing, none: &NoConnection) -> Result<(), End> {
    let mut scratch = Vec::new();
    let message = client_in.inbox.message()?.unwrap_or_default();
    let envelope = Request::read(message, None, &mut scratch)?.envelope;
    let error = ServerError {
        code: 6,
        code_name: "HostUnreachable",
        message: format!("Keyward has {none}"),
    };
    if !envelope.wants_reply() {
        return Ok(());
    }
    let reply = envelope.reply(&error.body(), 1).map_err(|_| Rejection::TooShort)?;
    client_out
        .write_pieces([&reply[..]].into_iter())
        .await
        .map_err(End::Client)
}
