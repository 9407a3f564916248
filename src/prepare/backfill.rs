//! Reserves the keys of existing documents.
//!
//! It walks the documents by their `_id`s, several batches at a time, and stores how far all of them have come. It
//! collects every duplicate into one report. It does not change the documents.

use std::fmt;
use std::time::Duration;

use bson::RawDocumentBuf;
use futures_util::stream::{self, TryStreamExt};

use super::PrepareError;
use super::backfill_documents::{BackfillOutcome, backfill_documents};
use super::batches::in_order;
use super::position::BackfillPosition;
use crate::catalog::Protected;
use crate::claims::{AttemptRegistry, Candidate};
use crate::constraint::DuplicateKey;
use crate::extended_json::as_json;
use crate::namespace::Namespace;
use crate::progress::Progress;
use crate::proxy_collection::StoreError;
use crate::raw::Doc;
use crate::reservation::{AttemptId, Token};

/// How many documents one batch reads and reserves. The larger the batch, the nearer to each other are the reservations
/// that the server writes in sequence.
const BATCH: i32 = 8_000;
/// How many batches are under way: while one is read, others are reserved.
const BATCHES_AT_ONCE: usize = 3;
/// How long the backfill waits for prepared transactions before it logs the wait.
const QUIET: Duration = Duration::from_secs(10);
/// How many duplicates a report names; it counts the rest.
const NAMED_MAX: usize = 1_000;

/// The documents that violate a constraint.
#[derive(Debug, Clone)]
pub struct Report {
    /// The protected collection.
    pub namespace: Namespace,
    /// The constraint's name.
    pub constraint: String,
    /// How many documents hold a key that another document also holds.
    pub count: u64,
    /// The first of them, with the server's error text and their `_id`s.
    pub named: Vec<String>,
    /// The server's error for the first duplicate.
    pub duplicate: Option<DuplicateKey>,
}

/// A document that violates a constraint.
struct Violation {
    /// The server's error text, and the `_id`s.
    text: String,
    /// The server's error, if the document is a duplicate.
    duplicate: Option<DuplicateKey>,
}

/// The reports of all violated constraints.
#[derive(Debug, Clone)]
pub struct Reports(pub Vec<Report>);

impl Report {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, violation: Violation) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(violation.text);
        }
        self.duplicate = self.duplicate.take().or(violation.duplicate);
    }
}

impl Report {
    /// The number of violating documents and their constraint, without any of their values.
    pub fn without_values(&self) -> String {
        let Report {
            namespace,
            constraint,
            count,
            ..
        } = self;
        format!(
            "{count} documents of {namespace} violate unique constraint {constraint}; change or delete them, then try again"
        )
    }
}

impl Reports {
    /// The number of violating documents of each constraint, without any of their values.
    pub fn without_values(&self) -> String {
        let reports: Vec<String> = self.0.iter().map(Report::without_values).collect();
        reports.join("\n")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { count, named, .. } = self;
        formatter.write_str(&self.without_values())?;
        named
            .iter()
            .try_for_each(|duplicate| write!(formatter, "\n  {duplicate}"))?;
        match count - named.len() as u64 {
            0 => Ok(()),
            more => write!(formatter, "\n  and {more} more"),
        }
    }
}

impl fmt::Display for Reports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, report) in self.0.iter().enumerate() {
            let break_before = if index == 0 { "" } else { "\n" };
            write!(formatter, "{break_before}{report}")?;
        }
        Ok(())
    }
}

/// Reserves every key of the constraint at `position`, for all documents of the collection after the position
/// `reached`.
pub(super) async fn backfill(
    protected: &Protected,
    position: usize,
    lease: Duration,
    reached: &BackfillPosition,
) -> Result<Report, PrepareError> {
    let proxy = &protected.constraints[position];
    let constraint = &proxy.constraint;
    let namespace = &protected.namespace;
    let mut report = Report {
        namespace: namespace.clone(),
        constraint: constraint.name().to_owned(),
        count: 0,
        named: Vec::new(),
        duplicate: None,
    };
    if reached.after.is_some() {
        tracing::info!(%namespace, constraint = constraint.name(), done = reached.done, "backfilling goes on where it stopped");
    }
    let (documents, _) = proxy.estimate().await?;
    // Transactions that began before the constraint reserved nothing. While they are prepared, the walk does not see
    // their writes.
    decided(protected, position).await?;
    let mut done = reached.done;
    let what = format!("{namespace} {}", constraint.name());
    let mut progress = Progress::start("backfilling", what, done, documents);
    let all = proxy.all_documents(reached.after.clone(), BATCH, &protected.shard_key);
    let batches = stream::try_unfold(all, |mut all| async move {
        let batch = all.next().await?;
        Ok::<_, StoreError>(batch.map(|batch| (batch, all)))
    });
    let batches = batches.map_ok(|(batch, last)| async move {
        let duplicates = backfill_batch(protected, position, lease, &batch).await?;
        Ok((batch.len() as u64, last, duplicates))
    });
    // In the order of reading: everything up to `last` is backfilled.
    in_order(batches, BATCHES_AT_ONCE, async |(count, last, duplicates)| {
        duplicates.into_iter().for_each(|violation| report.add(violation));
        done += count;
        progress.advance(count);
        match report.is_empty() {
            true => reached.go_on(&last, done).await,
            false => Ok(()),
        }
    })
    .await?;
    if !report.is_empty() {
        reached.forget().await?;
    }
    Ok(report)
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
    lease: Duration,
    batch: &[RawDocumentBuf],
) -> Result<Vec<Violation>, StoreError> {
    let guard = AttemptRegistry::default().begin();
    let (mut wanted, mut violations) = (Vec::new(), Vec::new());
    for (index, document) in batch.iter().enumerate() {
        match candidates(protected, position, guard.id(), index, document) {
            Ok(candidates) => wanted.extend(candidates),
            Err(text) => violations.push(Violation { text, duplicate: None }),
        }
    }
    // Sorted by place in the proxy collection. If two documents share a key, the document read first gets it.
    wanted.sort_by_cached_key(|candidate| candidate.keys[0].key.rough_place());
    let mut duplicates = Vec::new();
    for (candidate, outcome) in backfill_documents(protected, lease, guard.id(), wanted).await? {
        if let BackfillOutcome::Duplicate(other) = outcome {
            duplicates.push((candidate, other));
        }
    }
    duplicates.sort_by_key(|(candidate, _)| candidate.position);
    for (candidate, other) in duplicates {
        let duplicate = protected.constraints[position].duplicate(&candidate.keys[0].key).await;
        let text = String::from_utf8_lossy(duplicate.errmsg()).into_owned();
        violations.push(Violation {
            text: format!("{text}: _id {} and _id {other}", candidate.owner),
            duplicate: Some(duplicate),
        });
    }
    Ok(violations)
}

fn candidates<'a>(
    protected: &Protected,
    position: usize,
    attempt: AttemptId,
    index: usize,
    document: &'a RawDocumentBuf,
) -> Result<Vec<Candidate<'a>>, String> {
    let token = Token {
        attempt,
        position: u32::try_from(index).unwrap_or(u32::MAX),
        retry_id: None,
    };
    let name_it = |error: &dyn fmt::Display| match document.get("_id") {
        Ok(Some(id)) => format!("_id {}: {error}", as_json(&id.into())),
        _ => error.to_string(),
    };
    let doc = Doc::new(document.as_bytes()).map_err(|error| name_it(&error))?;
    Candidate::one_for_each_key(protected, position, token, doc).map_err(|error| name_it(&error))
}
