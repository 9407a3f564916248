//! The checker finds each kind of violation, and nothing where there is none.

use bson::{Timestamp, doc};

use super::*;
use crate::nemesis::history::Statement;

/// A run in the making: each call is a moment of its own, 100 ms after the last one.
#[derive(Default)]
struct Story {
    evidence: Option<Evidence>,
    documents: BTreeMap<i32, Document>,
    reservations: BTreeMap<Held, Document>,
    time: Millis,
}

const BEGIN: Millis = 100_000;
const STEP: Millis = 100_000;

impl Story {
    fn evidence(&mut self) -> &mut Evidence {
        self.evidence.get_or_insert_with(|| Evidence {
            operations: Vec::new(),
            moments: Vec::new(),
            windows: Vec::new(),
            documents: Vec::new(),
            reservations: Vec::new(),
        })
    }

    fn change(&mut self, collection: &str, id: Bson, before: Option<Document>, after: Option<Document>) {
        self.time += STEP;
        let wall = BEGIN + self.time;
        let time = u32::try_from(wall).unwrap();
        let change = Change {
            wall,
            transaction: None,
            collection: collection.to_owned(),
            id,
            before,
            after,
        };
        self.evidence().moments.push(Moment {
            at: Timestamp { time, increment: 0 },
            wall,
            changes: vec![change],
        });
    }

    fn reserve(&mut self, email: &str, owner: Option<i32>) {
        let key = key("email", &Bson::String(email.to_owned()));
        let id = Bson::from(doc! { "h": 1, "k": { "email": email } });
        let after = owner.map(|owner| doc! { "_id": id.clone(), "owner": owner });
        let before = match &after {
            Some(after) => self.reservations.insert(key, after.clone()),
            None => self.reservations.remove(&key),
        };
        self.change("keyward.accounts.email_1", id, before, after);
    }

    fn put(&mut self, id: i32, email: &str, writer: i64) {
        let after = doc! { "_id": id, "email": email, "writer": writer };
        let before = self.documents.insert(id, after.clone());
        self.change(COLLECTION, Bson::Int32(id), before, Some(after));
    }

    fn delete(&mut self, id: i32) {
        let before = self.documents.remove(&id);
        self.change(COLLECTION, Bson::Int32(id), before, None);
    }

    /// An operation that began `back` changes ago and ends now.
    fn told(&mut self, back: i64, id: i32, kind: Kind, verdict: Verdict) -> &mut Operation {
        let ended = BEGIN + self.time + STEP / 2;
        let began = ended - back * STEP;
        self.evidence().operations.push(Operation {
            client: 0,
            name: "set",
            began,
            ended,
            outcome: match verdict {
                Verdict::Unknown => Outcome::Unknown(String::new()),
                _ => Outcome::Ok,
            },
            statements: vec![Statement { id, kind, verdict }],
            duplicates: Vec::new(),
        });
        self.evidence().operations.last_mut().unwrap()
    }

    fn refused(&mut self, back: i64, id: i32, email: &str) {
        let key = key("email", &Bson::String(email.to_owned()));
        let operation = self.told(back, id, Kind::Write(1_000), Verdict::Nothing);
        operation.outcome = Outcome::Duplicate;
        operation.duplicates.push(Duplicate { id, key });
    }

    /// Reserves, inserts, and tells.
    fn insert(&mut self, id: i32, email: &str, writer: i64) {
        self.reserve(email, Some(id));
        self.put(id, email, writer);
        self.told(2, id, Kind::Write(writer), Verdict::Applied);
    }

    fn check(mut self) -> Vec<Violation> {
        let documents = self.documents.values().cloned().collect();
        let reservations = self.reservations.values().cloned().collect();
        let evidence = self.evidence();
        evidence.documents = documents;
        evidence.reservations = reservations;
        check(evidence)
    }
}

#[test]
fn a_run_in_order_has_no_violations() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.refused(1, 2, "a");
    story.reserve("b", Some(1));
    story.put(1, "b", 2);
    story.told(1, 1, Kind::Write(2), Verdict::Unknown);
    story.reserve("a", None);
    story.told(1, 1, Kind::Write(3), Verdict::Unknown);
    story.delete(1);
    story.told(1, 1, Kind::Delete(Some(2)), Verdict::Applied);
    story.reserve("b", None);
    assert_eq!(story.check(), []);
}

#[test]
fn two_holders_of_one_key_are_found_also_if_one_is_gone_in_the_end() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.insert(2, "a", 2);
    story.delete(1);
    story.told(1, 1, Kind::Delete(None), Verdict::Applied);
    let found = story.check();
    assert!(
        found.iter().any(|one| matches!(one, Violation::TwoHolders(_))),
        "{found:?}"
    );
}

#[test]
fn a_document_without_its_reservation_is_found_also_if_it_comes_later() {
    let mut story = Story::default();
    story.put(1, "a", 1);
    story.told(1, 1, Kind::Write(1), Verdict::Applied);
    story.reserve("a", Some(1));
    assert!(matches!(story.check()[..], [Violation::Unprotected(_)]));
}

#[test]
fn an_acknowledged_write_that_did_not_happen_is_found() {
    let mut story = Story::default();
    story.told(1, 1, Kind::Write(1), Verdict::Applied);
    assert!(matches!(story.check()[..], [Violation::Lost(_)]));
}

#[test]
fn an_acknowledged_deletion_that_did_not_happen_is_found() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.told(1, 1, Kind::Delete(None), Verdict::Applied);
    assert!(matches!(story.check()[..], [Violation::Lost(_)]));
}

#[test]
fn a_deletion_of_another_document_than_the_one_shown_is_found() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.delete(1);
    story.told(1, 1, Kind::Delete(Some(7)), Verdict::Applied);
    story.reserve("a", None);
    assert!(matches!(story.check()[..], [Violation::Lost(_), Violation::Unasked(_)]));
}

#[test]
fn a_write_done_twice_is_found_also_if_its_outcome_is_unknown() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.put(1, "a", 2);
    story.put(1, "a", 3);
    story.put(1, "a", 2);
    story.told(3, 1, Kind::Write(2), Verdict::Unknown);
    story.told(3, 1, Kind::Write(3), Verdict::Applied);
    assert!(matches!(story.check()[..], [Violation::Twice(_)]));
}

#[test]
fn a_count_that_is_raised_twice_is_found() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    for count in 1..3 {
        let after = doc! { "_id": 1, "email": "a", "writer": 2_i64, "count": count };
        let before = story.documents.insert(1, after.clone());
        story.change(COLLECTION, Bson::Int32(1), before, Some(after));
    }
    story.told(2, 1, Kind::Write(2), Verdict::Applied);
    assert!(matches!(story.check()[..], [Violation::Twice(_)]));
}

#[test]
fn a_refused_write_that_happened_is_found() {
    let mut story = Story::default();
    story.reserve("a", Some(1));
    story.put(1, "a", 1);
    story.told(1, 1, Kind::Write(1), Verdict::Nothing);
    assert!(matches!(story.check()[..], [Violation::RefusedButDone(_)]));
}

#[test]
fn what_nobody_asked_for_is_found() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.delete(1);
    story.reserve("a", None);
    assert!(matches!(story.check()[..], [Violation::Unasked(_)]));
}

#[test]
fn a_key_refused_that_nobody_holds_is_found() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.reserve("b", Some(1));
    story.put(1, "b", 2);
    story.told(1, 1, Kind::Write(2), Verdict::Applied);
    story.reserve("a", None);
    story.reserve("c", Some(3));
    // It begins after the key's holder was told that it has another one.
    story.refused(1, 2, "a");
    story.reserve("c", None);
    assert!(matches!(story.check()[..], [Violation::WrongRefusal(_)]));
}

#[test]
fn a_key_refused_to_its_own_holder_is_found() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.refused(1, 1, "a");
    assert!(matches!(story.check()[..], [Violation::WrongRefusal(_)]));
}

#[test]
fn a_reservation_that_is_left_over_is_found() {
    let mut story = Story::default();
    story.reserve("a", Some(1));
    assert!(matches!(story.check()[..], [Violation::Leftover(_)]));
}

#[test]
fn documents_that_are_not_what_the_log_leaves_are_found() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.documents.get_mut(&1).unwrap().insert("writer", 5_i64);
    assert!(matches!(story.check()[..], [Violation::LogDiffers(_)]));
}

impl Story {
    /// Has the document `id` hold this telephone number, reserved for it or not.
    fn call(&mut self, id: i32, phone: &str, writer: i64, is_reserved: bool) {
        if is_reserved {
            let place = Bson::from(doc! { "h": 1, "k": { "phone": phone } });
            let reservation = doc! { "_id": place.clone(), "owner": id };
            let key = key("phone", &Bson::String(phone.to_owned()));
            let before = self.reservations.insert(key, reservation.clone());
            self.change("keyward.accounts.phone_1", place, before, Some(reservation));
        }
        let after = doc! { "_id": id, "phone": phone, "writer": writer };
        let before = self.documents.insert(id, after.clone());
        self.change(COLLECTION, Bson::Int32(id), before, Some(after));
        self.told(2, id, Kind::Write(writer), Verdict::Applied);
    }

    /// A window that begins here, or ends.
    fn window(&mut self, is_open: bool) {
        let wall = BEGIN + self.time + STEP / 2;
        let windows = &mut self.evidence().windows;
        match is_open {
            true => windows.push(Window {
                from: wall,
                until: None,
            }),
            false => windows.last_mut().unwrap().until = Some(wall),
        }
    }
}

#[test]
fn a_constraint_that_comes_and_goes_counts_only_while_it_is_there() {
    let mut story = Story::default();
    story.insert(1, "a", 1);
    story.call(1, "7", 2, false);
    story.call(2, "7", 3, false);
    story.call(2, "8", 4, true);
    story.call(1, "9", 5, true);
    story.window(true);
    story.call(1, "10", 6, true);
    story.window(false);
    story.call(3, "10", 7, false);
    story.reserve("a", None);
    assert_eq!(story.check(), []);
}

#[test]
fn what_is_there_unprotected_as_a_constraint_begins_is_found() {
    let mut story = Story::default();
    story.call(1, "7", 1, false);
    story.window(true);
    story.window(false);
    assert!(matches!(story.check()[..], [Violation::Unprotected(_)]));
}

#[test]
fn two_holders_of_a_number_are_found_while_it_is_unique() {
    let mut story = Story::default();
    story.call(1, "7", 1, true);
    story.window(true);
    story.call(2, "7", 2, false);
    story.window(false);
    let found = story.check();
    assert!(
        found
            .iter()
            .any(|violation| matches!(violation, Violation::TwoHolders(_))),
        "{found:?}"
    );
}

#[test]
fn a_number_that_is_refused_counts_only_while_it_is_unique() {
    let refused = |is_open: bool| {
        let mut story = Story::default();
        story.window(true);
        if !is_open {
            story.window(false);
        }
        story.time += STEP;
        story.refused(0, 2, "x");
        let key = key("phone", &Bson::String("7".to_owned()));
        story.evidence().operations[0].duplicates[0].key = key;
        story.check()
    };
    assert_eq!(refused(false), []);
    assert!(matches!(refused(true)[..], [Violation::WrongRefusal(_)]));
}
