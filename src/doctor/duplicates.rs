//! Looks for documents that hold one key, in a sample of each constraint's collection.
//!
//! It only reads.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::check::CheckOutcome;
use crate::catalog::Protected;
use crate::claims::{keys_under, owner_of};
use crate::config::Config;
use crate::constraint::Key;
use crate::counted::Counted;
use crate::extended_json::as_json;
use crate::metrics::Metrics;
use crate::prepare::{self, PrepareError};
use crate::proxy_collection::{Owner, StoreError};
use crate::raw::Doc;
use crate::reservation::Scope;
use crate::upstream::Upstream;

/// How many documents of a collection are read.
const SAMPLE: u32 = 10_000;
/// How many pairs are named.
const NAMED_MAX: usize = 5;

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

/// The documents that were read, and those that violate the constraint.
struct Sample {
    documents: usize,
    /// About how many there are.
    of: u64,
    /// Two owners of one key, and the server's error for it; several documents with one key are several pairs.
    pairs: Vec<(String, Owner, Owner)>,
    /// The documents that no index over the fields could take.
    unindexable: Vec<String>,
}

async fn sample(protected: &Protected, position: usize) -> Result<Sample, StoreError> {
    let proxy = &protected.constraints[position];
    let (of, _) = proxy.estimate().await?;
    let documents = proxy.sample(SAMPLE, &protected.shard_key).await?;
    let mut sample = Sample {
        documents: 0,
        of,
        pairs: Vec::new(),
        unindexable: Vec::new(),
    };
    let mut owners: HashMap<Key, Owner> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    let mut suspects: Vec<(Key, Owner, Owner)> = Vec::new();
    for document in &documents {
        let malformed = |_| StoreError::Unexpected("a document");
        let doc = Doc::new(document.as_bytes()).map_err(malformed)?;
        let owner = owner_of(protected, doc).map_err(malformed)?;
        // The server may give a document twice. It may have changed in between, so its `_id` alone counts.
        if !seen.insert(as_json(&owner.id).to_string()) {
            continue;
        }
        sample.documents += 1;
        match keys_under(protected, position, doc) {
            Ok(keys) => {
                for key in keys {
                    match owners.entry(key) {
                        Entry::Occupied(taken) => {
                            suspects.push((taken.key().clone(), taken.get().clone(), owner.clone()));
                        }
                        Entry::Vacant(free) => {
                            free.insert(owner.clone());
                        }
                    }
                }
            }
            Err(error) => sample.unindexable.push(format!("_id {}: {error}", as_json(&owner.id))),
        }
    }
    // One of the two may have given the key up while the sample was read.
    let pairs = suspects.iter().flat_map(|(key, one, other)| [(key, one), (key, other)]);
    let held = proxy.look_up(&pairs.collect::<Vec<_>>(), Scope::Everywhere).await?;
    for ((key, one, other), held) in suspects.into_iter().zip(held.chunks(2)) {
        if held.iter().all(|held| *held) {
            let text = String::from_utf8_lossy(proxy.constraint.duplicate(&key).errmsg()).into_owned();
            sample.pairs.push((text, one, other));
        }
    }
    Ok(sample)
}

impl Sample {
    fn outcome(&self) -> CheckOutcome {
        let documents = self.documents;
        let violating = self.pairs.len() + self.unindexable.len();
        if violating > 0 {
            let pairs = self
                .pairs
                .iter()
                .map(|(text, one, other)| format!("{text}: _id {one} and _id {other}"));
            let named: Vec<String> = pairs.chain(self.unindexable.iter().cloned()).take(NAMED_MAX).collect();
            let named = named.join("; ");
            let more = match violating.saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            let violate = if violating == 1 { "violates" } else { "violate" };
            return CheckOutcome::Failed(format!(
                "{violating} of {} that were read {violate} it: {named}{more}",
                Counted(documents, "document")
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
