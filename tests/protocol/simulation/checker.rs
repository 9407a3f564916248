//! Holds what happened against what must always hold. It knows nothing of the protocol and nothing of the cluster: only what
//! clients were told, which documents and reservations there were, and which operations took effect.

use std::collections::BTreeMap;

use crate::simulation::history::Happened;
use crate::simulation::plan::{LEASE, Time};
use crate::under_test::words::{Deed, Id, Key, Keys, NONE, Op, OpId, Outcome};

/// How long an operation may take once nothing goes wrong any more.
const PATIENCE: Time = 20 * LEASE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    TwoHolders {
        key: Key,
        ids: [Id; 2],
    },
    /// Nobody held the key during the call.
    WrongDuplicate {
        op: OpId,
        key: Key,
    },
    /// No document had this `_id` during the call.
    WrongDuplicateId {
        op: OpId,
    },
    /// The document was there all the time.
    WrongNothing {
        op: OpId,
    },
    /// It was acknowledged, and isn't there.
    Lost {
        op: OpId,
    },
    /// It was refused, and is there.
    RefusedButDone {
        op: OpId,
        outcome: Outcome,
    },
    DoneTwice {
        op: OpId,
    },
    /// A document's key without its reservation.
    NotReserved {
        id: Id,
        key: Key,
    },
    /// A reservation of nobody's that the sweeper left.
    LeftOver {
        key: Key,
        owner: Id,
    },
    /// An operation took far too long, with nothing going wrong.
    Stuck {
        op: OpId,
    },
    /// It was never answered.
    Unanswered {
        op: OpId,
    },
}

#[derive(Debug, Default)]
pub struct Checker {
    /// Nothing goes wrong any more from here on.
    pub faults_until: Time,
    documents: BTreeMap<Id, Keys>,
    reservations: BTreeMap<Key, Id>,
    operations: BTreeMap<OpId, Operation>,
    open: Vec<OpId>,
}

#[derive(Debug)]
struct Operation {
    what: Op,
    since: Time,
    /// Keys that a document has held at some moment of the call.
    held: Keys,
    /// Whether its document was there, and wasn't, at some moment of the call.
    was_there: bool,
    was_absent: bool,
    was_sent_again: bool,
    effects: i32,
    /// Whether its second try has asked the cluster for something since it took effect: it could have known, then.
    could_know: bool,
    outcome: Option<Outcome>,
}

impl Checker {
    pub fn take(&mut self, now: Time, happened: &Happened) -> Result<(), Violation> {
        match happened {
            Happened::Called { op, what } => self.called(now, *op, *what),
            Happened::SentAgain { op } => self.operation(*op, |operation| operation.was_sent_again = true),
            Happened::Answered { op, outcome } => return self.answered(now, *op, *outcome),
            Happened::Documents(changed) => {
                changed.iter().for_each(|(id, keys)| self.document(*id, *keys));
                return changed.iter().try_for_each(|(id, _)| self.is_alone(*id));
            }
            Happened::Reservation { key, owner } => {
                match owner {
                    Some(owner) => self.reservations.insert(*key, *owner),
                    None => self.reservations.remove(key),
                };
            }
            Happened::TookEffect { op } => {
                self.operation(*op, |operation| {
                    operation.effects += 1;
                    operation.could_know = !operation.was_sent_again;
                });
                if self.operations.get(op).is_some_and(|operation| operation.effects > 1) {
                    return Err(Violation::DoneTwice { op: *op });
                }
            }
            Happened::Undone { op } => self.operation(*op, |operation| operation.effects -= 1),
            Happened::ShownByADeposedPrimary { key } => {
                let open: Vec<OpId> = self.open.clone();
                for op in open {
                    self.operation(op, |operation| operation.held = operation.held.and(Keys::of(*key)));
                }
            }
            Happened::Quiet => return self.quiet(),
            Happened::Sent { task, .. } if task.try_number > 0 => {
                self.operation(task.op, |operation| operation.could_know = true);
            }
            Happened::Begun { .. } | Happened::Sent { .. } | Happened::Received { .. } | Happened::Fault(_) => {}
        }
        Ok(())
    }

    fn operation(&mut self, op: OpId, change: impl FnOnce(&mut Operation)) {
        if let Some(operation) = self.operations.get_mut(&op) {
            change(operation);
        }
    }

    fn called(&mut self, now: Time, op: OpId, what: Op) {
        let is_there = self.documents.contains_key(&what.deed.id());
        let operation = Operation {
            what,
            since: now,
            held: self.documents.values().fold(NONE, |all, keys| all.and(*keys)),
            was_there: is_there,
            was_absent: !is_there,
            was_sent_again: false,
            effects: 0,
            could_know: false,
            outcome: None,
        };
        self.operations.insert(op, operation);
        self.open.push(op);
    }

    fn document(&mut self, id: Id, keys: Option<Keys>) {
        match keys {
            Some(keys) => self.documents.insert(id, keys),
            None => self.documents.remove(&id),
        };
        for op in &self.open {
            let Some(operation) = self.operations.get_mut(op) else {
                continue;
            };
            operation.held = operation.held.and(keys.unwrap_or(NONE));
            if operation.what.deed.id() == id {
                operation.was_there |= keys.is_some();
                operation.was_absent |= keys.is_none();
            }
        }
    }

    /// Whether nobody else holds its keys.
    fn is_alone(&self, id: Id) -> Result<(), Violation> {
        for key in self.documents.get(&id).copied().unwrap_or(NONE).iter() {
            let mut others = self
                .documents
                .iter()
                .filter(|(other, held)| **other != id && held.has(key));
            if let Some((other, _)) = others.next() {
                let ids = [*other, id];
                return Err(Violation::TwoHolders { key, ids });
            }
        }
        Ok(())
    }

    fn answered(&mut self, now: Time, op: OpId, outcome: Outcome) -> Result<(), Violation> {
        self.open.retain(|open| *open != op);
        let Some(operation) = self.operations.get_mut(&op) else {
            return Ok(());
        };
        operation.outcome = Some(outcome);
        let is_stuck = now > operation.since.max(self.faults_until) + PATIENCE;
        match outcome {
            Outcome::Duplicate(key) if !operation.held.has(key) => Err(Violation::WrongDuplicate { op, key }),
            Outcome::DuplicateId if !operation.was_there => Err(Violation::WrongDuplicateId { op }),
            Outcome::Nothing if !operation.was_absent => Err(Violation::WrongNothing { op }),
            Outcome::Applied if operation.effects != 1 => Err(Violation::Lost { op }),
            // Else the first try came while the answer of the second was on its way, as it may on a server without Keyward.
            refusal if refusal.is_refusal() && operation.effects != 0 && operation.could_know => {
                Err(Violation::RefusedButDone { op, outcome })
            }
            _ if is_stuck => Err(Violation::Stuck { op }),
            _ => Ok(()),
        }
    }

    fn quiet(&self) -> Result<(), Violation> {
        for (id, keys) in &self.documents {
            if let Some(key) = keys.iter().find(|key| self.reservations.get(key) != Some(id)) {
                return Err(Violation::NotReserved { id: *id, key });
            }
        }
        for (key, owner) in &self.reservations {
            if !self.documents.get(owner).is_some_and(|keys| keys.has(*key)) {
                return Err(Violation::LeftOver {
                    key: *key,
                    owner: *owner,
                });
            }
        }
        for (op, operation) in &self.operations {
            match operation.outcome {
                None => return Err(Violation::Unanswered { op: *op }),
                Some(Outcome::Applied) if operation.effects != 1 => return Err(Violation::Lost { op: *op }),
                // The first try may come after the second one was refused, as it may on a server without Keyward.
                Some(_) if operation.was_sent_again => {}
                Some(outcome) if outcome.is_refusal() && operation.effects != 0 => {
                    return Err(Violation::RefusedButDone { op: *op, outcome });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: OpId = OpId { client: 0, index: 0 };

    fn call(deed: Deed) -> Happened {
        let what = Op {
            deed,
            retryable: false,
            recalls: None,
        };
        Happened::Called { op: OP, what }
    }

    fn insert() -> Happened {
        call(Deed::Insert {
            id: 0,
            keys: Keys::of(0),
        })
    }

    fn answer(outcome: Outcome) -> Happened {
        Happened::Answered { op: OP, outcome }
    }

    fn is_there(id: Id, key: Key) -> Happened {
        Happened::Documents(vec![(id, Some(Keys::of(key)))])
    }

    fn reserved(key: Key, id: Id) -> Happened {
        Happened::Reservation { key, owner: Some(id) }
    }

    const DONE: Happened = Happened::TookEffect { op: OP };

    fn check(all: &[Happened]) -> Result<(), Violation> {
        let mut checker = Checker::default();
        all.iter().try_for_each(|happened| checker.take(0, happened))
    }

    #[test]
    fn an_insert_as_it_should_be() {
        let all = [
            insert(),
            reserved(0, 0),
            is_there(0, 0),
            DONE,
            answer(Outcome::Applied),
            Happened::Quiet,
        ];
        assert_eq!(check(&all), Ok(()));
    }

    #[test]
    fn two_holders() {
        assert_eq!(
            check(&[is_there(0, 1), is_there(1, 1)]),
            Err(Violation::TwoHolders { key: 1, ids: [0, 1] })
        );
    }

    #[test]
    fn refusals_without_a_reason() {
        let gone = Happened::Documents(vec![(1, None)]);
        let before = [is_there(1, 0), gone, insert(), answer(Outcome::Duplicate(0))];
        assert_eq!(check(&before), Err(Violation::WrongDuplicate { op: OP, key: 0 }));
        let meanwhile = [
            is_there(1, 0),
            insert(),
            Happened::Documents(vec![(1, None)]),
            answer(Outcome::Duplicate(0)),
        ];
        assert_eq!(check(&meanwhile), Ok(()));
        assert_eq!(
            check(&[insert(), answer(Outcome::DuplicateId)]),
            Err(Violation::WrongDuplicateId { op: OP })
        );
        let nothing = [is_there(0, 0), call(Deed::Delete { id: 0 }), answer(Outcome::Nothing)];
        assert_eq!(check(&nothing), Err(Violation::WrongNothing { op: OP }));
    }

    #[test]
    fn what_is_said_and_what_is_there() {
        assert_eq!(
            check(&[insert(), answer(Outcome::Applied)]),
            Err(Violation::Lost { op: OP })
        );
        let undone = [
            insert(),
            DONE,
            answer(Outcome::Applied),
            Happened::Undone { op: OP },
            Happened::Quiet,
        ];
        assert_eq!(check(&undone), Err(Violation::Lost { op: OP }));
        assert_eq!(check(&[insert(), DONE, DONE]), Err(Violation::DoneTwice { op: OP }));
        let outcome = Outcome::Unsure;
        let refused = Err(Violation::RefusedButDone { op: OP, outcome });
        assert_eq!(check(&[insert(), DONE, answer(outcome)]), refused);
        assert_eq!(check(&[insert(), answer(outcome), DONE, Happened::Quiet]), refused);
        assert_eq!(
            check(&[insert(), Happened::Quiet]),
            Err(Violation::Unanswered { op: OP })
        );
    }

    #[test]
    fn held_and_reserved() {
        assert_eq!(
            check(&[is_there(0, 1), Happened::Quiet]),
            Err(Violation::NotReserved { id: 0, key: 1 })
        );
        assert_eq!(
            check(&[reserved(1, 0), Happened::Quiet]),
            Err(Violation::LeftOver { key: 1, owner: 0 })
        );
    }

    #[test]
    fn too_long() {
        let mut checker = Checker::default();
        assert_eq!(checker.take(0, &insert()), Ok(()));
        let late = checker.take(PATIENCE + 1, &answer(Outcome::Unknown));
        assert_eq!(late, Err(Violation::Stuck { op: OP }));
    }
}
