//! Reads the first bytes of a client (TLS, a message, or another protocol), and opens its upstream connection.
//!
//! Upstream is connected to once a whole message is there, so that a port scan or a health check costs it nothing. If
//! that fails, the client's first message gets an error that says so.

use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use super::requests::read_message;
use super::{End, closing};
use crate::limits::Limits;
use crate::server::code;
use crate::stream::{self, Incoming, Outgoing};
use crate::tls::{Acceptor, Client, is_handshake};
use crate::upstream::{Connection, Upstream};
use crate::wire::{Header, Rejection, Request, ServerError};

/// The answer of mongod 6.0.5 to HTTP on its port.
const HTTP_ANSWER: &[u8] =
    b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 85\r\n\r\n\
    It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n";

/// Shakes hands with the client, if TLS is spoken here.
///
/// # Errors
/// [`End`] if the handshake fails, or if the client doesn't speak TLS although it must. The client then gets an error.
pub async fn accept(
    client: TcpStream,
    tls: Option<&Acceptor>,
    limits: &Limits,
    length_max: usize,
) -> Result<(Incoming, Outgoing), End> {
    let Some(acceptor) = tls else {
        return stream::split(client).map_err(End::Client);
    };
    let Ok(accepted) = timeout(limits.handshake_timeout, acceptor.accept(client)).await else {
        return Err(End::NoHandshake);
    };
    match accepted.map_err(End::Handshake)? {
        Client::Tls(stream) => stream::split_encrypted(*stream).map_err(End::Client),
        Client::Plain(socket) => stream::split(socket).map_err(End::Client),
        Client::Refused(socket) => {
            let (mut client_in, mut client_out) = stream::split(socket).map_err(End::Client)?;
            let telling = async {
                first_message(&mut client_in, &mut client_out, length_max).await?;
                send_error(&client_in, &mut client_out, tls_required()).await
            };
            if let Ok(Err(end)) = timeout(limits.handshake_timeout, telling).await {
                debug!(%end, "the reply that the client must speak TLS couldn't be sent");
            }
            Err(End::NotTls)
        }
    }
}

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
            let error = ServerError::new(code::HOST_UNREACHABLE, format!("Keyward has {none}"));
            if let Err(error) = send_error(client_in, client_out, error).await {
                debug!(%error, "the reply that upstream is missing couldn't be sent");
            }
            Err(none.into())
        }
    }
}

/// Waits until a whole message is there.
async fn first_message(client_in: &mut Incoming, client_out: &mut Outgoing, length_max: usize) -> Result<(), End> {
    loop {
        match read_message(client_in, length_max).await {
            Ok(false) if is_handshake(client_in.inbox.bytes()) => return Err(End::Tls),
            Ok(false) => {}
            Ok(true) => return Ok(()),
            Err(End::Refused(Rejection::Length(_))) => return Err(foreign(client_in.inbox.bytes(), client_out).await),
            Err(End::TooLong(..)) if is_handshake(client_in.inbox.bytes()) => return Err(End::Tls),
            Err(end) => return Err(end),
        }
    }
}

/// Recognises what the client sent instead of a message, and answers HTTP.
async fn foreign(bytes: &[u8], client: &mut Outgoing) -> End {
    if bytes.starts_with(b"GET ") {
        return match client.write_pieces([HTTP_ANSWER].into_iter()).await {
            Ok(()) => End::Http,
            Err(error) => End::Client(error),
        };
    }
    match Header::read(bytes) {
        _ if is_handshake(bytes) => End::Tls,
        Err(rejection) => End::Refused(rejection),
        Ok(_) => End::ClientClosed,
    }
}

fn tls_required() -> ServerError {
    let message = "Keyward takes encrypted connections only (tls.mode: required); connect with tls=true";
    ServerError::new(code::SSL_HANDSHAKE_FAILED, message.to_owned())
}

/// Answers the first message with an error.
async fn send_error(client_in: &Incoming, client_out: &mut Outgoing, error: ServerError) -> Result<(), End> {
    let mut scratch = Vec::new();
    let message = client_in.inbox.message()?.unwrap_or_default();
    let envelope = Request::read(message, None, &mut scratch)?.envelope;
    if !envelope.wants_reply() {
        return Ok(());
    }
    closing::send(&envelope, &error.body(), 1, client_out).await
}
