//! Checks an operator's index specification, which has the form that `createIndex({unique: true})` reads.
//!
//! It checks the key pattern, the name, and whether the options are compatible. If the server refuses a specification,
//! Keyward refuses it with the server's code and text. If the server accepts it but Keyward can't keep it unique across
//! shards, Keyward refuses it with its own reason.

use bson::{Bson, Document, oid::ObjectId};
use serde::Deserialize;

use super::number::Number;
use crate::namespace::InvalidNamespace;
use crate::raw::{Doc, Element};
use crate::server::code::{
    BAD_VALUE, CANNOT_CREATE_INDEX, INVALID_INDEX_SPECIFICATION_OPTION, TOO_MANY_KEY_FIELDS, UNIQUE_HASHED_INDEX,
};

/// How a proxy collection is spread over the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharding {
    /// By a hash of the key, evenly.
    #[default]
    Hashed,
    /// By the key's own order.
    Ranged,
}

/// How a write to the protected collection is made consistent with its reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Reserve, write, and release the reservation if the write failed.
    Compensating,
    /// Reserve and write in one transaction. A file may also state the name of earlier versions.
    #[serde(alias = "transaction")]
    Strict,
}

impl Strategy {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Compensating => "compensating",
            Strategy::Strict => "strict",
        }
    }

    /// The strategy with this name in the cluster.
    pub fn of_stored_name(stored: &str) -> Option<Strategy> {
        let known = [Strategy::Compensating, Strategy::Strict];
        known.into_iter().find(|strategy| strategy.stored_name() == stored)
    }

    /// Its name in the cluster, which is that of earlier versions.
    pub fn stored_name(self) -> &'static str {
        match self {
            Strategy::Compensating => "compensating",
            Strategy::Strict => "transaction",
        }
    }
}

/// The reaction of a Keyward if existing documents violate a constraint that it is about to enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnViolation {
    /// It doesn't start, or refuses the configuration.
    #[default]
    Stop,
    /// It serves clients without the constraint.
    LeaveOut,
}

/// An index specification as the operator wrote it, not checked yet.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IndexSpec {
    /// The key pattern: `{email: 1}`.
    pub key: Document,
    /// The index's name; if absent, the name that `createIndex` would give it.
    pub name: Option<String>,
    /// Whether documents that have none of the fields are left out.
    pub sparse: bool,
    /// Documents that don't match it are left out.
    pub partial_filter_expression: Option<Document>,
    /// How strings are compared.
    pub collation: Option<Document>,
    /// How the proxy collection is spread.
    pub sharding: Sharding,
    /// How a write is made consistent with its reservations; if absent, Keyward chooses what suits the deployment.
    pub strategy: Option<Strategy>,
    /// Whether queries by its key go to the shard of the key's owner.
    pub route: bool,
    /// The reaction if existing documents violate it.
    pub on_violation: OnViolation,
    /// The number of its entry in the list of clients' constraints, if a client made it.
    pub client_entry: Option<ObjectId>,
}

/// Why an index specification can't be a constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The server refuses such an index.
    #[error("{message}")]
    Refused {
        /// The server's error code.
        code: i32,
        /// The server's text, without the `Error in specification … :: caused by ::` before it.
        message: String,
    },
    /// Keyward can't keep this kind of index unique.
    #[error("an index of type '{index_type}' can't be made unique across shards; use an ascending or descending key")]
    IndexType {
        /// The type in the key pattern: `text`, `2d`, `2dsphere`.
        index_type: String,
    },
    /// Keyward can't tell which strings the server calls equal under this collation.
    #[error(
        "the collation with locale '{locale}' is unknown to the server, or one whose strings Keyward can't be sure to \
         compare as the server does; docs/configuration.md lists the locales"
    )]
    CollationUnsupported {
        /// The locale asked for.
        locale: String,
    },
    /// The server accepts the partial filter, but Keyward can't evaluate it exactly as the server does.
    #[error("{what} in partialFilterExpression is not supported")]
    FilterUnsupported {
        /// Which part of it.
        what: String,
    },
    /// An option of the index can't be decoded.
    #[error("{option} can't be read: it has text that isn't UTF-8, more than 200 levels, or more than 1 MiB")]
    Unreadable {
        /// The option's name.
        option: &'static str,
    },
    /// This collection can't have a constraint.
    #[error("{0} can't have a constraint: it belongs to MongoDB or to Keyward itself")]
    ReservedNamespace(String),
    /// The collection's name, or that of the proxy collection, is invalid.
    #[error(transparent)]
    Namespace(#[from] InvalidNamespace),
    /// The index on `_id` can have only one name.
    #[error("the index on _id is always named _id_, not '{name}'; leave the name out")]
    NameOfId {
        /// The name asked for.
        name: String,
    },
    /// The proxy collection can't be named after the index.
    #[error("the index name '{name}' can't be part of a collection's name ({reason}); give the constraint a name")]
    Name {
        /// The index's name.
        name: String,
        /// Why it can't be used.
        reason: &'static str,
    },
}

impl SpecError {
    pub(super) fn refused(code: i32, message: impl Into<String>) -> Self {
        SpecError::Refused {
            code,
            message: message.into(),
        }
    }
}

/// The name of the index on `_id`, which every collection has.
pub const ID_INDEX: &str = "_id_";

/// One field of a key pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyField {
    pub(super) path: String,
    pub(super) descending: bool,
}

impl IndexSpec {
    /// Its name, or the name that `createIndex` would give it.
    pub(super) fn index_name(&self) -> Result<String, SpecError> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None if self.is_on_id() => ID_INDEX.to_owned(),
            None => default_name(&self.key),
        };
        match name.as_str() {
            "" => Err(SpecError::refused(CANNOT_CREATE_INDEX, "index name cannot be empty")),
            "*" => Err(SpecError::refused(BAD_VALUE, "The index name '*' is not valid.")),
            ID_INDEX if !self.is_on_id() => {
                let message =
                    "The index name '_id_' is reserved for the _id index, which must have key pattern {_id: 1}";
                Err(SpecError::refused(BAD_VALUE, message))
            }
            other if self.is_on_id() && other != ID_INDEX => Err(SpecError::NameOfId { name }),
            _ if name.contains('\0') => Err(SpecError::refused(
                CANNOT_CREATE_INDEX,
                "index name cannot contain NUL bytes",
            )),
            _ if name.contains('$') => Err(SpecError::Name {
                name,
                reason: "it holds a '$'",
            }),
            _ => Ok(name),
        }
    }

    /// Checks that the options are compatible.
    pub(super) fn check_options(&self) -> Result<(), SpecError> {
        let partial = self.partial_filter_expression.is_some();
        if self.is_on_id() && (self.sparse || partial) {
            let option = if self.sparse {
                "sparse"
            } else {
                "partialFilterExpression"
            };
            let message = format!("The field '{option}' is not valid for an _id index specification.");
            return Err(SpecError::refused(INVALID_INDEX_SPECIFICATION_OPTION, message));
        }
        if self.sparse && partial {
            let message = r#"cannot mix "partialFilterExpression" and "sparse" options"#;
            return Err(SpecError::refused(CANNOT_CREATE_INDEX, message));
        }
        Ok(())
    }

    /// Checks that a collection of reservations can have its name. A name that is stored already may be of an earlier version.
    ///
    /// # Errors
    /// [`SpecError::Name`] if the server keeps such names for itself.
    pub fn check_new_name(&self) -> Result<(), SpecError> {
        let name = self.index_name()?;
        match format!(".{name}").contains(".system.") {
            true => Err(SpecError::Name {
                name,
                reason: "it holds 'system.'",
            }),
            false => Ok(()),
        }
    }

    /// Whether it means the index on `_id`, which every collection has.
    pub fn is_on_id(&self) -> bool {
        let direction = match self.key.get("_id") {
            Some(Bson::Int32(number)) => f64::from(*number),
            Some(Bson::Int64(number)) => *number as f64,
            Some(Bson::Double(number)) => *number,
            _ => return false,
        };
        self.key.len() == 1 && direction == 1.0
    }
}

/// `createIndex`'s name for a key pattern: `email_1`, `a_1_b_-1`.
fn default_name(key: &Document) -> String {
    let parts: Vec<_> = key
        .iter()
        .map(|(path, direction)| match direction {
            Bson::String(text) => format!("{path}_{text}"),
            Bson::Double(number) => format!("{path}_{number}"),
            other => format!("{path}_{other}"),
        })
        .collect();
    parts.join("_")
}

/// The fields of a key pattern. They are checked in the server's order, so that the same fault is reported.
pub(super) fn fields(key: Doc<'_>) -> Result<Vec<KeyField>, SpecError> {
    let refused = |message: &str| Err(SpecError::refused(CANNOT_CREATE_INDEX, message));
    if key.bytes().len() > 2048 {
        return refused("Index key pattern too large.");
    }
    if key.is_empty() {
        return refused("Index keys cannot be empty.");
    }
    let mut fields = Vec::new();
    for element in key.elements() {
        let element = element.map_err(|malformed| SpecError::refused(CANNOT_CREATE_INDEX, malformed.to_string()))?;
        let path = String::from_utf8_lossy(element.name).into_owned();
        let descending = direction(&element)?;
        check_path(&path)?;
        fields.push(KeyField { path, descending });
    }
    if fields.len() > 32 {
        return Err(SpecError::refused(TOO_MANY_KEY_FIELDS, "too many compound keys"));
    }
    Ok(fields)
}

/// Whether the field is in descending order.
fn direction(element: &Element<'_>) -> Result<bool, SpecError> {
    let refused = |message: String| Err(SpecError::refused(CANNOT_CREATE_INDEX, message));
    match Number::of(element) {
        Some(Number::Nan) => return refused("Values in the index key pattern cannot be NaN.".to_owned()),
        Some(number) if number.is_zero() => {
            return refused("Values in the index key pattern cannot be 0.".to_owned());
        }
        Some(number) => return Ok(number.is_negative()),
        None => {}
    }
    match element.as_str() {
        Some("") => refused("Values in the index key pattern cannot be empty strings".to_owned()),
        Some("hashed") => {
            let message = "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.";
            Err(SpecError::refused(UNIQUE_HASHED_INDEX, message))
        }
        Some(index_type @ ("text" | "2d" | "2dsphere")) => Err(SpecError::IndexType {
            index_type: index_type.to_owned(),
        }),
        Some("geoHaystack") => refused("GeoHaystack indexes cannot be created in version 5.0 and above".to_owned()),
        Some(other) => refused(format!("Unknown index plugin '{other}'")),
        None => refused(format!(
            "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, numbers < 0, and strings are \
             allowed.",
            crate::server::type_name(element.kind)
        )),
    }
}

fn check_path(path: &str) -> Result<(), SpecError> {
    let refused = |message: &str| Err(SpecError::refused(CANNOT_CREATE_INDEX, message));
    if path.is_empty() {
        return refused("Index keys cannot be an empty field.");
    }
    if path == "$**" || path.ends_with(".$**") {
        return refused("Index type 'wildcard' does not support the unique option");
    }
    for (position, part) in path.split('.').enumerate() {
        if part.is_empty() {
            return refused("Index keys cannot contain an empty field.");
        }
        // The fields of a DBRef may be indexed.
        let of_a_dbref = position > 0 && matches!(part, "$id" | "$ref" | "$db");
        if part.starts_with('$') && !of_a_dbref {
            return refused("Index key contains an illegal field name: field name starts with '$'.");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn check(key: Document) -> Result<Vec<KeyField>, SpecError> {
        fields(Doc::new(&key.to_vec().unwrap()).unwrap())
    }

    #[test]
    fn a_strategy_that_an_earlier_version_stored_or_a_file_names_is_read() {
        for (strategy, stored, configured) in [
            (Strategy::Compensating, "compensating", &["compensating"][..]),
            (Strategy::Strict, "transaction", &["strict", "transaction"]),
        ] {
            assert_eq!(Strategy::of_stored_name(stored), Some(strategy));
            assert_eq!(strategy.stored_name(), stored);
            for name in configured {
                assert_eq!(
                    bson::deserialize_from_bson::<Strategy>((*name).into()).ok(),
                    Some(strategy)
                );
            }
        }
        assert_eq!(Strategy::of_stored_name("strict"), None);
    }

    #[test]
    fn refuses_what_create_index_refuses_with_its_code_and_text() {
        for (key, code, text) in [
            (doc! {}, 67, "Index keys cannot be empty."),
            (doc! { "a": 0 }, 67, "Values in the index key pattern cannot be 0."),
            (doc! { "a": -0.0 }, 67, "Values in the index key pattern cannot be 0."),
            (
                doc! { "a": f64::NAN },
                67,
                "Values in the index key pattern cannot be NaN.",
            ),
            (
                doc! { "a": "" },
                67,
                "Values in the index key pattern cannot be empty strings",
            ),
            (doc! { "a": "x" }, 67, "Unknown index plugin 'x'"),
            (
                doc! { "b": 1, "a": "hashed" },
                16764,
                "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.",
            ),
            (
                doc! { "a": true },
                67,
                "Values in v:2 index key pattern cannot be of type bool. Only numbers > 0, numbers < 0, and strings are allowed.",
            ),
            (
                doc! { "a": [] },
                67,
                "Values in v:2 index key pattern cannot be of type array. Only numbers > 0, numbers < 0, and strings are allowed.",
            ),
            (doc! { "": 1 }, 67, "Index keys cannot be an empty field."),
            (doc! { "a..b": 1 }, 67, "Index keys cannot contain an empty field."),
            (doc! { ".a": 1 }, 67, "Index keys cannot contain an empty field."),
            (doc! { "a.": 1 }, 67, "Index keys cannot contain an empty field."),
            (
                doc! { "$id": 1 },
                67,
                "Index key contains an illegal field name: field name starts with '$'.",
            ),
            (
                doc! { "a.$b": 1 },
                67,
                "Index key contains an illegal field name: field name starts with '$'.",
            ),
            (
                doc! { "a.$**": 1 },
                67,
                "Index type 'wildcard' does not support the unique option",
            ),
            (doc! { "x".repeat(3000): 1 }, 67, "Index key pattern too large."),
            (
                (0..33).map(|i| (format!("f{i}"), Bson::Int32(1))).collect(),
                13103,
                "too many compound keys",
            ),
        ] {
            assert_eq!(check(key), Err(SpecError::refused(code, text)));
        }
        assert!(matches!(check(doc! { "a": "text" }), Err(SpecError::IndexType { .. })));
    }

    #[test]
    fn directions_and_dbref_fields() {
        let key = doc! { "a": 1, "b": -1.5, "c.$id": 1_i64, "d": "-2".parse::<bson::Decimal128>().unwrap() };
        let descending: Vec<_> = check(key).unwrap().iter().map(|field| field.descending).collect();
        assert_eq!(descending, [false, true, false, true]);
    }

    #[test]
    fn default_names_are_the_drivers() {
        let name = |key: Document| {
            IndexSpec {
                key,
                ..Default::default()
            }
            .index_name()
        };
        assert_eq!(name(doc! { "email": 1 }).unwrap(), "email_1");
        assert_eq!(name(doc! { "a": 1.0, "b.c": -1_i64 }).unwrap(), "a_1_b.c_-1");
        assert_eq!(name(doc! { "_id": 1 }).unwrap(), "_id_");
        assert_eq!(name(doc! { "_id": 1.0 }).unwrap(), "_id_");
        assert_eq!(name(doc! { "_id": -1 }).unwrap(), "_id_-1");
        assert!(matches!(name(doc! { "a.$id": 1 }), Err(SpecError::Name { .. })));
    }
}
