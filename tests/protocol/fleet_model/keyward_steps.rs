//! What a Keyward does next, one command to the cluster, or one look at its own state, a step. False: nothing is to be done.

use crate::fleet_model::cluster::{Declared, Enforcing, Keyward, Message, Rejoining, Reload, State};
use crate::fleet_model::system::{Broken, Start, System};

impl System {
    pub fn start(&self, state: &mut State, number: u8) -> bool {
        let last = &state.keywards[usize::from(number)];
        let starts = last.starts + 1;
        let mut next = Keyward {
            starts,
            runs: true,
            may_write: true,
            declared: Declared::No,
            rejoining: Rejoining::No,
            enforcing: Enforcing::Idle,
            reload: Reload::None,
            has_decided: false,
            unsent: None,
            is_change_lost: false,
            ..last.clone()
        };
        next.reserves = matches!(self.kind(number, &next), Start::With | Start::GivingUp);
        // Who is started with the constraint has decided nothing without it: its entry lists it with the collection.
        next.wants = (next.reserves, next.reserves);
        if next.reserves {
            next.declared = Declared::Yes;
        }
        next.id = state.enter(number, next.wants);
        state.keywards[usize::from(number)] = next;
        true
    }

    /// First the entry, then the epochs, then writes.
    pub fn declare(&self, state: &mut State, number: u8) -> bool {
        let mut keyward = state.keywards[usize::from(number)].clone();
        let is_locked = keyward.rejoining != Rejoining::No;
        let is_early = self.lacks(Broken::EpochEndedFirst);
        keyward.declared = match keyward.declared {
            Declared::No if is_early => {
                state.end_epoch();
                Declared::EpochEnded(keyward.id)
            }
            Declared::No if !is_locked => {
                keyward.wants.0 = true;
                if !state.change(keyward.id, |entry| entry.writes = true) {
                    return false;
                }
                match self.lacks(Broken::ForwardsFirst) {
                    true => Declared::Yes,
                    false => Declared::Added(keyward.id),
                }
            }
            Declared::Added(id) => {
                if !keyward.wants.1 {
                    state.end_epoch();
                }
                Declared::EpochEnded(id)
            }
            Declared::EpochEnded(_) if is_early => {
                keyward.wants.0 = true;
                if is_locked || !state.change(keyward.id, |entry| entry.writes = true) {
                    return false;
                }
                Declared::Yes
            }
            Declared::EpochEnded(id) => match self.lacks(Broken::NotedUnderAnOldEntry) || id == keyward.id {
                true if is_locked && !self.lacks(Broken::NotedUnderAnOldEntry) => return false,
                true => Declared::Yes,
                false => Declared::Added(keyward.id),
            },
            Declared::No | Declared::Yes => return false,
        };
        state.keywards[usize::from(number)] = keyward;
        true
    }

    /// Its client's document is decided about, or sent if that is done.
    pub fn write(&self, state: &mut State, number: u8) -> bool {
        if state.keywards[usize::from(number)].unsent.is_some() {
            return self.send(state, number);
        }
        let keyward = &state.keywards[usize::from(number)];
        let may_write = keyward.may_write || self.lacks(Broken::LeaseUnlooked);
        let is_there = state.documents[usize::from(number)];
        if keyward.has_decided || is_there || keyward.declared != Declared::Yes || !may_write {
            return false;
        }
        let reserves = keyward.reserves;
        let is_reserved = match reserves {
            true => match state.reserve(number) {
                None => return false,
                Some(is_reserved) => is_reserved,
            },
            false => false,
        };
        let keyward = &mut state.keywards[usize::from(number)];
        keyward.has_decided = true;
        keyward.unsent = (is_reserved || !reserves).then_some(is_reserved);
        true
    }

    /// What was decided goes on, however much later; unless its Keyward may not write by then, which it looks at once more.
    fn send(&self, state: &mut State, number: u8) -> bool {
        let keyward = &mut state.keywards[usize::from(number)];
        let Some(is_reserved) = keyward.unsent.take() else {
            return false;
        };
        let start = keyward.starts;
        if keyward.may_write || self.lacks(Broken::LeaseUnlooked) || self.lacks(Broken::SentUnlooked) {
            state.send(Message::Insert {
                of: number,
                start,
                is_reserved,
            });
        }
        true
    }

    /// Reads the epoch, then the register, backfills, and notes it for that epoch.
    pub fn enforce(&self, state: &mut State, number: u8) -> bool {
        let keyward = &state.keywards[usize::from(number)];
        let is_listed = keyward.reserves && matches!(keyward.reload, Reload::None | Reload::Done);
        if !is_listed || keyward.reload == Reload::None && self.kind(number, keyward) == Start::Reloaded {
            return false;
        }
        let is_waited_for = !self.lacks(Broken::RegisterUnread) && state.register.iter().any(|entry| entry.lacks());
        let next = match keyward.enforcing {
            Enforcing::Idle if state.is_enforced() => return false,
            Enforcing::Idle if self.lacks(Broken::RegisterBeforeEpoch) => match is_waited_for {
                true => return false,
                false => Enforcing::Register,
            },
            Enforcing::Idle => Enforcing::CatalogEpoch(state.epoch),
            Enforcing::Register => Enforcing::Reads(state.epoch, 0),
            Enforcing::CatalogEpoch(_) if is_waited_for => Enforcing::Idle,
            Enforcing::CatalogEpoch(epoch) => Enforcing::Reads(epoch, 0),
            // A document that is there stays, so reading and reserving it is one step.
            Enforcing::Reads(epoch, document) => {
                let next = match document {
                    0 => Enforcing::Reads(epoch, 1),
                    _ => Enforcing::Notes(epoch),
                };
                match state.documents[usize::from(document)] {
                    false => next,
                    true => match state.reserve(document) {
                        None => return false,
                        Some(true) => next,
                        Some(false) => Enforcing::Violated,
                    },
                }
            }
            Enforcing::Notes(epoch) => {
                self.note_enforced(state, epoch);
                Enforcing::Idle
            }
            Enforcing::Violated => return false,
        };
        state.keywards[usize::from(number)].enforcing = next;
        true
    }

    fn note_enforced(&self, state: &mut State, epoch: u8) {
        if state.epoch == epoch || self.lacks(Broken::EpochIgnored) {
            state.enforced_in = Some(state.epoch);
        }
    }

    pub fn reload(&self, state: &mut State, number: u8) -> bool {
        let mut keyward = state.keywards[usize::from(number)].clone();
        let is_locked = keyward.rejoining != Rejoining::No;
        let kind = self.kind(number, &keyward);
        keyward.reload = match keyward.reload {
            Reload::None if kind == Start::Reloaded => {
                keyward.reserves = true;
                state.end_epoch();
                Reload::Drains
            }
            Reload::None if kind == Start::GivingUp => {
                // What takes documents in is stopped first.
                keyward.enforcing = Enforcing::Idle;
                Reload::GivesUp
            }
            Reload::Drains if is_locked => return false,
            Reload::Drains => {
                if state.has_undone(number) && !self.lacks(Broken::ListedUndrained) {
                    return false;
                }
                if !state.change(keyward.id, |entry| entry.reserves = true) {
                    return false;
                }
                keyward.wants.1 = true;
                Reload::Listed
            }
            Reload::Listed => {
                state.end_epoch();
                Reload::Done
            }
            Reload::GivesUp if is_locked => return false,
            Reload::GivesUp => {
                keyward.wants.1 = false;
                if keyward.is_change_lost && !self.lacks(Broken::EntryKeptAfterLateChange) {
                    // Nobody finds the old one by its id when the change comes.
                    keyward.may_write = false;
                    keyward.rejoining = Rejoining::Inserted(state.enter(number, keyward.wants));
                    keyward.is_change_lost = false;
                } else if !state.change(keyward.id, |entry| entry.reserves = false) {
                    return false;
                }
                Reload::TakenOut
            }
            Reload::TakenOut if is_locked => return false,
            Reload::TakenOut => {
                state.end_epoch();
                keyward.reserves = false;
                // What comes next is decided without it.
                keyward.has_decided = false;
                Reload::Done
            }
            Reload::None | Reload::Done => return false,
        };
        state.keywards[usize::from(number)] = keyward;
        true
    }

    /// The reload adds the constraint to the entry, and isn't told whether it is there.
    pub fn change_is_late(&self, state: &mut State, number: u8) -> bool {
        let keyward = &mut state.keywards[usize::from(number)];
        let is_drained = keyward.reload == Reload::Drains && keyward.rejoining == Rejoining::No;
        if !is_drained {
            return false;
        }
        keyward.reload = Reload::GivesUp;
        keyward.is_change_lost = true;
        let id = keyward.id;
        if state.has_undone(number) {
            return false;
        }
        state.send(Message::List { id });
        true
    }

    pub fn renew(&self, state: &mut State, number: u8) -> bool {
        let id = state.keywards[usize::from(number)].id;
        let is_there = state.register.iter().any(|entry| entry.id == id);
        let keyward = &mut state.keywards[usize::from(number)];
        if keyward.rejoining != Rejoining::No {
            return false;
        }
        match is_there {
            true => keyward.may_write = true,
            false => {
                let wants = keyward.wants;
                let new = state.enter(number, wants);
                state.keywards[usize::from(number)].rejoining = Rejoining::Inserted(new);
            }
        }
        true
    }

    /// The new entry is there: what is declared is suspended anew, then it may write.
    pub fn rejoin(&self, state: &mut State, number: u8) -> bool {
        let mut keyward = state.keywards[usize::from(number)].clone();
        keyward.rejoining = match keyward.rejoining {
            Rejoining::No => return false,
            Rejoining::Inserted(id) => {
                if keyward.declared == Declared::Yes && !keyward.wants.1 {
                    state.end_epoch();
                }
                Rejoining::EpochEnded(id)
            }
            Rejoining::EpochEnded(id) => {
                let is_replaced = keyward.id;
                if state.register.iter().any(|entry| entry.id == is_replaced) {
                    state.register.retain(|entry| entry.id != is_replaced);
                }
                keyward.id = id;
                keyward.may_write = true;
                Rejoining::No
            }
        };
        state.keywards[usize::from(number)] = keyward;
        true
    }

    /// Where something that it sent may still be done, its entry stays.
    pub fn stop(&self, state: &mut State, number: u8) -> bool {
        let id = state.keywards[usize::from(number)].id;
        if !state.has_unreserved(number) {
            state.register.retain(|entry| entry.id != id);
        }
        self.end(state, number);
        true
    }

    pub fn kill(&self, state: &mut State, number: u8) -> bool {
        if let Enforcing::Notes(epoch) = state.keywards[usize::from(number)].enforcing {
            state.send(Message::Enforce { epoch });
        }
        self.end(state, number);
        true
    }

    fn end(&self, state: &mut State, number: u8) {
        let keyward = &mut state.keywards[usize::from(number)];
        keyward.runs = false;
        keyward.may_write = false;
        keyward.unsent = None;
        keyward.declared = Declared::No;
        keyward.rejoining = Rejoining::No;
        keyward.enforcing = Enforcing::Idle;
        keyward.reload = Reload::None;
    }

    pub fn arrive(&self, state: &mut State, message: Message) {
        match message {
            Message::Insert { of, start, .. } => {
                state.documents[usize::from(of)] = true;
                let keyward = &mut state.keywards[usize::from(of)];
                keyward.is_acknowledged |= keyward.runs && keyward.starts == start;
            }
            Message::List { id } => {
                state.change(id, |entry| entry.reserves = true);
            }
            Message::Enforce { epoch } => self.note_enforced(state, epoch),
        }
    }
}
