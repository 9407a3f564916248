//! Checks the reservations of documents that are about to be inserted, or writes them inside the inserting transaction.

use bson::spec::ElementType;

use crate::catalog::Protected;
use crate::claims::Candidate;
use crate::command::running::{API, append_fields};
use crate::constraint::Key;
use crate::proxy_collection::{Fitting, ProxyCollection, StoreError, find_reservations};
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::timestamp_of;
use crate::reservation::Token;
use crate::server::{cursor, reply::has_write_errors};
use crate::write::txn::append_read_concern;
use crate::write::txn::pipeline::PipelinedCommand;

/// The most keys, and bytes of keys, in one command.
const COMMAND_MAX: Fitting = Fitting {
    items: 1_000,
    bytes: 8 << 20,
};

/// Commands that find the reservations of all candidates that carry the candidates' tokens.
pub fn checks<'s>(protected: &'s Protected, candidates: &[&Candidate<'_>]) -> Vec<PipelinedCommand<'s>> {
    let check = |proxy: &'s ProxyCollection, chunk: &[(&Candidate<'_>, &Key)]| {
        let collection = proxy.constraint.proxy_collection();
        let keys = chunk.iter().map(|(_, key)| *key);
        let tokens: Vec<Token> = chunk.iter().map(|(candidate, _)| candidate.attempt.token()).collect();
        let mut command = find_reservations(&collection.collection, keys, &tokens);
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

/// The same commands, to be run outside of the transaction behind its insert, at one moment of their own. `body` is the client's
/// command.
pub fn outside_checks<'s>(
    protected: &'s Protected,
    candidates: &[&Candidate<'_>],
    body: Doc<'_>,
) -> Result<Vec<PipelinedCommand<'s>>, Malformed> {
    let mut commands = checks(protected, candidates);
    for outside in &mut commands {
        append_fields(&mut outside.command, body, &API)?;
        append_read_concern(&mut outside.command, b"snapshot");
    }
    Ok(commands)
}

/// Whether the moment of these checks `outside` isn't before the snapshots that the transaction of `insert` has of the documents' shards.
///
/// The reply to the insert carries the latest time that the router knows. It isn't earlier than any time that those shards knew
/// when they replied, and so than any commit in the snapshots.
pub fn are_later(outside: &[Vec<u8>], insert: Doc<'_>) -> Result<bool, Malformed> {
    let time_at = |reply: Doc<'_>, path| Ok::<_, Malformed>(reply.value_at(path)?.and_then(|time| timestamp_of(&time)));
    let known = time_at(insert, "$clusterTime.clusterTime")?;
    for reply in outside {
        let at = time_at(Doc::new(reply)?, "cursor.atClusterTime")?;
        if known.is_none() || at < known {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Commands that write the reservations of all candidates. They name their collections, unless the client wants the stable API only.
pub fn inserts<'s>(
    protected: &'s Protected,
    candidates: &[&Candidate<'_>],
    is_api_strict: bool,
) -> Vec<PipelinedCommand<'s>> {
    let insert = |proxy: &'s ProxyCollection, chunk: &[(&Candidate<'_>, &Key)]| {
        let collection = proxy.constraint.proxy_collection();
        let mut command = Builder::new();
        command.string("insert", collection.collection.as_bytes());
        let reservations = chunk.iter().map(|(candidate, key)| {
            let reservation = proxy.reservation(key, &candidate.owner, candidate.attempt.token());
            reservation.into_bytes()
        });
        command.documents("documents", reservations);
        if !is_api_strict {
            proxy.append_uuid(&mut command);
        }
        command
    };
    steps(protected, candidates, insert)
}

fn steps<'s>(
    protected: &'s Protected,
    candidates: &[&Candidate<'_>],
    command: impl Fn(&'s ProxyCollection, &[(&Candidate<'_>, &Key)]) -> Builder,
) -> Vec<PipelinedCommand<'s>> {
    let mut steps = Vec::new();
    for (constraint, proxy) in protected.constraints.iter().enumerate() {
        let mut keys: Vec<(&Candidate<'_>, &Key)> = Vec::new();
        for candidate in candidates {
            keys.extend(candidate.keys_under(constraint).map(|key| (*candidate, key)));
        }
        // In the order in which all writers reserve keys.
        keys.sort_by_key(|(_, key)| *key);
        for chunk in COMMAND_MAX.parts(&keys, |(_, key)| key.reservation_id().as_bytes().len()) {
            steps.push(PipelinedCommand::of(protected, command(proxy, chunk)));
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
pub async fn superseded(protected: &Protected, candidates: &[&Candidate<'_>]) -> Result<Vec<usize>, StoreError> {
    let mut superseded = Vec::new();
    for (constraint, proxy) in protected.constraints.iter().enumerate() {
        let mut keys = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            keys.extend(candidate.keys_under(constraint).map(|key| (index, key)));
        }
        let asked: Vec<&Key> = keys.iter().map(|(_, key)| *key).collect();
        for ((index, _), read) in keys.into_iter().zip(proxy.read(&asked).await?) {
            let token = read.map(|read| read.token);
            if token != Some(candidates[index].attempt.token()) {
                superseded.push(index);
            }
        }
    }
    superseded.sort_unstable();
    superseded.dedup();
    Ok(superseded)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn an_outside_check_counts_only_from_the_transactions_moment_on() {
        let time = |increment| bson::Timestamp { time: 7, increment };
        let insert = rawdoc! { "n": 1, "$clusterTime": { "clusterTime": time(5) } };
        let check = |at: u32| rawdoc! { "cursor": { "firstBatch": [], "atClusterTime": time(at) } }.into_bytes();
        let are_later = |outside: &[Vec<u8>], insert: &bson::RawDocument| {
            super::are_later(outside, Doc::new(insert.as_bytes()).unwrap()).unwrap()
        };
        assert!(are_later(&[check(5), check(6)], &insert));
        assert!(!are_later(&[check(6), check(4)], &insert));
        assert!(are_later(&[], &insert));
        // Nothing is proved without both times.
        assert!(!are_later(&[check(6)], &rawdoc! { "n": 1 }));
        let timeless = rawdoc! { "cursor": { "firstBatch": [] } }.into_bytes();
        assert!(!are_later(&[timeless], &insert));
    }
}
