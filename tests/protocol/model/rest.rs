//! Liveness: from every state, whatever has gone wrong on the way to it, there is a way to rest on which nothing more goes wrong.
//!
//! stateright's own `eventually` says nothing of states that several paths lead to, as most are here.

use std::collections::HashMap;

use stateright::Model;

use crate::model::runs::World;
use crate::model::state::State;
use crate::under_test::rules::Rules;

/// Every state that was found, each with those from which it follows without a fault.
#[derive(Default)]
struct Graph {
    known: HashMap<State, usize>,
    before: Vec<Vec<usize>>,
}

impl Graph {
    /// Its number, and whether it is new.
    fn number(&mut self, state: &State) -> (usize, bool) {
        if let Some(number) = self.known.get(state) {
            return (*number, false);
        }
        let number = self.before.len();
        self.known.insert(state.clone(), number);
        self.before.push(Vec::new());
        (number, true)
    }
}

/// Looks at every state; from each one it must be possible to come to rest.
pub fn comes_to_rest(world: World, rules: Rules, faults: u8) {
    let system = world.system(rules, faults);
    let mut graph = Graph::default();
    let (mut left, mut reached) = (Vec::new(), Vec::new());
    for state in system.init_states() {
        left.push((graph.number(&state).0, state));
    }
    while let Some((number, state)) = left.pop() {
        if state.is_quiet(&system) {
            reached.push(number);
        }
        for next in system.next_states(&state) {
            let (following, is_new) = graph.number(&next);
            if next.faults == state.faults {
                graph.before[following].push(number);
            }
            if is_new {
                left.push((following, next));
            }
        }
    }
    let mut can_rest = vec![false; graph.before.len()];
    while let Some(number) = reached.pop() {
        if !std::mem::replace(&mut can_rest[number], true) {
            reached.extend(&graph.before[number]);
        }
    }
    println!(
        "{world:?}, {:?}, {faults} faults: {} states",
        rules.mode,
        can_rest.len()
    );
    let stuck = graph.known.iter().find(|(_, number)| !can_rest[**number]);
    assert!(
        stuck.is_none(),
        "no way to rest from {:#?}",
        stuck.map(|(state, _)| state)
    );
}
