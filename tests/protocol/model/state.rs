//! A state of a run: the cluster, what is on its way, who is at what, and what clients have heard.

use crate::model::size::Store;
use crate::model::system::System;
use crate::under_test::network::{Message, Phase, Request};
use crate::under_test::task::{Requests, Task};
use crate::under_test::words::{At, Id, Keys, Outcome, TaskId};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub store: Store,
    pub network: Vec<Message>,
    pub tasks: Vec<Task>,
    pub clients: Vec<Client>,
    pub faults: u8,
    /// A document that the backfill has yet to read.
    pub to_backfill: Option<Id>,
    /// A primary is deposed, and doesn't know.
    pub is_deposed: bool,
    /// A duplicate was reported of a key that nobody held.
    pub wrong_duplicate: bool,
    /// A refusal was reported of what had taken effect.
    pub wrong_refusal: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Client {
    pub call: Option<Call>,
    /// Each with whether the driver had sent it again.
    pub outcomes: Vec<(Outcome, bool)>,
}

/// A client's operation under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    pub try_number: u8,
    /// Keys that a document has held at some moment since it began.
    pub held: Keys,
}

impl State {
    pub fn send(&mut self, from: TaskId, requests: Requests) {
        self.network.extend(requests.into_iter().map(|request| Message {
            to: Some(from),
            request,
        }));
    }

    pub fn take(&mut self, message: &Message) {
        if let Some(index) = self.network.iter().position(|other| other == message) {
            self.network.remove(index);
        }
    }

    /// Nobody waits for these replies any more; what would only have told something is gone.
    pub fn forget(&mut self, is_gone: impl Fn(TaskId) -> bool) {
        for message in &mut self.network {
            if message.to.is_some_and(&is_gone) {
                message.to = None;
            }
        }
        self.network
            .retain(|message| message.to.is_some() || message.request.is_write());
    }

    pub fn is_back_at_the_start(&self, message: &Message) -> bool {
        matches!(&message.request, Request::Write(write) if write.phase == Phase::Sent)
    }

    pub fn note_what_is_held(&mut self) {
        let held = self.store.held();
        for call in self.clients.iter_mut().filter_map(|client| client.call.as_mut()) {
            call.held = call.held.and(held);
        }
    }

    /// Only the order of times counts, and only of those that somebody knows.
    pub fn renumber(&mut self) {
        fn visit_all(state: &mut State, visit: &mut impl FnMut(&mut At)) {
            state
                .store
                .reservations
                .iter_mut()
                .flatten()
                .for_each(|there| visit(&mut there.at));
            state
                .network
                .iter_mut()
                .for_each(|message| message.request.times(visit));
            state.tasks.iter_mut().for_each(|task| task.times(visit));
        }
        let mut known = Vec::new();
        visit_all(self, &mut |at| known.push(*at));
        known.sort_unstable();
        known.dedup();
        let rank = |at: At| At::try_from(known.partition_point(|other| *other < at) + 1).unwrap_or(At::MAX);
        visit_all(self, &mut |at| *at = rank(*at));
        self.store.clock = At::try_from(known.len()).unwrap_or(At::MAX);
        self.network.sort_unstable();
        self.tasks.sort_unstable_by_key(|task| task.id);
    }

    /// Nobody is at anything, and nobody wants anything more. What is still on its way may as well never arrive.
    pub fn is_quiet(&self, system: &System) -> bool {
        self.tasks.is_empty()
            && !self.store.locked.iter().any(Option::is_some)
            && self
                .clients
                .iter()
                .zip(&system.programs)
                .all(|(client, program)| client.outcomes.len() == program.len())
    }
}
