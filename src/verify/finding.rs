//! Shows the findings of a verification, for people and as JSON.

use std::fmt;

use serde_json::{Value, json};

use crate::constraint::{Constraint, Key};
use crate::extended_json::{as_json, key_as_json};
use crate::proxy_collection::Owner;

/// The ways in which documents and reservations contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// A document's key isn't reserved.
    Missing,
    /// A document's key is reserved for another document, which doesn't hold it.
    Foreign,
    /// A document's key is reserved for it where it isn't: its shard key was changed past Keyward.
    Misrouted,
    /// Several documents hold one key.
    Duplicate,
    /// A document can't have keys: a native index would refuse it.
    Unindexable,
    /// A reservation past its lease, whose owner isn't there or doesn't hold the key.
    Abandoned,
    /// An entry in the proxy collection isn't a reservation.
    Unreadable,
}

impl FindingKind {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Missing => "missing",
            FindingKind::Foreign => "foreign",
            FindingKind::Misrouted => "misrouted",
            FindingKind::Duplicate => "duplicate",
            FindingKind::Unindexable => "unindexable",
            FindingKind::Abandoned => "abandoned",
            FindingKind::Unreadable => "unreadable",
        }
    }
}

/// One contradiction.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The kind of contradiction.
    pub kind: FindingKind,
    /// `database.collection` of the documents.
    pub namespace: String,
    /// The constraint's name.
    pub constraint: String,
    /// The key, as a document with the constraint's paths; sort keys in the place of strings where only those are known.
    pub key: Option<Value>,
    /// The `_id`s of the documents that it is about.
    pub documents: Vec<Value>,
    /// The owner that the reservation names, or the `_id` of what isn't a reservation.
    pub reservation: Option<Value>,
    /// More about it.
    pub reason: Option<String>,
    /// Whether it is repaired.
    pub repaired: bool,
}

impl Finding {
    /// One about `key` of a constraint, and nothing else yet.
    pub(super) fn new(kind: FindingKind, constraint: &Constraint, key: Option<&Key>) -> Finding {
        Finding {
            kind,
            namespace: constraint.namespace().to_string(),
            constraint: constraint.name().to_owned(),
            key: key.map(key_as_json),
            documents: Vec::new(),
            reservation: None,
            reason: None,
            repaired: false,
        }
    }

    pub(super) fn about<'a>(mut self, owners: impl IntoIterator<Item = &'a Owner>) -> Finding {
        self.documents
            .extend(owners.into_iter().map(|owner| as_json(&owner.id)));
        self
    }

    /// The finding as one JSON object.
    pub fn to_json(&self) -> Value {
        let mut json = json!({
            "finding": self.kind.name(), "collection": self.namespace, "constraint": self.constraint,
            "documents": self.documents, "repaired": self.repaired,
        });
        for (name, value) in [("key", &self.key), ("reservation", &self.reservation)] {
            if let Some(value) = value {
                json[name] = value.clone();
            }
        }
        if let Some(reason) = &self.reason {
            json["reason"] = reason.as_str().into();
        }
        json
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let documents: Vec<String> = self.documents.iter().map(Value::to_string).collect();
        let documents = documents.join(" and ");
        let shown = |value: &Option<Value>| value.as_ref().map(Value::to_string).unwrap_or_default();
        let (key, reservation) = (shown(&self.key), shown(&self.reservation));
        write!(
            formatter,
            "{} {}: {}: ",
            self.namespace,
            self.constraint,
            self.kind.name()
        )?;
        match self.kind {
            FindingKind::Missing => write!(formatter, "_id {documents} holds {key}, which isn't reserved"),
            FindingKind::Foreign => write!(
                formatter,
                "_id {documents} holds {key}, which is reserved for _id {reservation}, which doesn't hold it"
            ),
            FindingKind::Misrouted => write!(
                formatter,
                "_id {documents} holds {key}, but lies elsewhere than its reservation says"
            ),
            FindingKind::Duplicate => write!(formatter, "_id {documents} hold {key}"),
            FindingKind::Unindexable => write!(formatter, "_id {documents} can't be indexed"),
            FindingKind::Abandoned => write!(
                formatter,
                "{key} is reserved for _id {reservation}, which doesn't hold it"
            ),
            FindingKind::Unreadable => write!(formatter, "_id {reservation} is no reservation"),
        }?;
        if let Some(reason) = &self.reason {
            write!(formatter, " ({reason})")?;
        }
        match self.repaired {
            true => write!(formatter, " (repaired)"),
            false => Ok(()),
        }
    }
}
