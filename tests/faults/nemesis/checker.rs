//! Whether what the clients were told and what the shards did go together. Pure: histories in, violations out.
//!
//! What is unknown may have happened once, or not at all. A removal of a key counts from when its client was told of it: until
//! then others may be refused the key.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use bson::{Bson, Document};

use crate::nemesis::history::{Duplicate, Kind, Millis, Operation, Outcome, Verdict};
use crate::nemesis::keys::{FIELDS, Held, PHONE, is_phone, key, keys_of, reserved};
use crate::nemesis::moments::every_moment;
use crate::nemesis::oplog::{Change, Moment};
use crate::nemesis::phones::{Window, is_open};

/// The collection that the clients write to.
pub const COLLECTION: &str = "accounts";
/// How far the servers' log may be behind the clock, and the clients' clock readings before or after their calls.
const CLOCK_SLACK: Millis = 1_000;
/// How long a removed key may still be seen where nobody was told of its removal: as long as a shard may be away.
const UNTOLD_FOR: Millis = 20_000;

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two documents held one key at one moment.
    TwoHolders(String),
    /// A document was there, and a key of its wasn't reserved by it.
    Unprotected(String),
    /// A write was acknowledged, and didn't happen.
    Lost(String),
    /// A write happened more than once.
    Twice(String),
    /// A write was refused, or said to have changed nothing, and happened.
    RefusedButDone(String),
    /// Something happened that nobody asked for.
    Unasked(String),
    /// A key was refused that nobody held during the call.
    WrongRefusal(String),
    /// Once all was quiet, a key was reserved that no document held, or the other way round.
    Leftover(String),
    /// The documents aren't what the log says.
    LogDiffers(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}

/// All there is to be judged.
pub struct Evidence {
    pub operations: Vec<Operation>,
    pub moments: Vec<Moment>,
    /// When telephone numbers had to be unique.
    pub windows: Vec<Window>,
    /// What the shards hold in the end.
    pub documents: Vec<Document>,
    pub reservations: Vec<Document>,
}

/// All that is wrong.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut checker = Checker {
        operations: &evidence.operations,
        violations: every_moment(&evidence.moments, &evidence.windows),
    };
    checker.writes(&evidence.moments);
    let removers = checker.deletions(&evidence.moments);
    checker.refusals(evidence, &removers);
    checker.end(evidence);
    checker.violations
}

struct Checker<'a> {
    operations: &'a [Operation],
    violations: Vec<Violation>,
}

/// A document went away.
struct Deletion<'a> {
    id: i32,
    writer: i64,
    wall: Millis,
    change: &'a Change,
}

/// From when to when a document held a key, as others could see it.
struct Holding {
    id: Bson,
    from: Millis,
    until: Option<Millis>,
}

fn writer(document: &Document) -> Option<i64> {
    document.get_i64("writer").ok()
}

/// The changes of the documents, one by one.
fn changes(moments: &[Moment]) -> impl Iterator<Item = &Change> {
    let all = moments.iter().flat_map(|moment| &moment.changes);
    all.filter(|change| change.collection == COLLECTION)
}

/// Whose write a change is. What only Keyward does to a document, in a takeover, has no writer, or leaves it.
fn written_by(change: &Change) -> Option<i64> {
    let after = change.after.as_ref()?;
    let count = |document: &Document| document.get("count").cloned();
    let is_new = |before: &Document| writer(before) != writer(after) || count(before) != count(after);
    writer(after).filter(|_| change.before.as_ref().is_none_or(is_new))
}

fn deletion(change: &Change) -> Option<Deletion<'_>> {
    let before = change.before.as_ref().filter(|_| change.after.is_none())?;
    Some(Deletion {
        id: change.id.as_i32()?,
        writer: writer(before)?,
        wall: change.wall,
        change,
    })
}

impl Checker<'_> {
    /// Each write happened as often as its client may believe.
    fn writes(&mut self, moments: &[Moment]) {
        let mut done: HashMap<i64, Vec<Millis>> = HashMap::new();
        for change in changes(moments) {
            if let Some(writer) = written_by(change) {
                done.entry(writer).or_default().push(change.wall);
            }
        }
        for operation in self.operations {
            for statement in &operation.statements {
                let Kind::Write(writer) = statement.kind else {
                    continue;
                };
                let times = done.remove(&writer).unwrap_or_default();
                let what = || format!("{writer} at {times:?}: {operation:?}");
                match (statement.verdict, times.len()) {
                    (_, 2..) => self.violations.push(Violation::Twice(what())),
                    (Verdict::Applied, 0) => self.violations.push(Violation::Lost(what())),
                    (Verdict::Nothing, 1) => self.violations.push(Violation::RefusedButDone(what())),
                    _ => {}
                }
            }
        }
        for (writer, times) in done {
            let what = format!("{writer} at {times:?}");
            self.violations.push(Violation::Unasked(what));
        }
    }

    /// Each deletion is somebody's, and each acknowledged one happened; who it was, for each change that removed a document.
    fn deletions(&mut self, moments: &[Moment]) -> HashMap<*const Change, usize> {
        let mut left: Vec<Deletion<'_>> = changes(moments).filter_map(deletion).collect();
        left.sort_by_key(|deletion| deletion.wall);
        let mut removers = HashMap::new();
        let mut asked: Vec<(usize, i32, Option<i64>, Verdict)> = Vec::new();
        for (number, operation) in self.operations.iter().enumerate() {
            for statement in &operation.statements {
                if let Kind::Delete(seen) = statement.kind
                    && statement.verdict != Verdict::Nothing
                {
                    asked.push((number, statement.id, seen, statement.verdict));
                }
            }
        }
        // Those that can be one deletion only come first, then those that happened within their call, the earlier ending first.
        asked.sort_by_key(|(number, _, seen, verdict)| {
            let operation = &self.operations[*number];
            (*verdict == Verdict::Unknown, seen.is_none(), operation.ended)
        });
        for (number, id, seen, verdict) in asked {
            let operation = &self.operations[number];
            let latest = match verdict {
                Verdict::Unknown => Millis::MAX,
                _ => operation.ended + CLOCK_SLACK,
            };
            let window = operation.began - CLOCK_SLACK..=latest;
            let is_it = |deletion: &Deletion<'_>| {
                deletion.id == id && seen.is_none_or(|seen| deletion.writer == seen) && window.contains(&deletion.wall)
            };
            match left.iter().position(is_it) {
                Some(position) => drop(removers.insert(std::ptr::from_ref(left.remove(position).change), number)),
                None if verdict == Verdict::Applied => {
                    self.violations
                        .push(Violation::Lost(format!("deletion of {id}: {operation:?}")));
                }
                None => {}
            }
        }
        for Deletion { id, writer, wall, .. } in left {
            let what = format!("deletion of {id}, written by {writer}, at {wall}");
            self.violations.push(Violation::Unasked(what));
        }
        removers
    }

    /// Each key that was refused was held at some moment of the call.
    fn refusals(&mut self, evidence: &Evidence, removers: &HashMap<*const Change, usize>) {
        let moments = &evidence.moments;
        let writers: HashMap<i64, usize> = self
            .operations
            .iter()
            .enumerate()
            .flat_map(|(number, operation)| {
                operation
                    .statements
                    .iter()
                    .filter_map(move |statement| match statement.kind {
                        Kind::Write(writer) => Some((writer, number)),
                        Kind::Delete(_) => None,
                    })
            })
            .collect();
        let mut holdings: HashMap<Held, Vec<Holding>> = HashMap::new();
        for change in changes(moments) {
            let keys = |document: &Option<Document>| {
                let of = |document| {
                    let mut keys = keys_of(document);
                    keys.insert(key("_id", &change.id));
                    keys
                };
                document.as_ref().map(of).unwrap_or_default()
            };
            let (before, after) = (keys(&change.before), keys(&change.after));
            let remover = match written_by(change) {
                Some(writer) => writers.get(&writer),
                None => removers.get(&std::ptr::from_ref(change)),
            };
            let told = remover
                .map(|number| &self.operations[*number])
                .filter(|operation| operation.outcome == Outcome::Ok);
            let gone = told.map_or(change.wall + UNTOLD_FOR, |operation| operation.ended);
            for key in before.difference(&after) {
                let open = holdings.entry(key.clone()).or_default().iter_mut();
                for holding in open.filter(|holding| holding.id == change.id && holding.until.is_none()) {
                    holding.until = Some(gone);
                }
            }
            for key in after.difference(&before) {
                holdings.entry(key.clone()).or_default().push(Holding {
                    id: change.id.clone(),
                    from: change.wall - CLOCK_SLACK,
                    until: None,
                });
            }
        }
        for operation in self.operations {
            for Duplicate { id, key } in &operation.duplicates {
                // While the constraint comes or goes nothing is said of its keys.
                let is_judged = |window: &Window| {
                    window.from <= operation.began && window.until.is_none_or(|until| operation.ended <= until)
                };
                if is_phone(key) && !evidence.windows.iter().any(is_judged) {
                    continue;
                }
                let all = holdings.get(key).map(Vec::as_slice).unwrap_or_default();
                let is_reason = |holding: &&Holding| {
                    let may_be_itself = key.0 == "_id" || operation.name.starts_with("insert");
                    (may_be_itself || holding.id != Bson::Int32(*id))
                        && holding.from <= operation.ended
                        && holding.until.is_none_or(|until| operation.began <= until)
                };
                if !all.iter().any(|holding| is_reason(&holding)) {
                    let what = format!("{key:?} to {id}: {operation:?}");
                    self.violations.push(Violation::WrongRefusal(what));
                }
            }
        }
    }

    /// Once all is quiet, what is held is what is reserved, and the documents are those that the log leaves.
    fn end(&mut self, evidence: &Evidence) {
        let [held, reserved] =
            held_and_reserved(&evidence.documents, &evidence.reservations, is_open(&evidence.windows));
        for only in held.symmetric_difference(&reserved) {
            self.violations.push(Violation::Leftover(format!("{only:?}")));
        }
        for field in FIELDS.into_iter().chain([PHONE]) {
            let held = held.iter().filter(|((held, _), _)| held == field);
            let count = held.clone().count();
            if held.map(|(key, _)| key).collect::<BTreeSet<_>>().len() < count {
                self.violations
                    .push(Violation::TwoHolders(format!("of {field} in the end")));
            }
        }
        let mut last: BTreeMap<String, &Document> = BTreeMap::new();
        for change in changes(&evidence.moments) {
            match &change.after {
                Some(after) => drop(last.insert(change.id.to_string(), after)),
                None => drop(last.remove(&change.id.to_string())),
            }
        }
        let last: BTreeSet<_> = last.into_values().map(in_one_order).collect();
        let there: BTreeSet<_> = evidence.documents.iter().map(in_one_order).collect();
        if last.len() != evidence.documents.len() || last != there {
            let (only_there, only_logged) = (there.difference(&last), last.difference(&there));
            let what = format!(
                "{} documents there, {} by the log; only there: {:?}, only by the log: {:?}",
                evidence.documents.len(),
                last.len(),
                only_there.collect::<Vec<_>>(),
                only_logged.collect::<Vec<_>>()
            );
            self.violations.push(Violation::LogDiffers(what));
        }
    }
}

/// A document as text, its fields in one order: where a change adds fields, the log doesn't say which comes first.
fn in_one_order(document: &Document) -> String {
    format!("{:?}", document.iter().collect::<BTreeMap<_, _>>())
}

/// What the documents hold, and what is reserved: keys with their holders, those that are unique at times only `with_phones`.
pub fn held_and_reserved(
    documents: &[Document],
    reservations: &[Document],
    with_phones: bool,
) -> [BTreeSet<(Held, String)>; 2] {
    let is_judged = |(key, _): &(Held, String)| with_phones || !is_phone(key);
    let held = documents.iter().flat_map(|document| {
        let id = document.get("_id").map(ToString::to_string).unwrap_or_default();
        keys_of(document).into_iter().map(move |key| (key, id.clone()))
    });
    let reserved = reservations.iter().map(|reservation| {
        let owner = reservation.get("owner").map(ToString::to_string).unwrap_or_default();
        let key = reserved(reservation).unwrap_or_else(|| panic!("not a reservation: {reservation}"));
        (key, owner)
    });
    [held.filter(is_judged).collect(), reserved.filter(is_judged).collect()]
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
