//! Checks the errors that are read, or imitated: duplicates, and writes that no majority acknowledges in time.

use bson::{Document, doc};

use super::check::{CheckError, CheckOutcome};
use super::scratch::{DOCUMENTS, Scratch};
use crate::server::{code, driver};

/// The collection with a native unique index.
const NATIVE: &str = "native";

/// A native unique index refuses a duplicate, with the key's pattern and values and the index's name.
pub async fn duplicate(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let index =
        doc! { "createIndexes": NATIVE, "indexes": [{ "key": { "email": 1 }, "name": "email_1", "unique": true }] };
    scratch.run(index).await?;
    let mut reply = Document::new();
    for id in [1, 2] {
        let document = doc! { "_id": id, "email": "a" };
        let insert = doc! { "insert": NATIVE, "documents": [document], "writeConcern": { "w": "majority" } };
        reply = scratch.run(insert).await?;
    }
    let expected = (doc! { "email": 1 }, doc! { "email": "a" });
    Ok(is_duplicate(&reply, "email_1", &expected))
}

/// The index on `_id` does, too, for embedded documents.
pub async fn duplicate_id(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let id = doc! { "h": 1, "k": { "email": "a" } };
    let mut reply = Document::new();
    for _ in 0..2 {
        let insert = doc! { "insert": "plain", "documents": [{ "_id": &id }], "writeConcern": { "w": "majority" } };
        reply = scratch.run(insert).await?;
    }
    Ok(is_duplicate(&reply, "_id_", &(doc! { "_id": 1 }, doc! { "_id": id })))
}

fn is_duplicate(reply: &Document, index: &str, (pattern, value): &(Document, Document)) -> CheckOutcome {
    let Some(error) = driver::first_write_error(reply) else {
        return CheckOutcome::Failed("the duplicate was inserted".to_owned());
    };
    let error_code = driver::error_code(error);
    if error_code != Some(code::DUPLICATE_KEY) {
        return CheckOutcome::Failed(format!("the code is {}", error_code.unwrap_or_default()));
    }
    let names_index = error
        .get_str("errmsg")
        .is_ok_and(|text| text.contains(&format!("index: {index} ")));
    let same = |field: &str, expected: &Document| error.get_document(field).is_ok_and(|found| found == expected);
    let wrong: Vec<&str> = [
        ("keyPattern", same("keyPattern", pattern)),
        ("keyValue", same("keyValue", value)),
        ("the index's name in errmsg", names_index),
    ]
    .into_iter()
    .filter_map(|(name, is_right)| (!is_right).then_some(name))
    .collect();
    CheckOutcome::of(wrong.is_empty(), || {
        format!("missing or different: {}", wrong.join(", "))
    })
}

/// A write that too few members acknowledge is counted, and its reply says that they didn't.
pub async fn unacknowledged(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    // No set has as many members that vote.
    let concern = doc! { "w": 50, "wtimeout": 1 };
    let h = scratch.places()?.first;
    let insert =
        doc! { "insert": DOCUMENTS, "documents": [{ "_id": "unacknowledged", "h": h }], "writeConcern": concern };
    let reply = scratch.run(insert).await?;
    let is_counted = reply.get_i32("n").ok() == Some(1) && driver::write_errors(&reply).is_none();
    let is_reported = driver::write_concern_error(&reply).is_some();
    Ok(CheckOutcome::of(is_counted && is_reported, || match is_counted {
        false => "the reply doesn't count the write".to_owned(),
        true => "the reply has no writeConcernError".to_owned(),
    }))
}

/// A write that a majority acknowledges in time is answered as such.
pub async fn majority(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let concern = doc! { "w": "majority", "wtimeout": 10_000 };
    let places = scratch.places()?;
    let documents = [places.first, places.second].map(|h| doc! { "_id": format!("majority {h}"), "h": h });
    let insert = doc! { "insert": DOCUMENTS, "documents": documents.to_vec(), "writeConcern": concern };
    let reply = scratch.run(insert).await?;
    Ok(match driver::write_concern_error(&reply) {
        Some(error) => CheckOutcome::Failed(error.get_str("errmsg").unwrap_or("writeConcernError").to_owned()),
        None => CheckOutcome::of(reply.get_i32("n").ok() == Some(2), || {
            "the reply doesn't count the writes".to_owned()
        }),
    })
}
