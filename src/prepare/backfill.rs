//! Reserves the keys of existing documents.
//!
//! It walks the documents by their `_id`s, several batches at a time, and stores how far all of them have come. It
//! groups the documents that violate the constraint by key. It does not change the documents.

use std::time::{Duration, Instant};

use bson::{RawBson, RawDocumentBuf, Timestamp};
use futures_util::stream::{self, TryStreamExt};
use mongodb::Client;

use super::PrepareError;
use super::backfill_documents::{BackfillOutcome, backfill_documents};
use super::batches::in_order;
use super::duplicate_groups::DuplicateGroups;
use super::position::BackfillPosition;
use super::report::{Report, UnindexableDocument};
use super::writes_at_work;
use crate::backfill_share::{BackfillShare, Pauses};
use crate::catalog::Protected;
use crate::claims::{Candidate, WritesUnderWay};
use crate::constraint::{DuplicateKey, KEYS_MEMORY_MAX, Key};
use crate::progress::Progress;
use crate::proxy_collection::{READ_MAX, StoreError};
use crate::raw::Doc;
use crate::reservation::{Token, WriteId};

/// How many documents one batch reads and reserves. The larger the batch, the nearer to each other are the reservations
/// that the server writes in sequence.
const BATCH: i32 = 8_000;
/// How many batches are under way: while one is read, others are reserved.
const BATCHES_AT_ONCE: usize = 3;
/// How long the backfill waits for prepared transactions before it logs the wait.
const QUIET: Duration = Duration::from_secs(10);
/// The longest time limit of the read that waits for all majorities.
const CONFIRMED_MAX: Duration = Duration::from_secs(600);

/// A document whose key another document has.
struct Duplicate {
    key: Key,
    id: RawBson,
    holder: RawBson,
    lacks_fields: bool,
}

/// The documents of one batch that violate the constraint, and the server's error for the first duplicate.
#[derive(Default)]
struct BatchViolations {
    unindexable: Vec<UnindexableDocument>,
    duplicates: Vec<Duplicate>,
    error: Option<DuplicateKey>,
}

/// Reserves every key of the constraint at `position`, for all documents of the collection after the position
/// `reached`. It keeps to `share`.
pub(super) async fn backfill(
    client: &Client,
    protected: &Protected,
    position: usize,
    reached: &BackfillPosition,
    share: BackfillShare,
) -> Result<Report, PrepareError> {
    let proxy = &protected.constraints[position];
    let constraint = &proxy.constraint;
    let namespace = &protected.namespace;
    let (mut groups, mut duplicate) = (DuplicateGroups::of(constraint), None);
    if reached.after.is_some() {
        tracing::info!(%namespace, constraint = constraint.name(), done = reached.done, "backfilling goes on where it stopped");
    }
    // Writes that began before the constraint reserved nothing. The walk may be past a document when one of them changes it.
    writes_at_work::ended(client, namespace).await?;
    // The same is true of transactions. While they are prepared, the walk does not see their writes.
    decided(protected, position).await?;
    let mut done = reached.done;
    let what = format!("{namespace} {}", constraint.name());
    let mut progress = Progress::start("backfilling", what, done, reached.of);
    let moment = confirmed_moment(protected, position).await?;
    let all = proxy.all_documents(reached.after.clone(), BATCH, &protected.shard_key);
    let all = all.by_majority(moment);
    let batches = stream::try_unfold(all, |mut all| async move {
        let began = Instant::now();
        let batch = all.next().await?;
        Ok::<_, StoreError>(batch.map(|batch| ((batch, began.elapsed()), all)))
    });
    let pauses = &Pauses::of(share);
    let batches = batches.map_ok(|((batch, last), spent)| async move {
        let violations = pauses.pace(spent, backfill_batch(protected, position, &batch)).await?;
        Ok((batch.len() as u64, last, violations))
    });
    // In the order of reading: everything up to `last` is backfilled.
    in_order(batches, BATCHES_AT_ONCE, async |(count, last, violations)| {
        for document in violations.unindexable {
            groups.add_unindexable(document);
        }
        for one in violations.duplicates {
            groups.add(&one.key, &one.id, &one.holder, one.lacks_fields);
        }
        duplicate = duplicate.take().or(violations.error);
        done += count;
        progress.advance(count);
        match groups.is_empty() {
            true => reached.go_on(&last, done).await,
            false => Ok(()),
        }
    })
    .await?;
    if !groups.is_empty() {
        reached.forget().await?;
    }
    Ok(groups.finish(duplicate))
}

/// Waits until a majority of each shard has every write from before now, without a time limit.
async fn confirmed_moment(protected: &Protected, position: usize) -> Result<Timestamp, StoreError> {
    let (namespace, proxy) = (&protected.namespace, &protected.constraints[position]);
    let mut limit = READ_MAX;
    loop {
        match proxy.confirmed_moment(limit).await {
            Err(error) if error.is_late() => tracing::warn!(
                %namespace, constraint = proxy.constraint.name(), %error,
                "the backfill waits until a majority of each shard's members has all writes"
            ),
            found => return found,
        }
        // A shard may have many orphaned documents before its first other one.
        limit = CONFIRMED_MAX.min(limit * 2);
    }
}

/// Waits until all prepared transactions are decided, without a time limit.
async fn decided(protected: &Protected, position: usize) -> Result<(), StoreError> {
    let waiting = protected.constraints[position].wait_for_prepared();
    tokio::pin!(waiting);
    if let Ok(decided) = tokio::time::timeout(QUIET, waiting.as_mut()).await {
        return decided;
    }
    let (namespace, constraint) = (&protected.namespace, protected.constraints[position].constraint.name());
    tracing::info!(
        %namespace, constraint,
        "before the backfill all documents are read once, which waits for transactions that are prepared and undecided"
    );
    waiting.await
}

/// Reserves the keys of one batch and returns the violations. Each key is an attempt of its own, so that one duplicate
/// does not prevent the document's other reservations.
async fn backfill_batch(
    protected: &Protected,
    position: usize,
    batch: &[RawDocumentBuf],
) -> Result<BatchViolations, StoreError> {
    let guard = WritesUnderWay::default().begin();
    let (mut wanted, mut memory, mut violations) = (Vec::new(), 0, BatchViolations::default());
    for (index, document) in batch.iter().enumerate() {
        match candidates(protected, position, guard.id(), index, document) {
            Ok(candidates) => {
                let keys = candidates.iter().flat_map(|candidate| &candidate.keys);
                memory += keys.map(|key| key.key.memory()).sum::<usize>();
                wanted.extend(candidates);
            }
            Err(document) => violations.unindexable.push(document),
        }
        if memory > KEYS_MEMORY_MAX || index + 1 == batch.len() {
            let part = std::mem::take(&mut wanted);
            backfill_part((protected, position), batch, (guard.id(), part), &mut violations).await?;
            memory = 0;
        }
    }
    Ok(violations)
}

/// Reserves the keys `wanted` of a batch, and adds the violations.
async fn backfill_part(
    (protected, position): (&Protected, usize),
    batch: &[RawDocumentBuf],
    (write, mut wanted): (WriteId, Vec<Candidate<'_>>),
    violations: &mut BatchViolations,
) -> Result<(), StoreError> {
    let constraint = &protected.constraints[position].constraint;
    // Sorted by place in the proxy collection. If two documents share a key, the document read first gets it.
    wanted.sort_by_cached_key(|candidate| candidate.keys[0].key.rough_place());
    let mut duplicates = Vec::new();
    for (candidate, outcome) in backfill_documents(protected, write, wanted).await? {
        if let BackfillOutcome::Duplicate(other) = outcome {
            duplicates.push((candidate, other));
        }
    }
    duplicates.sort_by_key(|(candidate, _)| candidate.position);
    if let Some((first, _)) = duplicates.first()
        && violations.error.is_none()
    {
        let error = protected.constraints[position].duplicate(&first.keys[0].key).await;
        violations.error = Some(error);
    }
    let duplicates = duplicates.into_iter().map(|(mut candidate, holder)| {
        let document = batch.get(candidate.position).map(|document| document.as_bytes());
        let document = document.and_then(|bytes| Doc::new(bytes).ok());
        Duplicate {
            key: candidate.keys.swap_remove(0).key,
            id: candidate.owner.id,
            holder: holder.id,
            lacks_fields: document.is_some_and(|document| constraint.lacks_fields(document)),
        }
    });
    violations.duplicates.extend(duplicates);
    Ok(())
}

fn candidates<'a>(
    protected: &Protected,
    position: usize,
    write: WriteId,
    index: usize,
    document: &'a RawDocumentBuf,
) -> Result<Vec<Candidate<'a>>, UnindexableDocument> {
    let token = Token {
        write,
        position: u32::try_from(index).unwrap_or(u32::MAX),
        retry_id: None,
    };
    let doc = Doc::new(document.as_bytes()).map_err(|error| UnindexableDocument::of(document, &error))?;
    let candidates = Candidate::one_for_each_key(protected, position, token, doc);
    candidates.map_err(|error| UnindexableDocument::of(document, &error))
}
