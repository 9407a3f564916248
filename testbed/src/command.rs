//! Turns a command document into a server's reply over a plain, blocking connection.
//!
//! The testbed needs to talk to servers that are starting, stopped or being killed, from any thread and without a
//! runtime: a driver's monitoring and retries would only be in the way. One command at a time, OP_MSG only, no
//! authentication, no compression.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use bson::{Document, doc};

const OP_MSG: i32 = 2013;
/// `maxMessageSizeBytes` of every server since 3.6.
const MESSAGE_BYTES_MAX: usize = 48_000_000;
/// Longer than any command that the testbed sends takes on a busy machine (moveChunk, adding a shard).
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a command has no successful reply.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Nobody listens there, or nothing answered in time.
    #[error("{address} can't be reached")]
    Unreachable {
        /// `host:port` of the server.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The connection was there, but what came back is no reply to the command.
    #[error("{address} sent something that is no reply: {reason}")]
    Malformed {
        /// `host:port` of the server.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server answered with an error: `ok: 0`, a write error or a write concern error.
    #[error("{address} refused {command} with {code} {message}")]
    Refused {
        /// `host:port` of the server.
        address: String,
        /// The command's name.
        command: String,
        /// The server's error code.
        code: i32,
        /// The server's `errmsg`.
        message: String,
    },
}

impl CommandError {
    /// The server's error code, if the server answered at all.
    pub fn code(&self) -> Option<i32> {
        match self {
            CommandError::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// One blocking connection to one server.
#[derive(Debug)]
pub struct Connection {
    address: String,
    stream: TcpStream,
    requests: i32,
}

impl Connection {
    /// Connects to `address` (`host:port`).
    ///
    /// # Errors
    /// [`CommandError::Unreachable`] if nobody listens there.
    pub fn open(address: &str) -> Result<Connection, CommandError> {
        let unreachable = |source| CommandError::Unreachable {
            address: address.to_owned(),
            source,
        };
        let socket = address
            .to_socket_addrs()
            .map_err(unreachable)?
            .next()
            .ok_or_else(|| unreachable(std::io::ErrorKind::AddrNotAvailable.into()))?;
        let stream = TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT).map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(unreachable)?;
        Ok(Connection {
            address: address.to_owned(),
            stream,
            requests: 0,
        })
    }

    /// Gives up on a reply that takes longer than `timeout`; the default is two minutes.
    ///
    /// # Errors
    /// [`CommandError::Unreachable`] if the socket is gone.
    pub fn reply_timeout(&mut self, timeout: Duration) -> Result<(), CommandError> {
        self.stream
            .set_read_timeout(Some(timeout))
            .map_err(|source| self.unreachable(source))
    }

    /// Runs `command` on `database` and gives the successful reply.
    ///
    /// # Errors
    /// [`CommandError::Refused`] if the reply says `ok: 0` or holds a write error or a write concern error.
    pub fn run(&mut self, database: &str, command: Document) -> Result<Document, CommandError> {
        let name = command.keys().next().cloned().unwrap_or_default();
        let reply = self.exchange(database, command)?;
        match refusal(&reply) {
            None => Ok(reply),
            Some((code, message)) => Err(CommandError::Refused {
                address: self.address.clone(),
                command: name,
                code,
                message,
            }),
        }
    }

    /// Runs `command` on `database` and gives the reply, whether it reports success or not.
    ///
    /// # Errors
    /// [`CommandError::Unreachable`] and [`CommandError::Malformed`].
    pub fn exchange(&mut self, database: &str, mut command: Document) -> Result<Document, CommandError> {
        command.insert("$db", database);
        let body = command.to_vec().map_err(|error| self.malformed(error.to_string()))?;
        self.requests += 1;
        let mut message = Vec::with_capacity(body.len() + 21);
        let length = i32::try_from(body.len() + 21).map_err(|_| self.malformed("a command over 2 GiB".to_owned()))?;
        for field in [length, self.requests, 0, OP_MSG, 0] {
            message.extend(field.to_le_bytes());
        }
        message.push(0);
        message.extend(body);
        self.stream
            .write_all(&message)
            .map_err(|source| self.unreachable(source))?;
        self.read_reply()
    }

    fn read_reply(&mut self) -> Result<Document, CommandError> {
        let mut header = [0; 21];
        self.stream
            .read_exact(&mut header)
            .map_err(|source| self.unreachable(source))?;
        let field = |at: usize| i32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = usize::try_from(field(0)).unwrap_or(0);
        if !(26..=MESSAGE_BYTES_MAX).contains(&length) || field(12) != OP_MSG || header[20] != 0 {
            return Err(self.malformed(format!("a message of {length} bytes with opcode {}", field(12))));
        }
        let mut body = vec![0; length - header.len()];
        self.stream
            .read_exact(&mut body)
            .map_err(|source| self.unreachable(source))?;
        Document::from_reader(body.as_slice()).map_err(|error| self.malformed(error.to_string()))
    }

    fn unreachable(&self, source: std::io::Error) -> CommandError {
        CommandError::Unreachable {
            address: self.address.clone(),
            source,
        }
    }

    fn malformed(&self, reason: String) -> CommandError {
        CommandError::Malformed {
            address: self.address.clone(),
            reason,
        }
    }
}

/// Connects to `address`, runs one command there and gives the successful reply.
///
/// # Errors
/// As [`Connection::open`] and [`Connection::run`].
pub fn run(address: &str, database: &str, command: Document) -> Result<Document, CommandError> {
    Connection::open(address)?.run(database, command)
}

/// `writeConcern: majority`, with a limit, so that a set without a majority is an error and not a hang.
pub fn majority() -> Document {
    doc! { "w": "majority", "wtimeout": 60_000 }
}

/// The first error that a reply tells of: of the command, of a write, of the write concern.
fn refusal(reply: &Document) -> Option<(i32, String)> {
    let succeeded = reply
        .get("ok")
        .is_some_and(|ok| ok.as_f64() == Some(1.0) || ok.as_i32() == Some(1));
    let error = if succeeded {
        let write_error = reply
            .get_array("writeErrors")
            .ok()
            .and_then(|errors| errors.first()?.as_document());
        write_error.or_else(|| reply.get_document("writeConcernError").ok())?
    } else {
        reply
    };
    let message = error.get_str("errmsg").unwrap_or("no errmsg");
    Some((error.get_i32("code").unwrap_or(0), message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_refused_by_its_first_error() {
        let write_error = doc! { "ok": 1.0, "writeErrors": [{ "index": 0, "code": 11000, "errmsg": "dup" }] };
        assert_eq!(refusal(&write_error), Some((11000, "dup".to_owned())));
        let concern = doc! { "ok": 1.0, "writeConcernError": { "code": 64, "errmsg": "waiting" } };
        assert_eq!(refusal(&concern), Some((64, "waiting".to_owned())));
        assert_eq!(
            refusal(&doc! { "ok": 0.0, "code": 59, "errmsg": "no" }),
            Some((59, "no".to_owned()))
        );
        assert_eq!(refusal(&doc! { "ok": 1.0 }), None);
        assert_eq!(refusal(&doc! { "ok": 1 }), None);
    }

    #[test]
    fn a_closed_port_is_unreachable() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        assert!(matches!(
            Connection::open(&address),
            Err(CommandError::Unreachable { .. })
        ));
    }
}
