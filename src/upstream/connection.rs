//! Exchanges messages with upstream on one connection, which belongs to one client's connection for life.
//!
//! The session's pumps use its two directions. While no reply is pending, the write path has the connection exclusively
//! and sends commands of its own. The connection knows when it is out of step: a command was sent and its reply wasn't
//! read, because the caller gave up waiting. Such a connection is closed.

use std::io;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mongodb::options::ServerAddress;

use crate::fleet::CommandPermit;
use crate::raw::Doc;
use crate::server::own_session::{derived_session, own_session};
use crate::server::reply::is_ok;
use crate::stream::{Incoming, Outgoing};
use crate::traces;
use crate::wire::{Draft, Flags, Header, OpCode, OpMsg, Rejection, TooLong};

/// How far transaction numbers first go ahead of the clock: a minute, in microseconds.
const AHEAD: i64 = 60_000_000;
/// The step is doubled this often at most, to two years.
const DOUBLED_MAX: u32 = 20;

/// Why a command of ours has no reply.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names each field")]
pub enum ConnectionError {
    /// The command is too long to send; nothing was sent.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The connection broke; whether upstream ran the command is unknown.
    #[error("the upstream connection broke: {0}")]
    Io(#[from] io::Error),
    /// No reply came in time; whether upstream ran the command, or still will, is unknown.
    #[error("upstream didn't answer within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// Upstream closed the connection; whether it ran the command is unknown.
    #[error("upstream closed the connection")]
    Closed,
    /// Upstream's message isn't a reply.
    #[error("upstream sent what is no reply: {0}")]
    Malformed(#[from] Rejection),
    /// Upstream's reply answers another request.
    #[error("upstream's reply answers message {got}, not {expected}")]
    OutOfStep { expected: i32, got: i32 },
}

/// A reply to a command of ours.
#[derive(Debug, Clone)]
pub struct Reply {
    message: Bytes,
}

impl Reply {
    /// The reply's document.
    pub fn body(&self) -> Doc<'_> {
        OpMsg::parse(&self.message).expect("parsed when it was received").body
    }
}

/// The replies that upstream has yet to send for a client's requests.
#[derive(Debug)]
pub struct Unanswered {
    /// The bytes that the reply on its way still has.
    pub rest: usize,
    /// The numbers of the requests that have no reply.
    pub requests: Vec<i32>,
}

/// How far the start of the client's own transaction is, while Keyward carries out the command that starts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientStart {
    /// None is expected, or the server has refused it.
    None,
    /// The command that brings it to the server is yet to be sent.
    Awaited,
    /// The command with this number brings it.
    Sent(i32),
    /// The server has carried it out.
    Done,
}

/// A connection to one server of the deployment.
#[derive(Debug)]
pub struct Connection {
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
    address: ServerAddress,
    last_id: i32,
    /// Commands sent and not answered, oldest first: their numbers, and what is traced of them.
    unanswered: Vec<(i32, traces::UpstreamSpan)>,
    /// The session of Keyward's own transactions here. One for a connection's life: the server remembers each session for
    /// half an hour, and not more than a million.
    session: [u8; 16],
    /// The number of the last of Keyward's own transactions here.
    last_transaction: i64,
    /// How often in a row the number was too low.
    too_low: u32,
    /// The session in which one of Keyward's own transactions may be open.
    open_transaction: Option<[u8; 16]>,
    /// The client's users and roles by the server, as a document. It is empty if they make no difference.
    users: Vec<u8>,
    /// Whether Keyward has broken a statement of the client's own transaction off.
    has_broken_off: bool,
    /// Whether the server has ended the client's own transaction at an error of a statement.
    has_ended: bool,
    client_start: ClientStart,
    /// Whether its command may write, if there is a register of Keywards.
    pub(crate) permit: Option<CommandPermit>,
    /// Whether the server at the other end was the primary of a replica set when it was connected to.
    is_to_primary: bool,
}

impl Connection {
    pub(crate) fn new((incoming, outgoing): (Incoming, Outgoing), address: ServerAddress) -> Self {
        Connection {
            incoming,
            outgoing,
            address,
            last_id: 0,
            unanswered: Vec::new(),
            session: own_session(rand::random()),
            last_transaction: 0,
            too_low: 0,
            open_transaction: None,
            users: Doc::empty().bytes().to_vec(),
            has_broken_off: false,
            has_ended: false,
            client_start: ClientStart::None,
            permit: None,
            is_to_primary: false,
        }
    }

    /// Takes note that the server at the other end is the primary of a replica set.
    pub(super) fn of_primary(self) -> Self {
        Connection {
            is_to_primary: true,
            ..self
        }
    }

    /// Whether a router may be at the other end: it isn't known to be the primary of a replica set.
    pub(crate) fn may_be_to_router(&self) -> bool {
        !self.is_to_primary
    }

    /// Makes writes on it depend on `permit`.
    pub(crate) fn depend_on(&mut self, permit: CommandPermit) {
        self.permit = Some(permit);
    }

    /// Begins the client's next command, before anything that decides on it is read.
    pub(crate) fn begin_command(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.begin();
        }
    }

    /// Whether what takes effect may still be sent.
    pub(crate) fn is_permitted_to_write(&self) -> bool {
        self.permit.as_ref().is_none_or(CommandPermit::holds)
    }

    /// Takes note that a statement of the client's own transaction is broken off.
    pub(crate) fn note_broken_off(&mut self) {
        self.has_broken_off = true;
    }

    /// Whether one was since this was last asked.
    pub(crate) fn take_broken_off(&mut self) -> bool {
        std::mem::take(&mut self.has_broken_off)
    }

    /// Takes note that the server has ended the client's own transaction at an error of a statement.
    pub(crate) fn note_ended(&mut self) {
        self.has_ended = true;
    }

    /// Whether it has since this was last asked.
    pub(crate) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }

    /// Takes note that the next command with `startTransaction` starts the client's own transaction.
    pub(crate) fn await_start(&mut self) {
        self.client_start = ClientStart::Awaited;
    }

    /// Whether the server has carried that command out. None is awaited from now on.
    pub(crate) fn take_start(&mut self) -> bool {
        std::mem::replace(&mut self.client_start, ClientStart::None) == ClientStart::Done
    }

    /// The client's users and roles by the server, as a document. It is empty if they make no difference.
    pub(crate) fn users(&self) -> &[u8] {
        &self.users
    }

    /// Takes note of what the server says of the client, in a document.
    pub(crate) fn belong_to(&mut self, users: Vec<u8>) {
        self.users = users;
    }

    /// Session and number for the next transaction of Keyward's own. A session belongs to the user who uses it, so it can't
    /// be Keyward's; the client's own has its own numbers.
    ///
    /// A retryable command of the client's session `of_client` runs in a session derived from that one. So the next number
    /// aborts a transaction that an earlier try left open when its connection was lost, before its time limit does. Numbers
    /// come from the clock, so they go up in all Keywards. A Keyward that is behind gets an error
    /// ([`Connection::catch_up`]).
    pub(crate) fn next_transaction(&mut self, of_client: Option<[u8; 16]>) -> ([u8; 16], i64) {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(0);
        self.last_transaction = now.max(self.last_transaction + 1);
        let session = match of_client {
            Some(client) => derived_session(&client),
            None => self.session,
        };
        (session, self.last_transaction)
    }

    /// Takes note that one of Keyward's own transactions is open in `session`.
    pub(crate) fn note_open_transaction(&mut self, session: [u8; 16]) {
        self.open_transaction = Some(session);
    }

    /// The session of a transaction that may be open still; none from now on.
    pub(crate) fn take_open_transaction(&mut self) -> Option<[u8; 16]> {
        self.open_transaction.take()
    }

    /// Goes on with higher numbers: the session has seen one from a Keyward whose clock was ahead. Each step is twice the last one: the
    /// clock may have been ahead by years.
    pub(crate) fn catch_up(&mut self) {
        self.last_transaction = self.last_transaction.saturating_add(AHEAD << self.too_low);
        self.too_low = DOUBLED_MAX.min(self.too_low + 1);
    }

    /// Takes note that the number of the last transaction was high enough.
    pub(crate) fn note_high_enough(&mut self) {
        self.too_low = 0;
    }

    /// Leaves the session to its last transaction, whose outcome is unknown: another one there would have to wait for it.
    pub(crate) fn leave_session(&mut self) {
        self.session = own_session(rand::random());
    }

    /// The server at the other end.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Whether every command of ours was answered, so that the next reply is for the next command.
    pub fn is_in_step(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Sends a command and waits for its reply, without a limit of its own.
    ///
    /// - Cancel: leaves the connection out of step, and the session closes it.
    ///
    /// # Errors
    /// [`ConnectionError`]; all but `TooLong` mean that the connection can't be used any more.
    pub async fn request(&mut self, command: &Draft<'_>) -> Result<Reply, ConnectionError> {
        self.send(command).await?;
        self.receive().await
    }

    /// Does the same as [`Connection::request`], but takes no longer than `sending` until the whole command is sent. A server never runs a
    /// command whose end is missing.
    ///
    /// # Errors
    /// As [`Connection::request`], and [`ConnectionError::TimedOut`].
    pub async fn request_within(&mut self, command: &Draft<'_>, sending: Duration) -> Result<Reply, ConnectionError> {
        let sent = tokio::time::timeout(sending, self.send(command)).await;
        sent.map_err(|_| ConnectionError::TimedOut(sending))??;
        self.receive().await
    }

    /// Sends a command of one body as [`Connection::request`] does, and returns the reply's body.
    ///
    /// # Errors
    /// As [`Connection::request`].
    pub async fn run(&mut self, body: &[u8]) -> Result<Vec<u8>, ConnectionError> {
        let reply = self.request(&Draft::of_body(body)).await?;
        Ok(reply.body().bytes().to_vec())
    }

    /// Sends a command without waiting for its reply, which [`Connection::receive`] fetches later. With
    /// [`Flags::MORE_TO_COME`] there will be none.
    ///
    /// # Errors
    /// [`ConnectionError`]; all but `TooLong` mean that the connection can't be used any more.
    pub async fn send(&mut self, command: &Draft<'_>) -> Result<(), ConnectionError> {
        self.last_id = self.last_id.wrapping_add(1);
        let frame = command.frame(self.last_id, 0)?;
        if self.client_start == ClientStart::Awaited && starts_transaction(command.body) {
            self.client_start = ClientStart::Sent(self.last_id);
        }
        // This is noted before the first byte goes out: if writing is cancelled midway, the connection is out of step.
        self.unanswered
            .push((self.last_id, traces::UpstreamSpan::asking(command.body)));
        self.outgoing.write_pieces(frame.pieces()).await?;
        if command.flags.has(Flags::MORE_TO_COME) {
            self.unanswered.pop();
        }
        Ok(())
    }

    /// Waits for the reply to the oldest command that has none yet.
    ///
    /// # Errors
    /// [`ConnectionError`]; the connection can't be used any more.
    pub async fn receive(&mut self) -> Result<Reply, ConnectionError> {
        let header = loop {
            let inbox = &self.incoming.inbox;
            match inbox.header()? {
                Some(header) if inbox.bytes().len() >= header.length => break header,
                Some(header) => {
                    let left = header.length - inbox.bytes().len();
                    fill(&mut self.incoming, left).await?;
                }
                None => fill(&mut self.incoming, Header::SIZE).await?,
            }
        };
        let expected = self.unanswered.first().map(|(id, _)| *id).unwrap_or_default();
        if header.response_to != expected {
            return Err(ConnectionError::OutOfStep {
                expected,
                got: header.response_to,
            });
        }
        if header.op_code != OpCode::MSG {
            return Err(Rejection::OpCode(header.op_code.0).into());
        }
        let message = self.incoming.inbox.take(header.length);
        let reply = OpMsg::parse(&message)?;
        let (_, span) = self.unanswered.remove(0);
        span.answered(reply.body);
        if self.client_start == ClientStart::Sent(expected) {
            let is_done = is_ok(reply.body).unwrap_or(false);
            self.client_start = if is_done { ClientStart::Done } else { ClientStart::None };
        }
        Ok(Reply { message })
    }

    /// Waits until upstream has answered all requests in `unanswered`, and has ended those without replies. Upstream answers in
    /// order, so the reply to `ping` shows it. Upstream also learns that no more will come, and may end reads.
    ///
    /// # Errors
    /// [`ConnectionError`]: no answer shows it.
    pub async fn await_replies(&mut self, unanswered: &Unanswered, ping: &Draft<'_>) -> Result<(), ConnectionError> {
        let mut id = self.last_id.wrapping_add(1);
        while unanswered.requests.contains(&id) {
            id = id.wrapping_add(1);
        }
        let frame = ping.frame(id, 0)?;
        // Keyward sends and reads at the same time: upstream may read no more until Keyward has read its replies.
        let asking = async {
            self.outgoing.write_pieces(frame.pieces()).await?;
            Ok(self.outgoing.finish().await?)
        };
        tokio::try_join!(asking, skip_until_reply(&mut self.incoming, unanswered.rest, id)).map(drop)
    }
}

fn starts_transaction(body: &[u8]) -> bool {
    let body = Doc::new(body);
    body.and_then(|body| body.is_set("startTransaction")).unwrap_or(false)
}

/// Drops what arrives, up to the reply to request `id`; the first `count` bytes belong to another reply.
async fn skip_until_reply(incoming: &mut Incoming, mut count: usize, id: i32) -> Result<(), ConnectionError> {
    loop {
        let arrived = incoming.inbox.bytes().len().min(count);
        incoming.consume(arrived);
        count -= arrived;
        if count == 0
            && let Some(header) = incoming.inbox.header()?
        {
            if header.response_to == id {
                return Ok(());
            }
            count = header.length;
            continue;
        }
        fill(incoming, count.max(Header::SIZE)).await?;
    }
}

async fn fill(incoming: &mut Incoming, wanted: usize) -> Result<(), ConnectionError> {
    match incoming.fill(wanted).await? {
        0 => Err(ConnectionError::Closed),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use bson::spec::BinarySubtype;
    use bson::{Binary, doc};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::server::own_session::is_own_session;
    use crate::stream::split;

    /// More than two sockets hold.
    const LENGTH: usize = 32 << 20;

    /// A connection, and its other end.
    async fn connected() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opened, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let address = ServerAddress::parse(address.to_string()).unwrap();
        let connection = Connection::new(split(opened.unwrap()).unwrap(), address);
        (connection, accepted.unwrap().0)
    }

    /// A client's transaction in one is refused.
    #[tokio::test]
    async fn keywards_own_transactions_run_in_sessions_that_are_recognised() {
        let (mut connection, _server) = connected().await;
        let (first, _) = connection.next_transaction(None);
        connection.leave_session();
        let (second, _) = connection.next_transaction(None);
        assert_ne!(first, second);
        let (derived, _) = connection.next_transaction(Some([7; 16]));
        for session in [first, second, derived] {
            assert!(is_own_session(&session), "{session:?}");
        }
    }

    #[tokio::test]
    async fn a_command_that_cannot_be_sent_in_time_ends_the_connection() {
        // The server reads nothing.
        let (mut connection, _server) = connected().await;
        let bytes = Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![0; LENGTH],
        };
        let body = doc! { "insert": "users", "documents": [{ "bytes": bytes }], "$db": "shop" };
        let body = body.to_vec().unwrap();
        let sending = Duration::from_millis(50);
        let sent = connection.request_within(&Draft::of_body(&body), sending).await;
        assert!(matches!(sent, Err(ConnectionError::TimedOut(limit)) if limit == sending));
        assert!(!connection.is_in_step(), "no other command may be sent on it");
    }
}
