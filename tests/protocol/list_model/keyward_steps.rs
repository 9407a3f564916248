//! The next step of a Keyward: one command to the cluster, or one change of its own state. False: there is none now.

use super::cluster::{
    Declared, Enforcing, Following, Keyward, List, Listed, Message, Registered, State, WRITER, Write, object_id,
};
use super::system::{Broken, System};

impl System {
    /// Starts it: it has the constraints of the list from its first moment, and writes nowhere yet.
    pub fn start(&self, state: &mut State, number: u8) {
        let id = state.new_id();
        let applied = state.list;
        let reserves = applied.entry.map(|entry| entry.id);
        state.register.push(Registered {
            id,
            of: number,
            writes: false,
            reserves: false,
            applied: applied.version,
        });
        let keyward = &mut state.keywards[usize::from(number)];
        *keyward = Keyward {
            runs: true,
            starts: keyward.starts + 1,
            id,
            applied,
            reserves,
            following: Following::No,
            begun: None,
            enforcing: Enforcing::Idle,
            seen_enforced: None,
            declared: Declared::No,
            write: keyward.write,
        };
    }

    /// Before the first write: first the entry, then the list, then the epoch.
    pub fn declare(&self, state: &mut State, number: u8) -> bool {
        let declared = match state.keywards[usize::from(number)].declared {
            Declared::No => {
                let Some(entry) = state.entry_of(number) else {
                    return false;
                };
                entry.writes = true;
                Declared::Added
            }
            Declared::Added => {
                let reserves = state.keywards[usize::from(number)].reserves;
                let follows = state.list.entry.map(|entry| entry.id) == reserves;
                if !follows && !self.lacks(Broken::ListUnread) {
                    return false;
                }
                Declared::Follows
            }
            Declared::Follows => {
                if state.entry_of(number).is_some_and(|entry| !entry.reserves) {
                    state.end_epoch();
                }
                Declared::Yes
            }
            Declared::Yes => return false,
        };
        state.keywards[usize::from(number)].declared = declared;
        true
    }

    /// Its client's only write is decided, or sent.
    pub fn write(&self, state: &mut State, number: u8) -> bool {
        let keyward = &state.keywards[usize::from(number)];
        let reserves = keyward.reserves.is_some();
        let next = match keyward.write {
            Write::None if keyward.declared == Declared::Yes => {
                state.is_document_reserved |= reserves;
                Write::Decided(reserves)
            }
            Write::Decided(is_reserved) => {
                state.send(Message::Insert { is_reserved });
                Write::Done
            }
            Write::None | Write::Done => return false,
        };
        state.keywards[usize::from(number)].write = next;
        true
    }

    /// Applies a newer list, as a reload applies a file.
    pub fn follow(&self, state: &mut State, number: u8) -> bool {
        let keyward = &state.keywards[usize::from(number)];
        let following = match keyward.following {
            Following::No if keyward.applied.version == state.list.version => return false,
            Following::No => Following::HasRead(state.list),
            Following::HasRead(list) => return self.begin_to_follow(state, number, list),
            Following::Reserves(list) => {
                state.end_epoch();
                Following::Drains(list)
            }
            Following::Drains(_) if number == WRITER && state.has_unreserved() && !self.lacks(Broken::Undrained) => {
                return false;
            }
            Following::Drains(list) => {
                let Some(entry) = state.entry_of(number) else {
                    return false;
                };
                entry.reserves = true;
                Following::IsListed(list)
            }
            Following::IsListed(list) => {
                state.end_epoch();
                return self.have_applied(state, number, list);
            }
            Following::TakenOut(list) if self.lacks(Broken::EndedUnlooked) => Following::Ends(list),
            // If a client has made the constraint again, its builder may have read the register before.
            Following::TakenOut(list) => match state.list.version == list.version {
                true => Following::Ends(list),
                false => Following::No,
            },
            Following::Ends(list) => {
                state.end_epoch();
                state.keywards[usize::from(number)].reserves = None;
                return self.have_applied(state, number, list);
            }
        };
        state.keywards[usize::from(number)].following = following;
        true
    }

    fn begin_to_follow(&self, state: &mut State, number: u8, list: List) -> bool {
        let keyward = &mut state.keywards[usize::from(number)];
        // What keeps the constraints enforced is stopped first.
        keyward.enforcing = Enforcing::Idle;
        keyward.seen_enforced = None;
        match (keyward.reserves, list.entry) {
            (None, Some(entry)) => {
                keyward.reserves = Some(entry.id);
                keyward.following = Following::Reserves(list);
                true
            }
            (Some(_), None) if self.lacks(Broken::CatalogFirst) => {
                keyward.reserves = None;
                keyward.following = Following::TakenOut(list);
                true
            }
            (Some(_), None) => {
                keyward.following = Following::TakenOut(list);
                if let Some(entry) = state.entry_of(number) {
                    entry.reserves = false;
                }
                true
            }
            // It is the same constraint: it goes on to reserve.
            (Some(_), Some(entry)) => {
                keyward.reserves = Some(entry.id);
                self.have_applied(state, number, list)
            }
            (None, None) => self.have_applied(state, number, list),
        }
    }

    fn have_applied(&self, state: &mut State, number: u8, list: List) -> bool {
        let keyward = &mut state.keywards[usize::from(number)];
        keyward.applied = list;
        keyward.following = Following::No;
        true
    }

    /// Keeps the constraint enforced that the applied list has. It stands still while a newer list is applied.
    pub fn keep(&self, state: &mut State, number: u8) -> bool {
        let keyward = &state.keywards[usize::from(number)];
        if keyward.following != Following::No {
            return false;
        }
        let (own, applied) = (keyward.id, keyward.applied);
        let Some(Listed { id, builder }) = applied.entry else {
            return self.note_version(state, number);
        };
        if builder == Some(own) && keyward.begun != Some(id) {
            if !self.lacks(Broken::BegunUnsuspended) {
                state.end_epoch();
            }
            state.keywards[usize::from(number)].begun = Some(id);
            return true;
        }
        self.note_version(state, number)
            || self.list_itself(state, number)
            || self.record(state, number, id)
            || self.inherit(state, number, builder)
            || self.backfill(state, number, builder)
    }

    fn note_version(&self, state: &mut State, number: u8) -> bool {
        let version = state.keywards[usize::from(number)].applied.version;
        match state.entry_of(number) {
            Some(entry) if entry.applied != version => {
                entry.applied = version;
                true
            }
            _ => false,
        }
    }

    /// Its entry lists what all its writes reserve for.
    fn list_itself(&self, state: &mut State, number: u8) -> bool {
        match state.entry_of(number) {
            Some(entry) if !entry.reserves => {
                entry.reserves = true;
                true
            }
            _ => false,
        }
    }

    /// Records in the list that the constraint is built, once it has seen it enforced.
    fn record(&self, state: &mut State, number: u8, id: u8) -> bool {
        let is_enforced = state.is_enforced();
        let keyward = &mut state.keywards[usize::from(number)];
        let has_begun = keyward.begun == Some(id) || self.lacks(Broken::RecordedUnbegun);
        if !keyward.applied.is_finished(id) || !has_begun {
            return false;
        }
        if keyward.seen_enforced != Some(id) {
            keyward.seen_enforced = is_enforced.then_some(id);
            return is_enforced;
        }
        keyward.seen_enforced = None;
        state.list.change(|list| list.note_built(object_id(id)))
    }

    /// Becomes the builder, if the builder is gone from the register.
    fn inherit(&self, state: &mut State, number: u8, builder: Option<u8>) -> bool {
        let own = state.keywards[usize::from(number)].id;
        let Some(builder) = builder.filter(|builder| *builder != own) else {
            return false;
        };
        let lives = state.register.iter().any(|entry| entry.id == builder);
        !lives
            && state
                .list
                .change(|list| list.inherit(object_id(builder), object_id(own)))
    }

    /// Reads the epoch, then the register, then the documents, and notes `enforced` for that epoch.
    fn backfill(&self, state: &mut State, number: u8, builder: Option<u8>) -> bool {
        let own = state.keywards[usize::from(number)].id;
        if builder.is_some_and(|builder| builder != own) {
            return false;
        }
        let next = match state.keywards[usize::from(number)].enforcing {
            Enforcing::Idle if state.is_enforced() => return false,
            Enforcing::Idle => Enforcing::Epoch(state.epoch),
            Enforcing::Epoch(epoch) => match state.register.iter().any(|entry| entry.writes && !entry.reserves) {
                true => Enforcing::Idle,
                false => Enforcing::Reads(epoch),
            },
            Enforcing::Reads(epoch) => {
                state.is_document_reserved |= state.is_document_there;
                Enforcing::Notes(epoch)
            }
            Enforcing::Notes(epoch) => {
                self.note_enforced(state, epoch);
                Enforcing::Idle
            }
        };
        state.keywards[usize::from(number)].enforcing = next;
        true
    }

    pub fn note_enforced(&self, state: &mut State, epoch: u8) {
        if state.epoch == epoch {
            state.enforced_in = Some(epoch);
        }
    }

    pub fn kill(&self, state: &mut State, number: u8) {
        let keyward = &mut state.keywards[usize::from(number)];
        keyward.runs = false;
        if let Write::Decided(_) = keyward.write {
            keyward.write = Write::None;
        }
        if let Enforcing::Notes(epoch) = keyward.enforcing {
            state.send(Message::Enforce { epoch });
        }
        self.lose_clients(state, number);
    }
}
