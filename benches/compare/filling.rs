//! Documents in bulk, by several clients at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::{Document, doc};

use crate::ground::DATABASE;
use testkit::wire::Connection;

/// So many go into one command.
const BATCH: usize = 1_000;
/// So many clients insert at a time.
const CLIENTS: usize = 4;

/// Inserts `count` documents, the `n`th of which `document` makes; how long that takes. Acknowledged by a majority.
pub fn insert(address: &str, collection: &str, count: usize, document: impl Fn(usize) -> Document + Sync) -> Duration {
    let next = AtomicUsize::new(0);
    let clients: Vec<Connection> = (0..CLIENTS).map(|_| Connection::greeted(address)).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for mut connection in clients {
            let (next, document) = (&next, &document);
            scope.spawn(move || {
                loop {
                    let first = next.fetch_add(BATCH, Ordering::Relaxed);
                    if first >= count {
                        return;
                    }
                    let documents = (first..count.min(first + BATCH)).map(document);
                    connection.must_raw(&batch(collection, documents));
                }
            });
        }
    });
    began.elapsed()
}

fn batch(collection: &str, documents: impl Iterator<Item = Document>) -> Document {
    let documents: Vec<Document> = documents.collect();
    let concern = doc! { "w": "majority" };
    doc! { "insert": collection, "documents": documents, "ordered": false, "writeConcern": concern, "$db": DATABASE }
}
