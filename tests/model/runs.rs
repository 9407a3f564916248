//! Small worlds, each with two clients on two Keywards, and the checker let loose on them.

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::rules::Rules;
use crate::system::{System, once, retryable};
use crate::words::{A, AB, B, Deed};

/// A small world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// Two documents want one key.
    Rivals,
    /// Two documents want the same two keys.
    Crossing,
    /// A document gives up one key for another, and a second document wants the first one.
    Change,
    /// A document gives up its key for one that another document gives up by being deleted.
    Exchange,
    /// A document is inserted, deleted by somebody else, and its key wanted by another.
    Moved,
}

impl World {
    pub fn system(self, rules: Rules, faults: u8) -> System {
        let insert = |id, keys| Deed::Insert { id, keys };
        let (documents, programs) = match self {
            World::Rivals => (vec![], vec![vec![retryable(insert(0, A))], vec![once(insert(1, A))]]),
            World::Crossing => (vec![], vec![vec![retryable(insert(0, AB))], vec![once(insert(1, AB))]]),
            World::Change => {
                let change = retryable(Deed::Change { id: 0, to: B });
                (vec![(0, A)], vec![vec![change], vec![once(insert(1, A))]])
            }
            World::Exchange => {
                let change = retryable(Deed::Change { id: 0, to: B });
                (vec![(0, A), (1, B)], vec![vec![change], vec![once(Deed::Delete { id: 1 })]])
            }
            World::Moved => {
                let second = vec![once(Deed::Delete { id: 0 }), once(insert(1, A))];
                (vec![], vec![vec![retryable(insert(0, A))], second])
            }
        };
        System {
            rules,
            documents,
            programs,
            faults,
        }
    }
}

/// What the checker found.
#[derive(Debug)]
pub struct Found {
    pub states: usize,
    pub depth: usize,
    /// Whether it looked at every state.
    pub is_complete: bool,
    /// The property that doesn't hold, and how that comes about.
    pub counterexample: Option<(&'static str, Vec<String>)>,
}

/// Looks at every state until one breaks a property.
pub fn check(world: World, rules: Rules, faults: u8, limit: Duration) -> Found {
    let started = Instant::now();
    let checker = world.system(rules, faults).checker();
    let checker = checker.threads(2).timeout(limit).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries().into_iter().next();
    let counterexample = found.map(|(name, path)| {
        let actions = path.into_actions();
        (name, actions.iter().map(|action| format!("{action:?}")).collect())
    });
    let found = Found {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        is_complete: started.elapsed() < limit && counterexample.is_none(),
        counterexample,
    };
    println!(
        "{world:?}, {rules:?}, {faults} faults: {} states, depth {}, complete: {}, {:.1?}",
        found.states,
        found.depth,
        found.is_complete,
        started.elapsed()
    );
    if let Some((name, actions)) = &found.counterexample {
        println!("  NOT: {name}");
        actions.iter().for_each(|action| println!("    {action}"));
    }
    found
}
