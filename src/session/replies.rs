//! Passes replies to the client in order, edits handshakes, and inserts Keyward's own replies.
//!
//! It runs independently of the requests, so replies that no request asked for (exhaust cursors, streamed handshakes) are
//! passed on as they arrive. It records the pending replies. A reply that answers another request than the oldest
//! unanswered one means that the two sides are out of step, and ends the connection.

use std::collections::VecDeque;

use bson::oid::ObjectId;

use super::End;
use super::cursor_id::{CursorId, CursorState};
use super::transaction_step::{ShownTransaction, TransactionStep};
use crate::classify::Handshake;
use crate::hello;
use crate::limits::Share;
use crate::raw::Doc;
use crate::server::reply::is_ok;
use crate::stream::{Incoming, Outgoing};
use crate::traces::{CommandSpan, REPLY_BYTES_MAX};
use crate::upstream::Unanswered;
use crate::wire::{
    Envelope, Header, OpCode, OpMsg, OpReply, Rejection, begins_with, decompress, more_to_come, stated_bytes,
};

/// The first element of an error's reply: the double `ok`, 0. An error with labels begins with these.
const ERRORS: [&[u8; 12]; 2] = [b"\x01ok\0\0\0\0\0\0\0\0\0", b"\x04errorLabels"];
/// Where it ends in an OP_MSG, counted from the header's end: behind flags, the section's kind and the document's length.
const ERROR_END: usize = 4 + 1 + 4 + ERRORS[0].len();

/// The replies that the client still waits for, and the one that is on its way.
#[derive(Debug)]
pub struct Replies {
    pending: VecDeque<PendingReply>,
    passing: Passing,
    /// The share of memory that Keyward's own reply takes.
    share: Share,
    /// Looks for the cursor that the reply on its way leaves open.
    search: Option<CursorId>,
    /// Whether the last reply that could leave a cursor open did so.
    has_cursor: bool,
    /// Whether a reply said that the client is authenticated.
    is_authenticated: bool,
    /// The finding about the client's transaction by the reply on its way. Boxed, like all that a connection seldom needs.
    shown: Option<Box<ShownTransaction>>,
    /// Names this process to drivers.
    process: ObjectId,
}

/// A reply that upstream has yet to send to the client.
#[derive(Debug)]
pub struct PendingReply {
    /// The request that the reply answers, by its number.
    pub answers: i32,
    /// The envelope of the request, if it is a handshake, whose reply Keyward edits.
    pub hello: Option<(Envelope, Handshake)>,
    /// Whether several replies may come, each answering the one before.
    pub may_stream: bool,
    /// Whether it may leave a cursor open.
    pub may_leave_cursor: bool,
    /// Whether the request may have changed documents.
    pub may_write: bool,
    /// Whether it may say that the client is authenticated now.
    pub authenticates: bool,
    /// The request's step in the client's transaction.
    pub step: Option<Box<TransactionStep>>,
    /// The span of the request.
    pub span: CommandSpan,
}

/// The reply that is on its way to the client.
#[derive(Debug)]
enum Passing {
    Nothing,
    /// Upstream's reply, of which this many bytes are yet to be passed on.
    Through {
        left: usize,
    },
    /// Keyward's own message, of which the bytes up to `written` are sent.
    Own {
        message: Vec<u8>,
        written: usize,
    },
}

impl Replies {
    /// No reply is pending. Keyward's own replies count in `share`. `process` names this process to drivers.
    pub fn new(share: Share, process: ObjectId) -> Self {
        Replies {
            pending: VecDeque::new(),
            passing: Passing::Nothing,
            share,
            search: None,
            has_cursor: false,
            is_authenticated: false,
            shown: None,
            process,
        }
    }

    /// Notes that a request has gone out.
    pub fn expect(&mut self, reply: PendingReply) {
        self.pending.push_back(reply);
    }

    /// Makes Keyward's own `reply` the next one. Only while no reply is pending.
    pub fn answer(&mut self, reply: Vec<u8>) {
        assert!(
            self.is_idle(),
            "a reply is pending: a client would get the reply of another request"
        );
        self.share.hold(reply.capacity());
        self.passing = Passing::Own {
            message: reply,
            written: 0,
        };
    }

    /// Notes that Keyward's own reply leaves a cursor open.
    pub fn note_cursor(&mut self) {
        self.has_cursor = true;
    }

    /// Whether there are bytes to write that only wait for a client that doesn't read.
    ///
    /// - Holds for the state after the last step.
    pub fn awaits_client(&self, upstream: &Incoming) -> bool {
        match &self.passing {
            Passing::Nothing => false,
            Passing::Through { .. } => {
                let may_pass = self.search.as_ref().is_none_or(CursorId::lets_pass);
                may_pass && !upstream.inbox.bytes().is_empty()
            }
            Passing::Own { .. } => true,
        }
    }

    /// Whether Keyward's own reply holds a share of the common memory.
    pub fn holds_memory(&self) -> bool {
        self.share.is_held()
    }

    /// How many requests are unanswered.
    pub fn count_pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether the client has all that it waits for.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && matches!(self.passing, Passing::Nothing)
    }

    /// Whether the connection may be closed without taking an answer from the client: it has all of them, or it is
    /// between two replies of a stream, which has no end.
    pub fn is_at_boundary(&self, upstream: &Incoming) -> bool {
        let at_edge = matches!(self.passing, Passing::Nothing) && upstream.inbox.bytes().is_empty();
        at_edge && self.pending.front().is_none_or(|pending| pending.may_stream)
    }

    /// Whether the client is in the middle of reading a cursor, as far as the last replies show.
    pub fn has_cursor(&self) -> bool {
        self.has_cursor
            || self
                .pending
                .iter()
                .any(|pending| pending.may_stream && pending.hello.is_none())
    }

    /// Whether upstream may be at work on something that changes documents.
    pub fn awaits_a_write(&self) -> bool {
        self.pending.iter().any(|pending| pending.may_write)
    }

    /// The replies that upstream has yet to send; `None` if one of them has no end.
    pub fn unanswered(&self) -> Option<Unanswered> {
        let is_endless = self.pending.iter().any(|pending| pending.may_stream);
        (!is_endless).then(|| Unanswered {
            rest: match self.passing {
                Passing::Through { left } => left,
                Passing::Nothing | Passing::Own { .. } => 0,
            },
            requests: self.pending.iter().map(|pending| pending.answers).collect(),
        })
    }

    /// Whether the client has authenticated itself.
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// The finding about the client's transaction by the reply on its way; none from now on.
    pub fn take_shown(&mut self) -> Option<ShownTransaction> {
        self.shown.take().map(|shown| *shown)
    }

    /// The pending handshake, if the client waits for nothing else and no byte of its reply has come. Keyward may answer it
    /// itself; then the connection has to end.
    pub fn pending_hello(&self, upstream: &Incoming) -> Option<Envelope> {
        let nothing_came = matches!(self.passing, Passing::Nothing) && upstream.inbox.bytes().is_empty();
        match self.pending.front() {
            Some(pending) if self.pending.len() == 1 && nothing_came => pending.hello.map(|(hello, _)| Envelope {
                request_id: pending.answers,
                ..hello
            }),
            _ => None,
        }
    }

    /// Passes on the next bytes.
    ///
    /// - Cancel: loses nothing.
    ///
    /// # Errors
    /// [`End`] if one of the two connections ends, or upstream's stream isn't what it must be.
    pub async fn step(&mut self, upstream: &mut Incoming, client: &mut Outgoing) -> Result<(), End> {
        match &mut self.passing {
            Passing::Nothing => {
                if !self.begin(upstream)? {
                    fill(upstream, Header::SIZE).await?;
                }
            }
            Passing::Through { left } => {
                let mut there = upstream.inbox.bytes().len().min(*left);
                if let Some(search) = &mut self.search {
                    match search.read(&upstream.inbox.bytes()[..there], there == *left) {
                        CursorState::Later(up_to) => there = up_to,
                        CursorState::Open(is_open) => {
                            self.has_cursor = is_open;
                            self.search = None;
                        }
                    }
                }
                if there == 0 {
                    return fill(upstream, *left).await;
                }
                let written = client
                    .write_some(&upstream.inbox.bytes()[..there])
                    .await
                    .map_err(End::Client)?;
                upstream.inbox.consume(written);
                *left -= written;
                if let Some(search) = &mut self.search {
                    search.pass(written);
                }
                if *left == 0 {
                    self.passing = Passing::Nothing;
                }
            }
            Passing::Own { message, written } => {
                *written += client.write_some(&message[*written..]).await.map_err(End::Client)?;
                if *written == message.len() {
                    self.passing = Passing::Nothing;
                    self.share.release();
                }
            }
        }
        Ok(())
    }

    /// If enough of the next reply has arrived, begins to pass it on, and returns true.
    fn begin(&mut self, upstream: &mut Incoming) -> Result<bool, End> {
        let Some(header) = upstream.inbox.header()? else {
            return Ok(false);
        };
        let pending = self
            .pending
            .front_mut()
            .filter(|pending| pending.answers == header.response_to)
            .ok_or(End::OutOfStep)?;
        if pending.span.is_on() || pending.step.is_some() {
            let Some(arrived) = ArrivedReply::read(upstream, header)? else {
                return Ok(false);
            };
            if let ArrivedReply::Short(message) = arrived {
                pending.span.note_reply(message);
            }
            self.shown = pending.step.take().and_then(|step| arrived.shows(*step)).map(Box::new);
            pending.span = CommandSpan::default();
        }
        let &mut PendingReply {
            hello,
            may_stream,
            may_leave_cursor,
            authenticates,
            ..
        } = pending;
        let is_followed = if hello.is_some() || authenticates && !self.is_authenticated {
            // These are short, and what they say is needed.
            let Some(message) = upstream.inbox.message()? else {
                return Ok(false);
            };
            if authenticates && !self.is_authenticated {
                self.is_authenticated = says_authenticated(message)?;
            }
            match hello {
                Some((_, handshake)) => return self.edit(handshake, upstream, header),
                None => may_stream && more_to_come(message)?.unwrap_or(false),
            }
        } else if may_stream {
            match more_to_come(upstream.inbox.bytes())? {
                Some(is_followed) => is_followed,
                None => return Ok(false),
            }
        } else {
            false
        };
        self.search = may_leave_cursor.then(CursorId::default);
        self.has_cursor = false;
        self.pass(
            Passing::Through { left: header.length },
            is_followed.then_some(header.request_id),
        );
        Ok(true)
    }

    /// Begins to edit the handshake's reply that has arrived.
    fn edit(&mut self, handshake: Handshake, upstream: &mut Incoming, header: Header) -> Result<bool, End> {
        let message = upstream.inbox.message()?.unwrap_or_default();
        let edited = hello::edit(message, (handshake == Handshake::LoadBalanced).then_some(self.process))?;
        if !edited.takes_writes {
            return Err(End::NotPrimary);
        }
        upstream.inbox.consume(header.length);
        let passing = Passing::Own {
            message: edited.message,
            written: 0,
        };
        self.pass(passing, edited.more_to_come.then_some(header.request_id));
        Ok(true)
    }

    /// Passes the oldest pending reply on. If another one follows, it will answer `next_answers`.
    fn pass(&mut self, passing: Passing, next_answers: Option<i32>) {
        self.passing = passing;
        match (next_answers, self.pending.front_mut()) {
            (Some(answers), Some(pending)) => pending.answers = answers,
            _ => drop(self.pending.pop_front()),
        }
    }
}

/// A reply whose outcome is to be seen.
#[derive(Clone, Copy)]
enum ArrivedReply<'m> {
    /// The whole message.
    Short(&'m [u8]),
    /// A long one, or a short one that unpacks to a long one: of those, only the beginning is read.
    Long {
        /// Whether it begins as one that isn't an error.
        is_result: bool,
    },
}

impl<'m> ArrivedReply<'m> {
    /// The next reply, whose header is there; `None` if more of it has to arrive.
    fn read(upstream: &'m mut Incoming, header: Header) -> Result<Option<ArrivedReply<'m>>, End> {
        if header.length > REPLY_BYTES_MAX {
            let is_result = begins_with_result(upstream.inbox.bytes())?;
            return Ok(is_result.map(|is_result| ArrivedReply::Long { is_result }));
        }
        let Some(message) = upstream.inbox.message()? else {
            return Ok(None);
        };
        let is_packed = header.op_code == OpCode::COMPRESSED;
        Ok(Some(match stated_bytes(message).filter(|_| is_packed) {
            Some(bytes) if bytes > REPLY_BYTES_MAX => ArrivedReply::Long {
                is_result: begins_with_result(message)?.unwrap_or(false),
            },
            _ => ArrivedReply::Short(message),
        }))
    }

    /// The finding about the transaction of its command. A short one that Keyward can't read shows nothing.
    fn shows(self, step: TransactionStep) -> Option<ShownTransaction> {
        let message = match self {
            ArrivedReply::Short(message) => message,
            ArrivedReply::Long { is_result } => return step.shown_by_long(is_result),
        };
        let mut unpacked = Vec::new();
        let message = match Header::read(message) {
            Ok(Some(header)) if header.op_code == OpCode::COMPRESSED => match decompress(message, &mut unpacked) {
                Ok(_) => &unpacked[..],
                Err(_) => return None,
            },
            _ => message,
        };
        step.shown_by(OpMsg::parse(message).ok()?.body).ok()?
    }
}

/// Whether the reply that `arrived` begins with isn't an error, packed or not; `None` until that can be seen. An error begins with `ok: 0`,
/// or with its labels.
fn begins_with_result(arrived: &[u8]) -> Result<Option<bool>, Rejection> {
    begins_with(arrived, |first: &[u8; ERROR_END]| {
        !ERRORS.iter().any(|error| first.ends_with(*error))
    })
}

/// Whether a reply to a command of authentication, or to a handshake that begins one, says that it has succeeded.
/// Keyward doesn't read a compressed one, and returns false; no driver asks for one.
fn says_authenticated(message: &[u8]) -> Result<bool, End> {
    let header = Header::read(message)?.ok_or(End::OutOfStep)?;
    let body = match header.op_code {
        OpCode::MSG => OpMsg::parse(message)?.body,
        OpCode::REPLY => OpReply::parse(message)?.document,
        _ => return Ok(false),
    };
    Ok(is_done(body).unwrap_or(false))
}

/// `saslStart` and `saslContinue` say `done: true`; `authenticate` names the user, in a handshake, too.
fn is_done(body: Doc<'_>) -> Result<bool, crate::raw::Malformed> {
    let is_ok = is_ok(body)?;
    let within = body.nested("speculativeAuthenticate")?.unwrap_or(body);
    let is_done = within.is_set("done")? || within.get("dbname")?.is_some();
    Ok(is_ok && is_done)
}

/// Reads once from upstream.
async fn fill(upstream: &mut Incoming, wanted: usize) -> Result<(), End> {
    match upstream.fill(wanted).await.map_err(End::Upstream)? {
        0 => Err(End::UpstreamClosed),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use prometheus::IntGauge;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::limits::Memory;
    use crate::stream::split;
    use crate::wire::{Compressor, compress};

    #[tokio::test]
    async fn keywards_own_large_reply_counts_until_the_client_has_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut incoming, mut outgoing) = split(listener.accept().await.unwrap().0).unwrap();
        let used = IntGauge::new("used", "bytes").unwrap();
        let mut replies = Replies::new(Share::of(Memory::new(0, used.clone())), ObjectId::new());
        replies.answer(vec![7; 1000]);
        assert!(!replies.holds_memory());
        replies.step(&mut incoming, &mut outgoing).await.unwrap();
        replies.answer(vec![7; 10_000_000]);
        assert!(replies.holds_memory() && used.get() >= 10_000_000);
        let reading = async { client.read_exact(&mut vec![0; 10_001_000]).await.unwrap() };
        let writing = async {
            while !replies.is_idle() {
                replies.step(&mut incoming, &mut outgoing).await.unwrap();
            }
        };
        tokio::join!(reading, writing);
        assert!(!replies.holds_memory());
        assert_eq!(used.get(), 0);
    }

    /// A server quotes the name of an unknown field, however long it is.
    #[test]
    fn a_long_error_differs_from_a_long_result_in_its_first_element() {
        let long = "x".repeat(REPLY_BYTES_MAX);
        let error = bson::doc! { "ok": 0.0, "errmsg": &long, "code": 40415 };
        let labelled = bson::doc! { "errorLabels": ["TransientTransactionError"], "ok": 0.0, "errmsg": &long };
        let result = bson::doc! { "cursor": { "firstBatch": [{ "text": &long }] }, "ok": 1.0 };
        for (body, is_result) in [(error, false), (labelled, false), (result, true)] {
            let body = body.to_vec().unwrap();
            let header = Header {
                length: Header::SIZE + 5 + body.len(),
                request_id: 2,
                response_to: 1,
                op_code: OpCode::MSG,
            };
            // Behind the header come the flags, and the section's kind.
            let message = [&header.bytes()[..], &[0; 5], &body].concat();
            let packed = Compressor::ALL.map(|compressor| compress(&message, compressor).unwrap());
            for form in packed.iter().chain([&message]) {
                assert_eq!(begins_with_result(form), Ok(Some(is_result)));
                assert_eq!(begins_with_result(&form[..Header::SIZE + 9]), Ok(None));
            }
        }
    }
}
