//! Tests on generated values the laws that hold for all values.

use bson::spec::BinarySubtype;
use bson::{Binary, Decimal128, Regex};
use proptest::prelude::*;

use super::{Bson, Constraint, Doc, Element, ElementType, IndexSpec, Key, RawDocument, canonical, constraint, doc, on};

/// Generates few distinct values, so that pairs are often equal. They are nested and have names that need escaping.
fn value() -> impl Strategy<Value = Bson> {
    let decimal = |text: &str| Bson::Decimal128(text.parse::<Decimal128>().unwrap());
    let scalar = prop_oneof![
        (0..3_i32).prop_map(Bson::from),
        (0..3_i64).prop_map(Bson::from),
        prop::sample::select(vec![0.0, -0.0, 1.0, 0.5, 0.1, f64::NAN, f64::INFINITY]).prop_map(Bson::from),
        prop::sample::select(vec!["0", "1.0", "0.50", "0.1", "NaN", "Infinity", "-0E+3"]).prop_map(decimal),
        prop::sample::select(vec!["", "a", "a\0", "a\0b", "$a", "%a"]).prop_map(Bson::from),
        prop::sample::select(vec!["", "a"]).prop_map(|text| Bson::Symbol(text.to_owned())),
        Just(Bson::Null),
        Just(Bson::Undefined),
        any::<bool>().prop_map(Bson::from),
        prop::collection::vec(0..2_u8, 0..3).prop_map(|bytes| {
            let subtype = BinarySubtype::Generic;
            Bson::Binary(Binary { subtype, bytes })
        }),
        prop::sample::select(vec!["", "i"]).prop_map(|options| {
            let (pattern, options) = ("a".try_into().unwrap(), options.try_into().unwrap());
            Bson::RegularExpression(Regex { pattern, options })
        }),
    ];
    let name = || prop::sample::select(vec!["a", "$a", "%a", "%$a", "%%a", ""]);
    scalar.prop_recursive(3, 12, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Bson::from),
            prop::collection::vec((name(), inner), 0..3).prop_map(|fields| Bson::Document(
                fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()
            )),
        ]
    })
}

fn key(constraint: &Constraint, value: &Bson) -> Key {
    // Put the value one level down, where no array is expanded.
    let bytes = doc! { "v": { "x": value.clone() } }.to_vec().unwrap();
    constraint.keys(Doc::new(&bytes).unwrap()).unwrap().remove(0)
}

/// Bytes that compare as the server compares `_id`s, which is how it compares any two values.
fn as_the_server_sees(id: &RawDocument) -> Vec<u8> {
    let mut bytes = Vec::new();
    let element = Element {
        kind: ElementType::EmbeddedDocument,
        name: b"",
        value: id.as_bytes(),
    };
    canonical::Canonical::for_index(&mut bytes, canonical::Strings::Simple)
        .append(&element, false)
        .unwrap();
    bytes
}

proptest! {
    #[test]
    fn reservation_ids_are_equal_exactly_where_keys_are(a in value(), b in value()) {
        let constraint = on(doc! { "v": 1 });
        let (a, b) = (key(&constraint, &a), key(&constraint, &b));
        let (id_a, id_b) = (a.reservation_id(), b.reservation_id());
        prop_assert_eq!(a == b, as_the_server_sees(&id_a) == as_the_server_sees(&id_b));
        prop_assert!(a != b || a.bucket() == b.bucket());
    }

    #[test]
    fn a_reservation_id_leads_back(value in value(), descending in any::<bool>()) {
        let constraint = on(doc! { "v": if descending { -1 } else { 1 } });
        let key = key(&constraint, &value);
        let back = Key::from_reservation_id(&constraint, &key.reservation_id()).unwrap();
        prop_assert_eq!(&back, &key);
        prop_assert_eq!(back.values().unwrap().bytes(), key.values().unwrap().bytes());
    }

    #[test]
    fn a_descending_index_orders_the_other_way(a in value(), b in value()) {
        let (up, down) = (on(doc! { "v": 1 }), on(doc! { "v": -1 }));
        prop_assert_eq!(key(&up, &a).cmp(&key(&up, &b)), key(&down, &b).cmp(&key(&down, &a)));
    }

    #[test]
    fn no_bytes_bring_it_down(mut bytes in prop::collection::vec(any::<u8>(), 5..80), document in value()) {
        let length = (bytes.len() as i32).to_le_bytes();
        bytes[..4].copy_from_slice(&length);
        *bytes.last_mut().unwrap() = 0;
        let mut broken = doc! { "a": document }.to_vec().unwrap();
        let position = usize::from(bytes[4]) % (broken.len() - 5) + 4;
        broken[position] = bytes[bytes.len() - 2];
        let spec = IndexSpec {
            key: doc! { "a": 1, "a.a": -1, "a.0.0": 1 },
            partial_filter_expression: Some(doc! { "a.a": { "$lte": { "a": [1] } } }),
            ..Default::default()
        };
        let constraint = constraint(spec);
        for bytes in [bytes, broken] {
            if let Ok(document) = Doc::new(&bytes) {
                // Must not panic; whether it is an error depends on what the bytes are.
                for key in constraint.keys(document).unwrap_or_default() {
                    constraint.duplicate(&key);
                }
            }
        }
    }
}
