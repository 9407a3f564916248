//! Registers a command's writes before it is carried out: the other Keywards count on them from then on.

use futures_util::future::BoxFuture;

use super::End;
use super::judgement::Judged;
use super::request_context::RequestContext;
use super::serve::MessageHandler;
use crate::authorization::{RightsError, Ruling};
use crate::classify::write_of;
use crate::indexes;
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;
use crate::reply::WriteRefusal;
use crate::wire::{Message, OpMsg, Rejection};

/// Whether a command may go on.
pub(super) enum Registration {
    /// The other Keywards can know of its writes, and it reserves for all constraints of clients there.
    Known,
    /// This Keyward has applied constraints of clients meanwhile: it judges the command anew.
    JudgeAnew,
    /// Nothing may be written there.
    Refused(WriteRefusal),
}

impl MessageHandler<'_> {
    /// Whether the server may carry out the client's writes. If it refuses them all, because the client hasn't logged in, the
    /// register needn't know of them.
    ///
    /// The server is asked only if the register doesn't know of them yet. A login that Keyward couldn't read counts, and a server
    /// may accept clients that don't log in.
    pub(super) async fn may_client_write(
        &mut self,
        judged: &Judged<'_>,
        undeclared: &[Namespace],
    ) -> Result<bool, End> {
        let is_registered = undeclared.is_empty() && self.service.is_permitted_to_write();
        match &judged.request.parsed {
            Ok(Message::Msg(message)) if !self.may_act_for_client && !is_registered => {
                Ok(self.rights.may_write_somewhere(message.body, self.upstream).await?)
            }
            _ => Ok(self.may_act_for_client),
        }
    }

    /// The server's refusal of a client that has logged in and may not write these documents. It comes before the register knows of the
    /// collections: otherwise a client without any privilege there would revoke that their constraints are enforced.
    ///
    /// Only writes of documents can be checked in this way. Other commands are registered before the server refuses them.
    pub(super) async fn refused_by_rights(
        &mut self,
        judged: &Judged<'_>,
        undeclared: &[Namespace],
    ) -> Result<Option<Vec<u8>>, End> {
        // Where Keyward turns the message down, or the client hasn't logged in, others see to it.
        let (false, true, Ok(message)) = (
            undeclared.is_empty(),
            self.may_act_for_client,
            OpMsg::parse_whole(judged.request.unpacked),
        ) else {
            return Ok(None);
        };
        let Some(write) = write_of(&message).map_err(Rejection::from)? else {
            return Ok(None);
        };
        match self.rights.rule(&write, &message, self.upstream).await {
            Ok(Ruling::Refused(reply)) => {
                self.service.metrics.commands.unauthorized.inc();
                Ok(Some(reply))
            }
            // If the server doesn't say, it refuses the write itself.
            Ok(Ruling::MayWrite) | Err(RightsError::Unanswered { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes sure that the other Keywards can know of a command's writes before it is carried out. Also makes sure that it reserves
    /// for all constraints of clients there.
    pub(super) async fn register(
        &mut self,
        undeclared: &[Namespace],
        asks_to_write: bool,
        context: &RequestContext,
    ) -> Result<Registration, End> {
        let service = self.service;
        let Some(membership) = &service.membership else {
            return Ok(Registration::Known);
        };
        let refused = |reason: String| {
            let label = context.label();
            Ok(Registration::Refused(WriteRefusal::Unregistered { reason, label }))
        };
        if !undeclared.is_empty() {
            let follows = indexes::follows_all(undeclared, &self.catalog, service);
            // Boxed, like all that a connection seldom needs: its state would be part of every idle connection.
            let declared: BoxFuture<'_, _> = Box::pin(membership.declare_if(undeclared.iter().cloned(), &[], follows));
            match declared.await {
                Ok(true) => {}
                Ok(false) => {
                    return match self.await_list(undeclared).await? {
                        Ok(()) => Ok(Registration::JudgeAnew),
                        Err(error) => refused(error.to_string()),
                    };
                }
                Err(error) => return refused(error.to_string()),
            }
        }
        match !(asks_to_write || context.commits()) || self.upstream.is_permitted_to_write() {
            true => Ok(Registration::Known),
            // It has another entry since the command was judged.
            false if service.is_permitted_to_write() => Ok(Registration::JudgeAnew),
            false => refused(match service.writes.is_redefined() {
                true => "commands from before a constraint was made anew are still under way, end them or their connections",
                false => "its entry couldn't be renewed",
            }
            .to_owned()),
        }
    }

    /// Waits until the list of clients' constraints is applied for `namespaces`. Before it is, what the constraints before decided must end: so
    /// this connection has nothing under way meanwhile.
    async fn await_list(&mut self, namespaces: &[Namespace]) -> Result<Result<(), StoreError>, End> {
        self.leave_epoch().await?;
        let applied: BoxFuture<'_, _> = Box::pin(indexes::await_list(namespaces, self.service));
        let applied = applied.await;
        self.enter_epoch();
        Ok(applied)
    }
}
