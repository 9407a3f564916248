//! Asks the server for the sort keys of strings under a collation: an error shows them, and no other library knows them.
//!
//! The server shows the sort key of a string in one place that needs no stored data: the error of a duplicate. So Keyward
//! inserts the string twice, in a transaction, into a collection with a unique index of that collation. The second document
//! ends the transaction, so no other client ever sees anything of it. Keyward asks only when it has a duplicate to report.

use std::collections::HashMap;
use std::time::Duration;

use bson::{Document, RawDocument, RawDocumentBuf, doc, oid::ObjectId, rawdoc};
use mongodb::{Client, Database};
use xxhash_rust::xxh3::xxh3_64;

use super::StoreError;
use super::time_out::within;
use crate::constraint::bytes_of_hex;
use crate::server::driver::{first_write_error, in_words};

/// How many strings one command asks for; each has a field of its own in the index.
const FIELDS: usize = 8;
/// How long an error may wait for the server's sort keys; after that it goes without them.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The server's sort keys under one collation.
#[derive(Debug, Clone)]
pub(super) struct SortKeys {
    client: Client,
    database: Database,
    collection: String,
    collation: Document,
}

impl SortKeys {
    /// The sort keys under `collation`, which has all its fields; Keyward asks for them in `database`.
    pub(super) fn new(client: &Client, database: &Database, collation: &RawDocument) -> Option<SortKeys> {
        // Each collation has a collection of its own: if there were several indexes, the wrong one could answer.
        let name = xxh3_64(collation.as_bytes());
        Some(SortKeys {
            client: client.clone(),
            database: database.clone(),
            collection: format!("keyward.sort_keys_{name:016x}"),
            collation: Document::try_from(collation).ok()?,
        })
    }

    /// Creates the collection and its index. The server refuses a collation that it doesn't have in this very version.
    pub(super) async fn create(&self) -> Result<(), StoreError> {
        let mut key = doc! { "ask": 1 };
        key.extend((0..FIELDS).map(|field| (format!("s{field}"), 1.into())));
        let index = doc! { "key": key, "name": "sort_keys", "unique": true, "collation": self.collation.clone() };
        let command = doc! { "createIndexes": self.collection.as_str(), "indexes": [index] };
        self.database.run_command(command).await?;
        Ok(())
    }

    /// The sort key of each of `strings`.
    pub(super) async fn of(&self, strings: Vec<Vec<u8>>) -> Result<HashMap<Vec<u8>, Vec<u8>>, StoreError> {
        within(ANSWER_MAX, async {
            let mut keys = HashMap::with_capacity(strings.len());
            for strings in strings.chunks(FIELDS) {
                let sort_keys = self.some(strings).await?;
                keys.extend(strings.iter().cloned().zip(sort_keys));
            }
            Ok::<_, StoreError>(keys)
        })
        .await
    }

    async fn some(&self, strings: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, StoreError> {
        // Each command has an `ask` of its own: otherwise one of two could get a write conflict instead of a duplicate.
        let mut document = rawdoc! { "ask": ObjectId::new() };
        for (field, string) in strings.iter().enumerate() {
            let string = std::str::from_utf8(string).map_err(|_| StoreError::Unexpected("a collated string"))?;
            append(&mut document, field, string)?;
        }
        let command = rawdoc! { "insert": self.collection.as_str(), "documents": [document.clone(), document] };
        let mut session = self.client.start_session().await?;
        session.start_transaction().await?;
        let reply = self.database.run_raw_command(command).session(&mut session).await;
        // The duplicate has ended the transaction on the server, but not in the driver.
        let aborted = session.abort_transaction().await;
        let unexpected = StoreError::Unexpected("the reply to a question for sort keys");
        let sort_keys = sort_keys(&reply?, strings.len()).ok_or(unexpected)?;
        if let Err(error) = aborted {
            tracing::debug!(
                error = in_words(&error),
                "a transaction that stored nothing could not be aborted"
            );
        }
        Ok(sort_keys)
    }
}

fn append(document: &mut RawDocumentBuf, field: usize, string: &str) -> Result<(), StoreError> {
    let name = format!("s{field}");
    let name = bson::raw::CString::try_from(name).map_err(|_| StoreError::Unexpected("the name of a field"))?;
    document.append(name, string);
    Ok(())
}

/// The sort keys that a duplicate's error shows, in hexadecimal, for the first `count` fields.
fn sort_keys(reply: &Document, count: usize) -> Option<Vec<Vec<u8>>> {
    let error = first_write_error(reply)?;
    let shown = error.get_document("keyValue").ok()?;
    let sort_key = |field: usize| bytes_of_hex(shown.get_str(format!("s{field}")).ok()?.as_bytes());
    (0..count).map(sort_key).collect()
}
