//! Recognises parts of a `$set` that leave a document in its place: they set its `_id` or its shard key to what the query asks for.
//!
//! The server's `$merge` sets whole documents, so each of its statements names both. The comparison is strict: an equal number of
//! another type, or with another precision, is another value.

use bson::spec::ElementType;

use super::affected_keys::overlap;
use super::filter_rewriting::{equality, is_short};
use crate::raw::{Builder, Doc, Element, Malformed};

/// Whether setting `field` sets each of the `place` paths that it reaches to the scalar value that `query` asks for.
pub fn is_kept(field: &Element<'_>, query: Doc<'_>, place: &[&str]) -> Result<bool, Malformed> {
    for path in place.iter().filter(|path| overlap(field.name, path.as_bytes())) {
        if !is_short(query) {
            return Ok(false);
        }
        let asked_for = equality(query, path)?.filter(is_scalar);
        let (Some(set), Some(asked_for)) = (value_set_at(field, path)?, asked_for) else {
            return Ok(false);
        };
        if set.kind != asked_for.kind || set.value != asked_for.value {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The operators of `update` without the fields of `$set` that keep the place.
pub fn without_kept(update: Doc<'_>, query: Doc<'_>, place: &[&str]) -> Result<Vec<u8>, Malformed> {
    let mut rest = Builder::new();
    for operator in update.elements() {
        let operator = operator?;
        let fields = match operator.name {
            b"$set" => operator.as_document()?,
            _ => None,
        };
        let Some(fields) = fields else {
            rest.element(&operator);
            continue;
        };
        rest.open(ElementType::EmbeddedDocument, operator.name);
        for field in fields.elements() {
            let field = field?;
            if !is_kept(&field, query, place)? || !place.iter().any(|path| overlap(field.name, path.as_bytes())) {
                rest.element(&field);
            }
        }
        rest.close();
    }
    Ok(rest.finish())
}

/// The value that `path` gets if `field` is set.
fn value_set_at<'a>(field: &Element<'a>, path: &str) -> Result<Option<Element<'a>>, Malformed> {
    let Some(below) = path.as_bytes().strip_prefix(field.name) else {
        return Ok(None);
    };
    match below {
        [] => Ok(Some(*field)),
        [b'.', ..] => match field.as_document()? {
            Some(document) => document.value_at(&path[field.name.len() + 1..]),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Whether the server stores the value of an equality unchanged, and an equality with it asks for just this value.
pub fn is_scalar(value: &Element<'_>) -> bool {
    matches!(
        value.kind,
        ElementType::String
            | ElementType::ObjectId
            | ElementType::Int32
            | ElementType::Int64
            | ElementType::Double
            | ElementType::Decimal128
            | ElementType::Boolean
            | ElementType::DateTime
            | ElementType::Binary
    )
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Decimal128, Document, doc};

    use super::*;

    const PLACE: [&str; 2] = ["address.region", "_id"];

    fn kept(set: Document, query: Document) -> bool {
        let (set, query) = (set.to_vec().unwrap(), query.to_vec().unwrap());
        let fields = Doc::new(&set).unwrap();
        let query = Doc::new(&query).unwrap();
        fields
            .elements()
            .all(|field| is_kept(&field.unwrap(), query, &PLACE).unwrap())
    }

    #[test]
    fn the_very_values_of_the_query_keep_the_place() {
        let query = || doc! { "_id": 1, "address.region": { "$eq": "a" } };
        assert!(kept(
            doc! { "_id": 1, "address": { "street": 2, "region": "a" }, "n": 3 },
            query()
        ));
        assert!(kept(doc! { "address.region": "a", "address.street": 2 }, query()));
        for moving in [
            doc! { "_id": 2 },
            doc! { "_id": 1_i64 },
            doc! { "_id": 1.0 },
            doc! { "address": { "region": "b" } },
            doc! { "address": { "street": 1 } },
            doc! { "address": "a" },
            doc! { "address": [{ "region": "a" }] },
            doc! { "address.region.x": "a" },
            doc! { "address.0": "a" },
            doc! { "_id.$": 1 },
        ] {
            assert!(!kept(moving.clone(), query()), "{moving}");
        }
        // The query doesn't pin the place.
        for query in [
            doc! { "address.region": "a" },
            doc! { "_id": { "$gte": 1 }, "address.region": "a" },
            doc! { "_id": 1, "address": { "region": "a" } },
            doc! { "_id": [1], "address.region": "a" },
        ] {
            let set = doc! { "_id": query.get("_id").cloned().unwrap_or(Bson::from(1)), "address": { "region": "a" } };
            assert!(!kept(set, query.clone()), "{query}");
        }
    }

    #[test]
    fn a_long_query_keeps_no_place() {
        let with = |conditions: usize| {
            let others = (1..conditions).map(|n| (format!("f{n}"), Bson::from(1)));
            [("_id".to_owned(), Bson::from(1))].into_iter().chain(others).collect()
        };
        assert!(kept(doc! { "_id": 1 }, with(100)));
        assert!(!kept(doc! { "_id": 1 }, with(101)));
    }

    #[test]
    fn equal_numbers_of_another_form_are_other_values() {
        let decimal = |text: &str| Bson::Decimal128(text.parse::<Decimal128>().unwrap());
        for (one, other) in [
            (Bson::Double(0.0), Bson::Double(-0.0)),
            (decimal("1.0"), decimal("1.00")),
            (Bson::Int32(1), Bson::Double(1.0)),
        ] {
            assert!(kept(doc! { "_id": &one }, doc! { "_id": &one }));
            assert!(!kept(doc! { "_id": &one }, doc! { "_id": &other }));
        }
    }

    #[test]
    fn only_sets_that_keep_the_place_are_left_out() {
        let update = doc! { "$set": { "_id": 1, "n": 2, "address": { "region": "b" } }, "$inc": { "_id": 1 } };
        let (bytes, query) = (update.to_vec().unwrap(), doc! { "_id": 1 }.to_vec().unwrap());
        let rest = without_kept(Doc::new(&bytes).unwrap(), Doc::new(&query).unwrap(), &PLACE).unwrap();
        let expected = doc! { "$set": { "n": 2, "address": { "region": "b" } }, "$inc": { "_id": 1 } };
        assert_eq!(Document::from_reader(rest.as_slice()).unwrap(), expected);
    }
}
