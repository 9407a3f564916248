//! Checks or writes the reservations of documents that are about to be inserted, inside the inserting transaction.

use bson::spec::ElementType;

use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey};
use crate::constraint::Key;
use crate::proxy_collection::{Fitting, ProxyCollection, StoreError, find_reservations};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::{cursor, reply::has_write_errors};
use crate::write::txn::pipeline::Step;

/// The most keys, and bytes of keys, in one command.
const COMMAND_MAX: Fitting = Fitting {
    items: 1_000,
    bytes: 8 << 20,
};

/// Commands that find the reservations of all candidates that carry the candidates' tokens.
pub fn checks<'s>(protected: &'s Protected, candidates: &[&Candidate<'_>]) -> Vec<Step<'s>> {
    let check = |proxy: &'s ProxyCollection, chunk: &[(&Candidate<'_>, &Key)]| {
        let collection = proxy.constraint.proxy_collection();
        let keys = chunk.iter().map(|(_, key)| *key);
        let tokens = chunk.iter().map(|(candidate, _)| candidate.attempt.token());
        let mut command = find_reservations(&collection.collection, keys, Some(tokens));
        command
            .open(ElementType::EmbeddedDocument, b"projection")
            .int32("_id", 0)
            .int32("at", 1)
            .close();
        cursor::in_one_batch(&mut command, chunk.len());
        command
    };
    steps(protected, candidates, check)
}

/// Commands that write the reservations of all candidates.
pub fn inserts<'s>(protected: &'s Protected, candidates: &[&Candidate<'_>]) -> Vec<Step<'s>> {
    let insert = |proxy: &'s ProxyCollection, chunk: &[(&Candidate<'_>, &Key)]| {
        let collection = proxy.constraint.proxy_collection();
        let mut command = Builder::new();
        command.string("insert", collection.collection.as_bytes());
        let reservations = chunk.iter().map(|(candidate, key)| {
            let reservation = proxy.reservation(key, &candidate.owner, candidate.attempt.token());
            reservation.into_bytes()
        });
        command.documents("documents", reservations);
        command
    };
    steps(protected, candidates, insert)
}

fn steps<'s>(
    protected: &'s Protected,
    candidates: &[&Candidate<'_>],
    command: impl Fn(&'s ProxyCollection, &[(&Candidate<'_>, &Key)]) -> Builder,
) -> Vec<Step<'s>> {
    let mut steps = Vec::new();
    for (constraint, proxy) in protected.constraints.iter().enumerate() {
        let mut keys: Vec<(&Candidate<'_>, &Key)> = Vec::new();
        for candidate in candidates {
            let own = candidate.keys.iter().filter(|key| key.constraint == constraint);
            keys.extend(own.map(|ConstrainedKey { key, .. }| (*candidate, key)));
        }
        // In the order in which all writers reserve keys.
        keys.sort_by_key(|(_, key)| *key);
        for chunk in COMMAND_MAX.parts(&keys, |(_, key)| key.reservation_id().as_bytes().len()) {
            steps.push(Step {
                database: &protected.namespace.database,
                command: command(proxy, chunk),
                sequence: None,
            });
        }
    }
    steps
}

/// How many reservations the checks found. If there are as many as keys, all of them exist under the right tokens. If two
/// documents share a key, there is one key more than there can be reservations.
pub fn count(replies: &[Vec<u8>]) -> Result<usize, Malformed> {
    let mut count = 0;
    for reply in replies {
        count += cursor::batch(Doc::new(reply)?)?.len();
    }
    Ok(count)
}

/// Whether the replies report that all reservations were written.
pub fn are_written(replies: &[Vec<u8>]) -> Result<bool, Malformed> {
    for reply in replies {
        if has_write_errors(Doc::new(reply)?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The candidates with a key whose reservation isn't theirs now.
///
/// # Errors
/// [`StoreError`] if the cluster gave no sure answer.
pub async fn lost(protected: &Protected, candidates: &[&Candidate<'_>]) -> Result<Vec<usize>, StoreError> {
    let mut lost = Vec::new();
    for (constraint, proxy) in protected.constraints.iter().enumerate() {
        let mut keys = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            let own = candidate.keys.iter().filter(|key| key.constraint == constraint);
            keys.extend(own.map(|key| (index, &key.key)));
        }
        let asked: Vec<&Key> = keys.iter().map(|(_, key)| *key).collect();
        for ((index, _), read) in keys.into_iter().zip(proxy.read(&asked).await?) {
            let token = read.map(|read| read.token);
            if token != Some(candidates[index].attempt.token()) {
                lost.push(index);
            }
        }
    }
    lost.sort_unstable();
    lost.dedup();
    Ok(lost)
}
