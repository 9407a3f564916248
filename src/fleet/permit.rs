//! Decides whether this Keyward may write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Whether this Keyward may write: its entry can't have been removed. Clones share it; to ask costs an atomic load and a look at the clock.
#[derive(Debug, Clone)]
pub struct Permit {
    begun: Instant,
    /// Until when it holds, in milliseconds since `begun`.
    until: Arc<AtomicU64>,
    /// How often it began anew for another entry.
    number: Arc<AtomicU64>,
}

impl Permit {
    /// A permit that doesn't hold yet.
    pub(super) fn withheld() -> Permit {
        Permit {
            begun: Instant::now(),
            until: Arc::default(),
            number: Arc::default(),
        }
    }

    /// Whether this Keyward may write.
    pub fn holds(&self) -> bool {
        let passed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        passed < self.until.load(Ordering::Acquire)
    }

    /// Makes it hold until then.
    pub(super) fn prolong(&self, until: Instant) {
        let until = until.saturating_duration_since(self.begun).as_millis();
        self.until
            .store(until.try_into().unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Ends it at once.
    pub(super) fn withdraw(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Ends it for all commands that have begun: this Keyward has another entry now.
    pub(super) fn begin_anew(&self) {
        self.number.fetch_add(1, Ordering::AcqRel);
    }

    /// The permit of one connection's commands.
    pub fn of_commands(self) -> CommandPermit {
        CommandPermit {
            number: self.number.load(Ordering::Acquire),
            permit: self,
        }
    }
}

/// Whether a command may write: it was judged under the entry that this Keyward still has.
///
/// It is asked when a command is decided, and again right before each part of it goes on that may take effect. In between, a write may have
/// waited for longer than others wait for a Keyward that is gone. Then a constraint may have been made that the command doesn't reserve for.
#[derive(Debug, Clone)]
pub struct CommandPermit {
    permit: Permit,
    /// The number of the permit when the command was judged.
    number: u64,
}

impl CommandPermit {
    /// Begins the next command. Its collections and constraints must be read after this.
    pub fn begin(&mut self) {
        self.number = self.permit.number.load(Ordering::Acquire);
    }

    /// Whether the command may write.
    pub fn holds(&self) -> bool {
        // In this order: the permit that holds is then one of this number.
        self.permit.holds() && self.number == self.permit.number.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_permit_holds_until_it_is_over_or_withdrawn() {
        let permit = Permit::withheld();
        let shared = permit.clone();
        assert!(!shared.holds());
        permit.prolong(Instant::now() + Duration::from_secs(60));
        assert!(shared.holds());
        permit.withdraw();
        assert!(!shared.holds());
        permit.prolong(permit.begun);
        assert!(!shared.holds(), "its time is over");
    }

    /// Other Keywards may have enforced a constraint meanwhile that the command doesn't know of.
    #[test]
    fn a_command_from_before_another_entry_may_not_write() {
        let permit = Permit::withheld();
        permit.prolong(Instant::now() + Duration::from_secs(60));
        let mut command = permit.clone().of_commands();
        let takeover = command.clone();
        assert!(command.holds());
        permit.withdraw();
        permit.begin_anew();
        permit.prolong(Instant::now() + Duration::from_secs(60));
        assert!(permit.holds() && !command.holds());
        command.begin();
        assert!(command.holds() && !takeover.holds());
    }
}
