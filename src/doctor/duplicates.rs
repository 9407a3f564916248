//! Looks for documents that hold one key, in a sample of each constraint's collection.
//!
//! It only reads.

use std::collections::{HashMap, HashSet};

use super::check::CheckOutcome;
use crate::catalog::Protected;
use crate::claims::{keys_under, owner_of};
use crate::config::Config;
use crate::constraint::Key;
use crate::counted::Counted;
use crate::extended_json::as_json;
use crate::metrics::Metrics;
use crate::prepare::{self, DuplicateGroups, PrepareError, Report, UnindexableDocument};
use crate::proxy_collection::{Owner, StoreError};
use crate::raw::Doc;
use crate::reservation::Scope;
use crate::upstream::Upstream;

/// How many documents of a collection are read.
const SAMPLE: u32 = 10_000;
/// How many keys are named.
const KEYS_NAMED: usize = 5;

/// The result for a sample of one constraint's documents.
#[derive(Debug)]
pub struct SampledConstraint {
    /// The constraint, with its collection.
    pub name: String,
    /// Whether it is violated.
    pub outcome: CheckOutcome,
}

/// Samples the collections of the constraints in `config`.
///
/// # Errors
/// [`PrepareError`] if the deployment can't be asked, or a constraint can't be used there.
pub async fn sample_duplicates(config: &Config, upstream: &Upstream) -> Result<Vec<SampledConstraint>, PrepareError> {
    let metrics = Metrics::new(&config.constraints);
    let client = upstream.client();
    let mut sampled = Vec::new();
    for protected in prepare::prepared(client, &config.constraints, config.lease, &metrics).await? {
        for (position, proxy) in protected.constraints.iter().enumerate() {
            let name = format!("{} {}", protected.namespace, proxy.constraint.name());
            let outcome = match sample(&protected, position).await {
                Ok(sample) => sample.outcome(),
                Err(error) => CheckOutcome::Skipped(error.to_string()),
            };
            sampled.push(SampledConstraint { name, outcome });
        }
    }
    Ok(sampled)
}

/// The documents that were read, and those of them that violate the constraint.
struct Sample {
    documents: usize,
    /// About how many there are.
    of: u64,
    report: Report,
}

/// A document that has a key in the sample.
struct SampledOwner {
    owner: Owner,
    lacks_fields: bool,
}

async fn sample(protected: &Protected, position: usize) -> Result<Sample, StoreError> {
    let proxy = &protected.constraints[position];
    let (of, _) = proxy.estimate().await?;
    let documents = proxy.sample(SAMPLE, &protected.shard_key).await?;
    let mut owners: HashMap<Key, Vec<SampledOwner>> = HashMap::new();
    let mut groups = DuplicateGroups::of(&proxy.constraint);
    let mut seen = HashSet::new();
    for document in &documents {
        let malformed = |_| StoreError::Unexpected("a document");
        let doc = Doc::new(document.as_bytes()).map_err(malformed)?;
        let owner = owner_of(protected, doc).map_err(malformed)?;
        // The server may give a document twice. It may have changed in between, so its `_id` alone counts.
        if !seen.insert(as_json(&owner.id).to_string()) {
            continue;
        }
        match keys_under(protected, position, doc) {
            Ok(keys) => {
                let lacks_fields = proxy.constraint.lacks_fields(doc);
                for key in keys {
                    let owner = owner.clone();
                    owners
                        .entry(key)
                        .or_default()
                        .push(SampledOwner { owner, lacks_fields });
                }
            }
            Err(error) => groups.add_unindexable(UnindexableDocument::of(document, &error)),
        }
    }
    owners.retain(|_, owners| owners.len() > 1);
    // They may have given the key up while the sample was read.
    let pairs = owners
        .iter()
        .flat_map(|(key, owners)| owners.iter().map(move |one| (key, &one.owner)));
    let held = proxy.look_up(&pairs.collect::<Vec<_>>(), Scope::Everywhere).await?;
    let mut held = held.into_iter();
    for (key, owners) in &owners {
        let holders: Vec<_> = owners.iter().filter(|_| held.next() == Some(true)).collect();
        if let Some((first, others)) = holders.split_first() {
            for one in others {
                let lacks_fields = first.lacks_fields || one.lacks_fields;
                groups.add(key, &one.owner.id, &first.owner.id, lacks_fields);
            }
        }
    }
    Ok(Sample {
        documents: seen.len(),
        of,
        report: groups.finish(None),
    })
}

impl Sample {
    fn outcome(&self) -> CheckOutcome {
        let documents = self.documents;
        if !self.report.is_empty() {
            let violating = self.report.count;
            let violate = if violating == 1 { "violates" } else { "violate" };
            return CheckOutcome::Failed(format!(
                "of {} in the sample, {violating} {violate} it, counting all but one of each key{}",
                Counted(documents, "document"),
                self.report.lines(KEYS_NAMED)
            ));
        }
        let of = self.of;
        CheckOutcome::Passed(match u64::try_from(documents).is_ok_and(|documents| documents >= of) {
            true => {
                let documents = Counted(documents, "document");
                format!("no duplicates in {documents}, all that were found; only `keyward backfill` proves it")
            }
            false => format!(
                "no duplicates in {documents} of about {}; such a sample proves nothing about the others",
                Counted(of, "document")
            ),
        })
    }
}
