//! The direction from upstream to client: passes replies on as they arrive, in pieces, and edits those to a handshake.
//!
//! It runs independently of the requests, so that replies which nobody asked for again (exhaust cursors, streamed
//! handshakes) flow as they come. It keeps account of what is owed: a reply that answers something else than the oldest
//! unanswered request means that the two sides are out of step, and ends the connection.

use std::collections::VecDeque;

use super::End;
use crate::hello;
use crate::stream::{Incoming, Outgoing};
use crate::wire::{Flags, Header, OpCode, decompress};

/// The replies that the client still waits for, and the one that is on its way.
#[derive(Debug)]
pub struct Replies {
    owed: VecDeque<Owed>,
    passing: Passing,
}

/// A reply that upstream owes to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    /// What the reply will say it answers.
    pub answers: i32,
    /// Whether it is a handshake's, to be edited.
    pub is_hello: bool,
    /// Whether several replies may come, each answering the one before.
    pub may_stream: bool,
}

/// What is on its way to the client.
#[derive(Debug)]
enum Passing {
    Nothing,
    /// So many bytes are still to go through as they come.
    Through {
        left: usize,
    },
    /// A message of ours, from this position on.
    Edited {
        message: Vec<u8>,
        written: usize,
    },
}

impl Replies {
    /// Nothing owed.
    pub fn new() -> Self {
        Replies {
            owed: VecDeque::new(),
            passing: Passing::Nothing,
        }
    }

    /// Notes that a request has gone out.
    pub fn owe(&mut self, reply: Owed) {
        self.owed.push_back(reply);
    }

    /// How many requests are unanswered.
    pub fn count_owed(&self) -> usize {
        self.owed.len()
    }

    /// Whether the client has all that it waits for.
    pub fn is_settled(&self) -> bool {
        self.owed.is_empty() && matches!(self.passing, Passing::Nothing)
    }

    /// Whether the connection may be closed without taking an answer from the client: it has all of them, or it is
    /// between two replies of a stream, which has no end.
    pub fn is_at_boundary(&self, upstream: &Incoming) -> bool {
        let at_edge = matches!(self.passing, Passing::Nothing) && upstream.inbox.bytes().is_empty();
        at_edge && self.owed.front().is_none_or(|owed| owed.may_stream)
    }

    /// Goes one step on.
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
                let there = upstream.inbox.bytes().len().min(*left);
                if there == 0 {
                    return fill(upstream, *left).await;
                }
                let written = client
                    .write_some(&upstream.inbox.bytes()[..there])
                    .await
                    .map_err(End::Client)?;
                upstream.inbox.consume(written);
                *left -= written;
                if *left == 0 {
                    self.passing = Passing::Nothing;
                }
            }
            Passing::Edited { message, written } => {
                *written += client.write_some(&message[*written..]).await.map_err(End::Client)?;
                if *written == message.len() {
                    self.passing = Passing::Nothing;
                }
            }
        }
        Ok(())
    }

    /// Begins with the next reply, if enough of it is there to know how; says whether it is.
    fn begin(&mut self, upstream: &mut Incoming) -> Result<bool, End> {
        let Some(header) = upstream.inbox.header()? else {
            return Ok(false);
        };
        let owed = *self
            .owed
            .front()
            .filter(|owed| owed.answers == header.response_to)
            .ok_or(End::OutOfStep)?;
        if !owed.is_hello && !owed.may_stream {
            self.owed.pop_front();
            self.passing = Passing::Through { left: header.length };
            return Ok(true);
        }
        let Some(message) = upstream.inbox.message()? else {
            return Ok(false);
        };
        let (passing, more_to_come) = if owed.is_hello {
            let edited = hello::edit(message)?;
            if !edited.takes_writes {
                return Err(End::NotPrimary);
            }
            upstream.inbox.consume(header.length);
            let passing = Passing::Edited {
                message: edited.message,
                written: 0,
            };
            (passing, edited.more_to_come)
        } else {
            (Passing::Through { left: header.length }, is_followed(message, header)?)
        };
        self.passing = passing;
        match self.owed.front_mut() {
            Some(owed) if more_to_come => owed.answers = header.request_id,
            _ => drop(self.owed.pop_front()),
        }
        Ok(true)
    }
}

/// Whether another reply follows this one unasked.
fn is_followed(message: &[u8], header: Header) -> Result<bool, End> {
    let mut unpacked = Vec::new();
    let (message, op_code) = match header.op_code {
        OpCode::COMPRESSED => {
            decompress(message, &mut unpacked)?;
            let inner = Header::read(&unpacked)?.ok_or(End::OutOfStep)?;
            (&unpacked[..], inner.op_code)
        }
        other => (message, other),
    };
    let flags = Flags::of(message).filter(|_| op_code == OpCode::MSG);
    Ok(flags.is_some_and(|flags| flags.has(Flags::MORE_TO_COME)))
}

/// Reads once from upstream.
async fn fill(upstream: &mut Incoming, wanted: usize) -> Result<(), End> {
    match upstream.fill(wanted).await.map_err(End::Upstream)? {
        0 => Err(End::UpstreamClosed),
        _ => Ok(()),
    }
}
