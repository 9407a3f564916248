//! Serves the message that mustn't simply go on: turns it down, refuses it, or has the write path do it.
//!
//! Runs only while no reply is pending, so the upstream connection is free for as long as it takes.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{
    Drain, End, PendingReply, RequestContext, Requests, Service, Session, forwarded, pending, routed, work_time,
};
use crate::authorization::{Rights, Ruling};
use crate::catalog::Catalog;
use crate::classify::{Verdict, Write, classify};
use crate::fleet::Guard;
use crate::reply::{Refusal, Times};
use crate::traces::note_outcome;
use crate::upstream::Connection;
use crate::wire::{Envelope, Message, OpMsg, Rejection, Request, Treatment};
use crate::write::plan::Plan;
use crate::write::{self, Served};

/// The action once the message has been served.
enum Outcome {
    /// The client gets this message.
    Answer(Vec<u8>),
    /// The client gets this message, and reads a cursor.
    AnswerWithCursor(Vec<u8>),
    /// The client gets nothing.
    Silence,
    /// The message goes on after all, and this reply will be pending.
    Forward(Option<PendingReply>),
}

impl Session {
    /// Serves the first message in the client's inbox.
    pub(super) async fn serve_waiting(&mut self) -> Result<(), End> {
        let message = self.client_in.inbox.message()?.unwrap_or_default();
        let length = message.len();
        self.last_reply_id = self.last_reply_id.wrapping_add(1);
        let span = std::mem::take(&mut self.waiting);
        // Of an earlier message, whose client knows that the outcome is open.
        self.upstream.take_open_transaction();
        let outcome = match Request::read(message, self.unpacked_by, &mut self.scratch) {
            Ok(request) => {
                let (drain, rights) = (self.drain.as_ref(), &mut self.rights);
                let is_known = !self.service.upstream.has_credential() || self.replies.is_authenticated();
                let served = serve_one(
                    &request,
                    self.last_reply_id,
                    &self.service,
                    is_known,
                    drain,
                    rights,
                    &mut self.upstream,
                );
                span.around(served).await?
            }
            Err(rejection) if rejection.treatment() == Treatment::Ignore => Outcome::Silence,
            Err(rejection) => return Err(rejection.into()),
        };
        if !self.upstream.is_in_step() {
            return Err(End::OutOfStep);
        }
        self.forget_unpacked();
        self.requests = Requests::Reading;
        match outcome {
            Outcome::Forward(reply) => {
                self.service.metrics.commands.forwarded.inc();
                match reply {
                    Some(reply) => self.replies.owe(PendingReply { span, ..reply }),
                    None => self.is_unanswered = true,
                }
                self.requests = Requests::Sending { left: length };
                return Ok(());
            }
            Outcome::Silence => {}
            // It goes the way of all replies, so that what a client does that doesn't read it is seen as with any other.
            Outcome::Answer(reply) => self.replies.answer(reply),
            Outcome::AnswerWithCursor(reply) => {
                self.replies.answer(reply);
                self.replies.note_cursor();
            }
        }
        self.client_in.consume(length);
        Ok(())
    }
}

/// Serves one message, by the constraints that hold now.
async fn serve_one(
    request: &Request<'_>,
    reply_id: i32,
    service: &Service,
    is_known: bool,
    drain: Option<&Drain>,
    rights: &mut Rights,
    upstream: &mut Connection,
) -> Result<Outcome, End> {
    let reply_to = ReplyTo {
        envelope: &request.envelope,
        reply_id,
    };
    let message = match &request.parsed {
        Ok(message) => message,
        Err(rejection) => return reply_to.turn_down(rejection),
    };
    let request_context = RequestContext::of(message);
    let commands = &service.metrics.commands;
    let catalog = service.writes.catalog();
    let guard = Guard::new(&**catalog, service.membership.as_deref());
    let verdict = match classify(message, &guard) {
        Ok(verdict) => verdict,
        Err(malformed) => return reply_to.turn_down(&malformed.into()),
    };
    if let Some(drain) = drain.filter(|drain| drain.turns_away(&verdict, &request_context)) {
        commands.turned_away.inc();
        return reply_to.answer(&drain.error(service.process, Some(&request_context)));
    }
    // A client that hasn't logged in writes nothing, and Keyward writes nothing for it.
    if is_known && let Err(refusal) = registered(service, guard, &request_context).await {
        commands.turned_away.inc();
        return reply_to.answer(&refusal.body(&Times::default()));
    }
    if request_context.commits()
        && let Message::Msg(commit) = message
        && let Some(reply) =
            write::refuse_commit(commit.body, request_context.transaction, &service.writes, upstream).await?
    {
        return reply_to.answer(&reply);
    }
    match (verdict, message) {
        (Verdict::Refuse(refusal), _) => {
            commands.refused.inc();
            reply_to.answer(&refusal.error().body())
        }
        (Verdict::Write(write), Message::Msg(_)) => {
            // The server checks a message whole before it runs any of it; so does the write path.
            let parsed = match OpMsg::parse_whole(request.unpacked) {
                Ok(parsed) => parsed,
                Err(rejection) => return reply_to.turn_down(&rejection),
            };
            match protected_write(&write, &parsed, &catalog, service, rights, upstream).await? {
                Served::Reply(body) => reply_to.answer(&body),
                Served::Untouched => Ok(Outcome::Forward(pending(&request.envelope, false, &request_context))),
            }
        }
        _ => read(request, reply_to, &catalog, service, is_known, rights, upstream).await,
    }
}

/// Serves a message that isn't a write: a read by a key goes to one shard if it can. Otherwise the message goes on, also if the
/// constraints have changed since it arrived.
async fn read(
    request: &Request<'_>,
    reply_to: ReplyTo<'_>,
    catalog: &Catalog,
    service: &Service,
    is_known: bool,
    rights: &mut Rights,
    upstream: &mut Connection,
) -> Result<Outcome, End> {
    let by_key = routed::read_by_key(request, catalog).filter(|_| is_known);
    if let Some(by_key) = by_key
        && let Some(routed) = routed::route(&by_key, request, service, rights, upstream).await?
    {
        return Ok(match (reply_to.answer(&routed.body)?, routed.leaves_cursor) {
            (Outcome::Answer(reply), true) => Outcome::AnswerWithCursor(reply),
            (outcome, _) => outcome,
        });
    }
    let request_context = request.parsed.as_ref().map(RequestContext::of).unwrap_or_default();
    match forwarded(request, &request_context, None, catalog, catalog) {
        Some(reply) => {
            if request_context.may_change_user {
                rights.forget();
            }
            Ok(Outcome::Forward(reply))
        }
        None => Err(End::OutOfStep),
    }
}

/// Serves a write on a protected collection.
async fn protected_write(
    write: &Write<'_>,
    message: &OpMsg<'_>,
    catalog: &Arc<Catalog>,
    service: &Service,
    rights: &mut Rights,
    upstream: &mut Connection,
) -> Result<Served, End> {
    let commands = &service.metrics.commands;
    // Before anything is done as Keyward's own user, whose rights aren't the client's.
    if let Ruling::Refused(body) = rights.rule(write, message, upstream).await? {
        commands.unauthorized.inc();
        return Ok(Served::Reply(body));
    }
    let timer = commands.protected_seconds.start_timer();
    let plan = Plan::of(write, message, catalog);
    // By itself it takes more room than the rest of a connection, most of which never write here.
    let served: BoxFuture<'_, _> = Box::pin(write::serve(plan, message, &service.writes, upstream));
    let (served, own) = work_time::measured(served).await;
    let served = served?;
    match served {
        Served::Reply(_) => {
            timer.observe_duration();
            commands.protected_proxy_seconds.observe(own.as_secs_f64());
        }
        Served::Untouched => {
            timer.stop_and_discard();
        }
    }
    Ok(served)
}

/// Makes sure that what may write does so with the knowledge of the other Keywards.
async fn registered(
    service: &Service,
    guard: Guard<'_, Catalog>,
    request_context: &RequestContext,
) -> Result<(), Refusal> {
    let Some(membership) = &service.membership else {
        return Ok(());
    };
    let unregistered = |reason: String| Refusal::Unregistered {
        reason,
        label: request_context.label(),
    };
    let is_write = guard.is_asked() || request_context.commits();
    if guard.has_undeclared() {
        let declared = membership.declare(guard.undeclared(), &[]).await;
        declared.map_err(|error| unregistered(error.to_string()))?;
    }
    match !is_write || membership.may_write() {
        true => Ok(()),
        false => Err(unregistered("its entry couldn't be renewed".to_owned())),
    }
}

/// The message that Keyward replies to, and the number of the reply.
#[derive(Clone, Copy)]
struct ReplyTo<'a> {
    envelope: &'a Envelope,
    reply_id: i32,
}

impl ReplyTo<'_> {
    fn answer(self, body: &[u8]) -> Result<Outcome, End> {
        note_outcome(body);
        if !self.envelope.wants_reply() {
            return Ok(Outcome::Silence);
        }
        let reply = self.envelope.reply(body, self.reply_id).map_err(Rejection::from)?;
        Ok(Outcome::Answer(reply))
    }

    /// Does with a message that is turned down what the server does.
    fn turn_down(self, rejection: &Rejection) -> Result<Outcome, End> {
        match rejection.treatment() {
            Treatment::Close => Err(rejection.clone().into()),
            Treatment::Answer(error) if self.envelope.wants_reply() => {
                let reply = self.envelope.error(rejection, &error, self.reply_id);
                Ok(Outcome::Answer(reply))
            }
            Treatment::Answer(_) | Treatment::Ignore => Ok(Outcome::Silence),
        }
    }
}
