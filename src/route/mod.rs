//! Sends reads by a unique field to one shard: adds the owner's `_id` and shard key to a query by a key.
//!
//! If the query with these conditions finds a document, that document holds the key, and no other document does at that
//! moment. So the reply is complete, however old the reservation is. If it finds nothing, that proves nothing: the client's own
//! command goes on unchanged. The module is pure; the session and the write path read the reservations.

mod command;
mod reply;
mod statement;

use bson::rawdoc;

use crate::catalog::Protected;
use crate::command::filter_rewriting::pin;
use crate::constraint::{Key, values_asked_for};
use crate::proxy_collection::Owner;
use crate::raw::{Doc, Malformed};

pub use command::{ReadByKey, read_target};
pub use reply::{RoutedReply, found};
pub use statement::{needs_routing, nowhere};

/// The key that a query asks for.
#[derive(Debug, Clone)]
pub struct AskedFor {
    /// The position of its constraint.
    pub constraint: usize,
    /// The key.
    pub key: Key,
}

impl AskedFor {
    /// The key that `query` asks for, if a router would send the query to more shards than one. The query's collation must be
    /// the simple one, unless the collection has another.
    pub fn by(query: Doc<'_>, protected: &Protected) -> Option<AskedFor> {
        let first = protected.shard_key.first().filter(|_| !protected.is_collated)?;
        let values = values_asked_for(query).ok()?;
        if values.iter().any(|value| value.name == first.as_bytes()) {
            return None;
        }
        let constraints = protected.constraints.iter().enumerate();
        let mut routing = constraints.filter(|(_, proxy)| proxy.constraint.routes());
        routing.find_map(|(constraint, proxy)| {
            let key = proxy.constraint.key_asked_for(query)?;
            Some(AskedFor { constraint, key })
        })
    }
}

/// `query`, for the document `owner` only. `None` if the reservation doesn't have the values of the present shard key.
pub fn pinned(query: Doc<'_>, owner: &Owner, protected: &Protected) -> Result<Option<Vec<u8>>, Malformed> {
    if owner.route.is_none() || !owner.has_route_by(&protected.shard_key) {
        return Ok(None);
    }
    let id = rawdoc! { "_id": owner.id.clone() };
    pin(query, id.as_bytes(), owner).map(Some)
}
