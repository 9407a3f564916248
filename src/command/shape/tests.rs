//! Tests which commands are usual, and what Keyward asks about the others.

use bson::{Binary, Bson, Document, Timestamp, doc, spec::BinarySubtype};

use super::*;
use crate::raw::Builder;
use crate::wire::{Draft, OutSequence};

const UPDATE: Option<StatementKind> = Some(StatementKind::Update);
const DELETE: Option<StatementKind> = Some(StatementKind::Delete);
const FIND_AND_MODIFY: Option<StatementKind> = Some(StatementKind::FindAndModify);

fn has_driver_shape(kind: Option<StatementKind>, body: &Document, sequence: Option<(&str, &[Document])>) -> bool {
    let body = body.to_vec().unwrap();
    let documents: Vec<Vec<u8>> = sequence
        .iter()
        .flat_map(|(_, documents)| documents.iter().map(|document| document.to_vec().unwrap()))
        .collect();
    let sequences = sequence.iter().map(|(name, _)| OutSequence {
        name: name.as_bytes(),
        documents: documents.iter().map(Vec::as_slice).collect(),
    });
    let draft = Draft {
        sequences: sequences.collect(),
        ..Draft::of_body(&body)
    };
    let bytes = draft.frame(1, 0).unwrap().to_vec();
    let form = kind.map_or(Form::Insert, Form::Changes);
    form.has_driver_shape(&OpMsg::parse(&bytes).unwrap()).unwrap()
}

/// The fields that drivers add to a command.
fn circumstances() -> Document {
    let subtype = BinarySubtype::Uuid;
    doc! {
        "$db": "db", "lsid": { "id": Binary { subtype, bytes: vec![7; 16] } }, "txnNumber": 1_i64, "maxTimeMS": 5_i64,
        "writeConcern": { "w": "majority", "j": true, "wtimeout": 5 }, "$readPreference": { "mode": "primary" },
        "$clusterTime": cluster_time(), "comment": [1], "apiVersion": "1",
    }
}

fn cluster_time() -> Document {
    let hash = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![0; 20],
    };
    let signature = doc! { "hash": hash, "keyId": 7_i64 };
    doc! { "clusterTime": Timestamp { time: 1, increment: 1 }, "signature": signature }
}

fn with_circumstances(mut command: Document) -> Document {
    command.extend(circumstances());
    command
}

#[test]
fn commands_of_drivers_have_a_known_shape() {
    let documents = [doc! { "_id": 1 }, doc! { "a": [1] }];
    let insert = with_circumstances(doc! { "insert": "c", "ordered": true, "bypassDocumentValidation": false });
    assert!(has_driver_shape(None, &insert, Some(("documents", &documents))));
    assert!(has_driver_shape(
        None,
        &doc! { "insert": "c", "documents": documents.to_vec(), "$db": "db" },
        None
    ));
    let filters = [doc! { "a": 1 }];
    let statements = [
        doc! { "q": { "_id": 1 }, "u": { "$set": { "a": 1 } }, "multi": false, "upsert": true },
        doc! { "q": {}, "u": [{ "$set": { "a": 1 } }], "hint": "_id_", "collation": { "locale": "de" } },
        doc! { "q": {}, "u": { "$set": { "a.$[x]": 1 } }, "arrayFilters": filters.to_vec(), "hint": { "_id": 1 } },
    ];
    let update = with_circumstances(doc! { "update": "c", "ordered": false, "let": { "x": 1 } });
    assert!(has_driver_shape(UPDATE, &update, Some(("updates", &statements))));
    let deletes = [
        doc! { "q": { "_id": 1 }, "limit": 1 },
        doc! { "q": {}, "limit": 0_i64, "hint": "_id_" },
    ];
    assert!(has_driver_shape(
        DELETE,
        &with_circumstances(doc! { "delete": "c" }),
        Some(("deletes", &deletes))
    ));
    let find_and_modify = doc! {
        "findAndModify": "c", "query": { "_id": 1 }, "update": { "$inc": { "a": 1 } }, "new": true, "upsert": false,
        "fields": { "a": 1 }, "sort": { "a": -1 },
    };
    assert!(has_driver_shape(
        FIND_AND_MODIFY,
        &with_circumstances(find_and_modify),
        None
    ));
    let mut first = doc! { "insert": "c", "startTransaction": true, "autocommit": false };
    first.extend(doc! { "readConcern": { "level": "snapshot" } });
    assert!(has_driver_shape(
        None,
        &with_circumstances(first),
        Some(("documents", &documents))
    ));
}

#[test]
fn a_shape_that_no_driver_sends_is_recognised() {
    let delete = |statement: Document| has_driver_shape(DELETE, &doc! { "delete": "c", "deletes": [statement] }, None);
    let update = |more: Document| {
        let mut statement = doc! { "q": {}, "u": { "$set": { "a": 1 } } };
        statement.extend(more);
        has_driver_shape(UPDATE, &doc! { "update": "c", "updates": [statement] }, None)
    };
    assert!(update(doc! { "arrayFilters": [{ "x": 1 }], "multi": 1.0 }));
    assert!(!update(doc! { "arrayFilters": [5] }));
    assert!(!update(doc! { "u": [5] }));
    assert!(!update(doc! { "multi": f64::NAN }));
    assert!(!update(doc! { "sort": { "a": 1 } }));
    assert!(delete(doc! { "q": {}, "limit": 1 }));
    assert!(!delete(doc! { "limit": 1 }));
    assert!(!delete(doc! { "q": 1, "limit": 1 }));
    assert!(!delete(doc! { "q": {}, "limit": 2 }));
    assert!(!delete(doc! { "q": {}, "limit": 1, "x": 1 }));
    let insert = |more: Document| {
        let mut command = doc! { "insert": "c", "documents": [{}] };
        command.extend(more);
        has_driver_shape(None, &command, None)
    };
    assert!(insert(doc! {}));
    assert!(!insert(doc! { "let": {} }));
    assert!(!insert(doc! { "writeConcern": "x" }));
    assert!(insert(doc! { "writeConcern": { "w": 50 } }));
    assert!(!insert(doc! { "writeConcern": { "w": 51 } }));
    assert!(!insert(doc! { "txnNumber": 1_i64 }));
    assert!(insert(doc! { "writeConcern": { "wtimeout": i64::from(i32::MAX) } }));
    assert!(!insert(doc! { "writeConcern": { "wtimeout": 1_i64 << 31 } }));
    assert!(insert(doc! { "$readPreference": { "mode": "nearest" } }));
    assert!(!insert(doc! { "$readPreference": { "mode": "near" } }));
    assert!(!insert(
        doc! { "$readPreference": { "mode": "primary", "maxStalenessSeconds": 100 } }
    ));
    assert!(!insert(doc! { "$readPreference": {} }));
    let without = |name: &str| {
        let mut time = cluster_time();
        time.remove(name);
        insert(doc! { "$clusterTime": time })
    };
    assert!(without("x") && !without("signature") && !without("clusterTime"));
    let mut of_node = cluster_time();
    of_node.get_document_mut("signature").unwrap().insert("keyId", 0_i32);
    assert!(insert(doc! { "$clusterTime": of_node }));
    let of_transaction = |changed: Document| {
        let mut fields = doc! { "lsid": circumstances().get_document("lsid").unwrap(), "txnNumber": 1_i64 };
        fields.extend(doc! { "autocommit": false, "startTransaction": true });
        for (name, value) in changed {
            match value {
                Bson::Null => drop(fields.remove(name)),
                value => drop(fields.insert(name, value)),
            }
        }
        insert(fields)
    };
    assert!(of_transaction(doc! {}) && of_transaction(doc! { "startTransaction": Bson::Null }));
    assert!(!of_transaction(doc! { "autocommit": Bson::Null }));
    assert!(!of_transaction(doc! { "autocommit": true }));
    assert!(!of_transaction(doc! { "startTransaction": false }));
    assert!(!of_transaction(doc! { "txnNumber": Bson::Null }));
    assert!(!insert(doc! { "readConcern": {} }));
    assert!(!has_driver_shape(None, &doc! { "insert": "c", "documents": [1] }, None));
    assert!(!has_driver_shape(None, &doc! { "insert": "c" }, None));
}

#[test]
fn a_field_that_stands_twice_is_seen() {
    let mut body = Builder::new();
    body.string("insert", b"c")
        .boolean("ordered", true)
        .boolean("ordered", false);
    body.open(ElementType::Array, b"documents").close();
    let body = body.finish();
    let bytes = Draft::of_body(&body).frame(1, 0).unwrap().to_vec();
    assert!(!Form::Insert.has_driver_shape(&OpMsg::parse(&bytes).unwrap()).unwrap());
}
