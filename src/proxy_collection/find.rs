//! Reads with Keyward's own user, on primaries, that also tell the cluster time at which they were answered.
//!
//! The driver's cursors hide `operationTime`, which says how old a reservation is by its own shard's clock; so the
//! command is run as it is, and its cursor is followed to the end.

use bson::{Bson, Document, doc};
use mongodb::{Client, Database};

use super::StoreError;
use crate::reply::Times;

/// Documents, and the latest cluster times that the deployment told with them.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub documents: Vec<Document>,
    pub times: Times,
}

/// Runs `find` (a whole `find` command) and reads its cursor to the end.
pub(super) async fn find(client: &Client, database: &Database, command: Document) -> Result<Found, StoreError> {
    let collection = command.get("find").cloned().unwrap_or(Bson::Null);
    // Not causally consistent: `afterClusterTime` and linearizable reads exclude each other.
    let mut session = client.start_session().causal_consistency(false).await?;
    let mut reply = database.run_command(command).session(&mut session).await?;
    let mut found = Found {
        documents: Vec::new(),
        times: Times::of(&reply),
    };
    loop {
        let Ok(cursor) = reply.get_document_mut("cursor") else {
            return Err(StoreError::Unexpected("the reply to a find"));
        };
        for batch in ["firstBatch", "nextBatch"] {
            let documents = cursor.get_array_mut(batch).map(std::mem::take).unwrap_or_default();
            found.documents.extend(documents.into_iter().filter_map(into_document));
        }
        let id = cursor.get_i64("id").unwrap_or(0);
        if id == 0 {
            return Ok(found);
        }
        let more = doc! { "getMore": id, "collection": collection.clone() };
        reply = database.run_command(more).session(&mut session).await?;
        found.times.advance(Times::of(&reply));
    }
}

fn into_document(value: Bson) -> Option<Document> {
    match value {
        Bson::Document(document) => Some(document),
        _ => None,
    }
}
