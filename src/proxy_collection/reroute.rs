//! Updates the routes in reservations after the shard key of the protected collection changed.
//!
//! A reservation from before the change has a route by the former shard key. Keyward then looks its owner up on all shards, and in
//! strict mode it can't prove an absent owner gone.

use bson::{RawArrayBuf, RawBson, RawDocumentBuf, rawdoc};

use super::filter::seen_filter;
use super::fitting::Fitting;
use super::time_out::within;
use super::writing::PATIENCE_MS;
use super::{Owner, ProxyCollection, Reservation, StoreError};
use crate::constraint::{Key, id_identity};
use crate::raw::Doc;

/// How many bytes of keys and owners one command has: the server takes 16 MB.
const BYTES_MAX: usize = 8 << 20;

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
        let most = Fitting {
            items: self.owners_max(),
            bytes: BYTES_MAX,
        };
        let bytes = |(key, seen): &(&Key, &Reservation)| key.reservation_id().as_bytes().len() + seen.owner.bytes();
        for misrouted in most.parts(&misrouted, bytes) {
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
        let mut updates = RawArrayBuf::new();
        for ((key, seen), moment) in misrouted.iter().zip(moments) {
            if let [owner] = moment.owners.as_slice()
                && id_identity(&owner.id) == id_identity(&seen.owner.id)
            {
                updates.push(rawdoc! { "q": seen_filter(key, seen), "u": routing(owner) });
            }
        }
        if updates.is_empty() {
            return Ok(0);
        }
        let command = rawdoc! {
            "update": self.reservations.name(), "updates": updates, "ordered": false,
            "writeConcern": { "w": "majority" }, "maxTimeMS": PATIENCE_MS,
        };
        let renewed = self.finder.write(command).await?;
        Ok(u64::try_from(renewed).unwrap_or_default())
    }
}

fn routing(owner: &Owner) -> RawDocumentBuf {
    match &owner.route {
        Some(route) => rawdoc! { "$set": { "route": RawBson::Document(route.clone()) } },
        None => rawdoc! { "$unset": { "route": 1 } },
    }
}
