//! Small worlds, each with two clients on two Keywards, and the checker let loose on them.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

use crate::model::actions::Action;
use crate::model::properties::UNIQUE;
use crate::model::state::State;
use crate::model::system::{System, once, retryable};
use crate::under_test::rules::Rules;
use crate::under_test::words::{A, AB, B, Deed, Op};

/// A small world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// Two documents want one key.
    SameKey,
    /// A document wants two keys, and another one of them.
    Overlap,
    /// Two documents want the same two keys.
    Crossing,
    /// A document gives up one key for another, and a second document wants the first one.
    Change,
    /// A document gives up its key for one that another document gives up by being deleted.
    Exchange,
    /// A document is inserted, deleted by somebody else, and its key wanted by another.
    Moved,
    /// A document is upserted with a key that another one wants, too.
    Upsert,
    /// The same without a transaction.
    PlainUpsert,
    /// A document is upserted without a transaction, which another client inserts and deletes.
    UpsertMet,
    /// As *Change*; and the first document is backfilled meanwhile.
    Backfilled,
    /// A document that is being backfilled is deleted and inserted again, and its key wanted by another.
    Renewed,
    /// A document without reservations is deleted while another client inserts it again. Then its key is wanted by another. It is
    /// backfilled meanwhile.
    Unreserved,
    /// As *Change*; and who wants the first key remembers the document as its holder.
    Recalled,
}

impl World {
    pub fn system(self, rules: Rules, faults: u8) -> System {
        let insert = |id, keys| Deed::Insert { id, keys };
        let mut to_backfill = None;
        let (documents, programs) = match self {
            World::SameKey => (vec![], vec![vec![retryable(insert(0, A))], vec![once(insert(1, A))]]),
            World::Overlap => (vec![], vec![vec![retryable(insert(0, AB))], vec![once(insert(1, B))]]),
            World::Crossing => (vec![], vec![vec![retryable(insert(0, AB))], vec![once(insert(1, AB))]]),
            World::Recalled => {
                let change = retryable(Deed::Change { id: 0, to: B });
                let wants = Op {
                    recalls: Some(0),
                    ..once(insert(1, A))
                };
                (vec![(0, A)], vec![vec![change], vec![wants]])
            }
            World::Change | World::Backfilled => {
                to_backfill = (self == World::Backfilled).then_some(0);
                let change = retryable(Deed::Change { id: 0, to: B });
                (vec![(0, A)], vec![vec![change], vec![once(insert(1, A))]])
            }
            World::Exchange => {
                let change = retryable(Deed::Change { id: 0, to: B });
                (
                    vec![(0, A), (1, B)],
                    vec![vec![change], vec![once(Deed::Delete { id: 1 })]],
                )
            }
            World::Upsert => {
                let upsert = retryable(Deed::Upsert { id: 0, keys: A });
                (vec![], vec![vec![upsert], vec![once(insert(1, A))]])
            }
            World::PlainUpsert => {
                let upsert = retryable(Deed::PlainUpsert { id: 0, keys: A });
                (vec![], vec![vec![upsert], vec![once(insert(1, A))]])
            }
            World::UpsertMet => {
                let upsert = retryable(Deed::PlainUpsert { id: 0, keys: A });
                let other = vec![once(insert(0, B)), once(Deed::Delete { id: 0 })];
                (vec![], vec![vec![upsert], other])
            }
            World::Renewed => {
                to_backfill = Some(0);
                let first = vec![once(Deed::Delete { id: 0 }), retryable(insert(0, A))];
                (vec![(0, A)], vec![first, vec![once(insert(1, A))]])
            }
            World::Unreserved => {
                to_backfill = Some(0);
                let second = vec![once(Deed::Delete { id: 0 }), once(insert(1, A))];
                (vec![(0, A)], vec![vec![retryable(insert(0, A))], second])
            }
            World::Moved => {
                let second = vec![once(Deed::Delete { id: 0 }), once(insert(1, A))];
                (vec![], vec![vec![retryable(insert(0, A))], second])
            }
        };
        let is_being_built = self == World::Unreserved;
        System {
            rules: Rules {
                is_being_built,
                ..rules
            },
            documents,
            programs,
            to_backfill,
            faults,
        }
    }
}

/// Looks at every state; none may break a property. How many there are stands in docs/correctness.md; a larger bound, in
/// `KEYWARD_MODEL_FAULTS`, is only printed.
pub fn holds(world: World, rules: Rules, faults: u8) {
    let asked = std::env::var("KEYWARD_MODEL_FAULTS")
        .ok()
        .and_then(|faults| faults.parse().ok());
    let started = Instant::now();
    let checker = world.system(rules, asked.unwrap_or(faults)).checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    if let Some((name, path)) = checker.discoveries().into_iter().next() {
        panic!("not so: {name}\n{}", told(path));
    }
    let states = checker.unique_state_count();
    let row = format!(
        "| {world:?} | {:?} | {} | {states} |",
        rules.mode,
        asked.unwrap_or(faults)
    );
    println!("{row} {:.1?}", started.elapsed());
    if asked.is_none() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/correctness.md");
        let text = std::fs::read_to_string(document).unwrap_or_default();
        assert!(text.contains(&row), "docs/correctness.md doesn't say {row}");
    }
}

/// Looks until it finds a way to two documents with one key.
pub fn fails(world: World, rules: Rules, faults: u8) {
    let started = Instant::now();
    let checker = world.system(rules, faults).checker().threads(2);
    let found = HasDiscoveries::AnyOf([UNIQUE].into());
    let checker = checker.finish_when(found).spawn_bfs().join();
    let path = checker.discovery(UNIQUE).map(told);
    let states = checker.unique_state_count();
    println!(
        "{world:?}, {rules:?}, {faults} faults: {states} states, {:.1?}",
        started.elapsed()
    );
    println!("{}", path.unwrap_or_else(|| panic!("no counterexample was found")));
}

fn told(path: Path<State, Action>) -> String {
    let actions = path.into_actions();
    actions.iter().map(|action| format!("    {action:?}\n")).collect()
}
