//! Reserves the keys of documents that are there already.
//!
//! Documents may change meanwhile: what was reserved is looked at again, and given back if its document doesn't hold it
//! any more. Every duplicate is collected into one report; nothing is changed about the documents themselves.

use std::fmt;
use std::time::Duration;

use bson::{Bson, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use mongodb::{Client, Collection};
use tokio::time::Instant;

use super::PrepareError;
use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey, InFlight, give_back, owner_of, settle};
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;
use crate::raw::Doc;
use crate::reservation::{AttemptId, Ended, Event, NotHeld, Scope, Token};

/// So many documents are read and reserved together.
const BATCH: u32 = 1_000;
/// So many duplicates are named in a report; the rest is counted.
const NAMED_MAX: usize = 1_000;
/// How often progress is logged.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// How long to wait before claiming again what somebody else has in flight.
const BACK_OFF: Duration = Duration::from_millis(100);

/// The documents that violate a constraint.
#[derive(Debug, Clone)]
pub struct Report {
    /// The protected collection.
    pub namespace: Namespace,
    /// The constraint's name.
    pub constraint: String,
    /// How many documents hold a key that another document holds, too.
    pub count: u64,
    /// The first of them, as the server would have refused them, with their `_id`s.
    pub named: Vec<String>,
}

impl Report {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, text: String) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(text);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            namespace,
            constraint,
            count,
            named,
        } = self;
        write!(
            formatter,
            "{count} documents of {namespace} violate unique constraint {constraint}; change or delete them, then start again"
        )?;
        named
            .iter()
            .try_for_each(|duplicate| write!(formatter, "\n  {duplicate}"))
    }
}

/// Reserves every key that the documents of the collection give the constraint at `position`.
pub(super) async fn backfill(
    client: &Client,
    protected: &Protected,
    position: usize,
    lease: Duration,
) -> Result<Report, PrepareError> {
    let constraint = &protected.constraints[position].constraint;
    let namespace = &protected.namespace;
    let collection = client
        .database(&namespace.database)
        .collection::<RawDocumentBuf>(&namespace.collection);
    let mut report = Report {
        namespace: namespace.clone(),
        constraint: constraint.name().to_owned(),
        count: 0,
        named: Vec::new(),
    };
    let progress = Progress::start(collection.estimated_document_count().await?, &report);
    let mut documents = collection.find(doc! {}).batch_size(BATCH).await?;
    let mut batch = Vec::new();
    while let Some(document) = documents.try_next().await? {
        batch.push(document);
        if batch.len() == BATCH as usize {
            let batch = std::mem::take(&mut batch);
            take_in(&collection, protected, position, lease, &batch, &mut report).await?;
            progress.advance(u64::from(BATCH));
        }
    }
    take_in(&collection, protected, position, lease, &batch, &mut report).await?;
    Ok(report)
}

/// Reserves the keys of one batch. Each key is an attempt of its own: one duplicate must not cost a document its others.
async fn take_in(
    collection: &Collection<RawDocumentBuf>,
    protected: &Protected,
    position: usize,
    lease: Duration,
    batch: &[RawDocumentBuf],
    report: &mut Report,
) -> Result<(), PrepareError> {
    let under_way = InFlight::default().begin();
    let mut pending = Vec::new();
    for (index, document) in batch.iter().enumerate() {
        match candidates(protected, position, under_way.attempt(), index, document) {
            Ok(candidates) => pending.extend(candidates),
            Err(text) => report.add(text),
        }
    }
    while !pending.is_empty() {
        let awaited = settle(protected, lease, &mut pending).await;
        verify(protected, position, lease, &mut pending).await?;
        for candidate in &pending {
            match candidate.attempt.ended() {
                Some(Ended::NotHeld(NotHeld::Duplicate(key))) => {
                    note(collection, protected, candidate, key, report).await?;
                }
                Some(Ended::NotHeld(NotHeld::Unsure(_))) => return Err(StoreError::Unexpected("a reservation").into()),
                _ => {}
            }
        }
        pending.retain(|candidate| candidate.attempt.ended().is_none());
        if awaited.iter().any(|rival| rival.attempt != under_way.attempt()) {
            tokio::time::sleep(BACK_OFF).await;
        }
        pending
            .iter_mut()
            .for_each(|candidate| candidate.step(&Event::WaitOver));
    }
    Ok(())
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
        operation: None,
    };
    let name_it = |error: &dyn fmt::Display| match document.get("_id") {
        Ok(Some(id)) => format!("_id {id:?}: {error}"),
        _ => error.to_string(),
    };
    let doc = Doc::new(document.as_bytes()).map_err(|error| name_it(&error))?;
    Candidate::one_for_each_key(protected, position, token, doc).map_err(|error| name_it(&error))
}

/// Looks again whether the documents still hold what was just reserved for them, and gives back what they don't.
async fn verify(
    protected: &Protected,
    position: usize,
    lease: Duration,
    pending: &mut [Candidate<'_>],
) -> Result<(), PrepareError> {
    let proxy = &protected.constraints[position];
    let held: Vec<&Candidate<'_>> = pending
        .iter()
        .filter(|candidate| candidate.attempt.may_forward())
        .collect();
    if held.is_empty() {
        return Ok(());
    }
    let claims: Vec<_> = held
        .iter()
        .map(|candidate| (&candidate.keys[0].key, &candidate.owner))
        .collect();
    let still_there = proxy.look_up(&claims, Scope::Everywhere).await?;
    let held = pending.iter_mut().filter(|candidate| candidate.attempt.may_forward());
    for (candidate, still_there) in held.zip(still_there) {
        candidate.step(match still_there {
            true => &Event::Applied,
            false => &Event::NotApplied,
        });
    }
    give_back(protected, lease, pending).await;
    Ok(())
}

/// Whether the key is reserved for the very document already: by an earlier start, say. The reservation's route may be that
/// of a namesake on another shard which is gone, or an old one of the document itself, changed past Keyward.
async fn is_reserved_for_it(
    collection: &Collection<RawDocumentBuf>,
    protected: &Protected,
    candidate: &Candidate<'_>,
    key: usize,
) -> Result<bool, PrepareError> {
    if candidate.is_its_own_rival(key) {
        return Ok(true);
    }
    let id = &candidate.owner.id;
    if candidate.rivals.get(&key).is_none_or(|rival| rival.owner.id != *id) {
        return Ok(false);
    }
    let ConstrainedKey { constraint, key } = &candidate.keys[key];
    let constraint = &protected.constraints[*constraint].constraint;
    let id = Bson::try_from(id.clone()).map_err(|_| StoreError::Unexpected("an _id"))?;
    let mut namesakes = collection.find(doc! { "_id": { "$eq": id } }).await?;
    while let Some(namesake) = namesakes.try_next().await? {
        let malformed = |_| StoreError::Unexpected("a document");
        let namesake = Doc::new(namesake.as_bytes()).map_err(malformed)?;
        let is_another = owner_of(protected, namesake).map_err(malformed)? != candidate.owner;
        if is_another && constraint.keys(namesake).unwrap_or_default().contains(key) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Notes a duplicate, unless the key is the document's own.
async fn note(
    collection: &Collection<RawDocumentBuf>,
    protected: &Protected,
    candidate: &Candidate<'_>,
    key: usize,
    report: &mut Report,
) -> Result<(), PrepareError> {
    if is_reserved_for_it(collection, protected, candidate, key).await? {
        return Ok(());
    }
    let constrained = &candidate.keys[key];
    let duplicate = protected.constraints[constrained.constraint]
        .duplicate(&constrained.key)
        .await;
    let text = String::from_utf8_lossy(duplicate.errmsg()).into_owned();
    let other = candidate
        .rivals
        .get(&key)
        .map(|rival| format!("{:?}", rival.owner.id))
        .unwrap_or_default();
    report.add(format!("{text}: _id {:?} and _id {other}", candidate.owner.id));
    Ok(())
}

/// A bar on a terminal, log lines elsewhere.
struct Progress {
    bar: ProgressBar,
    logged: std::cell::Cell<Instant>,
}

impl Progress {
    fn start(documents: u64, report: &Report) -> Progress {
        let bar = ProgressBar::new(documents);
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
            bar.set_style(style);
        }
        bar.set_message(format!("{} {}", report.namespace, report.constraint));
        Progress {
            bar,
            logged: std::cell::Cell::new(Instant::now()),
        }
    }

    fn advance(&self, documents: u64) {
        self.bar.inc(documents);
        if self.bar.is_hidden() && self.logged.get().elapsed() > LOG_EVERY {
            self.logged.set(Instant::now());
            let (done, of) = (self.bar.position(), self.bar.length());
            tracing::info!(what = self.bar.message(), done, of, "backfilling");
        }
    }
}
