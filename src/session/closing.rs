//! Applies notices to a connection when it is ready for them, and sends a rejected client the reason before it closes.

use std::time::Duration;

use super::notice::Notice;
use super::timer::Timer;
use super::{End, Requests, Session};
use crate::raw::Builder;
use crate::server::code;
use crate::stream::{Incoming, Outgoing};
use crate::upstream::{Connection, Unanswered};
use crate::wire::{Draft, Envelope, Flags, OpCode, Rejection, ServerError};
use crate::write::{self, CatalogEpoch};

/// How long Keyward waits for a client to read the reason, if Keyward hasn't read the client's message to its end.
const LINGER: Duration = Duration::from_secs(1);

impl Session {
    /// Notes what `notice` says.
    pub(super) fn on_notice(&mut self, notice: Notice, timer: &mut Timer) -> Option<End> {
        match notice {
            Notice::Draining(None) => return Some(End::Stopping),
            Notice::Draining(Some(drain)) => {
                self.drain = Some(drain);
                timer.unset();
            }
            Notice::Deposed => self.is_deposed = true,
            Notice::AnotherServer => self.is_left_behind = true,
            Notice::CatalogEpoch(epoch) => self.next_epoch = Some(epoch),
        }
        None
    }

    /// Whether a notice is yet to be acted on.
    pub(super) fn has_notices(&self) -> bool {
        self.drain.is_some() || self.is_deposed || self.is_left_behind || self.next_epoch.is_some()
    }

    /// Acts on the notices as far as the connection is ready for them.
    pub(super) async fn act_on_notices(&mut self) -> Option<End> {
        if let Err(end) = self.advance_epoch().await {
            return Some(end);
        }
        if self.is_deposed && self.is_between_messages() {
            return Some(End::NotPrimary);
        }
        if self.is_left_behind && self.continues_nothing() {
            return Some(End::LeftBehind);
        }
        let is_reading = self.is_reading();
        let hello = self.replies.pending_hello(&self.upstream.incoming);
        let hello = hello.filter(|_| is_reading);
        if let (Some(drain), Some(hello)) = (self.drain, hello) {
            self.last_reply_id = self.last_reply_id.wrapping_add(1);
            // No client needs further messages of upstream about itself: this ends the connection.
            let error = drain.error(self.service.process, None);
            let sent = send(&hello, &error, self.last_reply_id, &mut self.client_out).await;
            return Some(sent.err().unwrap_or(End::Stopping));
        }
        None
    }

    /// Whether the connection may be closed without taking an answer from the client.
    pub(super) fn is_between_messages(&self) -> bool {
        self.is_reading() && self.replies.is_at_boundary(&self.upstream.incoming)
    }

    /// Whether the same holds, and the client has no transaction and no cursor here.
    pub(super) fn continues_nothing(&self) -> bool {
        self.is_between_messages() && !self.in_transaction && !self.replies.has_cursor()
    }

    /// Whether the client's inbox is empty, and no request waits or is being sent.
    fn is_reading(&self) -> bool {
        self.requests == Requests::Reading && self.client_in.inbox.bytes().is_empty()
    }

    /// Takes the new catalog epoch once no command that the previous one decided is in progress here. Once a reply has
    /// begun to arrive, its command has ended, however slowly the client reads it. Writes without replies are confirmed only after the
    /// client has read all replies.
    async fn advance_epoch(&mut self) -> Result<(), End> {
        let is_sending = matches!(self.requests, Requests::Sending { .. });
        if self.next_epoch.is_none() || is_sending || self.replies.awaits_a_write() {
            return Ok(());
        }
        if self.has_unconfirmed_writes {
            if !self.replies.is_idle() {
                return Ok(());
            }
            confirm_writes(&mut self.upstream).await?;
            self.has_unconfirmed_writes = false;
        }
        if let Some(epoch) = self.next_epoch.take() {
            self.epoch = epoch;
        }
        Ok(())
    }
}

/// Waits until the writes without replies are done: upstream answers in order, so a ping's reply shows it.
pub(super) async fn confirm_writes(upstream: &mut Connection) -> Result<(), End> {
    upstream.request(&Draft::of_body(&ping())).await?;
    Ok(())
}

fn ping() -> Vec<u8> {
    let mut ping = Builder::new();
    ping.int32("ping", 1).string("$db", b"admin");
    ping.finish()
}

/// A connection to upstream whose client is gone, while upstream may still execute commands of that client.
pub(super) struct LeftAtWork {
    pub upstream: Connection,
    /// `None` if a reply of upstream has no end, or the client's last message was sent in part.
    pub unanswered: Option<Unanswered>,
    /// The catalog epoch that decided the commands.
    pub epoch: CatalogEpoch,
}

impl LeftAtWork {
    /// Keeps the epoch until upstream has answered all that it has received, and then closes the connection. If no answer shows
    /// this, the writes are in doubt.
    pub async fn await_end(mut self, writes: &write::Context) {
        if !self.await_replies().await {
            writes.note_in_doubt();
        }
        drop(self.epoch);
    }

    /// Whether upstream has answered everything.
    async fn await_replies(&mut self) -> bool {
        match &self.unanswered {
            Some(unanswered) if self.upstream.is_in_step() => {
                let draft = ping();
                let replied = self.upstream.await_replies(unanswered, &Draft::of_body(&draft)).await;
                replied.is_ok()
            }
            _ => {
                end_stream(&mut self.upstream.incoming, &mut self.upstream.outgoing).await;
                false
            }
        }
    }
}

pub(super) async fn send(envelope: &Envelope, body: &[u8], reply_id: i32, client: &mut Outgoing) -> Result<(), End> {
    let reply = envelope.reply(body, reply_id).map_err(Rejection::from)?;
    client.write_pieces([&reply[..]].into_iter()).await.map_err(End::Client)
}

/// Sends the client the reason of `end`, if a reply can carry it.
pub(super) async fn close(end: End, client_in: &mut Incoming, client_out: &mut Outgoing) -> End {
    if let End::TooLong(header, max) = &end {
        let envelope = Envelope {
            request_id: header.request_id,
            op_code: match header.op_code {
                OpCode::COMPRESSED => OpCode::MSG,
                op_code => op_code,
            },
            flags: Flags::default(),
            compressor: None,
        };
        let message = format!(
            "Keyward takes no message of more than {max} bytes before the client has authenticated; this one has {}",
            header.length
        );
        let error = ServerError::new(code::UNAUTHORIZED, message);
        let telling = async {
            if send(&envelope, &error.body(), 1, client_out).await.is_ok() {
                end_stream(client_in, client_out).await;
            }
        };
        let _ = tokio::time::timeout(LINGER, telling).await;
    }
    end
}

/// Ends what is sent, and reads what arrives to its end. Closed with bytes unread, a connection would be reset, and what was sent
/// before lost.
async fn end_stream(incoming: &mut Incoming, outgoing: &mut Outgoing) {
    if outgoing.finish().await.is_err() {
        return;
    }
    loop {
        let arrived = incoming.inbox.bytes().len();
        incoming.inbox.consume(arrived);
        if !matches!(incoming.fill(0).await, Ok(1..)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mongodb::options::ServerAddress;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::metrics::Metrics;
    use crate::raw::Doc;
    use crate::stream::split;

    /// The client's request that has no reply yet: the first number that Keyward would give a command of its own.
    const PENDING: i32 = 1;

    fn reply_to(request_id: i32) -> Vec<u8> {
        let envelope = Envelope {
            request_id,
            op_code: OpCode::MSG,
            flags: Flags::default(),
            compressor: None,
        };
        envelope.reply(Doc::empty().bytes(), 77).unwrap()
    }

    /// Upstream's end of a connection whose client is gone, that connection, and the writes of its Keyward. The first byte of the reply
    /// on its way has gone to the client.
    async fn connected() -> (TcpStream, LeftAtWork, write::Context) {
        let writes = write::Context::new(
            Arc::default(),
            Duration::from_secs(1),
            Metrics::new(&[]).group_commit,
            false,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (host, port) = ("localhost".to_owned(), None);
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        server.write_all(&reply_to(0)[1..]).await.unwrap();
        let left = LeftAtWork {
            upstream: Connection::new(split(socket).unwrap(), ServerAddress::Tcp { host, port }),
            unanswered: Some(Unanswered {
                rest: reply_to(0).len() - 1,
                requests: vec![PENDING],
            }),
            epoch: CatalogEpoch::none(),
        };
        (server, left, writes)
    }

    /// Whether a write is in doubt after upstream has answered `requests` and closed the connection.
    async fn is_in_doubt_after_answers_to(requests: &[i32]) -> bool {
        let (mut server, left, writes) = connected().await;
        for request in requests {
            server.write_all(&reply_to(*request)).await.unwrap();
        }
        server.shutdown().await.unwrap();
        left.await_end(&writes).await;
        writes.in_doubt_end().is_some()
    }

    #[tokio::test]
    async fn a_write_is_in_doubt_unless_upstream_has_answered_all() {
        assert!(!is_in_doubt_after_answers_to(&[PENDING, PENDING + 1]).await);
        assert!(is_in_doubt_after_answers_to(&[PENDING]).await);
        assert!(is_in_doubt_after_answers_to(&[]).await);
    }

    /// A server ends the read of a client that is gone, which it sees by the end of the stream.
    #[tokio::test]
    async fn upstream_learns_that_no_more_will_come() {
        let (mut server, left, writes) = connected().await;
        let serving = async {
            server.read_to_end(&mut Vec::new()).await.unwrap();
            for request in [PENDING, PENDING + 1] {
                server.write_all(&reply_to(request)).await.unwrap();
            }
        };
        let both = async { tokio::join!(serving, left.await_end(&writes)) };
        tokio::time::timeout(Duration::from_secs(10), both)
            .await
            .expect("the stream doesn't end");
        assert!(writes.in_doubt_end().is_none());
    }
}
