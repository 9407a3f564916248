//! Tests the properties of keys that the rest of Keyward relies on, against facts measured on a real server.

mod laws;

use bson::{Bson, doc};

use super::*;
use crate::raw::Element;

fn constraint(spec: IndexSpec) -> Constraint {
    Constraint::new(Namespace::new("fa", "c"), spec).unwrap()
}

fn on(key: Document) -> Constraint {
    constraint(IndexSpec {
        key,
        ..Default::default()
    })
}

fn keys(constraint: &Constraint, document: Document) -> Result<Vec<Document>, KeyError> {
    let bytes = document.to_vec().unwrap();
    let keys = constraint.keys(Doc::new(&bytes).unwrap())?;
    let values = keys
        .iter()
        .map(|key| bson::deserialize_from_slice(key.values().unwrap().bytes()).unwrap());
    Ok(values.collect())
}

/// How many keys the stored document holds.
fn count_of_stored(constraint: &Constraint, document: &Document) -> usize {
    let bytes = document.to_vec().unwrap();
    match constraint.keys_of_stored(Doc::new(&bytes).unwrap()) {
        StoredKeys::These(keys) => keys.len(),
        StoredKeys::Unknown => panic!("the keys of {document} are unknown"),
    }
}

#[test]
fn missing_null_and_undefined() {
    let email = on(doc! { "email": 1 });
    assert_eq!(keys(&email, doc! { "x": 1 }).unwrap(), [doc! { "email": Bson::Null }]);
    assert_eq!(
        keys(&email, doc! { "email": Bson::Undefined }).unwrap(),
        [doc! { "email": Bson::Undefined }]
    );
    let sparse = constraint(IndexSpec {
        key: doc! { "a": 1, "b": 1 },
        sparse: true,
        ..Default::default()
    });
    assert_eq!(keys(&sparse, doc! { "x": 1 }).unwrap(), []);
    assert_eq!(
        keys(&sparse, doc! { "a": 1 }).unwrap(),
        [doc! { "a": 1, "b": Bson::Null }]
    );
}

#[test]
fn arrays_give_a_key_for_each_element_in_index_order() {
    let descending = on(doc! { "b": -1 });
    assert_eq!(
        keys(&descending, doc! { "b": [1, 3, 2, 3.0] }).unwrap(),
        [doc! { "b": 3 }, doc! { "b": 2 }, doc! { "b": 1 }]
    );
    let t = on(doc! { "t": 1 });
    assert_eq!(keys(&t, doc! { "t": [] }).unwrap(), [doc! { "t": Bson::Undefined }]);
    assert_eq!(keys(&t, doc! { "t": [[8, 9]] }).unwrap(), [doc! { "t": [8, 9] }]);
    let pairs = on(doc! { "i.x": 1, "i.y": 1 });
    assert_eq!(
        keys(&pairs, doc! { "i": [{ "x": 5 }, { "x": 1, "y": 2 }] }).unwrap(),
        [doc! { "i.x": 1, "i.y": 2 }, doc! { "i.x": 5, "i.y": Bson::Null }]
    );
}

#[test]
fn a_document_with_too_large_keys_is_refused() {
    let pairs = on(doc! { "tags": 1, "text": 1 });
    let text = "x".repeat(16 << 20);
    let of = |tags: Vec<i32>| keys(&pairs, doc! { "tags": tags, "text": &text });
    assert_eq!(of((0..7).collect()).unwrap().len(), 7);
    assert_eq!(of(vec![1; 20]).unwrap().len(), 1, "equal keys are one");
    // Stored before the limit. A look-up must not miss a key that an earlier version has reserved.
    let large = doc! { "tags": (0..9).collect::<Vec<_>>(), "text": &text };
    assert_eq!(count_of_stored(&pairs, &large), 9);
    let refused = of((0..9).collect()).unwrap_err();
    assert_eq!(refused.code(), 115);
    assert!(refused.to_string().contains("tags_1_text_1"), "{refused}");
}

/// Their memory has a limit, and the time for them, too.
#[test]
fn the_keys_of_a_stored_document_are_unknown_if_they_are_too_large() {
    let pairs = on(doc! { "tags": 1, "text": 1 });
    let stored = |tags: Vec<i32>| {
        let document = doc! { "tags": tags, "text": "x".repeat(100_000) }.to_vec().unwrap();
        pairs.stored_keys_within(Doc::new(&document).unwrap(), 1 << 20, PLACES_MAX)
    };
    assert!(matches!(stored((0..4).collect()), StoredKeys::These(keys) if keys.len() == 4));
    assert_eq!(stored((0..20).collect()), StoredKeys::Unknown);
    assert_eq!(stored(vec![1; 100]), StoredKeys::Unknown);
}

/// A write may pass with more than its limit, because equal keys are dropped only now and then.
#[test]
fn the_keys_of_an_accepted_document_are_known_later() {
    let pairs = on(doc! { "tags": 1, "text": 1 });
    let both = |equal: usize| {
        let tags: Vec<i32> = std::iter::repeat_n(0, equal).chain(0..12).collect();
        let document = doc! { "tags": tags, "text": "x".repeat(50_000) }.to_vec().unwrap();
        let document = Doc::new(&document).unwrap();
        let accepted = pairs.keys_within(document, 1 << 20, PLACES_MAX).map(|keys| keys.len());
        (accepted, pairs.stored_keys_within(document, 2 << 20, PLACES_MAX))
    };
    let (accepted, stored) = both(6);
    assert_eq!(accepted, Ok(12));
    assert!(matches!(stored, StoredKeys::These(keys) if keys.len() == 12));
    let (refused, stored) = both(0);
    assert!(matches!(refused, Err(KeyError::TooLarge { .. })));
    assert!(matches!(stored, StoredKeys::These(keys) if keys.len() == 12));
}

/// Each element beside the first one leads into the first one, and a sparse index has no key for any of them.
#[test]
fn a_document_with_very_many_places_is_refused() {
    let sparse = constraint(IndexSpec {
        key: doc! { "a.0.0.0.0.0.x": 1 },
        sparse: true,
        ..Default::default()
    });
    let nested = |width: usize| {
        (0..6).fold(Bson::Int32(1), |inner, _| {
            let beside = std::iter::repeat_n(Bson::Int32(1), width - 1);
            std::iter::once(inner).chain(beside).collect()
        })
    };
    assert_eq!(keys(&sparse, doc! { "a": nested(4) }).unwrap(), []);
    let refused = keys(&sparse, doc! { "a": nested(100) }).unwrap_err();
    assert_eq!(refused.code(), 115);
    assert!(refused.to_string().contains("a.0.0.0.0.0.x_1"), "{refused}");
    // A look-up must not miss a key that an earlier version has reserved.
    assert_eq!(count_of_stored(&sparse, &doc! { "a": nested(4) }), 0);
    let stored = doc! { "a": nested(100) }.to_vec().unwrap();
    let stored = sparse.stored_keys_within(Doc::new(&stored).unwrap(), usize::MAX, 10_000);
    assert_eq!(stored, StoredKeys::Unknown);
    let other = doc! { "a": { "0": 1 } }.to_vec().unwrap();
    let any = on(doc! { "a.0": 1 }).keys(Doc::new(&other).unwrap()).unwrap();
    assert!(stored.may_have(&any[0]));
    // An insert sees the whole document, and the next update of it only the fields of the constraint.
    for beside in [0, 1 << 20] {
        let document = doc! { "a": nested(10), "beside": "x".repeat(beside) };
        let refused = keys(&sparse, document).unwrap_err();
        assert!(matches!(refused, KeyError::TooManyPlaces { .. }), "{beside}");
    }
}

#[test]
fn a_stored_document_that_no_index_can_hold_has_no_key() {
    let parallel = doc! { "a": [1], "t": [] };
    assert_eq!(count_of_stored(&on(doc! { "a": 1, "t": 1 }), &parallel), 0);
}

/// Each number in it doubles the ways to read it.
#[test]
fn the_path_of_a_new_filter_has_few_numbers() {
    let with = |path: &str| {
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            partial_filter_expression: Some(doc! { path: 1 }),
            ..Default::default()
        };
        constraint(spec).check_new()
    };
    assert!(with("a.0.1.2.3.b.4.5.6.7").is_ok());
    let refused = with("a.0.1.2.3.b.4.5.6.7.8");
    assert!(matches!(refused, Err(SpecError::FilterUnsupported { .. })));
}

#[test]
fn numeric_components_are_positions_or_names() {
    let first = on(doc! { "a.0": 1 });
    assert_eq!(keys(&first, doc! { "a": [7, 8] }).unwrap(), [doc! { "a.0": 7 }]);
    assert_eq!(keys(&first, doc! { "a": { "0": 7 } }).unwrap(), [doc! { "a.0": 7 }]);
    assert_eq!(keys(&first, doc! { "a": [] }).unwrap(), [doc! { "a.0": Bson::Null }]);
    assert_eq!(
        keys(&first, doc! { "a": [[7, 8], 9] }).unwrap(),
        [doc! { "a.0": [7, 8] }]
    );
    let error = keys(&first, doc! { "a": [{ "0": 77 }] }).unwrap_err();
    assert_eq!(error.code(), 16746);
    assert_eq!(
        error.to_string(),
        "Ambiguous field name found in array (do not use numeric field names in embedded elements in an array), \
         field: '0' for array: { 0: { 0: 77 } }"
    );
}

#[test]
fn parallel_arrays_are_refused() {
    let error = keys(&on(doc! { "a": 1, "t": 1 }), doc! { "a": [1], "t": [] }).unwrap_err();
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        (171, "cannot index parallel arrays [t] [a]")
    );
    let error = keys(&on(doc! { "p.i": 1, "p.j": 1 }), doc! { "p": { "i": [1], "j": [2] } }).unwrap_err();
    assert_eq!(error.to_string(), "cannot index parallel arrays [j] [i]");
}

#[test]
fn the_error_reads_as_the_servers() {
    let email = on(doc! { "email": 1.0, "p.q": -1 });
    let bytes = doc! { "email": "x@x" }.to_vec().unwrap();
    let keys = email.keys(Doc::new(&bytes).unwrap()).unwrap();
    let mut entry = crate::raw::Builder::new();
    entry.int32("index", 1);
    email.duplicate(&keys[0]).append_to_write_error(&mut entry);
    let entry: Document = bson::deserialize_from_slice(&entry.finish()).unwrap();
    let errmsg =
        r#"E11000 duplicate key error collection: fa.c index: email_1_p.q_-1 dup key: { email: "x@x", p.q: null }"#;
    let expected = doc! {
        "index": 1, "code": 11000, "errmsg": errmsg,
        "keyPattern": { "email": 1.0, "p.q": -1 }, "keyValue": { "email": "x@x", "p.q": Bson::Null },
    };
    assert_eq!(entry, expected);
}

#[test]
fn a_reservation_id_holds_the_values_and_leads_back_to_the_key() {
    for sharding in [Sharding::Hashed, Sharding::Ranged] {
        let v = constraint(IndexSpec {
            key: doc! { "v": 1, "p.q": -1 },
            sharding,
            ..Default::default()
        });
        for value in [
            Bson::from("x"),
            doc! { "$a": 1, "%b": [{ "%$c": 1, "$ref": { "$x": 2 } }], "c": 1 }.into(),
            "long".repeat(2000).into(),
            (0..150).fold(Bson::from(1), |inner, _| doc! { "a": inner }.into()),
        ] {
            let bytes = doc! { "v": value.clone() }.to_vec().unwrap();
            let key = v.keys(Doc::new(&bytes).unwrap()).unwrap().remove(0);
            let id = key.reservation_id();
            assert!(id.as_bytes().len() < 5000);
            let back = Key::from_reservation_id(&v, &id).unwrap();
            assert_eq!(back, key);
            assert_eq!(back.reservation_id(), id);
            assert_eq!(id.get("h").unwrap().is_some(), sharding == Sharding::Hashed);
        }
    }
    let plain = on(doc! { "v": 1 });
    let bytes = doc! { "v": { "$a": 1, "a": 2 } }.to_vec().unwrap();
    let key = plain.keys(Doc::new(&bytes).unwrap()).unwrap().remove(0);
    let id: Document = bson::deserialize_from_slice(key.reservation_id().as_bytes()).unwrap();
    assert_eq!(id, doc! { "h": key.bucket(), "k": { "v": { "%$a": 1, "a": 2 } } });
}

#[test]
fn a_foreign_reservation_id_is_refused() {
    let v = on(doc! { "v": 1 });
    for id in [
        doc! {},
        doc! { "h": 1 },
        doc! { "h": 1, "k": { "v": 1 } },
        doc! { "k": { "v": 1 } },
        doc! { "h": 1, "k": { "w": 1 } },
        doc! { "h": 1, "k": 5 },
        doc! { "h": 1, "k": {} },
    ] {
        let id = RawDocumentBuf::try_from(&id).unwrap();
        assert!(Key::from_reservation_id(&v, &id).is_err(), "{id:?}");
    }
}

#[test]
fn a_partial_filter_decides_which_documents_count() {
    let partial = constraint(IndexSpec {
        key: doc! { "email": 1 },
        partial_filter_expression: Some(doc! { "status": "active", "age": { "$gte": 18 } }),
        ..Default::default()
    });
    assert_eq!(partial.paths().collect::<Vec<_>>(), ["email", "status", "age"]);
    for path in partial.paths() {
        assert!(partial.has_path(|own| own == path), "{path}");
    }
    assert!(!partial.has_path(|own| own == "name"));
    assert_eq!(
        keys(&partial, doc! { "email": 1, "status": "active", "age": 18.0 })
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        keys(&partial, doc! { "email": 1, "status": ["x", "active"], "age": 20 })
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        keys(&partial, doc! { "email": 1, "status": "active", "age": "x" })
            .unwrap()
            .len(),
        0
    );
    assert_eq!(
        keys(&partial, doc! { "email": 1, "status": "active" }).unwrap().len(),
        0
    );
}

#[test]
fn a_constraint_that_cannot_be_kept_is_refused() {
    let refused =
        |namespace: &str, spec: IndexSpec| Constraint::new(Namespace::parse(namespace).unwrap(), spec).unwrap_err();
    let key = doc! { "a": 1 };
    let both = IndexSpec {
        key: key.clone(),
        sparse: true,
        partial_filter_expression: Some(doc! {}),
        ..Default::default()
    };
    let message = r#"cannot mix "partialFilterExpression" and "sparse" options"#;
    assert_eq!(refused("a.b", both), SpecError::refused(67, message));
    let collated = IndexSpec {
        key: key.clone(),
        collation: Some(doc! { "locale": "da" }),
        ..Default::default()
    };
    assert!(matches!(
        refused("a.b", collated),
        SpecError::CollationUnsupported { .. }
    ));
    let plain = IndexSpec {
        key,
        ..Default::default()
    };
    assert!(matches!(
        refused("a.keyward.b", plain.clone()),
        SpecError::ReservedNamespace(_)
    ));
    assert!(matches!(
        refused("config.b", plain.clone()),
        SpecError::ReservedNamespace(_)
    ));
    for name in ["system.a", "a.system.b"] {
        let named = IndexSpec {
            name: Some(name.to_owned()),
            ..plain.clone()
        };
        assert!(matches!(named.check_new_name(), Err(SpecError::Name { .. })), "{name}");
    }
    assert!(matches!(
        refused(&format!("a.{}", "b".repeat(225)), plain),
        SpecError::Name { .. }
    ));
}

#[test]
fn a_timestamp_that_the_server_fills_in_is_recognised() {
    let spec = IndexSpec {
        key: doc! { "a": 1, "b.c": 1 },
        partial_filter_expression: Some(doc! { "f": { "$exists": true } }),
        ..Default::default()
    };
    let constraint = constraint(spec);
    let zero = Bson::Timestamp(bson::Timestamp { time: 0, increment: 0 });
    let one = Bson::Timestamp(bson::Timestamp { time: 0, increment: 1 });
    for (document, fills_in) in [
        (doc! { "a": zero.clone() }, true),
        (doc! { "f": zero.clone() }, true),
        (doc! { "a": one }, false),
        (doc! { "b": zero.clone() }, false),
        (doc! { "b.c": zero.clone() }, false),
        (doc! { "b": { "c": zero.clone() }, "x": zero.clone() }, false),
        (doc! { "_id": zero, "a": 1 }, false),
    ] {
        let bytes = document.to_vec().unwrap();
        assert_eq!(
            constraint.server_fills_in(Doc::new(&bytes).unwrap()),
            Ok(fills_in),
            "{document}"
        );
    }
}

#[test]
fn ids_are_one_where_the_index_on_them_says_so() {
    let identity = |id: Bson| id_identity(&bson::RawBson::try_from(id).unwrap());
    let one = identity(Bson::Int32(1));
    assert_eq!(one, identity(Bson::Int64(1)));
    assert_eq!(one, identity(Bson::Double(1.0)));
    assert_ne!(one, identity(Bson::Double(1.5)));
    assert_ne!(one, identity("1".into()));
    assert_eq!(identity(f64::NAN.into()), identity((-f64::NAN).into()));
    assert_eq!(identity(doc! { "a": 1 }.into()), identity(doc! { "a": 1.0 }.into()));
    assert_ne!(identity(doc! { "a": 1 }.into()), identity(doc! { "b": 1 }.into()));
}
