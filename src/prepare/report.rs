//! Shows which documents violate constraints, grouped by key, for people and as JSON.

use std::cmp::Reverse;
use std::fmt;
use std::time::SystemTime;

use bson::{RawBson, RawDocument};
use serde::Serialize;
use serde_json::{Value, json};

use crate::constraint::{Constraint, DuplicateKey};
use crate::counted::Counted;
use crate::extended_json::as_json;
use crate::namespace::Namespace;

/// How many keys of each constraint a report lists; it counts the rest.
pub(super) const KEYS_LISTED: usize = 1_000;
/// How many of the listed keys the text shows. JSON has all of them.
const KEYS_SHOWN: usize = 20;
/// How many `_id`s a report lists for each key.
pub(super) const IDS_LISTED: usize = 5;
/// How many documents without keys a report lists.
const UNINDEXABLE_LISTED: usize = 20;
/// A longer value is cut in a report: documents are large, and reports are read by people.
const VALUE_BYTES_MAX: usize = 500;

/// The documents that violate a constraint.
#[derive(Debug, Clone)]
pub struct Report {
    /// The protected collection.
    pub namespace: Namespace,
    /// The constraint's name.
    pub constraint: String,
    /// How many documents must change: for each key, all but one of its documents; and those without a key.
    pub count: u64,
    /// The keys with the most documents, the worst first.
    pub keys: Vec<DuplicatedKey>,
    /// The keys that aren't listed.
    pub unlisted: UnlistedKeys,
    /// The first documents that can't have a key, each with the reason.
    pub unindexable: Vec<UnindexableDocument>,
    /// How many such documents there are.
    pub unindexable_count: u64,
    /// The server's error for the first duplicate.
    pub duplicate: Option<DuplicateKey>,
}

/// A key that several documents have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DuplicatedKey {
    /// The key, as a document with the constraint's paths.
    pub key: Value,
    /// How many documents have it.
    pub documents: u64,
    /// The `_id`s of some of them.
    pub ids: Vec<Value>,
    /// The same, as they are.
    #[serde(skip)]
    pub raw_ids: Vec<RawBson>,
    /// The option that leaves such documents out, if the key is null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The keys that a report only counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnlistedKeys {
    /// How many there are.
    pub keys: u64,
    /// How many documents have them.
    pub documents: u64,
    /// Whether there may be more keys: Keyward can't remember any number of them.
    pub is_at_least: bool,
}

/// A document for which a native index would have no key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnindexableDocument {
    /// Its `_id`.
    pub id: Value,
    /// The reason.
    pub reason: String,
}

impl UnindexableDocument {
    /// `document`, which has no key because of `reason`.
    pub fn of(document: &RawDocument, reason: &dyn fmt::Display) -> UnindexableDocument {
        let id = document.get("_id").ok().flatten();
        UnindexableDocument {
            id: id.map_or(Value::Null, |id| shortened(as_json(&id.into()))),
            reason: reason.to_string(),
        }
    }
}

/// The reports of all violated constraints.
#[derive(Debug, Clone, Default)]
pub struct Reports(pub Vec<Report>);

impl Report {
    /// Nothing found yet.
    pub fn of(constraint: &Constraint) -> Report {
        Report {
            namespace: constraint.namespace().clone(),
            constraint: constraint.name().to_owned(),
            count: 0,
            keys: Vec::new(),
            unlisted: UnlistedKeys::default(),
            unindexable: Vec::new(),
            unindexable_count: 0,
            duplicate: None,
        }
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether it is about this constraint.
    pub fn is_of(&self, constraint: &Constraint) -> bool {
        constraint.is_named(&self.namespace, &self.constraint)
    }

    /// The number of violating documents and their constraint, without any of their values.
    pub fn without_values(&self) -> String {
        let (namespace, constraint) = (&self.namespace, &self.constraint);
        match self.count {
            1 => format!(
                "1 document of {namespace} violates unique constraint {constraint}, counting all but one of each key; change or delete \
                 it, then try again"
            ),
            count => format!(
                "{count} documents of {namespace} violate unique constraint {constraint}, counting all but one of each key; change or \
                 delete them, then try again"
            ),
        }
    }

    /// The lines that name its worst keys, so many of them, and the documents without a key.
    pub fn lines(&self, keys: usize) -> ReportLines<'_> {
        ReportLines { report: self, keys }
    }

    /// Adds a document that can't have a key.
    pub(super) fn add_unindexable(&mut self, document: UnindexableDocument) {
        self.count += 1;
        self.unindexable_count += 1;
        if self.unindexable.len() < UNINDEXABLE_LISTED {
            self.unindexable.push(document);
        }
    }

    /// The worst keys come first. Equal ones have the same order in each report, so that two reports can be compared.
    pub(super) fn sort_keys(&mut self) {
        self.keys
            .sort_by_cached_key(|key| (Reverse(key.documents), key.key.to_string()));
    }

    fn to_json(&self) -> Value {
        json!({
            "collection": self.namespace.to_string(),
            "constraint": self.constraint,
            "documentsToChange": self.count,
            "keys": self.keys,
            "moreKeys": self.unlisted.keys,
            "documentsOfMoreKeys": self.unlisted.documents,
            "moreKeysAreAtLeast": self.unlisted.is_at_least,
            "withoutKey": self.unindexable,
            "documentsWithoutKey": self.unindexable_count,
        })
    }
}

impl Reports {
    /// Whether no constraint is violated.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of violating documents of each constraint, without any of their values.
    pub fn without_values(&self) -> String {
        let reports: Vec<String> = self.0.iter().map(Report::without_values).collect();
        reports.join("\n")
    }

    /// All of it, as one document; `constraints` are those that were checked.
    pub fn to_json(&self, constraints: &[String], is_dry_run: bool) -> Value {
        json!({
            "outcome": if self.is_empty() { "no duplicates" } else { "duplicates" },
            "at": humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            "dryRun": is_dry_run,
            "constraints": constraints,
            "violations": self.0.iter().map(Report::to_json).collect::<Vec<_>>(),
        })
    }
}

/// The lines of a report that name keys and documents; each begins with a line break.
#[derive(Debug)]
pub struct ReportLines<'a> {
    report: &'a Report,
    /// How many keys are shown.
    keys: usize,
}

/// With `{:#}`, every listed key is shown.
impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = match formatter.alternate() {
            true => KEYS_LISTED,
            false => KEYS_SHOWN,
        };
        write!(formatter, "{}{}", self.without_values(), self.lines(keys))
    }
}

impl fmt::Display for ReportLines<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReportLines { report, keys: shown } = self;
        for key in report.keys.iter().take(*shown) {
            write!(formatter, "\n  {key}")?;
        }
        let unlisted = report.unlisted;
        let hidden = report.keys.iter().skip(*shown);
        let (keys, documents) = hidden.fold((unlisted.keys, unlisted.documents), |(keys, documents), key| {
            (keys + 1, documents + key.documents)
        });
        let at_least = if unlisted.is_at_least { "at least " } else { "" };
        if keys > 0 {
            write!(
                formatter,
                "\n  and {at_least}{}, which {documents} documents have",
                Counted(keys, "more key")
            )?;
        }
        for document in &report.unindexable {
            write!(formatter, "\n  {document}")?;
        }
        match report.unindexable_count.saturating_sub(report.unindexable.len() as u64) {
            0 => Ok(()),
            more => write!(formatter, "\n  and {} without a key", Counted(more, "more document")),
        }
    }
}

impl fmt::Display for DuplicatedKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, documents, ids) = (&self.key, self.documents, &self.ids);
        let named: Vec<String> = ids.iter().map(ToString::to_string).collect();
        write!(formatter, "{documents} documents have {key}: _id {}", named.join(", "))?;
        match documents.saturating_sub(ids.len() as u64) {
            0 => {}
            more => write!(formatter, " and {more} more")?,
        }
        match &self.hint {
            Some(hint) => write!(formatter, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for UnindexableDocument {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "_id {}: {}", self.id, self.reason)
    }
}

impl fmt::Display for Reports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, report) in self.0.iter().enumerate() {
            let break_before = if index == 0 { "" } else { "\n" };
            formatter.write_str(break_before)?;
            report.fmt(formatter)?;
        }
        Ok(())
    }
}

/// The value, cut if it is long.
pub(super) fn shortened(value: Value) -> Value {
    let text = value.to_string();
    if text.len() <= VALUE_BYTES_MAX {
        return value;
    }
    let end = (0..=VALUE_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
    format!("{}…", &text[..end.unwrap_or(0)]).into()
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::constraint::IndexSpec;

    fn report(keys: u64) -> Report {
        let spec = IndexSpec {
            key: doc! { "phone": 1 },
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(Namespace::new("shop", "users"), spec).unwrap();
        let key = |number: u64| DuplicatedKey {
            key: json!({ "phone": number }),
            documents: 2,
            ids: vec![json!(number), json!("x")],
            raw_ids: Vec::new(),
            hint: None,
        };
        Report {
            count: keys,
            keys: (0..keys).map(key).collect(),
            ..Report::of(&constraint)
        }
    }

    #[test]
    fn the_text_shows_the_first_keys_and_counts_the_others() {
        let text = report(25).to_string();
        assert_eq!(text.lines().count(), 1 + KEYS_SHOWN + 1, "{text}");
        assert!(text.starts_with("25 documents of shop.users violate unique constraint phone_1, counting"));
        assert!(
            text.contains("\n  2 documents have {\"phone\":0}: _id 0, \"x\"\n"),
            "{text}"
        );
        assert!(text.ends_with("\n  and 5 more keys, which 10 documents have"), "{text}");
        assert_eq!(format!("{:#}", Reports(vec![report(25)])).lines().count(), 26);
        let text = report(21).to_string();
        assert!(text.ends_with("\n  and 1 more key, which 2 documents have"), "{text}");
        let text = report(1).to_string();
        assert!(
            text.starts_with("1 document of shop.users violates unique constraint phone_1, counting all but one of each key; change or delete it,"),
            "{text}"
        );
        let mut more = report(20);
        more.unlisted = UnlistedKeys {
            keys: 7,
            documents: 15,
            is_at_least: true,
        };
        let text = more.to_string();
        assert!(
            text.ends_with("and at least 7 more keys, which 15 documents have"),
            "{text}"
        );
    }

    #[test]
    fn json_lists_every_key_of_the_report() {
        let json = Reports(vec![report(25)]).to_json(&["shop.users.phone_1".to_owned()], true);
        assert_eq!(json["outcome"], "duplicates");
        let violation = &json["violations"][0];
        assert_eq!(violation["keys"].as_array().map(Vec::len), Some(25));
        assert_eq!(
            violation["keys"][3],
            json!({ "key": { "phone": 3 }, "documents": 2, "ids": [3, "x"] })
        );
        assert_eq!(Reports::default().to_json(&[], false)["outcome"], "no duplicates");
    }

    #[test]
    fn a_long_value_is_cut_at_a_character() {
        assert_eq!(shortened(json!({ "a": 1 })), json!({ "a": 1 }));
        let cut = shortened("\u{e9}".repeat(VALUE_BYTES_MAX).into());
        let cut = cut.as_str().unwrap();
        assert!(cut.len() <= VALUE_BYTES_MAX + 3 && cut.ends_with("\u{e9}…"), "{cut}");
    }
}
