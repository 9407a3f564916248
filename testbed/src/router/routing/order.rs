//! The server's order of BSON values (`BSONElement::compareElements`, simple collation): first by type, numbers of all
//! types as one, then by value.
//!
//! Works on bytes: strings need not be UTF-8, and values that the order calls equal need not be equal bytes.

use std::cmp::Ordering;

use bson::spec::ElementType;

use super::number::{Number, compare};
use crate::router::raw::{Doc, Element};

/// The server's rank of a type: types of one rank compare by value.
pub fn canonical_type(kind: ElementType) -> i32 {
    match kind {
        ElementType::MinKey => -1,
        ElementType::Undefined => 0,
        ElementType::Null => 5,
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => 10,
        ElementType::String | ElementType::Symbol => 15,
        ElementType::EmbeddedDocument => 20,
        ElementType::Array => 25,
        ElementType::Binary => 30,
        ElementType::ObjectId => 35,
        ElementType::Boolean => 40,
        ElementType::DateTime => 45,
        ElementType::Timestamp => 47,
        ElementType::RegularExpression => 50,
        ElementType::DbPointer => 55,
        ElementType::JavaScriptCode => 60,
        ElementType::JavaScriptCodeWithScope => 65,
        ElementType::MaxKey => 127,
    }
}

/// Compares two values; their names count only inside documents.
pub fn compare_elements(left: &Element<'_>, right: &Element<'_>) -> Ordering {
    let types = canonical_type(left.kind).cmp(&canonical_type(right.kind));
    if types != Ordering::Equal {
        return types;
    }
    match left.kind {
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
            match (Number::from_element(left), Number::from_element(right)) {
                (Some(left), Some(right)) => compare(left, right),
                _ => Ordering::Equal,
            }
        }
        ElementType::String | ElementType::Symbol | ElementType::JavaScriptCode => {
            left.as_string_bytes().cmp(&right.as_string_bytes())
        }
        ElementType::EmbeddedDocument | ElementType::Array => compare_nested(left, right),
        ElementType::Binary => compare_binary(left.value, right.value),
        ElementType::DateTime => signed(left.value).cmp(&signed(right.value)),
        ElementType::Timestamp => (signed(left.value) as u64).cmp(&(signed(right.value) as u64)),
        // Object ids, booleans, and what is rare: the server's order of these is that of their bytes, or close to it.
        _ => left.value.cmp(right.value),
    }
}

fn compare_nested(left: &Element<'_>, right: &Element<'_>) -> Ordering {
    match (Doc::new(left.value), Doc::new(right.value)) {
        (Ok(left_doc), Ok(right_doc)) => walk(left_doc, right_doc, left.kind == ElementType::EmbeddedDocument),
        _ => Ordering::Equal,
    }
}

/// Element by element: type, then name, then value.
fn walk(left: Doc<'_>, right: Doc<'_>, names_count: bool) -> Ordering {
    let mut left = left.elements().flatten();
    let mut right = right.elements().flatten();
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) => canonical_type(left.kind)
                .cmp(&canonical_type(right.kind))
                .then_with(|| {
                    if names_count {
                        left.name.cmp(right.name)
                    } else {
                        Ordering::Equal
                    }
                })
                .then_with(|| compare_elements(&left, &right)),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// By length, then subtype, then bytes.
fn compare_binary(left: &[u8], right: &[u8]) -> Ordering {
    left.len().cmp(&right.len()).then_with(|| left[4..].cmp(&right[4..]))
}

fn signed(bytes: &[u8]) -> i64 {
    bytes.try_into().map_or(0, i64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::*;

    /// In the server's order; values of one inner list are equal.
    fn ladder() -> Vec<Vec<Bson>> {
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        vec![
            vec![Bson::MinKey],
            vec![Bson::Undefined],
            vec![Bson::Null],
            vec![Bson::Double(f64::NAN), decimal("NaN")],
            vec![Bson::Double(f64::NEG_INFINITY), decimal("-Infinity")],
            vec![Bson::Double(-1e300)],
            vec![decimal("-5.5"), Bson::Double(-5.5)],
            vec![Bson::Int32(-5), Bson::Int64(-5), decimal("-5.00")],
            vec![Bson::Int32(0), Bson::Double(-0.0), decimal("0E+3")],
            vec![decimal("1E-6176")],
            vec![Bson::Double(5e-324)],
            vec![decimal("0.1")],
            vec![Bson::Double(0.1)],
            vec![
                Bson::Int64(9_007_199_254_740_992),
                Bson::Double(9_007_199_254_740_992.0),
            ],
            vec![Bson::Int64(9_007_199_254_740_993), decimal("9007199254740993")],
            vec![Bson::Int64(i64::MAX)],
            vec![Bson::Double(9.223_372_036_854_776e18)],
            vec![decimal("9.9E+6000")],
            vec![Bson::Double(f64::INFINITY)],
            vec![Bson::String("".into())],
            vec![Bson::String("a".into()), Bson::Symbol("a".into())],
            vec![Bson::String("a\0b".into())],
            vec![Bson::String("ab".into())],
            vec![doc! {}.into()],
            vec![doc! { "b": 1 }.into()],
            vec![doc! { "b": 1, "c": 1 }.into()],
            vec![doc! { "b": 2 }.into()],
            vec![doc! { "a": "x" }.into()],
            vec![Bson::Array(vec![])],
            vec![Bson::Array(vec![Bson::Int32(1)])],
            vec![Bson::Boolean(false)],
            vec![Bson::Boolean(true)],
            vec![Bson::DateTime(bson::DateTime::from_millis(-1))],
            vec![Bson::DateTime(bson::DateTime::from_millis(1))],
            vec![Bson::Timestamp(bson::Timestamp { time: 1, increment: 9 })],
            vec![Bson::Timestamp(bson::Timestamp { time: 2, increment: 1 })],
            vec![Bson::MaxKey],
        ]
    }

    #[test]
    fn values_stand_in_the_servers_order() {
        let steps: Vec<Vec<Vec<u8>>> = ladder()
            .into_iter()
            .map(|step| {
                step.into_iter()
                    .map(|value| doc! { "v": value }.to_vec().unwrap())
                    .collect()
            })
            .collect();
        let value = |bytes: &'static [u8]| Doc::new(bytes).unwrap().get("v").unwrap().unwrap();
        for (low, lower) in steps.iter().enumerate() {
            for (high, higher) in steps.iter().enumerate() {
                for (left, right) in lower
                    .iter()
                    .flat_map(|left| higher.iter().map(move |right| (left, right)))
                {
                    let (left, right) = (left.clone().leak(), right.clone().leak());
                    assert_eq!(
                        compare_elements(&value(left), &value(right)),
                        low.cmp(&high),
                        "{low} {high}"
                    );
                }
            }
        }
    }
}
