//! One client's connection: one task, one upstream connection, for life.
//!
//! Most messages go through as the bytes that came, both ways at once. What Keyward must deal with itself waits until
//! the client has every reply it is owed; then the upstream connection is free, the message is served, and the pumps go
//! on. So replies keep their order, and nothing else ever uses the upstream connection meanwhile. Any doubt about where
//! a message begins or what a reply answers ends both connections.

mod end;
mod greeting;
mod replies;
mod requests;
mod serve;
mod work_time;

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::{debug, warn};

pub use end::End;

use crate::classify::{Protection, Verdict, classify};
use crate::metrics::Metrics;
use crate::stream::{self, Incoming, Outgoing};
use crate::upstream::{Connection, Targets, Upstream};
use crate::wire::{Envelope, Flags, Rejection, Request};
use crate::write;
use replies::{Owed, Replies};
use requests::Requests;

/// How many requests a client may send ahead of their replies before no more is read from it.
const AHEAD_MAX: usize = 1000;
/// A buffer for unpacked messages that has grown past this is given back.
const SCRATCH_KEPT_BYTES_MAX: usize = 64 * 1024;

/// What all sessions share.
#[derive(Debug)]
pub struct Service {
    /// The deployment behind Keyward.
    pub upstream: Upstream,
    /// What the write path needs.
    pub writes: write::Context,
    /// What is counted.
    pub metrics: Metrics,
}

/// A client's connection and the upstream connection that belongs to it.
#[derive(Debug)]
struct Session {
    service: Arc<Service>,
    client_in: Incoming,
    client_out: Outgoing,
    upstream: Connection,
    requests: Requests,
    replies: Replies,
    /// Where compressed requests are unpacked.
    scratch: Vec<u8>,
    /// The number of the last reply that Keyward itself composed.
    last_reply_id: i32,
}

/// Serves a client until its connection ends, or until `stop` turns true and the client has its answers.
///
/// `id` names the connection in the logs.
pub async fn run(client: TcpStream, id: u64, service: Arc<Service>, stop: watch::Receiver<bool>) {
    let _open = service.metrics.connections.open();
    let end = match Session::begin(client, service, stop.clone()).await {
        Ok(session) => session.pump(stop).await,
        Err(end) => end,
    };
    match end.is_remarkable() {
        true => warn!(connection = id, reason = %end, "connection ended"),
        false => debug!(connection = id, reason = %end, "connection ended"),
    }
}

impl Session {
    /// Waits for the client's first message and connects to upstream for it.
    async fn begin(client: TcpStream, service: Arc<Service>, mut stop: watch::Receiver<bool>) -> Result<Self, End> {
        let (mut client_in, mut client_out) = stream::split(client).map_err(End::Client)?;
        let upstream = tokio::select! {
            biased;
            () = stop_asked(&mut stop) => return Err(End::Stopping),
            upstream = greeting::connect(&mut client_in, &mut client_out, &service.upstream) => upstream?,
        };
        Ok(Session {
            service,
            client_in,
            client_out,
            upstream,
            requests: Requests::Reading,
            replies: Replies::new(),
            scratch: Vec::new(),
            last_reply_id: 0,
        })
    }

    /// Passes messages on and serves those that need it, until something ends the connection.
    async fn pump(mut self, mut stop: watch::Receiver<bool>) -> End {
        let mut targets = self.service.upstream.targets();
        let address = self.upstream.address().clone();
        let closing = wait_for_closing(&mut stop, &mut targets, address);
        tokio::pin!(closing);
        let mut reason = None;
        loop {
            match self.advance(closing.as_mut(), &mut reason).await {
                Ok(()) => {}
                Err(End::ClientClosed) => {
                    // Unacknowledged writes may still be on their way: let them arrive before the connection closes.
                    let _ = self.upstream.outgoing.finish().await;
                    return End::ClientClosed;
                }
                Err(end) => return end,
            }
            let between_requests = self.requests == Requests::Reading && self.client_in.inbox.bytes().is_empty();
            if reason.is_some() && between_requests && self.replies.is_at_boundary(&self.upstream.incoming) {
                return reason.take().unwrap_or(End::Stopping);
            }
        }
    }

    /// One step in either direction, or the service of the message that has waited for it.
    async fn advance(
        &mut self,
        closing: std::pin::Pin<&mut impl Future<Output = End>>,
        reason: &mut Option<End>,
    ) -> Result<(), End> {
        if self.requests == Requests::Waiting && self.replies.is_settled() {
            return self.serve_waiting().await;
        }
        let may_read = self.replies.count_owed() < AHEAD_MAX;
        let mut has_arrived = false;
        tokio::select! {
            // In this order: what is owed goes before what is new, and the rare before neither.
            biased;
            step = self.replies.step(&mut self.upstream.incoming, &mut self.client_out) => step?,
            step = self.requests.step(&mut self.client_in, &mut self.upstream.outgoing), if may_read => {
                has_arrived = step?;
            }
            end = closing, if reason.is_none() => *reason = Some(end),
        }
        if has_arrived {
            self.requests = self.decide()?;
        }
        Ok(())
    }

    /// Looks at the message that has arrived: it goes on at once, or waits until it can be served.
    fn decide(&mut self) -> Result<Requests, End> {
        let message = self.client_in.inbox.message()?.unwrap_or_default();
        let request = match Request::read(message, &mut self.scratch) {
            Ok(request) => request,
            Err(Rejection::NestedCompression) => return Ok(Requests::Waiting),
            Err(rejection) => return Err(rejection.into()),
        };
        let catalog = self.service.writes.catalog();
        let forwarded = forwarded(&request, &**catalog);
        let next = match forwarded {
            None => Requests::Waiting,
            Some(reply) => {
                self.service.metrics.commands.forwarded.inc();
                if let Some(reply) = reply {
                    self.replies.owe(reply);
                }
                Requests::Sending { left: message.len() }
            }
        };
        if self.scratch.capacity() > SCRATCH_KEPT_BYTES_MAX {
            self.scratch = Vec::new();
        }
        Ok(next)
    }
}

/// Whether the request goes on as it came, and the reply that upstream will then owe, if any.
fn forwarded(request: &Request<'_>, protection: &impl Protection) -> Option<Option<Owed>> {
    let verdict = classify(request.parsed.as_ref().ok()?, protection).ok()?;
    let is_hello = match verdict {
        Verdict::Forward => false,
        Verdict::Hello => true,
        Verdict::Write(_) | Verdict::Refuse(_) => return None,
    };
    Some(owed(&request.envelope, is_hello))
}

/// The reply that upstream will owe for a request that goes on, if any.
fn owed(envelope: &Envelope, is_hello: bool) -> Option<Owed> {
    envelope.wants_reply().then_some(Owed {
        answers: envelope.request_id,
        is_hello,
        may_stream: envelope.flags.has(Flags::EXHAUST_ALLOWED),
    })
}

/// Ends when the connection should close as soon as the client has its answers, and says why.
async fn wait_for_closing(
    stop: &mut watch::Receiver<bool>,
    targets: &mut watch::Receiver<Targets>,
    address: mongodb::options::ServerAddress,
) -> End {
    tokio::select! {
        () = stop_asked(stop) => End::Stopping,
        _ = targets.wait_for(|targets| targets.has_moved_from(&address)) => End::NotPrimary,
    }
}

/// Ends when `stop` has turned true, or its sender is gone, which means that the program ends.
pub(crate) async fn stop_asked(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
