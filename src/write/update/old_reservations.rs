//! Reads the reservations of keys that documents are to lose by statements in place, and releases them afterwards.

use std::collections::HashMap;

use crate::catalog::Protected;
use crate::claims::ConstrainedKey;
use crate::constraint::Key;
use crate::proxy_collection::{Owner, ProxyCollection, Reservation, StoreError};
use crate::reservation::Scope;

/// Keys that a document is to lose.
#[derive(Clone, Copy)]
pub struct LostKeys<'k> {
    /// The document.
    pub owner: &'k Owner,
    /// Its keys.
    pub keys: &'k [ConstrainedKey],
}

/// The reservation of a key that a document is to lose, as it was before the statement.
pub struct OldReservation {
    /// The position of its document among those that [`read_old`] was asked for.
    pub position: usize,
    owner: Owner,
    key: ConstrainedKey,
    seen: Reservation,
}

/// The reservations `read` that are to be released. If they can't be read, Keyward warns: they stay until a write meets them.
pub fn read_or_warn<T>(proxy: &ProxyCollection, read: Result<Vec<T>, StoreError>) -> Vec<T> {
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, constraint = proxy.constraint.name(), "could not read what is to be released");
        Vec::new()
    })
}

/// The documents' reservations of the keys that they are to lose. A reservation that can't be read stays until a write meets it.
///
/// The constraints at the positions `not_enforced` may lack reservations. There, another document with the same `_id` may have the key's.
///
/// The transaction that gave a document a key may be committed on the document's shard but still be prepared on the key's
/// shard. So Keyward reads missing reservations again after that transaction is decided.
pub async fn read_old((protected, not_enforced): (&Protected, &[usize]), lost: &[LostKeys<'_>]) -> Vec<OldReservation> {
    let mut old = Vec::new();
    for (constraint, proxy) in protected.constraints.iter().enumerate() {
        let shard_key = not_enforced.contains(&constraint).then_some(&protected.shard_key[..]);
        let keys = lost.iter().enumerate().flat_map(|(position, of_document)| {
            let keys = of_document.keys.iter().filter(move |key| key.constraint == constraint);
            keys.map(move |key| (position, of_document.owner, key))
        });
        let keys: Vec<(usize, &Owner, &ConstrainedKey)> = keys.collect();
        if keys.is_empty() {
            continue;
        }
        let wanted: Vec<_> = keys.iter().map(|(_, _, key)| &key.key).collect();
        let reads = read_or_warn(proxy, proxy.read(&wanted).await);
        let mut note = |(position, owner, key): (usize, &Owner, &ConstrainedKey), seen| {
            let (owner, key) = (owner.clone(), key.clone());
            old.push(OldReservation {
                position,
                owner,
                key,
                seen,
            });
        };
        let mut missing = Vec::new();
        for (lost, read) in keys.into_iter().zip(reads) {
            match read.filter(|read| read.owner.may_be(lost.1, shard_key)) {
                Some(read) => note(lost, read),
                None => missing.push(lost),
            }
        }
        if missing.is_empty() {
            continue;
        }
        let keys: Vec<_> = missing.iter().map(|(_, _, key)| &key.key).collect();
        let decided = read_or_warn(proxy, proxy.read_decided(&keys).await);
        let mut by_key: HashMap<&Key, Vec<_>> = HashMap::with_capacity(missing.len());
        for lost in missing {
            by_key.entry(&lost.2.key).or_default().push(lost);
        }
        for (key, read) in decided {
            let mut of_key = by_key.get(&key).into_iter().flatten();
            if let Some(lost) = of_key.find(|(_, owner, _)| read.owner.may_be(owner, shard_key)) {
                note(*lost, read);
            }
        }
    }
    old
}

/// Releases exactly these reservations, whose documents no longer hold the keys.
pub async fn release_old<'o>(protected: &Protected, old: impl IntoIterator<Item = &'o OldReservation> + Clone) {
    for (constraint, proxy) in protected.constraints.iter().enumerate() {
        let old = old.clone().into_iter().filter(|old| old.key.constraint == constraint);
        // On another route, the owner may be another document with the same `_id`, or this one before the collection was
        // resharded.
        let (to_release, elsewhere): (Vec<_>, Vec<_>) = old.partition(|old| old.seen.owner == old.owner);
        if to_release.is_empty() && elsewhere.is_empty() {
            continue;
        }
        let as_seen = |old: Vec<&'o OldReservation>| old.into_iter().map(|old| (&old.key.key, &old.seen)).collect();
        let (to_release, elsewhere): (Vec<_>, Vec<_>) = (as_seen(to_release), as_seen(elsewhere));
        let released = async {
            // First those that no look-up can fail.
            proxy.release_seen(&to_release).await?;
            proxy
                .release_seen(&proxy.unheld(elsewhere, Scope::Linearizable).await?)
                .await
        };
        proxy.log_failed_release(released).await;
    }
}
