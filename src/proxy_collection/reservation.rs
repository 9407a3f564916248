//! A reservation as it stands in a proxy collection: `{_id, owner, route, token, beginning, lease, at}`.
//!
//! `_id` is the key ([`crate::constraint::Key::reservation_id`]); `owner` is the owner's `_id`; `route` its shard-key
//! values under their paths, absent where the protected collection isn't sharded; `token` says which attempt wrote it, and
//! `beginning`, absent where it is 0, in which of its beginnings; `lease`, in milliseconds, how long it may be in flight, 0 if
//! it never was; `at` is the cluster time of the write, filled in by the server.

use std::time::Duration;

use bson::{
    Binary, RawBson, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc,
    spec::{BinarySubtype, ElementType},
};
use tokio::time::Instant;

use crate::constraint::Key;
use crate::raw::Builder;
use crate::reservation::Token;

/// The document that a reservation belongs to.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The document's `_id`.
    pub id: RawBson,
    /// Its shard-key values; `None` where the protected collection isn't sharded.
    pub route: Option<RawDocumentBuf>,
}

/// By what an attempt knows a reservation that it has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservationVersion {
    /// The attempt's.
    pub token: Token,
    /// How often the attempt has given back what it held: a deletion of that which comes late doesn't hit what it has
    /// reserved since.
    pub generation: u32,
    /// Whether a write by which its owner would hold the key may be on its way: if not, nobody waits for one.
    pub in_flight: bool,
}

impl From<Token> for ReservationVersion {
    /// The first beginning's, in flight.
    fn from(token: Token) -> ReservationVersion {
        ReservationVersion {
            token,
            generation: 0,
            in_flight: true,
        }
    }
}

/// A reservation that was read.
#[derive(Debug, Clone)]
pub struct Reservation {
    /// Whose it is, as far as the writer knew.
    pub owner: Owner,
    /// Who wrote it.
    pub token: Token,
    /// In which of its beginnings.
    pub generation: i64,
    /// The cluster time at which it was written.
    pub at: Timestamp,
    /// How long it may be in flight, as its writer has it: other Keywards may run with another lease. Zero if it never was.
    pub lease: Duration,
    /// When this process first saw it.
    pub seen: Instant,
}

impl Owner {
    /// Whether both have the same `_id`, byte for byte: not a number is itself here.
    pub fn is_namesake_of(&self, other: &Owner) -> bool {
        let bytes = |id: &RawBson| rawdoc! { "": id.clone() }.into_bytes();
        self.id == other.id || bytes(&self.id) == bytes(&other.id)
    }

    /// How many bytes it takes in a reservation, about.
    pub fn bytes(&self) -> usize {
        let route = self.route.as_ref().map_or(0, |route| route.as_bytes().len());
        rawdoc! { "": self.id.clone() }.as_bytes().len() + route
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.route == other.route && self.is_namesake_of(other)
    }
}

/// The reservation of `key` for `owner`, ready to be inserted or to replace another; `lease` if it is in flight.
pub fn document(key: &Key, owner: &Owner, version: ReservationVersion, lease: Duration) -> RawDocumentBuf {
    // The buffer suffices for what comes after it, too.
    let mut id = Builder::new();
    id.open(ElementType::EmbeddedDocument, b"_id");
    key.append_reservation_id(&mut id);
    let mut document = RawDocumentBuf::from_bytes(id.finish()).expect("the builder made a document");
    document.append(cstr!("owner"), owner.id.as_raw_bson_ref());
    if let Some(route) = &owner.route {
        document.append(cstr!("route"), &**route);
    }
    document.append(cstr!("token"), token_value(version.token));
    if version.generation > 0 {
        document.append(cstr!("beginning"), i64::from(version.generation));
    }
    let lease = if version.in_flight { lease } else { Duration::ZERO };
    document.append(cstr!("lease"), i64::try_from(lease.as_millis()).unwrap_or(i64::MAX));
    // The server replaces this by its cluster time, in a top-level field of an insert or a replacement.
    document.append(cstr!("at"), Timestamp { time: 0, increment: 0 });
    document
}

/// A token as the value of the `token` field.
pub fn token_value(token: Token) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: token.to_bytes(),
    }
}

impl Reservation {
    /// Reads a reservation; `None` if the document isn't one.
    pub fn from_document(document: &RawDocument) -> Option<Reservation> {
        let token = Token::from_bytes(document.get_binary("token").ok()?.bytes)?;
        let route = document.get_document("route").ok().map(RawDocument::to_owned);
        let id = RawBson::from(document.get("owner").ok()??);
        Some(Reservation {
            owner: Owner { id, route },
            token,
            generation: document.get_i64("beginning").unwrap_or(0),
            at: document.get_timestamp("at").ok()?,
            lease: Duration::from_millis(document.get_i64("lease").ok()?.try_into().ok()?),
            seen: Instant::now(),
        })
    }

    /// Whether a write by which its owner would hold the key may still come, as far as this process has seen it there; `lease` is
    /// this Keyward's, and its writer may have another.
    pub fn may_be_in_flight(&self, lease: Duration) -> bool {
        !self.lease.is_zero() && self.seen.elapsed() <= lease.max(self.lease)
    }

    /// Whether both are the same write of the same reservation: every write has a time of its own.
    pub fn is_same_write(&self, other: &Reservation) -> bool {
        (self.token, self.generation, self.at) == (other.token, other.generation, other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_without_a_number_is_itself() {
        let owner = |id: f64| Owner {
            id: RawBson::Double(id),
            route: Some(rawdoc! { "a": id }),
        };
        assert_eq!(owner(f64::NAN), owner(f64::NAN));
        assert_ne!(owner(f64::NAN), owner(1.0));
    }
}
