//! Runs the one timer of a connection.
//!
//! Keyward sets the timer only if it waits for one of these: the rest of a message, a large message or reply that can't go on, an idle
//! time-out, or the quiet before a stop. Messages don't set or reset it. When it fires, the connection checks whether anything
//! has happened meanwhile.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::{End, Requests, Session};

/// Whether the timer is set, and the step at which it was set.
#[derive(Debug)]
pub struct Timer {
    set_at_step: Option<u64>,
    /// When the connection was last found busy.
    busy_at: Instant,
}

impl Timer {
    /// Not set.
    pub fn new() -> Timer {
        Timer {
            set_at_step: None,
            busy_at: Instant::now(),
        }
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.set_at_step.is_some()
    }

    /// Unsets it, so that it is set for the new reason.
    pub fn unset(&mut self) {
        self.set_at_step = None;
    }
}

impl Session {
    /// Sets the timer if something is to be waited for and it isn't set.
    pub(super) fn set(&self, timer: &mut Timer, sleep: Pin<&mut Sleep>) {
        if timer.is_set() {
            return;
        }
        if let Some(after) = self.rings_after() {
            timer.set_at_step = Some(self.steps);
            sleep.reset(Instant::now() + after);
        }
    }

    fn rings_after(&self) -> Option<Duration> {
        let idle = Some(self.limits.idle_timeout).filter(|idle| !idle.is_zero());
        match &self.drain {
            Some(drain) => Some(drain.quiet()),
            None if self.is_within_message() || self.holds_others_up() => Some(self.limits.message_timeout),
            None => idle.map(|idle| idle.min(self.limits.message_timeout)),
        }
    }

    fn is_within_message(&self) -> bool {
        self.requests == Requests::Reading && !self.client_in.inbox.bytes().is_empty()
    }

    /// Whether a message of the client, or Keyward's reply to one, holds a share of the common memory. Or a new catalog waits for the reply to a
    /// write.
    fn holds_others_up(&self) -> bool {
        self.client_in.share.is_held()
            || self.unpacked_share.is_held()
            || self.replies.holds_memory()
            || self.next_epoch.is_some()
    }

    /// The consequence of the timer's ringing.
    pub(super) fn rang(&self, timer: &mut Timer) -> Option<End> {
        // The ringing itself was a step.
        let nothing_happened = timer.set_at_step.take().map(|step| step.wrapping_add(1)) == Some(self.steps);
        if !nothing_happened {
            timer.busy_at = Instant::now();
            return None;
        }
        if self.is_within_message() {
            return Some(End::Stalled).filter(|_| self.drain.is_none());
        }
        // Waiting for the server isn't the client's fault, however long it takes.
        if self.holds_others_up() && self.drain.is_none() && self.replies.awaits_client(&self.upstream.incoming) {
            return Some(End::Unread);
        }
        let may_go = self.continues_nothing();
        let is_idle = !self.limits.idle_timeout.is_zero() && timer.busy_at.elapsed() >= self.limits.idle_timeout;
        match self.drain {
            Some(_) if may_go => Some(End::Stopping),
            None if is_idle && self.replies.is_idle() && may_go => Some(End::Idle),
            _ => None,
        }
    }
}
