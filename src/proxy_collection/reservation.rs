//! Encodes and decodes a reservation as stored in a proxy collection: `{_id, owner, route, token, beginning, lease, at}`.
//!
//! - `_id` is the key ([`crate::constraint::Key::reservation_id`]).
//! - `owner` is the owner's `_id`, or `{$zeroTime: Timestamp(0, 0)}` for that `_id`.
//! - `route` holds the owner's shard-key values under their paths. It is absent if the protected collection isn't sharded.
//! - `token` names the attempt that wrote the reservation.
//! - `beginning` is the attempt's generation. It is absent if it is 0.
//! - `lease` is how long the reservation may be in flight, in milliseconds. It is 0 if it never was.
//! - `at` is the cluster time of the write. The server fills it in.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use bson::{
    Binary, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc,
    spec::{BinarySubtype, ElementType},
};
use tokio::time::Instant;

use crate::constraint::{Key, id_identity};
use crate::extended_json::as_json;
use crate::raw::Builder;
use crate::reservation::Token;
use crate::server::clock::millis;

/// The time that the server replaces by its own.
const ZERO_TIME: Timestamp = Timestamp { time: 0, increment: 0 };

/// The document that a reservation belongs to.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The document's `_id`.
    pub id: RawBson,
    /// Its shard-key values; `None` if the protected collection isn't sharded.
    pub route: Option<RawDocumentBuf>,
}

/// Identifies a reservation that an attempt has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservationVersion {
    /// The attempt's token.
    pub token: Token,
    /// How often the attempt has released its reservations, so that a delayed delete can't remove a newer reservation.
    pub generation: u32,
    /// Whether a write that gives its owner the key may be on its way. If not, no attempt waits for one.
    pub in_flight: bool,
}

impl From<Token> for ReservationVersion {
    /// The first generation, in flight.
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
    /// Its owner, as far as the writer knew.
    pub owner: Owner,
    /// The token of the attempt that wrote it.
    pub token: Token,
    /// The generation of the attempt that wrote it.
    pub generation: i64,
    /// The cluster time at which it was written.
    pub at: Timestamp,
    /// How long it may be in flight, by its writer's lease: other Keywards may have another lease. Zero if it never was.
    pub lease: Duration,
    /// When this process first saw it.
    pub seen: Instant,
}

impl Reservation {
    /// A stand-in for the reservation of a key that `owner` may hold without one: only the owner is known.
    pub fn presumed(owner: Owner) -> Reservation {
        Reservation {
            owner,
            token: Token::UNKNOWN,
            generation: 0,
            at: ZERO_TIME,
            lease: Duration::ZERO,
            seen: Instant::now(),
        }
    }
}

impl Owner {
    /// Whether both have the same `_id` for an index: 1 is 1.0, and NaN is NaN.
    pub fn has_same_id_as(&self, other: &Owner) -> bool {
        self.id == other.id || id_identity(&self.id) == id_identity(&other.id)
    }

    /// About how many bytes of a reservation the owner needs.
    pub fn bytes(&self) -> usize {
        let route = self.route.as_ref().map_or(0, |route| route.as_bytes().len());
        rawdoc! { "": self.id.clone() }.as_bytes().len() + route
    }
}

/// Its `_id`, as extended JSON.
impl Display for Owner {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        as_json(&self.id).fmt(formatter)
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        let is_same_route = match (&self.route, &other.route) {
            (Some(one), Some(other)) => one == other || is_same_place(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same_route && self.has_same_id_as(other)
    }
}

/// Whether the server finds a document by either of these shard keys on the same shard. Under a hashed shard key a Decimal128 with a
/// fraction is on another shard than an equal double.
fn is_same_place<'r>(one: &'r RawDocument, other: &'r RawDocument) -> bool {
    let is_plain = |value: &RawBsonRef<'_>| {
        use ElementType::{Array, Decimal128, EmbeddedDocument};
        !matches!(value.element_type(), Array | Decimal128 | EmbeddedDocument)
    };
    let is_same = |one: RawBsonRef<'_>, other: RawBsonRef<'_>| {
        one == other || is_plain(&one) && is_plain(&other) && id_identity(&one.into()) == id_identity(&other.into())
    };
    // A value that can't be read, because it isn't UTF-8, is another one: its bytes differ.
    let values = |route: &'r RawDocument| route.iter().collect::<Result<Vec<_>, _>>().ok();
    let (Some(one), Some(other)) = (values(one), values(other)) else {
        return false;
    };
    let mut pairs = one.iter().zip(&other);
    one.len() == other.len()
        && pairs.all(|((path, one), (same_path, other))| path == same_path && is_same(*one, *other))
}

/// The document that reserves `key` for `owner`, by insert or replacement. Its lease is `lease` if it is in flight.
pub fn document(key: &Key, owner: &Owner, version: ReservationVersion, lease: Duration) -> RawDocumentBuf {
    // The buffer has room for the following fields, too.
    let mut id = Builder::new();
    id.open(ElementType::EmbeddedDocument, b"_id");
    key.append_reservation_id(&mut id);
    let mut document = RawDocumentBuf::from_bytes(id.finish()).expect("the builder made a document");
    document.append(cstr!("owner"), stored_owner(&owner.id));
    if let Some(route) = &owner.route {
        document.append(cstr!("route"), &**route);
    }
    document.append(cstr!("token"), token_value(version.token));
    if version.generation > 0 {
        document.append(cstr!("beginning"), i64::from(version.generation));
    }
    let lease = if version.in_flight { lease } else { Duration::ZERO };
    document.append(cstr!("lease"), millis(lease));
    // The server replaces this by its cluster time, in a top-level field of an insert or a replacement.
    document.append(cstr!("at"), ZERO_TIME);
    document
}

/// An owner's `_id` as the value of the `owner` field.
///
/// The server would replace `Timestamp(0, 0)` by its time, except in an `_id` or in a document. So Keyward stores that `_id` in a
/// document. No `_id` is such a document, because the server refuses `$` at the beginning of a name there.
pub fn stored_owner(id: &RawBson) -> RawBson {
    match id {
        RawBson::Timestamp(ZERO_TIME) => RawBson::Document(rawdoc! { "$zeroTime": ZERO_TIME }),
        id => id.clone(),
    }
}

/// The owner's `_id` from the value of the `owner` field.
pub fn owner_in(stored: RawBsonRef<'_>) -> RawBson {
    let is_zero = |document: &RawDocument| document.get("$zeroTime").is_ok_and(|value| value.is_some());
    match stored {
        RawBsonRef::Document(document) if is_zero(document) => RawBson::Timestamp(ZERO_TIME),
        id => id.into(),
    }
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
        let id = owner_in(document.get("owner").ok()??);
        Some(Reservation {
            owner: Owner { id, route },
            token,
            generation: document.get_i64("beginning").unwrap_or(0),
            at: document.get_timestamp("at").ok()?,
            lease: Duration::from_millis(document.get_i64("lease").ok()?.try_into().ok()?),
            seen: Instant::now(),
        })
    }

    /// Whether a write that gives its owner the key may still come, by how long this process has seen the reservation.
    ///
    /// `lease` is this Keyward's, and the writer may have another. The longer one counts.
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

    #[test]
    fn an_owner_is_at_one_place_by_the_values_of_its_shard_key() {
        let at = |route: RawDocumentBuf| Owner {
            id: RawBson::Int32(1),
            route: Some(route),
        };
        let decimal = "2.5".parse::<bson::Decimal128>().unwrap();
        assert_eq!(at(rawdoc! { "a": 1, "b": "x" }), at(rawdoc! { "a": 1.0, "b": "x" }));
        assert_ne!(at(rawdoc! { "a": 1, "b": "x" }), at(rawdoc! { "a": 1.0, "b": "y" }));
        assert_ne!(at(rawdoc! { "a": 1 }), at(rawdoc! { "b": 1 }));
        assert_ne!(at(rawdoc! { "a": 1 }), at(rawdoc! { "a": 1, "b": 1 }));
        assert_ne!(at(rawdoc! { "a": 2.5 }), at(rawdoc! { "a": decimal }));
        assert_eq!(at(rawdoc! { "a": decimal }), at(rawdoc! { "a": decimal }));
        let text = |bytes: &[u8]| {
            let mut route = Builder::new();
            route.string("a", bytes);
            at(RawDocumentBuf::from_bytes(route.finish()).unwrap())
        };
        assert_eq!(text(b"\xff"), text(b"\xff"));
        assert_ne!(text(b"\xff"), text(b"\xfe"));
        assert_ne!(text(b"\xff"), text(b"a"));
        let unsharded = Owner {
            id: RawBson::Int32(1),
            route: None,
        };
        assert_ne!(unsharded, at(rawdoc! { "a": 1 }));
        assert_eq!(unsharded, unsharded.clone());
    }

    #[test]
    fn an_owner_is_known_by_the_value_of_its_id() {
        let owner = |id: RawBson| Owner { id, route: None };
        let embedded = |value: RawBson| RawBson::Document(rawdoc! { "a": value });
        assert_eq!(owner(RawBson::Int32(1)), owner(RawBson::Double(1.0)));
        assert_eq!(owner(embedded(RawBson::Int32(1))), owner(embedded(RawBson::Int64(1))));
        assert_ne!(owner(RawBson::Int32(1)), owner(RawBson::Double(1.5)));
        assert_ne!(owner(RawBson::Int32(1)), owner(RawBson::String("1".to_owned())));
    }
}
