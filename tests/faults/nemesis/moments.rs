//! At every moment one holder for each key, and each of a document's keys reserved by it; of keys that are unique at times
//! only in the windows in which they are, which begin with what is there by then.

use std::collections::{BTreeSet, HashMap};

use crate::nemesis::checker::{COLLECTION, Violation};
use crate::nemesis::history::Millis;
use crate::nemesis::keys::{Held, is_phone, keys_of, reserved};
use crate::nemesis::oplog::{Change, Moment};
use crate::nemesis::phones::Window;

/// What the collections of its reservations are called begins so.
const RESERVATIONS: &str = "keyward.accounts.";

/// All that is wrong at some moment.
pub fn every_moment(moments: &[Moment], windows: &[Window]) -> Vec<Violation> {
    let mut state = State::default();
    let mut violations = Vec::new();
    let mut to_come = windows.iter().peekable();
    for moment in moments {
        while let Some(window) = to_come.next_if(|window| window.from <= moment.wall) {
            violations.extend(state.of_phones(window));
        }
        let touched = moment.changes.iter().flat_map(|change| state.take(change));
        let touched: BTreeSet<Held> = touched.collect();
        let is_demanded = |key: &&Held| !is_phone(key) || windows.iter().any(|window| is_within(window, moment.wall));
        let at = format!("{:?}", moment.at);
        let judged = touched.iter().filter(is_demanded);
        violations.extend(judged.flat_map(|key| state.judge(key, &at)));
    }
    violations.extend(to_come.flat_map(|window| state.of_phones(window)));
    violations
}

fn is_within(window: &Window, wall: Millis) -> bool {
    window.from <= wall && window.until.is_none_or(|until| wall < until)
}

/// Who holds what, and for whom it is reserved.
#[derive(Default)]
struct State {
    holders: HashMap<Held, BTreeSet<String>>,
    reservations: HashMap<Held, String>,
}

impl State {
    /// Takes in a change; gives the keys that it is about.
    fn take(&mut self, change: &Change) -> BTreeSet<Held> {
        let mut touched = BTreeSet::new();
        if change.collection == COLLECTION {
            let id = change.id.to_string();
            for key in change.before.iter().flat_map(keys_of) {
                self.holders.entry(key.clone()).or_default().remove(&id);
                touched.insert(key);
            }
            for key in change.after.iter().flat_map(keys_of) {
                self.holders.entry(key.clone()).or_default().insert(id.clone());
                touched.insert(key);
            }
        } else if change.collection.starts_with(RESERVATIONS)
            && let Some(key) = change.before.as_ref().or(change.after.as_ref()).and_then(reserved)
        {
            match change.after.as_ref().and_then(|after| after.get("owner")) {
                Some(owner) => drop(self.reservations.insert(key.clone(), owner.to_string())),
                None => drop(self.reservations.remove(&key)),
            }
            touched.insert(key);
        }
        touched
    }

    /// What is wrong as `window` begins.
    fn of_phones(&self, window: &Window) -> Vec<Violation> {
        let at = format!("the beginning of {window:?}");
        let mut phones: Vec<&Held> = self.holders.keys().filter(|key| is_phone(key)).collect();
        phones.sort();
        phones.into_iter().flat_map(|key| self.judge(key, &at)).collect()
    }

    fn judge(&self, key: &Held, at: &str) -> Vec<Violation> {
        let mut violations = Vec::new();
        let Some(ids) = self.holders.get(key).filter(|ids| !ids.is_empty()) else {
            return violations;
        };
        if ids.len() > 1 {
            violations.push(Violation::TwoHolders(format!("{key:?} at {at} by {ids:?}")));
        }
        let owner = self.reservations.get(key);
        if ids.iter().any(|id| Some(id) != owner) {
            let what = format!("{key:?} at {at} by {ids:?}, reserved by {owner:?}");
            violations.push(Violation::Unprotected(what));
        }
        violations
    }
}
