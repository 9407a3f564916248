//! Finds the documents that violate constraints, without reserving or creating anything.
//!
//! It reads all documents, and counts their keys by fingerprint ([`CountedKeys`]). If any key occurs twice, one more
//! reading collects the `_id`s of the keys with the most documents. Documents may change between the readings; what no
//! longer is a duplicate in the last one is not listed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bson::{RawBson, RawDocumentBuf};
use mongodb::Client;

use super::counted_keys::{CountedKeys, KEYS_AT_ONCE};
use super::duplicate_groups::{DuplicateGroup, fingerprint};
use super::report::{DuplicatedKey, KEYS_LISTED, Report, Reports, UnindexableDocument, UnlistedKeys};
use super::{PrepareError, check_strategies, prepared};
use crate::catalog::Protected;
use crate::claims::{keys_under, owner_of};
use crate::constraint::{Constraint, Key};
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::proxy_collection::{Owner, StoreError, id_of};
use crate::raw::Doc;

/// How many documents are read together.
const BATCH: i32 = 8_000;

/// Reports the documents that violate one of `constraints`. Changes nothing in the cluster.
///
/// # Errors
/// [`PrepareError`] if a constraint can't be used there, or the cluster doesn't answer.
pub async fn find_duplicates(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<Reports, PrepareError> {
    check_strategies(client, constraints, lease, metrics).await?;
    let mut reports = Reports::default();
    for protected in prepared(client, constraints, lease, metrics).await? {
        for position in 0..protected.constraints.len() {
            let dry_run = DryRun {
                protected: &protected,
                position,
            };
            let report = dry_run.report(KEYS_AT_ONCE).await?;
            if !report.is_empty() {
                reports.0.push(report);
            }
        }
    }
    Ok(reports)
}

/// The keys that occur more than once.
#[derive(Debug, Default)]
struct RepeatedKeys {
    keys: u64,
    documents: u64,
    /// The keys with the most documents: their number, and the fingerprint.
    most: BTreeSet<(u64, u64)>,
}

impl RepeatedKeys {
    fn add(&mut self, (fingerprint, documents): (u64, u64)) {
        self.keys += 1;
        self.documents += documents;
        self.most.insert((documents, fingerprint));
        if self.most.len() > KEYS_LISTED {
            self.most.pop_first();
        }
    }

    /// The keys that aren't among the ones with the most documents.
    fn unlisted(&self) -> UnlistedKeys {
        let listed: u64 = self.most.iter().map(|(documents, _)| documents).sum();
        UnlistedKeys {
            keys: self.keys - self.most.len() as u64,
            documents: self.documents - listed,
            is_at_least: false,
        }
    }
}

/// The documents of one constraint, being read.
struct DryRun<'a> {
    protected: &'a Protected,
    position: usize,
}

impl DryRun<'_> {
    /// The report, with at most `at_once` keys in memory.
    async fn report(&self, at_once: usize) -> Result<Report, StoreError> {
        let mut report = Report::of(self.constraint());
        let (mut repeated, mut from) = (RepeatedKeys::default(), Some(0));
        while let Some(start) = from {
            let mut counted = CountedKeys::starting_at(start, at_once);
            let is_first = start == 0;
            let note = |keys: Result<&[Key], UnindexableDocument>, _: &RawDocumentBuf| match keys {
                Ok(keys) => keys.iter().for_each(|key| counted.add(fingerprint(key))),
                Err(document) if is_first => report.add_unindexable(document),
                Err(_) => {}
            };
            self.read_all(note).await?;
            counted.repeated().for_each(|key| repeated.add(key));
            from = counted.next();
            if from.is_some() {
                let (namespace, constraint) = (&self.protected.namespace, self.constraint().name());
                tracing::info!(%namespace, constraint, "more keys than fit into memory: reading the documents once more");
            }
        }
        report.unlisted = repeated.unlisted();
        report.keys = self.listed(&repeated).await?;
        report.sort_keys();
        let to_change: u64 = report.keys.iter().map(|key| key.documents - 1).sum();
        report.count += to_change + report.unlisted.documents - report.unlisted.keys;
        Ok(report)
    }

    /// The keys with the most documents, with their `_id`s.
    async fn listed(&self, repeated: &RepeatedKeys) -> Result<Vec<DuplicatedKey>, StoreError> {
        let wanted = repeated.most.iter().map(|(_, fingerprint)| *fingerprint);
        let mut found: HashMap<u64, Option<(Vec<u8>, DuplicateGroup, u64)>> = wanted.map(|key| (key, None)).collect();
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let constraint = self.constraint();
        self.read_all(|keys, document| {
            for key in keys.unwrap_or_default() {
                let Some(found) = found.get_mut(&fingerprint(key)) else {
                    continue;
                };
                // The canonical form alone: the values of a key may be megabytes.
                let first = || (key.canonical().to_vec(), DuplicateGroup::of(key), 0);
                let (canonical, group, documents) = found.get_or_insert_with(first);
                // Two different keys with one fingerprint are no duplicates.
                if canonical == key.canonical() {
                    *documents += 1;
                    let lacks_fields = Doc::new(document.as_bytes()).is_ok_and(|doc| constraint.lacks_fields(doc));
                    group.add(&id_of(document).unwrap_or(RawBson::Null), lacks_fields);
                }
            }
        })
        .await?;
        let listed = found
            .into_values()
            .flatten()
            .filter(|(_, _, documents)| *documents > 1)
            .map(|(_, group, documents)| group.finish(constraint, documents));
        Ok(listed.collect())
    }

    /// Reads all documents, and calls `note` with the keys of each, or with the reason why it has none.
    async fn read_all(
        &self,
        mut note: impl FnMut(Result<&[Key], UnindexableDocument>, &RawDocumentBuf),
    ) -> Result<(), StoreError> {
        let proxy = &self.protected.constraints[self.position];
        let (documents, _) = proxy.estimate().await?;
        let what = format!("{} {}", self.protected.namespace, proxy.constraint.name());
        let mut progress = Progress::start("reading", what, 0, documents);
        let mut all = proxy.all_documents(None, BATCH, &self.protected.shard_key);
        // On shards, a batch also has the other documents with its last `_id`. The next batch may have them again.
        let mut seen: Vec<Owner> = Vec::new();
        while let Some((batch, _)) = all.next().await? {
            let owner = |document: &RawDocumentBuf| {
                let doc = Doc::new(document.as_bytes());
                doc.and_then(|doc| owner_of(self.protected, doc)).ok()
            };
            let is_new = |document: &&RawDocumentBuf| {
                seen.is_empty() || !owner(document).is_some_and(|owner| seen.contains(&owner))
            };
            for document in batch.iter().filter(is_new) {
                let keys = Doc::new(document.as_bytes())
                    .map_err(Into::into)
                    .and_then(|doc| keys_under(self.protected, self.position, doc));
                match keys {
                    Ok(keys) => note(Ok(&keys), document),
                    Err(error) => note(Err(UnindexableDocument::of(document, &error)), document),
                }
            }
            progress.advance(batch.len() as u64);
            seen = all.may_come_again().iter().filter_map(owner).collect();
        }
        Ok(())
    }

    fn constraint(&self) -> &Constraint {
        &self.protected.constraints[self.position].constraint
    }
}
