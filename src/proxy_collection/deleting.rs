//! Deletes reservations, many in one command.

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use futures_util::future::FutureExt;

use super::StoreError;
use super::find::Finder;
use super::queue::BatchWork;
use super::writing::{PATIENCE_ALONE_MS, PATIENCE_MS, each_alone};

/// Deletes the reservations that filters match, one for each filter.
#[derive(Debug)]
pub struct Deleting {
    pub finder: Finder,
    pub name: String,
}

impl BatchWork for Deleting {
    type Item = RawDocumentBuf;
    type Answer = Result<(), StoreError>;

    /// The limit is that for reads: a shard that doesn't answer mustn't block the deletes on the others permanently.
    const AT_ONCE: usize = 2;

    fn bytes(filter: &RawDocumentBuf) -> usize {
        filter.as_bytes().len()
    }

    async fn run(&self, filters: Vec<RawDocumentBuf>) -> Vec<Self::Answer> {
        // Keyward tries a delete again only if the server has ended it. A delete without an answer could still take effect
        // after its attempt has reserved the key anew under the same token. It would then remove the new reservation. So an
        // attempt ends if no answer comes.
        let mut outcomes = self.delete(&filters, PATIENCE_MS).await;
        let is_busy = |outcome: &Self::Answer| matches!(outcome, Err(StoreError::Busy));
        let busy: Vec<usize> = (0..filters.len()).filter(|index| is_busy(&outcomes[*index])).collect();
        let alone = busy.iter().map(|index| self.delete_alone(&filters[*index]).boxed());
        let limit = self.finder.limit;
        let alone = each_alone(alone.collect(), limit, Err(StoreError::TimedOut(limit))).await;
        for (index, outcome) in busy.into_iter().zip(alone) {
            outcomes[index] = outcome;
        }
        outcomes
    }
}

impl Deleting {
    async fn delete_alone(&self, filter: &RawDocumentBuf) -> Result<(), StoreError> {
        let outcomes = self.delete(std::slice::from_ref(filter), PATIENCE_ALONE_MS).await;
        outcomes.into_iter().collect()
    }

    /// Deletes them with one command, which may take `max_ms`. Returns the outcome of each.
    async fn delete(&self, filters: &[RawDocumentBuf], max_ms: i32) -> Vec<Result<(), StoreError>> {
        let mut deletes = RawArrayBuf::new();
        for filter in filters {
            deletes.push(rawdoc! { "q": filter.clone(), "limit": 1 });
        }
        let command = rawdoc! {
            "delete": &*self.name, "deletes": deletes, "ordered": false, "writeConcern": { "w": 1 }, "maxTimeMS": max_ms,
        };
        self.finder.write_each(command, filters.len()).await
    }
}
