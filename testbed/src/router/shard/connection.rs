//! One member's connections: opened when needed, kept for the next command, dropped as soon as anything is odd.
//!
//! A command is sent on a connection that nobody else uses until its reply is there. While a reply is awaited for long, the
//! member is asked `hello` on a connection of its own: a member that doesn't answer that either is taken for dead, so
//! that no command waits for ever, and one that merely works long is waited for.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::doc;
use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::router::message::{FrameError, Outgoing, parse_reply, read_frame};
use crate::router::reply::{Reply, encode};

/// How long a connection may take to open, and a `hello` to be answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How much longer than its `maxTimeMS` a command is waited for: the server itself ends it first.
const GRACE: Duration = Duration::from_secs(5);

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing was sent: the command has surely not run.
    #[error("couldn't connect to server {host} :: caused by :: {cause}")]
    NotSent {
        /// The member.
        host: String,
        /// Why not.
        cause: io::Error,
    },
    /// It was sent, or part of it: it may have run.
    #[error("connection to {host} failed :: caused by :: {cause}")]
    Unknown {
        /// The member.
        host: String,
        /// What happened.
        cause: FrameError,
    },
    /// The command's own time limit is over and the server didn't report it.
    #[error("operation exceeded time limit")]
    TimeLimit,
}

/// The idle connections to every member, by `host:port`.
#[derive(Debug, Default)]
pub struct Pools {
    idle: Mutex<HashMap<Arc<str>, Vec<Connection>>>,
    next_id: AtomicI32,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Pools {
    /// Sends a command to a member and awaits its reply, no longer than `deadline` and a grace.
    ///
    /// # Errors
    /// [`CallError`], which says whether the command may have run.
    pub async fn call(&self, host: &str, command: &Outgoing, deadline: Option<Instant>) -> Result<Reply, CallError> {
        let mut connection = self.checkout(host).await?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let message = command.encode(id);
        let unknown = |cause| CallError::Unknown {
            host: host.to_owned(),
            cause,
        };
        connection
            .stream
            .write_all(&message)
            .await
            .map_err(|error| unknown(error.into()))?;
        let reply = match deadline {
            Some(deadline) => timeout_at(deadline + GRACE, connection.reply(host))
                .await
                .map_err(|_| CallError::TimeLimit)?,
            None => connection.reply(host).await,
        };
        let reply = reply.map_err(unknown)?;
        self.put_back(host, connection);
        Ok(reply)
    }

    /// Drops the idle connections to a member.
    pub fn drop_idle(&self, host: &str) {
        self.lock().remove(host);
    }

    async fn checkout(&self, host: &str) -> Result<Connection, CallError> {
        loop {
            let idle = self.lock().get_mut(host).and_then(Vec::pop);
            match idle {
                Some(connection) if connection.is_usable() => return Ok(connection),
                Some(_) => (),
                None => break,
            }
        }
        Connection::open(host).await.map_err(|cause| CallError::NotSent {
            host: host.to_owned(),
            cause,
        })
    }

    fn put_back(&self, host: &str, connection: Connection) {
        let mut idle = self.lock();
        match idle.get_mut(host) {
            Some(connections) => connections.push(connection),
            None => {
                idle.insert(host.into(), vec![connection]);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Vec<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Connects and says `hello`, so that the member knows a client of today.
    async fn open(host: &str) -> io::Result<Self> {
        let attempt = async {
            let stream = TcpStream::connect(host).await?;
            stream.set_nodelay(true)?;
            let mut connection = Connection {
                stream,
                buffer: BytesMut::new(),
            };
            let hello = Outgoing {
                body: encode(&doc! { "hello": 1, "helloOk": true, "$db": "admin" }),
                sequence: None,
            };
            connection.stream.write_all(&hello.encode(0)).await?;
            connection.frame().await.map_err(io::Error::other)?;
            Ok(connection)
        };
        timeout(ANSWER_LIMIT, attempt)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Whether the peer has neither closed it nor sent what nobody asked for.
    fn is_usable(&self) -> bool {
        let mut byte = [0];
        matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    async fn reply(&mut self, host: &str) -> Result<Reply, FrameError> {
        loop {
            match timeout(ANSWER_LIMIT, self.frame()).await {
                Ok(reply) => return reply,
                // Reading is cancel-safe: what has come so far stays in the buffer.
                Err(_) => drop(Connection::open(host).await?),
            }
        }
    }

    async fn frame(&mut self) -> Result<Reply, FrameError> {
        let frame = read_frame(&mut self.stream, &mut self.buffer).await?;
        let frame = frame.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
        Ok(Reply::new(parse_reply(frame)?))
    }
}
