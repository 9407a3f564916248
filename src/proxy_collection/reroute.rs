//! Updates the routes in reservations after the shard key of the protected collection changed.
//!
//! A reservation from before the change has a route by the former shard key. Keyward then looks its owner up on all shards, and in
//! strict mode it can't prove an absent owner gone.

use bson::{RawArrayBuf, RawBson, RawDocumentBuf, rawdoc};

use super::filter::seen_filter;
use super::fitting::Fitting;
use super::time_out::within;
use super::writing::PATIENCE_MS;
use super::{KEYS_MAX, Owner, ProxyCollection, Reservation, StoreError};
use crate::constraint::{Key, id_identity};
use crate::raw::Doc;

/// The limits of one update: a route may be large, and the server takes 16 MB.
const UPDATE_MAX: Fitting = Fitting {
    items: KEYS_MAX,
    bytes: 8 << 20,
};

impl ProxyCollection {
    /// Renews the routes of reservations that name another shard key than `shard_key`. The owner must be the only document that holds
    /// the key. Returns how many it renewed. `owner_of` returns the `_id` and the route of a document.
    ///
    /// Token and time stay. So an attempt that saw such a reservation before still takes it over or releases it.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer. Then some may be renewed.
    pub async fn renew_routes(
        &self,
        seen: &[(&Key, &Reservation)],
        shard_key: &[String],
        owner_of: impl Fn(Doc<'_>) -> Option<Owner>,
    ) -> Result<u64, StoreError> {
        let misrouted = seen.iter().filter(|(_, seen)| !seen.owner.has_route_by(shard_key));
        let misrouted: Vec<_> = misrouted.copied().collect();
        // Another Keyward may know a later shard key, and have renewed them by that.
        if misrouted.is_empty() || within(self.limit, self.sharding()).await?.key != shard_key {
            return Ok(0);
        }
        let mut renewed = 0;
        for misrouted in misrouted.chunks(self.owners_max()) {
            renewed += self.renew_these(misrouted, shard_key, &owner_of).await?;
        }
        Ok(renewed)
    }

    async fn renew_these(
        &self,
        misrouted: &[(&Key, &Reservation)],
        shard_key: &[String],
        owner_of: impl Fn(Doc<'_>) -> Option<Owner>,
    ) -> Result<u64, StoreError> {
        let pairs: Vec<_> = misrouted.iter().map(|(key, seen)| (*key, &seen.owner)).collect();
        let moments = within(self.limit, self.at_one_moment(&pairs, shard_key, owner_of)).await?;
        let mut updates = Vec::new();
        for ((key, seen), moment) in misrouted.iter().zip(moments) {
            if let [owner] = moment.owners.as_slice()
                && id_identity(&owner.id) == id_identity(&seen.owner.id)
            {
                updates.push(rawdoc! { "q": seen_filter(key, seen), "u": routing(owner) });
            }
        }
        let mut renewed = 0;
        for updates in UPDATE_MAX.parts(&updates, |update| update.as_bytes().len()) {
            let updates: RawArrayBuf = updates.iter().cloned().collect();
            let command = rawdoc! {
                "update": self.reservations.name(), "updates": updates, "ordered": false,
                "writeConcern": { "w": "majority" }, "maxTimeMS": PATIENCE_MS,
            };
            renewed += u64::try_from(self.finder.write(command).await?).unwrap_or_default();
        }
        Ok(renewed)
    }
}

fn routing(owner: &Owner) -> RawDocumentBuf {
    match &owner.route {
        Some(route) => rawdoc! { "$set": { "route": RawBson::Document(route.clone()) } },
        None => rawdoc! { "$unset": { "route": 1 } },
    }
}
