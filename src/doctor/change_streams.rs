//! Checks that clients' change streams can be opened, and show writes.

use std::time::{Duration, Instant};

use bson::{Document, doc};

use super::check::{CheckError, CheckOutcome};
use super::scratch::{DOCUMENTS, Scratch};

/// How long an event may take.
const EVENT_MAX: Duration = Duration::from_secs(20);

/// A change stream shows an insert on each shard.
pub async fn events(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let places = scratch.places()?;
    let mut session = scratch.session().await?;
    let open = doc! {
        "aggregate": DOCUMENTS, "pipeline": [{ "$changeStream": {} }, { "$match": { "operationType": "insert" } }],
        "cursor": {},
    };
    let opened = session.send(scratch.name(), open).await?;
    let Ok(cursor) = opened
        .reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_i64("id"))
    else {
        return match opened.code {
            Some(crate::server::code::UNAUTHORIZED) => Err(CheckError::Impossible(format!(
                "the user lacks a privilege: {}",
                opened.shown()
            ))),
            _ => Ok(CheckOutcome::Failed(opened.shown())),
        };
    };
    let ids = [places.first, places.second].map(|h| format!("streamed {h}"));
    let documents = [places.first, places.second].map(|h| doc! { "_id": format!("streamed {h}"), "h": h });
    let insert = doc! { "insert": DOCUMENTS, "documents": documents.to_vec(), "writeConcern": { "w": "majority" } };
    scratch.run(insert).await?;
    let deadline = Instant::now() + EVENT_MAX;
    let mut seen = Vec::new();
    while seen.len() < ids.len() && Instant::now() < deadline {
        let more = doc! { "getMore": cursor, "collection": DOCUMENTS, "maxTimeMS": 1_000 };
        let answer = session.send(scratch.name(), more).await?;
        if !answer.is_ok() {
            return Ok(CheckOutcome::Failed(answer.shown()));
        }
        let shown = inserted(&answer.reply);
        seen.extend(shown.into_iter().filter(|id| ids.contains(id)));
    }
    let close = doc! { "killCursors": DOCUMENTS, "cursors": [cursor] };
    scratch.run(close).await?;
    Ok(CheckOutcome::of(seen.len() == ids.len(), || {
        format!(
            "{} of {} inserts were shown within {}",
            seen.len(),
            ids.len(),
            humantime::format_duration(EVENT_MAX)
        )
    }))
}

fn inserted(reply: &Document) -> Vec<String> {
    let batch = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_array("nextBatch"));
    let events = batch.into_iter().flatten().filter_map(|event| event.as_document());
    let id = |event: &Document| Some(event.get_document("documentKey").ok()?.get_str("_id").ok()?.to_owned());
    events.filter_map(id).collect()
}
