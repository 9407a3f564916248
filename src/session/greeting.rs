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
use crate::wire::{Envelope, Header, Rejection, ServerError};

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

/// Answers the first message with an error. It unpacks nothing: the client hasn't authenticated, and no limit holds for unpacking here.
async fn send_error(client_in: &Incoming, client_out: &mut Outgoing, error: ServerError) -> Result<(), End> {
    let message = client_in.inbox.message()?.unwrap_or_default();
    let envelope = Envelope::without_unpacking(message)?;
    if !envelope.wants_reply() {
        return Ok(());
    }
    closing::send(&envelope, &error.body(), 1, client_out).await
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::wire::{MESSAGE_BYTES_MAX, OpCode};

    /// A compressed message of `op_code` that states the greatest size. It can't be unpacked, but its memory would be allocated.
    fn packed(op_code: OpCode) -> Vec<u8> {
        let size = i32::try_from(MESSAGE_BYTES_MAX - Header::SIZE).unwrap();
        let zlib = 2;
        let body = [&op_code.0.to_le_bytes()[..], &size.to_le_bytes(), &[zlib], &[0xff; 9]].concat();
        let header = Header {
            length: Header::SIZE + body.len(),
            request_id: 7,
            response_to: 0,
            op_code: OpCode::COMPRESSED,
        };
        [&header.bytes()[..], &body].concat()
    }

    /// The reply to a first message that gets an error.
    async fn reply_to(message: &[u8]) -> (Result<(), End>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opened, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut client_in, mut client_out) = stream::split(accepted.unwrap().0).unwrap();
        client_in.inbox.space(message.len()).put_slice(message);
        let sent = send_error(&client_in, &mut client_out, tls_required()).await;
        drop((client_in, client_out));
        let mut reply = Vec::new();
        opened.unwrap().read_to_end(&mut reply).await.unwrap();
        (sent, reply)
    }

    #[tokio::test]
    async fn a_compressed_first_message_is_refused_without_unpacking_it() {
        for op_code in [OpCode::MSG, OpCode::QUERY] {
            let (sent, reply) = reply_to(&packed(op_code)).await;
            sent.unwrap();
            let header = Header::read(&reply).unwrap().unwrap();
            assert_eq!((header.length, header.response_to), (reply.len(), 7));
            assert_eq!(header.op_code == OpCode::MSG, op_code == OpCode::MSG);
        }
        let (sent, reply) = reply_to(&packed(OpCode::COMPRESSED)).await;
        assert!(matches!(sent, Err(End::Refused(Rejection::NestedCompression))));
        assert_eq!(reply, b"");
    }
}
