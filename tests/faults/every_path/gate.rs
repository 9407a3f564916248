//! A TCP forwarder between a Keyward that is to be killed and its cluster: it notes each command of a write, and keeps back
//! the one at which the Keyward is to die.

use std::sync::{Arc, Condvar, Mutex, mpsc};

use bson::Document;

use testkit::relay::{Fate, Judge, Relay};

/// What becomes of the command at which its Keyward is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// It was never sent. The same as that the reply to the one before it wasn't read: a Keyward changes nothing between
    /// the two but what it has in memory.
    Unsent,
    /// It was on its way, and arrives when its Keyward is dead.
    Late,
}

/// The forwarder. What connects to it belongs to the round that was begun last.
pub struct Gate {
    relay: Relay,
    current: Arc<Mutex<Arc<Round>>>,
}

/// The life of one Keyward behind the gate.
pub struct Round {
    /// At which step it is to die, counted from zero, and how.
    at: Option<(usize, Last)>,
    hit: Mutex<Option<mpsc::Sender<()>>>,
    state: Mutex<State>,
    killed: Condvar,
}

#[derive(Default)]
struct State {
    /// The steps so far; `None` before the write begins.
    steps: Option<Vec<String>>,
    /// Nothing gets through any more.
    is_shut: bool,
    is_killed: bool,
}

impl Gate {
    pub fn start(target: String) -> Gate {
        let current = Arc::new(Mutex::new(Round::new(None, None)));
        let shared = current.clone();
        let judge = move || {
            // A connection belongs to the round in which it was opened.
            let round = shared.lock().unwrap().clone();
            Judge::of(move |request| round.judge(request), |_| Fate::Passed)
        };
        Gate {
            relay: Relay::judged_by_connection(target, judge),
            current,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.relay.address
    }

    /// Begins a round; `hit` is told when the step has come.
    pub fn begin(&self, at: Option<(usize, Last)>, hit: mpsc::Sender<()>) -> Arc<Round> {
        let round = Round::new(at, Some(hit));
        *self.current.lock().unwrap() = round.clone();
        round
    }
}

impl Round {
    fn new(at: Option<(usize, Last)>, hit: Option<mpsc::Sender<()>>) -> Arc<Round> {
        Arc::new(Round {
            at,
            hit: Mutex::new(hit),
            state: Mutex::default(),
            killed: Condvar::new(),
        })
    }

    /// From now on commands count.
    pub fn arm(&self) {
        self.state.lock().unwrap().steps = Some(Vec::new());
    }

    /// The Keyward is dead: what was on its way arrives.
    pub fn killed(&self) {
        self.state.lock().unwrap().is_killed = true;
        self.killed.notify_all();
    }

    /// What was counted.
    pub fn steps(&self) -> Vec<String> {
        self.state.lock().unwrap().steps.clone().unwrap_or_default()
    }

    /// Counts a request, and decides whether it gets through.
    fn judge(&self, request: &[u8]) -> Fate {
        let mut state = self.state.lock().unwrap();
        if state.is_shut {
            return Fate::Lost;
        }
        let Some(steps) = &mut state.steps else {
            return Fate::Passed;
        };
        let Some(step) = step(request) else { return Fate::Passed };
        steps.push(step);
        let number = steps.len() - 1;
        match self.at {
            Some((at, last)) if at == number => {
                state.is_shut = true;
                if let Some(hit) = self.hit.lock().unwrap().take() {
                    let _ = hit.send(());
                }
                let _dead = self.killed.wait_while(state, |state| !state.is_killed).unwrap();
                match last {
                    Last::Late => Fate::Passed,
                    Last::Unsent => Fate::Lost,
                }
            }
            _ => Fate::Passed,
        }
    }
}

/// What a command of a write does, in a few words; none for what every connection says.
pub fn step(request: &[u8]) -> Option<String> {
    let command = Document::from_reader(request.get(21..)?).ok()?;
    let (name, value) = command.iter().next()?;
    let inside = match command.contains_key("autocommit") {
        true => " (transaction)",
        false => "",
    };
    match name.as_str() {
        "commitTransaction" => Some("commit".to_owned()),
        "abortTransaction" => Some("abort".to_owned()),
        "insert" | "update" | "delete" | "find" | "aggregate" | "findAndModify" | "getMore" | "drop" => {
            let collection = match name.as_str() {
                "getMore" => command.get_str("collection").ok()?,
                _ => value.as_str()?,
            };
            let database = command.get_str("$db").ok()?;
            // No write's: Keyward looks at the clocks from time to time.
            if command
                .get_str("comment")
                .is_ok_and(|comment| comment.starts_with("keyward: "))
            {
                return None;
            }
            // Nor are the register of Keywards and the states of constraints, which Keyward looks at each second.
            let is_a_writes =
                collection != "keyward.constraints" && !["config", "admin", "keyward"].contains(&database);
            let short = collection.trim_start_matches("keyward.users.").trim_end_matches("_1");
            is_a_writes.then(|| format!("{name} {short}{inside}"))
        }
        _ => None,
    }
}
