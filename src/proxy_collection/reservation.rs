//! A reservation as it stands in a proxy collection: `{_id, owner, route, token, at}`.
//!
//! `_id` is the key ([`crate::constraint::Key::reservation_id`]); `owner` is the owner's `_id`; `route` its shard-key
//! values under their paths, absent where the protected collection isn't sharded; `token` says which attempt wrote it;
//! `at` is the cluster time of the write, filled in by the server.

use bson::{Binary, Bson, Document, RawBson, RawDocumentBuf, Timestamp, cstr, spec::BinarySubtype};

use crate::constraint::Key;
use crate::reservation::Token;

/// The document that a reservation belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct Owner {
    /// The document's `_id`.
    pub id: RawBson,
    /// Its shard-key values; `None` where the protected collection isn't sharded.
    pub route: Option<RawDocumentBuf>,
}

/// A reservation that was read.
#[derive(Debug, Clone)]
pub struct Reservation {
    /// Whose it is, as far as the writer knew.
    pub owner: Owner,
    /// Who wrote it.
    pub token: Token,
    /// The cluster time at which it was written.
    pub at: Timestamp,
}

/// The reservation of `key` for `owner`, ready to be inserted or to replace another.
pub fn document(key: &Key, owner: &Owner, token: Token) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), key.reservation_id());
    document.append(cstr!("owner"), owner.id.clone());
    if let Some(route) = &owner.route {
        document.append(cstr!("route"), route.clone());
    }
    document.append(cstr!("token"), token_value(token));
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
    pub fn from_document(document: &Document) -> Option<Reservation> {
        let token = match document.get("token")? {
            Bson::Binary(binary) => Token::from_bytes(&binary.bytes)?,
            _ => return None,
        };
        let route = document
            .get_document("route")
            .ok()
            .map(RawDocumentBuf::try_from)
            .transpose()
            .ok()?;
        let id = RawBson::try_from(document.get("owner")?.clone()).ok()?;
        Some(Reservation {
            owner: Owner { id, route },
            token,
            at: document.get_timestamp("at").ok()?,
        })
    }
}
