//! Judges a request once, by the constraints that hold then: whether Keyward forwards it unchanged or serves it.

use super::replies::PendingReply;
use super::request_context::RequestContext;
use super::routed::RoutableRead;
use super::{Drain, Service};
use crate::catalog::Catalog;
use crate::classify::{Verdict, classify};
use crate::command::affected_keys::KeyChange;
use crate::fleet::Guard;
use crate::namespace::Namespace;
use crate::traces::CommandSpan;
use crate::upstream::Connection;
use crate::wire::{Flags, Message, Rejection, Request};
use crate::write::CommitDecision;
use crate::write::plan::key_change;

/// A request, and the decisions on it. The next stages use them and read nothing again.
pub(super) struct Judged<'m> {
    /// The request.
    pub request: Request<'m>,
    /// The state of the connection that it shows.
    pub context: RequestContext,
    /// The classifier's verdict, or why the request is turned down.
    pub verdict: Result<Verdict<'m>, Rejection>,
    /// The statements that may change a key, if it is a write on a protected collection.
    pub key_change: KeyChange,
    /// The read by a key that it is, if a constraint routes it.
    pub by_key: Option<Box<RoutableRead<'m>>>,
    /// Whether it may write to a collection.
    pub asks_to_write: bool,
    /// The collections among them that this Keyward has yet to declare in the register.
    pub undeclared: Vec<Namespace>,
}

impl<'m> Judged<'m> {
    /// Judges `request` by the constraints of `catalog`.
    pub(super) fn of(
        request: Request<'m>,
        mut context: RequestContext,
        service: &Service,
        catalog: &Catalog,
    ) -> Judged<'m> {
        let guard = Guard::new(catalog, service.membership.as_deref());
        let verdict = match &request.parsed {
            Ok(message) => classify(message, &guard).map_err(Rejection::from),
            Err(rejection) => Err(rejection.clone()),
        };
        let key_change = match (&verdict, &request.parsed) {
            (Ok(Verdict::Write(write)), Ok(Message::Msg(message))) => key_change(write, message, catalog),
            _ => KeyChange::Unknown,
        };
        let by_key = match &verdict {
            Ok(Verdict::Forward) if catalog.routes() => RoutableRead::of(&request, catalog),
            _ => None,
        };
        let asks_to_write = guard.is_asked();
        context.may_write &= asks_to_write || context.commits();
        let undeclared = match verdict {
            // A refused command writes nowhere, so the other Keywards need not know of the collections that it names.
            Ok(Verdict::Refuse(_)) => Vec::new(),
            _ => guard.undeclared(),
        };
        Judged {
            request,
            context,
            verdict,
            key_change,
            by_key: by_key.map(Box::new),
            asks_to_write,
            undeclared,
        }
    }

    /// Decides whether Keyward forwards the request at once. If the request commits a client's transaction, the decision on that
    /// commit is recorded: later statements in the transaction are refused.
    pub(super) fn decide_to_forward(&self, drain: Option<&Drain>, service: &Service, upstream: &Connection) -> bool {
        let Ok(verdict) = &self.verdict else { return false };
        let is_rejected = || drain.is_some_and(|drain| drain.rejects(verdict, &self.context));
        // A command that may write somewhere waits until the register of Keywards says so.
        let is_registered = || self.undeclared.is_empty() && (!self.asks_to_write || upstream.is_permitted_to_write());
        let transactions = &service.writes.transactions;
        let decide_commit = |transaction| transactions.decide_commit(transaction) == CommitDecision::Forward;
        // The server refuses a commit without a transaction.
        let may_commit = || upstream.is_permitted_to_write() && self.context.transaction.is_none_or(decide_commit);
        // If a write is in a client's transaction, this process must have seen that begin, and it may still be committed.
        let go_on = || match (verdict, self.context.transaction) {
            (Verdict::Write(_), Some(transaction)) => {
                let is_start = self.context.begins().is_some();
                transactions.go_on(transaction, is_start).is_ok()
            }
            _ => true,
        };
        self.is_unchanged()
            && !self.is_in_other_session()
            && self.by_key.is_none()
            && !is_rejected()
            && is_registered()
            && go_on()
            && (!self.context.commits() || may_commit())
    }

    /// Whether Keyward refuses the request for its session: a transaction or a protected retryable write in one of another kind than those of
    /// drivers. The client's transactions and statements are known by their numbers, which count in each session on their own. Of a
    /// transaction that Keyward doesn't know, it could not decide whether a commit may go on.
    pub(super) fn is_in_other_session(&self) -> bool {
        let is_protected_write = matches!(self.verdict, Ok(Verdict::Write(_)));
        self.context.is_in_other_session && (self.context.is_in_transaction || is_protected_write)
    }

    /// Whether the request reaches the server unchanged, unless something else stands in its way.
    pub(super) fn is_unchanged(&self) -> bool {
        match self.verdict {
            Ok(Verdict::Forward | Verdict::Hello(_)) => true,
            Ok(Verdict::Write(_)) => self.key_change == KeyChange::None,
            Ok(
                Verdict::List(_) | Verdict::Index(_) | Verdict::Operation(_) | Verdict::Merge(_) | Verdict::Refuse(_),
            )
            | Err(_) => false,
        }
    }

    /// The pending reply of the request once Keyward forwards it; `None` if the client wants no reply.
    pub(super) fn pending(&self) -> Option<PendingReply> {
        let envelope = &self.request.envelope;
        envelope.wants_reply().then_some(PendingReply {
            answers: envelope.request_id,
            hello: match self.verdict {
                Ok(Verdict::Hello(handshake)) => Some((*envelope, handshake)),
                _ => None,
            },
            may_stream: envelope.flags.has(Flags::EXHAUST_ALLOWED),
            may_leave_cursor: self.context.may_leave_cursor,
            may_write: self.context.may_write,
            authenticates: self.context.authenticates,
            step: self.context.step().map(Box::new),
            span: CommandSpan::default(),
        })
    }
}
