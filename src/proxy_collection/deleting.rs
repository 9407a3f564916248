//! Reservations deleted, many in one command.

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use mongodb::Database;

use super::queue::Work;
use super::{StoreError, write};

/// Deletes what filters find, one reservation each.
#[derive(Debug)]
pub struct Deleting {
    pub database: Database,
    pub name: String,
}

impl Work for Deleting {
    type Item = RawDocumentBuf;
    type Answer = Result<(), StoreError>;

    /// As for reads.
    const AT_ONCE: usize = 2;

    fn bytes(filter: &RawDocumentBuf) -> usize {
        filter.as_bytes().len()
    }

    async fn run(&self, filters: Vec<RawDocumentBuf>) -> Vec<Self::Answer> {
        let mut deletes = RawArrayBuf::new();
        for filter in &filters {
            deletes.push(rawdoc! { "q": filter.clone(), "limit": 1 });
        }
        let command = rawdoc! {
            "delete": &*self.name, "deletes": deletes, "ordered": false, "writeConcern": { "w": 1 },
        };
        let outcome = write(&self.database, command).await.map(|_| ());
        vec![outcome; filters.len()]
    }
}
