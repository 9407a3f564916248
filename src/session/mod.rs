//! Runs one client's connection: one task and one upstream connection, for its life.
//!
//! Most messages pass as unchanged bytes, both ways at once. A message that Keyward serves itself waits until the client has all
//! pending replies. Then the upstream connection is free, Keyward serves the message, and the pumps go
//! on. So replies keep their order, and nothing else ever uses the upstream connection meanwhile. Any doubt about where
//! a message begins or what a reply answers ends both connections.

mod action;
mod client_span;
mod closing;
mod cursor_id;
mod drain;
mod end;
mod greeting;
mod judgement;
mod leaving;
mod left_open;
mod merging;
mod notice;
mod refusals;
mod registration;
mod replies;
mod request_context;
mod requests;
mod routed;
mod serve;
mod timer;
mod transaction_step;
mod unpacking;
mod work_time;

use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bson::oid::ObjectId;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;
use tracing::{debug, warn};

pub use client_span::ClientSpan;
pub(crate) use drain::draining;
pub use drain::{Drain, Stage};
pub use end::End;

use crate::authorization::Rights;
use crate::client_constraints::SharedList;
use crate::constraint::Constraint;
use crate::fleet::{CommandPermit, Membership};
use crate::indexes::WaitingClients;
use crate::limits::{Limits, Memory, Share};
use crate::metrics::Metrics;
use crate::status::StatusBoard;
use crate::stream::{Incoming, Outgoing};
use crate::tls;
use crate::traces::CommandSpan;
use crate::upstream::{Connection, Upstream};
use crate::wire::{Compressor, MESSAGE_BYTES_MAX};
use crate::write::{self, CatalogEpoch};
use closing::LeftAtWork;
use notice::{Notice, Notices};
use refusals::RefusalLog;
use replies::Replies;
use requests::Requests;
use timer::Timer;
use transaction_step::ShownTransaction;

/// How many requests a client may send ahead of their replies before no more is read from it.
const AHEAD_MAX: usize = 1000;
/// A buffer for unpacked messages that has grown past this is released.
const SCRATCH_KEPT_BYTES_MAX: usize = 64 * 1024;

/// The state that all sessions share.
#[derive(Debug)]
pub struct Service {
    /// The deployment behind Keyward.
    pub upstream: Upstream,
    /// The state of the write path.
    pub writes: write::Context,
    /// The metrics.
    pub metrics: Metrics,
    /// The limits for clients; read once for each connection.
    limits: ArcSwap<Limits>,
    /// The memory for their messages.
    memory: Arc<Memory>,
    /// How many large messages may be unpacked at once.
    unpacking: Semaphore,
    /// Names this process to drivers.
    process: ObjectId,
    /// How clients' connections are encrypted, if they are.
    pub tls: Option<Arc<tls::Acceptor>>,
    /// Its membership in the register of Keywards.
    pub membership: Option<Arc<Membership>>,
    /// The list of clients' constraints, if this Keyward follows it.
    pub client_list: Option<Arc<SharedList>>,
    /// The clients that wait for builds of their constraints here.
    pub waiting: WaitingClients,
    /// The notes for `/status`.
    pub board: StatusBoard,
}

impl Service {
    /// Serves clients of `upstream`.
    pub fn new(upstream: Upstream, writes: write::Context, metrics: Metrics, limits: Limits) -> Service {
        let service = Service {
            upstream,
            writes,
            memory: Memory::new(limits.max_buffered_bytes, metrics.buffered_bytes.clone()),
            limits: ArcSwap::from_pointee(limits),
            metrics,
            unpacking: Semaphore::new(std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))),
            process: ObjectId::new(),
            tls: None,
            membership: None,
            client_list: None,
            waiting: WaitingClients::default(),
            board: StatusBoard::default(),
        };
        service.limit(limits);
        service
    }

    /// Whether the register permits this Keyward to write.
    fn is_permitted_to_write(&self) -> bool {
        self.membership
            .as_ref()
            .is_none_or(|membership| membership.is_permitted_to_write())
    }

    /// Notes whether `constraint` is enforced, and shows it.
    pub fn note_enforced(&self, constraint: &Constraint, is_enforced: bool) {
        let show = || self.metrics.set_ready(constraint, is_enforced);
        self.writes.enforced.note(constraint, is_enforced, show);
    }

    /// Whether `constraint` is enforced, as far as this Keyward knows.
    pub fn is_enforced(&self, constraint: &Constraint) -> bool {
        self.writes.enforced.has(constraint)
    }

    /// The same, if this Keyward has seen the states of the constraints lately: a command may rely on it.
    pub fn is_enforced_lately(&self, constraint: &Constraint) -> bool {
        self.writes.enforced.has_lately(constraint)
    }

    /// Forgets a constraint that no longer holds.
    pub fn forget(&self, constraint: &Constraint) {
        let forget = || self.metrics.forget(constraint);
        self.writes.enforced.note(constraint, false, forget);
    }

    /// The limits that hold now.
    pub fn limits(&self) -> Limits {
        **self.limits.load()
    }

    /// Applies `limits`: to existing connections those on memory and on documents, to new ones all of them.
    pub fn limit(&self, limits: Limits) {
        self.memory.resize(limits.max_buffered_bytes);
        self.writes.limit_documents(limits.max_documents_per_statement);
        self.limits.store(Arc::new(limits));
    }
}

/// A client's connection and the upstream connection that belongs to it.
#[derive(Debug)]
struct Session {
    /// It is dropped before the catalog epoch, for whose end a change of the constraints waits.
    _in_doubt_if_broken: InDoubtIfBroken,
    service: Arc<Service>,
    /// Names the client in the log.
    client_span: ClientSpan,
    refusals: RefusalLog,
    client_in: Incoming,
    client_out: Outgoing,
    upstream: Connection,
    requests: Requests,
    replies: Replies,
    /// The client's privileges to write, as far as Keyward has asked for them.
    rights: Rights,
    /// Where compressed requests are unpacked.
    scratch: Vec<u8>,
    /// The trace span of the request that waits to be served.
    waiting: CommandSpan,
    /// Set while `scratch` holds the unpacked request.
    unpacked_by: Option<Compressor>,
    /// The share of memory that the unpacked request takes.
    unpacked_share: Share,
    /// The number of the last reply that Keyward itself composed.
    last_reply_id: i32,
    limits: Limits,
    /// Set once Keyward sends its clients away.
    drain: Option<Drain>,
    /// Set once the server at the other end isn't the primary any more.
    is_deposed: bool,
    /// Set once new connections go to another server.
    is_left_behind: bool,
    /// Whether the client's last command left a transaction open.
    in_transaction: bool,
    /// The catalog epoch that decided the commands in progress here.
    epoch: CatalogEpoch,
    /// The catalog epoch that has begun since.
    next_epoch: Option<CatalogEpoch>,
    /// Whether a write without a reply has gone on since `epoch` began.
    has_unconfirmed_writes: bool,
    /// Steps done, so that a timer sees whether anything has happened.
    steps: u64,
}

/// Notes that the writes of a connection are in doubt, if the connection ends because an invariant does not hold.
#[derive(Debug)]
struct InDoubtIfBroken(Arc<Service>);

impl Drop for InDoubtIfBroken {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.writes.note_in_doubt();
        }
    }
}

/// The notices that a session waits for besides its two connections.
type Noticing<F> = Pin<Box<F>>;

/// Serves a client until its connection ends; once `stage` is draining, until it may go.
///
/// `client_span` names the client in the log.
pub async fn run(client: TcpStream, client_span: ClientSpan, service: Arc<Service>, stage: watch::Receiver<Stage>) {
    let _open = service.metrics.connections.open();
    let limits = service.limits();
    let greeting = greet(client, &service, &limits, stage.clone());
    let end = match client_span.around(greeting).await {
        Ok(connections) => {
            let (session, epochs) = Session::of(connections, client_span.clone(), service, limits);
            session.pump(stage, epochs).await
        }
        Err(end) => end,
    };
    client_span.log(|| match end.is_remarkable() {
        true => warn!(reason = %end, "connection ended"),
        false => debug!(reason = %end, "connection ended"),
    });
}

/// Accepts the client's connection, waits for its first message, and connects to upstream for it.
async fn greet(
    client: TcpStream,
    service: &Service,
    limits: &Limits,
    mut stage: watch::Receiver<Stage>,
) -> Result<(Incoming, Outgoing, Connection), End> {
    let length_max = match service.upstream.has_credential() {
        true => limits.max_unauthenticated_message_bytes,
        false => MESSAGE_BYTES_MAX,
    };
    let accepted = tokio::select! {
        biased;
        () = drain::nothing_came(&mut stage) => return Err(End::Stopping),
        accepted = greeting::accept(client, service.tls.as_deref(), limits, length_max) => accepted,
    };
    let (mut client_in, mut client_out) = accepted.inspect_err(|end| {
        if matches!(end, End::Handshake(_) | End::NotTls) {
            service.metrics.connections.handshakes_failed.inc();
        }
    })?;
    client_in.share = Share::of(service.memory.clone());
    let greeting = greeting::connect(&mut client_in, &mut client_out, &service.upstream, limits, length_max);
    let greeted = tokio::select! {
        biased;
        () = drain::nothing_came(&mut stage) => return Err(End::Stopping),
        greeted = greeting => greeted,
    };
    match greeted {
        Ok(upstream) => Ok((client_in, client_out, upstream)),
        Err(end) => Err(closing::close(end, &mut client_in, &mut client_out).await),
    }
}

impl Session {
    fn of(
        (client_in, client_out, mut upstream): (Incoming, Outgoing, Connection),
        client_span: ClientSpan,
        service: Arc<Service>,
        limits: Limits,
    ) -> (Self, watch::Receiver<CatalogEpoch>) {
        if let Some(membership) = &service.membership {
            upstream.depend_on(membership.command_permit());
        }
        let mut epochs = service.writes.epochs();
        let session = Session {
            epoch: epochs.borrow_and_update().clone(),
            next_epoch: None,
            unpacked_by: None,
            unpacked_share: Share::of(service.memory.clone()),
            rights: match service.upstream.has_credential() {
                true => Rights::unknown(),
                false => Rights::no_less_than_keywards(),
            },
            _in_doubt_if_broken: InDoubtIfBroken(service.clone()),
            client_span,
            refusals: RefusalLog::default(),
            client_in,
            client_out,
            upstream,
            requests: Requests::Reading,
            replies: Replies::new(Share::of(service.memory.clone()), service.process),
            service,
            scratch: Vec::new(),
            waiting: CommandSpan::default(),
            last_reply_id: 0,
            limits,
            drain: None,
            is_deposed: false,
            is_left_behind: false,
            in_transaction: false,
            has_unconfirmed_writes: false,
            steps: 0,
        };
        (session, epochs)
    }

    /// Passes messages on and serves those that need it, until something ends the connection.
    async fn pump(mut self, stage: watch::Receiver<Stage>, epochs: watch::Receiver<CatalogEpoch>) -> End {
        let address = self.upstream.address().clone();
        let notices = Notices::new(stage, &self.service.upstream, address, epochs);
        let mut noticing = Box::pin(notices.next());
        let sleep = tokio::time::sleep(self.limits.message_timeout);
        tokio::pin!(sleep);
        let mut timer = Timer::new();
        loop {
            let stepped = self.advance(&mut noticing, sleep.as_mut(), timer.is_set()).await;
            let ended = match stepped {
                Ok(Stepped::On) => None,
                Ok(Stepped::Noticed(notice, notices)) => {
                    noticing.set(notices.next());
                    self.on_notice(notice, &mut timer)
                }
                Ok(Stepped::Rang) => self.rang(&mut timer),
                Err(end) => Some(end),
            };
            let ended = match ended {
                None if self.has_notices() => self.act_on_notices().await,
                ended => ended,
            };
            if let Some(end) = ended {
                if end.may_have_lost_upstream() {
                    let ending = left_open::end(&mut self.upstream, &self.service.upstream);
                    self.client_span.around(ending).await;
                }
                let end = closing::close(end, &mut self.client_in, &mut self.client_out).await;
                if self.replies.awaits_a_write() || self.has_unconfirmed_writes || matches!(end, End::Write(_)) {
                    if end.may_have_lost_upstream() {
                        self.service.writes.note_in_doubt();
                    }
                    self.leave_at_work();
                } else if let End::ClientClosed = end {
                    let _ = self.upstream.outgoing.finish().await;
                }
                return end;
            }
            self.set(&mut timer, sleep.as_mut());
        }
    }

    /// Leaves the connection to upstream, which may still execute commands of this client.
    fn leave_at_work(self) {
        let is_whole = !matches!(self.requests, Requests::Sending { .. });
        let left = LeftAtWork {
            unanswered: self.replies.unanswered().filter(|_| is_whole),
            upstream: self.upstream,
            epoch: self.epoch,
        };
        let service = self.service;
        tokio::spawn(async move { left.await_end(&service.writes).await });
    }

    /// One step in either direction, or the service of the message that has waited until no reply is pending.
    async fn advance<F: Future<Output = (Notice, Notices)>>(
        &mut self,
        noticing: &mut Noticing<F>,
        sleep: Pin<&mut Sleep>,
        is_set: bool,
    ) -> Result<Stepped, End> {
        self.steps = self.steps.wrapping_add(1);
        if self.requests != Requests::Waiting || !self.replies.is_idle() {
            let may_read = self.replies.count_pending() < AHEAD_MAX;
            let length_max = self.length_max();
            let mut has_arrived = false;
            tokio::select! {
                // In this order: pending replies go before new requests, and rare events before neither.
                biased;
                step = self.replies.step(&mut self.upstream.incoming, &mut self.client_out) => step?,
                step = self.requests.step(
                    &mut self.client_in,
                    &mut self.upstream.outgoing,
                    length_max,
                    || self.upstream.permit.as_ref().is_none_or(CommandPermit::holds),
                ), if may_read => {
                    has_arrived = step?;
                }
                (notice, notices) = noticing => return Ok(Stepped::Noticed(notice, notices)),
                () = sleep, if is_set => return Ok(Stepped::Rang),
            }
            // Noted before the client has the reply: its next command may come on another connection.
            let transactions = &self.service.writes.transactions;
            match self.replies.take_shown() {
                Some(ShownTransaction::Begun(transaction)) => transactions.note_started(transaction),
                Some(ShownTransaction::Over(transaction)) => transactions.note_aborted(transaction),
                None => {}
            }
            if !has_arrived {
                return Ok(Stepped::On);
            }
            self.unpack_large().await?;
        }
        self.upstream.begin_command();
        self.handle().await?;
        Ok(Stepped::On)
    }

    /// How long the client's next message may be.
    fn length_max(&self) -> usize {
        match self.service.upstream.has_credential() && !self.replies.is_authenticated() {
            true => self.limits.max_unauthenticated_message_bytes,
            false => MESSAGE_BYTES_MAX,
        }
    }
}

/// The result of a step.
enum Stepped {
    On,
    Noticed(Notice, Notices),
    /// The timer rang.
    Rang,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most bytes that an idle connection's state may take. It has no room for the state of a write.
    const CONNECTION_BYTES_MAX: usize = 6 * 1024;

    fn future_bytes<A, B, C, D, F: Future>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_connection_occupies_no_memory_for_what_it_may_do() {
        let bytes = future_bytes(run);
        assert!(bytes <= CONNECTION_BYTES_MAX, "{bytes} bytes");
    }
}
