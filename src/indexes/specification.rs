//! Turns an index document, of a `createIndexes` or as `listIndexes` shows it, into the specification of a constraint.
//!
//! It does no I/O.

use bson::spec::ElementType;
use bson::{Bson, Document, RawDocumentBuf};

use crate::constraint::{Constraint, IndexSpec, SpecError, id_identity, not_bson, resolved_collation};
use crate::raw::{Doc, Element, Malformed};

/// The specification that `index` states; none if it lacks a key pattern that can be read.
///
/// # Errors
/// [`SpecError`] if one of its options can't be read, or it isn't BSON.
pub fn specification_of(index: Doc<'_>) -> Result<Option<IndexSpec>, SpecError> {
    let read = readable_specification(index).map_err(not_bson)?;
    read.map_or(Ok(None), |(specification, unreadable)| {
        unreadable.map_or(Ok(Some(specification)), Err)
    })
}

/// The same without an option that can't be read, and the error for that. The server refuses an option that should be a document and isn't.
pub fn readable_specification(index: Doc<'_>) -> Result<Option<(IndexSpec, Option<SpecError>)>, Malformed> {
    let mut unreadable = None;
    let mut document = |option| -> Result<Option<Document>, Malformed> {
        let nested = index
            .get(option)?
            .filter(|nested| nested.kind == ElementType::EmbeddedDocument);
        let read = nested.map(Element::to_document);
        if let Some(None) = read {
            unreadable = Some(SpecError::Unreadable { option });
        }
        Ok(read.flatten())
    };
    let Some(key) = document("key")? else {
        return Ok(None);
    };
    let specification = IndexSpec {
        key,
        name: index.get("name")?.and_then(|name| name.as_str().map(str::to_owned)),
        sparse: index.is_set("sparse")?,
        partial_filter_expression: document("partialFilterExpression")?,
        collation: document("collation")?,
        ..IndexSpec::default()
    };
    Ok(Some((specification, unreadable)))
}

/// Whether an index with this specification has the key and the options of `constraint`, whatever the names.
pub fn is_index_of(specification: &IndexSpec, constraint: &Constraint) -> bool {
    let of_constraint = constraint.spec();
    has_key(&specification.key, constraint)
        && specification.sparse == of_constraint.sparse
        && is_same_filter(
            specification.partial_filter_expression.as_ref(),
            of_constraint.partial_filter_expression.as_ref(),
        )
        && has_collation(specification, constraint)
}

/// Whether two partial filters are the same. The types of the numbers don't matter.
fn is_same_filter(one: Option<&Document>, other: Option<&Document>) -> bool {
    let identity = |filter: &Document| RawDocumentBuf::try_from(filter).map(|filter| id_identity(&filter.into()));
    match (one, other) {
        (Some(one), Some(other)) => {
            one == other || matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
        }
        (one, other) => one == other,
    }
}

/// Whether `key` is the key pattern of `constraint`.
pub fn has_key(key: &Document, constraint: &Constraint) -> bool {
    Document::try_from(constraint.key_pattern()).is_ok_and(|pattern| is_same_key(key, &pattern))
}

/// Whether two key patterns have the same fields in the same order, of the same directions or kinds. The types of the numbers don't matter.
pub fn is_same_key(one: &Document, other: &Document) -> bool {
    let field = |(path, kind): (&String, &Bson)| (path.clone(), is_descending(kind), kind.as_str().map(str::to_owned));
    one.iter().map(field).eq(other.iter().map(field))
}

/// Whether an index with this specification compares strings as `constraint` does.
pub fn has_collation(specification: &IndexSpec, constraint: &Constraint) -> bool {
    let resolved = resolved_collation(specification.collation.as_ref());
    resolved.is_ok_and(|resolved| resolved.as_deref() == constraint.collation())
}

/// The direction of a field; none if it isn't a number.
fn is_descending(direction: &Bson) -> Option<bool> {
    match direction {
        Bson::Int32(number) => Some(*number < 0),
        Bson::Int64(number) => Some(*number < 0),
        Bson::Double(number) => Some(*number < 0.0),
        _ => None,
    }
}

/// Whether the server keeps an index with this specification unique by itself, on a collection with this default collation and shard
/// key: the shard key is a prefix of the key, and strings are compared byte by byte.
pub fn server_can_keep(specification: &IndexSpec, default: Option<&Document>, shard_key: &[String]) -> bool {
    let fields: Vec<&String> = specification.key.keys().collect();
    let is_prefix = shard_key.len() <= fields.len() && shard_key.iter().zip(fields).all(|(one, other)| one == other);
    let collation = specification.collation.as_ref().or(default);
    is_prefix && resolved_collation(collation).is_ok_and(|resolved| resolved.is_none())
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::namespace::Namespace;

    fn constraint(index: Document) -> Constraint {
        Constraint::new(Namespace::new("d", "c"), specification(index)).unwrap()
    }

    fn specification(index: Document) -> IndexSpec {
        let index = index.to_vec().unwrap();
        specification_of(Doc::new(&index).unwrap()).unwrap().unwrap()
    }

    #[test]
    fn a_filter_matches_with_other_types_of_numbers() {
        let index = |filter: Document| doc! { "key": { "a": 1 }, "partialFilterExpression": filter };
        let made = constraint(index(doc! { "age": { "$gt": 18 }, "$and": [{ "b": 1_i64 }] }));
        let others = [
            (doc! { "age": { "$gt": 18_i64 }, "$and": [{ "b": 1.0 }] }, true),
            (doc! { "age": { "$gt": 18.5 }, "$and": [{ "b": 1 }] }, false),
            (doc! { "age": { "$gte": 18 }, "$and": [{ "b": 1 }] }, false),
        ];
        for (filter, is_same) in others {
            assert_eq!(
                is_index_of(&specification(index(filter.clone())), &made),
                is_same,
                "{filter}"
            );
        }
        let without = specification(doc! { "key": { "a": 1 } });
        assert!(!is_index_of(&without, &made));
    }

    #[test]
    fn an_index_matches_the_constraint_that_was_made_with_it() {
        let made = constraint(doc! { "key": { "a": 1, "b": -1.0 }, "collation": { "locale": "en" } });
        let shown =
            |key: Document, collation: Document| doc! { "v": 2, "key": key, "name": "x", "collation": collation };
        let en = doc! { "locale": "en", "caseLevel": false, "strength": 3 };
        assert!(is_index_of(
            &specification(shown(doc! { "a": 1.0, "b": -1 }, en.clone())),
            &made
        ));
        assert!(!is_index_of(
            &specification(shown(doc! { "b": -1, "a": 1 }, en.clone())),
            &made
        ));
        assert!(!is_index_of(&specification(shown(doc! { "a": 1, "b": 1 }, en)), &made));
        assert!(!is_index_of(&specification(doc! { "key": { "a": 1, "b": -1 } }), &made));
    }

    #[test]
    fn an_option_that_cannot_be_decoded_is_not_left_out() {
        let read = |filter: &Document, from: &[u8], to: &[u8]| {
            let mut index = doc! { "key": { "a": 1 }, "partialFilterExpression": filter }
                .to_vec()
                .unwrap();
            let at = index.windows(from.len()).position(|bytes| bytes == from).unwrap();
            index[at..at + to.len()].copy_from_slice(to);
            specification_of(Doc::new(&index).unwrap())
        };
        let nested = (0..300).fold(doc! { "state": "active" }, |nested, _| doc! { "$and": nested });
        let large = doc! { "state": { "$in": vec!["active"; 1 << 17] } };
        for (filter, to) in [
            (doc! { "state": "active" }, &b"activ\xff"[..]),
            (nested, b"active"),
            (large, b"active"),
        ] {
            let unreadable = read(&filter, b"active", to);
            assert!(matches!(
                unreadable,
                Err(SpecError::Unreadable {
                    option: "partialFilterExpression"
                })
            ));
        }
        assert!(
            read(&doc! { "state": "active" }, b"active", b"active")
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn the_server_keeps_an_index_that_begins_with_the_shard_key() {
        let keeps = |index: Document, shard_key: &[&str]| {
            let shard_key: Vec<String> = shard_key.iter().map(|&path| path.to_owned()).collect();
            server_can_keep(&specification(index), None, &shard_key)
        };
        assert!(keeps(doc! { "key": { "region": 1, "email": 1 } }, &["region"]));
        assert!(!keeps(doc! { "key": { "email": 1, "region": 1 } }, &["region"]));
        assert!(!keeps(doc! { "key": { "region": 1 } }, &["region", "n"]));
        assert!(!keeps(
            doc! { "key": { "region": 1 }, "collation": { "locale": "en" } },
            &["region"]
        ));
    }
}
