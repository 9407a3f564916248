//! Groups documents by the key that they share, in bounded memory.
//!
//! It counts a million keys exactly, and keeps the `_id`s of those with the most documents.

use std::collections::{BTreeSet, HashMap};

use bson::RawBson;
use bson::spec::ElementType;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::report::{DuplicatedKey, IDS_LISTED, KEYS_LISTED, Report, UnindexableDocument, UnlistedKeys, shortened};
use crate::constraint::{Constraint, Key};
use crate::extended_json::{as_json, key_as_json};
use crate::raw::Doc;

/// How many keys are counted. Of further ones only the documents are.
const KEYS_COUNTED: usize = 1_000_000;

/// The same number for all keys that the server calls equal. Two other keys share one by chance only.
pub(super) fn fingerprint(key: &Key) -> u64 {
    xxh3_64(key.canonical())
}

/// A key that several documents have, as it is found.
#[derive(Debug)]
pub(super) struct DuplicateGroup {
    key: Value,
    null_path: Option<String>,
    /// Whether one of its documents has none of the constraint's fields.
    lacks_fields: bool,
    ids: Vec<RawBson>,
}

impl DuplicateGroup {
    pub(super) fn of(key: &Key) -> DuplicateGroup {
        DuplicateGroup {
            key: shortened(key_as_json(key)),
            null_path: null_path(key),
            lacks_fields: false,
            ids: Vec::new(),
        }
    }

    /// Adds a document that has the key.
    pub(super) fn add(&mut self, id: &RawBson, lacks_fields: bool) {
        self.lacks_fields |= lacks_fields;
        if self.ids.len() < IDS_LISTED {
            self.ids.push(id.clone());
        }
    }

    pub(super) fn finish(self, constraint: &Constraint, documents: u64) -> DuplicatedKey {
        DuplicatedKey {
            hint: self.hint(constraint),
            key: self.key,
            documents,
            ids: self.ids.iter().map(|id| shortened(as_json(id))).collect(),
            raw_ids: self.ids,
        }
    }

    /// The option that leaves documents with this key out of the constraint.
    fn hint(&self, constraint: &Constraint) -> Option<String> {
        let path = self.null_path.as_ref()?;
        Some(match (self.lacks_fields, constraint.is_partial()) {
            (true, false) => "documents without the field: `sparse: true` leaves them out".to_owned(),
            (true, true) => format!(
                "documents without the field: {{ {path}: {{ $exists: true }} }} in `partialFilterExpression` leaves them out"
            ),
            (false, _) => format!(
                "null: {{ {path}: {{ $type: \"string\" }} }} in `partialFilterExpression` leaves out all but strings"
            ),
        })
    }
}

/// The path of the first null in the key.
fn null_path(key: &Key) -> Option<String> {
    let mut elements = key.values().into_iter().flat_map(Doc::elements).flatten();
    let null = elements.find(|element| element.kind == ElementType::Null)?;
    Some(String::from_utf8_lossy(null.name).into_owned())
}

/// The documents that violate one constraint, while a backfill or a sample finds them.
#[derive(Debug)]
pub struct DuplicateGroups<'a> {
    constraint: &'a Constraint,
    report: Report,
    /// How many documents have each key.
    counts: HashMap<u64, u64>,
    groups: HashMap<u64, DuplicateGroup>,
    /// The keys of `groups`, by the number of their documents.
    ranked: BTreeSet<(u64, u64)>,
    /// Documents whose keys aren't counted.
    uncounted: u64,
    keys_counted_max: usize,
    keys_listed_max: usize,
}

impl<'a> DuplicateGroups<'a> {
    /// None found yet.
    pub fn of(constraint: &'a Constraint) -> DuplicateGroups<'a> {
        DuplicateGroups {
            constraint,
            report: Report::of(constraint),
            counts: HashMap::new(),
            groups: HashMap::new(),
            ranked: BTreeSet::new(),
            uncounted: 0,
            keys_counted_max: KEYS_COUNTED,
            keys_listed_max: KEYS_LISTED,
        }
    }

    /// Whether every document so far agrees with the constraint.
    pub fn is_empty(&self) -> bool {
        self.report.is_empty()
    }

    /// Adds a document with `key`, which another one, `holder`, has already.
    pub fn add(&mut self, key: &Key, id: &RawBson, holder: &RawBson, lacks_fields: bool) {
        self.report.count += 1;
        let fingerprint = fingerprint(key);
        let is_room = self.counts.len() < self.keys_counted_max;
        let before = match self.counts.get_mut(&fingerprint) {
            Some(count) => {
                *count += 1;
                Some(*count - 1)
            }
            None if is_room => {
                self.counts.insert(fingerprint, 2);
                None
            }
            None => {
                self.uncounted += 1;
                return;
            }
        };
        let now = before.map_or(2, |before| before + 1);
        if let Some(group) = self.groups.get_mut(&fingerprint) {
            self.ranked.remove(&(now - 1, fingerprint));
            self.ranked.insert((now, fingerprint));
            group.add(id, lacks_fields);
            return;
        }
        if self.groups.len() >= self.keys_listed_max {
            // The keys with the most documents stay: a missing field must not be hidden by many small duplicates.
            match self.ranked.first().copied() {
                Some(least) if least.0 < now => {
                    self.ranked.remove(&least);
                    self.groups.remove(&least.1);
                }
                _ => return,
            }
        }
        let mut group = DuplicateGroup::of(key);
        group.add(holder, false);
        group.add(id, lacks_fields);
        self.groups.insert(fingerprint, group);
        self.ranked.insert((now, fingerprint));
    }

    /// Adds a document that can't have a key.
    pub fn add_unindexable(&mut self, document: UnindexableDocument) {
        self.report.add_unindexable(document);
    }

    /// The report, with `duplicate`, the server's error for the first duplicate.
    pub fn finish(mut self, duplicate: Option<crate::constraint::DuplicateKey>) -> Report {
        let documents: u64 = self.counts.values().sum::<u64>() + self.uncounted;
        let listed: u64 = self.ranked.iter().map(|(documents, _)| documents).sum();
        self.report.unlisted = UnlistedKeys {
            keys: (self.counts.len() - self.groups.len()) as u64,
            documents: documents - listed,
            is_at_least: self.uncounted > 0,
        };
        let keys = self.ranked.iter().filter_map(|(documents, fingerprint)| {
            let group = self.groups.remove(fingerprint)?;
            Some(group.finish(self.constraint, *documents))
        });
        self.report.keys = keys.collect();
        self.report.sort_keys();
        self.report.duplicate = duplicate;
        self.report
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, doc};
    use serde_json::json;

    use super::*;
    use crate::constraint::IndexSpec;
    use crate::namespace::Namespace;

    fn constraint(spec: IndexSpec) -> Constraint {
        Constraint::new(Namespace::new("shop", "users"), spec).unwrap()
    }

    fn on_phone() -> IndexSpec {
        IndexSpec {
            key: doc! { "phone": 1 },
            ..IndexSpec::default()
        }
    }

    fn add(groups: &mut DuplicateGroups<'_>, id: i32, document: &Document) {
        let bytes = document.to_vec().unwrap();
        let read = Doc::new(&bytes).unwrap();
        let lacks_fields = groups.constraint.lacks_fields(read);
        for key in groups.constraint.keys(read).unwrap() {
            groups.add(&key, &RawBson::Int32(id), &RawBson::Int32(0), lacks_fields);
        }
    }

    #[test]
    fn equal_keys_of_different_types_are_one_group() {
        let constraint = constraint(on_phone());
        let mut groups = DuplicateGroups::of(&constraint);
        add(&mut groups, 1, &doc! { "phone": 7 });
        add(&mut groups, 2, &doc! { "phone": 7.0 });
        add(&mut groups, 3, &doc! { "phone": [7_i64, "8"] });
        let report = groups.finish(None);
        assert_eq!(report.count, 4);
        let found: Vec<_> = report.keys.iter().map(|key| (key.documents, key.ids.clone())).collect();
        let ids = |ids: &[i32]| ids.iter().map(|id| json!(id)).collect::<Vec<_>>();
        assert_eq!(found, [(4, ids(&[0, 1, 2, 3])), (2, ids(&[0, 3]))]);
        assert_eq!(report.keys[0].key, json!({ "phone": 7 }));
    }

    #[test]
    fn a_null_key_has_a_hint_and_another_has_none() {
        let hint = |spec: IndexSpec, document: Document| {
            let constraint = constraint(spec);
            let mut groups = DuplicateGroups::of(&constraint);
            add(&mut groups, 1, &document);
            groups.finish(None).keys.remove(0).hint.unwrap_or_default()
        };
        assert!(hint(on_phone(), doc! { "name": "x" }).contains("`sparse: true`"));
        assert_eq!(hint(on_phone(), doc! { "phone": "1" }), "");
        // A sparse constraint has a key for an explicit null.
        assert!(hint(on_phone(), doc! { "phone": Bson::Null }).contains("{ phone: { $type: \"string\" } }"));
        let partial = IndexSpec {
            partial_filter_expression: Some(doc! { "name": "x" }),
            ..on_phone()
        };
        assert!(hint(partial, doc! { "name": "x" }).contains("{ phone: { $exists: true } }"));
    }

    #[test]
    fn the_keys_with_the_most_documents_are_listed_and_memory_is_bounded() {
        let constraint = constraint(on_phone());
        let mut groups = DuplicateGroups {
            keys_counted_max: 20,
            keys_listed_max: 5,
            ..DuplicateGroups::of(&constraint)
        };
        for id in 1..=18 {
            add(&mut groups, id, &doc! { "phone": id });
        }
        for id in 100..150 {
            add(&mut groups, id, &doc! { "name": "without a phone" });
        }
        for id in 200..210 {
            add(&mut groups, id, &doc! { "phone": id });
        }
        assert!(groups.groups.len() <= 5 && groups.counts.len() <= 20 && groups.ranked.len() <= 5);
        let report = groups.finish(None);
        assert_eq!(report.count, 18 + 50 + 10);
        assert_eq!(report.keys.len(), 5);
        let first = &report.keys[0];
        assert_eq!((&first.key, first.documents), (&json!({ "phone": null }), 51));
        assert_eq!(first.ids.len(), IDS_LISTED);
        let unlisted = UnlistedKeys {
            keys: 20 - 5,
            documents: 15 * 2 + 9,
            is_at_least: true,
        };
        assert_eq!(report.unlisted, unlisted);
    }
}
