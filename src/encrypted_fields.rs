//! Finds the fields of a collection that Queryable Encryption encrypts.
//!
//! Equal values become different bytes in each document, and only clients with the data key can compare them. A unique
//! constraint that reads such a field would let every duplicate through.

use bson::Document;

use crate::classify::{ConstraintRemoval, EncryptedField};
use crate::command::affected_keys::overlap;
use crate::constraint::Constraint;
use crate::raw::Element;

/// The paths of the encrypted fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncryptedFields(Vec<String>);

impl EncryptedFields {
    /// The fields that a command's `encryptedFields` lists. None if the value can't be read: then any field may be
    /// encrypted.
    pub fn of_element(specification: &Element<'_>) -> Option<Self> {
        EncryptedFields::of(&specification.to_document()?)
    }

    /// The fields that `{fields: [{path: "a.b", ...}, ...]}` lists; none if the document has another form.
    pub fn of(specification: &Document) -> Option<Self> {
        let fields = specification.get_array("fields").ok()?;
        let path = |field: &bson::Bson| Some(field.as_document()?.get_str("path").ok()?.to_owned());
        fields.iter().map(path).collect::<Option<_>>().map(EncryptedFields)
    }

    /// The first of `constraints` that reads an encrypted field, or a field above or below one.
    pub fn read_by<'a>(&self, mut constraints: impl Iterator<Item = &'a Constraint>) -> Option<EncryptedField> {
        constraints.find_map(|constraint| {
            let is_read = |field: &&String| {
                constraint
                    .paths()
                    .any(|path| overlap(field.as_bytes(), path.as_bytes()))
            };
            self.0.iter().find(is_read).map(|field| EncryptedField {
                constraint: constraint.name().to_owned(),
                field: field.clone(),
                removal: ConstraintRemoval::of([constraint]),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use bson::{bson, doc};

    use super::*;
    use crate::constraint::IndexSpec;
    use crate::namespace::Namespace;

    fn constraint() -> Constraint {
        let spec = IndexSpec {
            key: doc! { "person.email": 1 },
            partial_filter_expression: Some(doc! { "state": "active" }),
            ..IndexSpec::default()
        };
        Constraint::new(Namespace::new("shop", "users"), spec).unwrap()
    }

    #[test]
    fn a_constraint_reads_its_fields_its_filters_and_what_lies_above_and_below() {
        let constraint = constraint();
        for (path, is_read) in [
            ("person.email", true),
            ("person", true),
            ("person.email.local", true),
            ("state", true),
            ("person.name", false),
            ("email", false),
            ("person.emails", false),
        ] {
            let listed =
                doc! { "escCollection": "enxcol_.users.esc", "fields": [{ "path": "other" }, { "path": path }] };
            let read = EncryptedFields::of(&listed).unwrap().read_by([&constraint].into_iter());
            assert_eq!(read.is_some(), is_read, "{path}");
            if let Some(read) = read {
                assert_eq!(
                    (read.constraint.as_str(), read.field.as_str()),
                    (constraint.name(), path)
                );
            }
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_is_none() {
        for fields in [
            bson!(null),
            bson!("email"),
            bson!(["email"]),
            bson!([{ "path": 1 }]),
            bson!([{}]),
        ] {
            assert_eq!(EncryptedFields::of(&doc! { "fields": fields }), None);
        }
        assert_eq!(EncryptedFields::of(&doc! {}), None);
    }
}
