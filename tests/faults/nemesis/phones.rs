//! The telephone numbers that clients write. They are unique only while a constraint that comes and goes is enforced: until
//! then each number is written once, so that nothing is in the constraint's way; after that again and again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use rand::Rng;
use rand::rngs::StdRng;

use crate::nemesis::history::{Millis, now};

/// So many of the last numbers are written again.
const RECENT: usize = 40;

/// A time in which two documents must not hold one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// When every Keyward had said that the constraint is enforced.
    pub from: Millis,
    /// When it was about to be taken away; never, if it is there in the end.
    pub until: Option<Millis>,
}

/// What all clients of one mode know of it.
#[derive(Default)]
pub struct Phones(Mutex<State>);

#[derive(Default)]
struct State {
    windows: Vec<Window>,
    recent: VecDeque<String>,
}

impl Phones {
    /// A number to write: `fresh` makes one that nobody has.
    pub fn choose(&self, fresh: i64, random: &mut StdRng) -> String {
        let mut state = self.state();
        if is_open(&state.windows) && random.random_ratio(2, 3) && !state.recent.is_empty() {
            let again = random.random_range(0..state.recent.len());
            return state.recent[again].clone();
        }
        let phone = format!("+{fresh}");
        state.recent.push_back(phone.clone());
        if state.recent.len() > RECENT {
            state.recent.pop_front();
        }
        phone
    }

    /// Every Keyward says that the constraint is enforced.
    pub fn demand(&self) {
        let window = Window {
            from: now(),
            until: None,
        };
        self.state().windows.push(window);
    }

    /// It is about to be taken away.
    pub fn relent(&self) {
        if let Some(window) = self.state().windows.last_mut() {
            window.until.get_or_insert_with(now);
        }
    }

    pub fn windows(&self) -> Vec<Window> {
        self.state().windows.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

/// Whether the constraint is there in the end.
pub fn is_open(windows: &[Window]) -> bool {
    windows.last().is_some_and(|window| window.until.is_none())
}
