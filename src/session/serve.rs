//! Handles one message of the client: forwards it unchanged, turns it down, refuses it, or has the write path serve it.
//!
//! Keyward serves a message only while no reply is pending, so the upstream connection is free for as long as that takes.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::action::{Action, ReplyTo};
use super::judgement::Judged;
use super::refusals::RefusalLog;
use super::registration::Registration;
use super::replies::PendingReply;
use super::request_context::RequestContext;
use super::{Drain, End, Requests, Service, Session, closing, work_time};
use crate::authorization::{Rights, Ruling};
use crate::catalog::Catalog;
use crate::classify::{CommandRefusal, Verdict, Write};
use crate::command::affected_keys::KeyChange;
use crate::current_op::{self, OperationCommand};
use crate::hiding::{self, Listing};
use crate::indexes::{self, ClientAddress, IndexCommand};
use crate::prepare::has_definitions;
use crate::raw::{Doc, Malformed};
use crate::reply::{Times, WriteRefusal};
use crate::server::{code, reply};
use crate::stream::Incoming;
use crate::traces::CommandSpan;
use crate::upstream::Connection;
use crate::wire::{Compressor, Message, OpMsg, Request, Treatment};
use crate::write::plan::Plan;
use crate::write::{self, CatalogEpoch, Served, TransactionId};

/// The effects that a message may have once it goes on.
#[derive(Debug, Clone, Copy, Default)]
struct Effects {
    /// It may change documents.
    may_write: bool,
    /// It may write to collections of clients.
    needs_permit: bool,
    /// Another user may be logged in afterwards.
    may_change_user: bool,
    /// Keyward served it before it goes on, which may have taken long.
    is_served: bool,
}

impl Effects {
    fn of(judged: &Judged<'_>, is_served: bool) -> Effects {
        Effects {
            may_write: judged.context.may_write,
            needs_permit: judged.asks_to_write || judged.context.commits(),
            may_change_user: judged.context.may_change_user,
            is_served,
        }
    }
}

impl Session {
    /// Handles the first message in the client's inbox, by the constraints that hold now.
    ///
    /// A message that Keyward serves waits until no reply is pending. Then Keyward judges it anew, because the constraints may have
    /// changed.
    pub(super) async fn handle(&mut self) -> Result<(), End> {
        let message = self.client_in.inbox.message()?.unwrap_or_default();
        let length = message.len();
        let request = match Request::read(message, self.unpacked_by, &mut self.scratch) {
            Ok(request) => request,
            Err(rejection) if rejection.treatment() == Treatment::Ignore => {
                self.finish(Action::Silence, length, Effects::default(), CommandSpan::default());
                return Ok(());
            }
            Err(rejection) => return Err(rejection.into()),
        };
        let context = request.parsed.as_ref().map(RequestContext::of).unwrap_or_default();
        self.in_transaction = context.leaves_transaction();
        note_transaction(&context, &self.service, self.replies.is_authenticated());
        self.client_span.note(&request, &context);
        let catalog = self.service.writes.catalog();
        let judged = Judged::of(request, context, &self.service, &catalog);
        let is_forwarded = judged.decide_to_forward(self.drain.as_ref(), &self.service, &self.upstream);
        let (effect, compressor) = (Effects::of(&judged, !is_forwarded), judged.request.envelope.compressor);
        let span = match self.requests == Requests::Waiting {
            true => std::mem::take(&mut self.waiting),
            false => span_of(&judged, is_forwarded),
        };
        let action = if is_forwarded {
            Action::Forward(judged.pending())
        } else if self.replies.is_idle() {
            check_awaited(&judged.context, &self.client_in)?;
            self.last_reply_id = self.last_reply_id.wrapping_add(1);
            // The transaction was noted for an earlier message. Its client already has the error for it, so Keyward doesn't end it here.
            self.upstream.take_open_transaction();
            let mut handler = MessageHandler {
                service: &self.service,
                catalog: Arc::clone(&catalog),
                client: self.client_span.address,
                may_act_for_client: !self.service.upstream.has_credential() || self.replies.is_authenticated(),
                drain: self.drain.as_ref(),
                rights: &mut self.rights,
                refusals: &mut self.refusals,
                upstream: &mut self.upstream,
                epoch: &mut self.epoch,
                has_unconfirmed_writes: &mut self.has_unconfirmed_writes,
            };
            let serving = span.around(handler.serve(judged, &self.client_in, self.last_reply_id));
            let mut action = self.client_span.around(serving).await?;
            if matches!(action, Action::Merge(..) | Action::Read(..)) {
                let carrying_out = handler.carry_out(action, &mut self.client_in);
                action = self.client_span.around(span.around(carrying_out)).await?;
            }
            if !self.upstream.is_in_step() {
                return Err(End::OutOfStep);
            }
            action
        } else {
            Action::JudgeAnew
        };
        match action {
            Action::JudgeAnew => self.wait(compressor, span),
            action => self.finish(action, length, effect, span),
        }
        Ok(())
    }

    /// Leaves the first message in the inbox, to be judged anew.
    fn wait(&mut self, unpacked_by: Option<Compressor>, span: CommandSpan) {
        self.unpacked_by = unpacked_by;
        self.waiting = span;
        self.requests = Requests::Waiting;
    }

    /// Ends the handling of the first message in the inbox, which has `length` bytes; `span` ends with its reply.
    fn finish(&mut self, action: Action, length: usize, effect: Effects, span: CommandSpan) {
        self.forget_unpacked();
        match action {
            Action::Forward(reply) => {
                self.service.metrics.commands.forwarded.inc();
                if effect.may_change_user {
                    self.rights.forget();
                }
                match reply {
                    Some(reply) => self.replies.expect(PendingReply { span, ..reply }),
                    None => self.has_unconfirmed_writes |= effect.may_write,
                }
                self.requests = Requests::Sending {
                    left: length,
                    needs_permit: effect.needs_permit,
                    is_begun: effect.is_served,
                };
                return;
            }
            Action::Silence | Action::JudgeAnew | Action::Merge(..) | Action::Read(..) => {}
            // It goes the way of all replies, so that a client that doesn't read it is treated as with any other.
            Action::Answer(reply) => self.replies.answer(reply),
            Action::AnswerWithCursor(reply) => {
                self.replies.answer(reply);
                self.replies.note_cursor();
            }
        }
        self.client_in.consume(length);
        self.requests = Requests::Reading;
    }
}

/// Checks that a client which would send a write again still waits for its reply. If this process stood still, the retry may have been
/// refused elsewhere meanwhile.
fn check_awaited(context: &RequestContext, client: &Incoming) -> Result<(), End> {
    match context.is_retryable_write() && client.is_closed_by_peer() {
        true => Err(End::ClientClosed),
        false => Ok(()),
    }
}

/// Whether the collection of a `drop` is gone by the server's reply. An earlier `drop` may have done that, and its client got no reply.
fn is_dropped(reply: Doc<'_>) -> Result<bool, Malformed> {
    Ok(reply::is_ok(reply)? || reply::code(reply)? == Some(code::NAMESPACE_NOT_FOUND))
}

/// Notes the transaction of the client that a request belongs to.
fn note_transaction(context: &RequestContext, service: &Service, is_authenticated: bool) {
    if context.is_in_transaction {
        service.writes.note_transaction();
    }
    if let Some(transaction) = context.begins() {
        service.writes.transactions.begin(transaction, is_authenticated);
    }
    if let Some(transaction) = context.aborts() {
        service.writes.transactions.note_aborted(transaction);
    }
}

/// The trace span of a message; none for a handshake.
fn span_of(judged: &Judged<'_>, is_forwarded: bool) -> CommandSpan {
    let is_handshake = is_forwarded && matches!(judged.verdict, Ok(Verdict::Hello(_)));
    match &judged.request.parsed {
        Ok(parsed) if !is_handshake => CommandSpan::of(parsed),
        _ => CommandSpan::default(),
    }
}

/// The state for serving one message, by the constraints that it was judged by.
pub(super) struct MessageHandler<'s> {
    pub(super) service: &'s Service,
    pub(super) catalog: Arc<Catalog>,
    client: ClientAddress,
    /// Whether the client has logged in, where it must.
    pub(super) may_act_for_client: bool,
    drain: Option<&'s Drain>,
    pub(super) rights: &'s mut Rights,
    pub(super) refusals: &'s mut RefusalLog,
    pub(super) upstream: &'s mut Connection,
    epoch: &'s mut CatalogEpoch,
    /// Whether writes without replies may be under way.
    has_unconfirmed_writes: &'s mut bool,
}

impl MessageHandler<'_> {
    /// Serves one message that isn't forwarded at once; `reply_id` is the reply's own number.
    async fn serve(&mut self, mut judged: Judged<'_>, client: &Incoming, reply_id: i32) -> Result<Action, End> {
        let reply_to = ReplyTo {
            envelope: judged.request.envelope,
            reply_id,
        };
        let commands = &self.service.metrics.commands;
        let context = judged.context;
        let verdict = match &judged.verdict {
            Ok(verdict) => verdict,
            Err(rejection) => return reply_to.turn_down(rejection),
        };
        if let Some(drain) = self.drain.filter(|drain| drain.rejects(verdict, &context)) {
            commands.turned_away.inc();
            return reply_to.answer(&drain.error(self.service.process, Some(&context)));
        }
        if judged.is_in_other_session() {
            return reply_to.answer(&WriteRefusal::OtherSession.body(&Times::default()));
        }
        let undeclared = std::mem::take(&mut judged.undeclared);
        if let Some(refusal) = self.refused_by_rights(&judged, &undeclared).await? {
            return reply_to.answer(&refusal);
        }
        if self.may_client_write(&judged, &undeclared).await? {
            match self.register(&undeclared, judged.asks_to_write, &context).await? {
                Registration::Known => {}
                Registration::JudgeAnew => return Ok(Action::JudgeAnew),
                Registration::Refused(refusal) => {
                    commands.turned_away.inc();
                    return reply_to.answer(&refusal.body(&Times::default()));
                }
            }
        }
        if context.commits()
            && let Ok(Message::Msg(commit)) = &judged.request.parsed
            && let Some(reply) = self.answer_commit(commit.body, context.transaction).await?
        {
            return reply_to.answer(&reply);
        }
        match verdict {
            Verdict::Refuse(refusal) => reply_to.answer(&self.refuse(refusal)),
            // If a transaction may not go on, the write path also refuses a write that changes no key.
            Verdict::Write(write) if !judged.is_unchanged() || context.is_in_transaction => {
                // The server checks a message whole before it runs any of it; so does the write path.
                let message = match OpMsg::parse_whole(judged.request.unpacked) {
                    Ok(message) => message,
                    Err(rejection) => return reply_to.turn_down(&rejection),
                };
                match self.protected_write(write, judged.key_change, &message).await? {
                    Served::Reply(body) => reply_to.answer(&body),
                    Served::Untouched => Ok(Action::Forward(judged.pending())),
                }
            }
            Verdict::List(listing) => self.list(*listing, &judged, reply_to).await,
            Verdict::Index(command) if self.may_act_for_client => self.index(*command, &judged, client, reply_to).await,
            Verdict::Operation(command) if self.may_act_for_client => self.operation(*command, &judged, reply_to).await,
            Verdict::Merge(_) => match OpMsg::parse_whole(judged.request.unpacked) {
                Ok(_) => Ok(Action::Merge(judged.request.unpacked.to_vec(), reply_to)),
                Err(rejection) => reply_to.turn_down(&rejection),
            },
            // A read by a key, unless it only waited for the register of Keywards, or for the judgement on a commit.
            _ => self.route_or_forward(&judged, reply_to).await,
        }
    }

    /// Decides on a commit. Returns the client's reply, unless the commit is forwarded.
    async fn answer_commit(
        &mut self,
        commit: Doc<'_>,
        transaction: Option<TransactionId>,
    ) -> Result<Option<Vec<u8>>, End> {
        let (writes, client) = (&self.service.writes, self.service.upstream.client());
        // Boxed, like all that a connection seldom needs: its state would be part of every idle connection.
        let answered: BoxFuture<'_, _> =
            Box::pin(write::answer_commit(commit, transaction, writes, client, self.upstream));
        Ok(answered.await?)
    }

    /// Carries out an action that may take long, and that ends if `client` leaves.
    async fn carry_out(&mut self, action: Action, client: &mut Incoming) -> Result<Action, End> {
        // Boxed, like all that a connection seldom needs.
        match action {
            Action::Merge(message, reply_to) => {
                let merged: BoxFuture<'_, _> = Box::pin(self.merge(&message, client));
                reply_to.answer(&merged.await?)
            }
            Action::Read(read, reply_to, pending) => {
                let routed: BoxFuture<'_, _> = Box::pin(read.run(client, self.upstream));
                match routed.await? {
                    Some(routed) => reply_to.answer_leaving(routed.leaves_cursor, &routed.body),
                    None => Ok(Action::Forward(pending)),
                }
            }
            action => Ok(action),
        }
    }

    /// The error for a command that Keyward can't protect.
    pub(super) fn refuse(&mut self, refusal: &CommandRefusal) -> Vec<u8> {
        self.service.metrics.commands.refused.inc();
        let error = refusal.error().body();
        self.refusals.note(&error);
        error
    }

    /// Serves a command that lists or watches.
    async fn list(&mut self, listing: Listing, judged: &Judged<'_>, reply_to: ReplyTo) -> Result<Action, End> {
        let Ok(Message::Msg(message)) = &judged.request.parsed else {
            return Ok(Action::Forward(judged.pending()));
        };
        let client = self.service.upstream.client();
        let served: BoxFuture<'_, _> = Box::pin(hiding::serve(
            listing,
            message.body,
            (client, &self.catalog),
            self.upstream,
        ));
        match served.await? {
            Some(body) => reply_to.answer_with_cursor(&body),
            None => Ok(Action::Forward(judged.pending())),
        }
    }

    /// Serves a command about indexes. It may change the constraints, and then waits until nothing is under way that the constraints
    /// before decided. So this connection has nothing under way meanwhile.
    async fn index(
        &mut self,
        command: IndexCommand<'_>,
        judged: &Judged<'_>,
        client: &Incoming,
        reply_to: ReplyTo,
    ) -> Result<Action, End> {
        let message = match OpMsg::parse_whole(judged.request.unpacked) {
            Ok(message) => message,
            Err(rejection) => return reply_to.turn_down(&rejection),
        };
        self.leave_epoch().await?;
        let served: BoxFuture<'_, _> = Box::pin(indexes::serve(
            command,
            &message,
            (self.service, self.client, client),
            &self.catalog,
            self.upstream,
        ));
        let served = served.await?;
        self.enter_epoch();
        match served {
            Some(body) => reply_to.answer(&body),
            None => Ok(Action::Forward(judged.pending())),
        }
    }

    /// Serves a command that lists or ends operations.
    async fn operation(
        &mut self,
        command: OperationCommand,
        judged: &Judged<'_>,
        reply_to: ReplyTo,
    ) -> Result<Action, End> {
        let Ok(Message::Msg(message)) = &judged.request.parsed else {
            return Ok(Action::Forward(judged.pending()));
        };
        let served: BoxFuture<'_, _> = Box::pin(current_op::serve(command, message.body, self.service, self.upstream));
        match served.await? {
            Some(body) => reply_to.answer_with_cursor(&body),
            None => Ok(Action::Forward(judged.pending())),
        }
    }

    /// Leaves the catalog epoch that decided this connection's operations: none is under way.
    pub(super) async fn leave_epoch(&mut self) -> Result<(), End> {
        if *self.has_unconfirmed_writes {
            closing::confirm_writes(self.upstream).await?;
            *self.has_unconfirmed_writes = false;
        }
        *self.epoch = CatalogEpoch::none();
        Ok(())
    }

    /// Holds the constraints of now for this connection's next operations.
    pub(super) fn enter_epoch(&mut self) {
        *self.epoch = self.service.writes.epochs().borrow().clone();
    }

    /// Routes a read by a key. Every other command goes on unchanged, and a read that can't be routed does, too.
    async fn route_or_forward(&mut self, judged: &Judged<'_>, reply_to: ReplyTo) -> Result<Action, End> {
        if let Some(by_key) = judged.by_key.as_deref().filter(|_| self.may_act_for_client) {
            let pinned: BoxFuture<'_, _> =
                Box::pin(by_key.pin(&judged.request, self.service, self.rights, self.upstream));
            if let Some(read) = pinned.await? {
                return Ok(Action::Read(Box::new(read), reply_to, judged.pending()));
            }
        }
        Ok(Action::Forward(judged.pending()))
    }

    /// Serves a write on a protected collection.
    pub(super) async fn protected_write(
        &mut self,
        write: &Write<'_>,
        change: KeyChange,
        message: &OpMsg<'_>,
    ) -> Result<Served, End> {
        let commands = &self.service.metrics.commands;
        // Checked before Keyward does anything with its own rights, which aren't the client's.
        if let Ruling::Refused(body) = self.rights.rule(write, message, self.upstream).await? {
            commands.unauthorized.inc();
            return Ok(Served::Reply(body));
        }
        if let Write::DropDatabase { database } = write
            && !self.catalog.protects_any_in(database)
        {
            match has_definitions(self.service.upstream.client(), &String::from_utf8_lossy(database)).await {
                Ok(true) => {}
                Ok(false) => return Ok(Served::Untouched),
                Err(error) => {
                    let refusal = WriteRefusal::UnknownConstraints(error.to_string());
                    return Ok(Served::Reply(refusal.body(&Times::default())));
                }
            }
        }
        // It may take hours, and decides nothing by the constraints: changes of those don't wait for it.
        let changes_shard_key = *write == Write::ShardKeyChange;
        if changes_shard_key {
            self.leave_epoch().await?;
        }
        let to_end = indexes::constraints_to_end(write, self.service, &self.catalog).await;
        let timer = commands.protected_seconds.start_timer();
        let plan = Plan::of(write, message, change, &self.catalog);
        // Boxed: it needs more memory than the rest of a connection, and most connections never write here.
        let served: BoxFuture<'_, _> = Box::pin(write::serve(plan, message, &self.service.writes, self.upstream));
        let (served, own) = work_time::measured(served).await;
        let mut served = served?;
        if changes_shard_key {
            self.enter_epoch();
            if let Served::Reply(reply) = served {
                served = Served::Reply(indexes::explained(reply).map_err(write::ForwardError::from)?);
            }
        }
        match &served {
            Served::Reply(reply) => {
                timer.observe_duration();
                commands.protected_proxy_seconds.observe(own.as_secs_f64());
                let is_dropped = || Doc::new(reply).and_then(is_dropped).unwrap_or(false);
                // Boxed, as above.
                if !to_end.is_empty() && is_dropped() {
                    let ended = Box::pin(indexes::end_constraints_of_dropped(&to_end, self.service)).await;
                    if !ended.is_empty() {
                        self.leave_epoch().await?;
                        Box::pin(indexes::await_ended(&ended, self.service)).await;
                        self.enter_epoch();
                    }
                }
            }
            Served::Untouched => {
                timer.stop_and_discard();
            }
        }
        Ok(served)
    }
}
