//! Reads the fields of a command that control how it runs, not what it does: its session and transaction, its concerns, its API
//! version.

use std::time::Duration;

use bson::spec::ElementType;

use crate::raw::{Builder, Doc, Element, Malformed};
use crate::server::own_session::is_own_session;

/// The client's session, if its command names one in the drivers' form, which is none of another kind ([`is_in_other_session`]).
pub fn session_of(body: Doc<'_>) -> Result<Option<[u8; 16]>, Malformed> {
    if is_in_other_session(body)? {
        return Ok(None);
    }
    let id = body.nested("lsid")?.map(|lsid| lsid.get("id")).transpose()?.flatten();
    Ok(id.and_then(uuid))
}

/// Whether a command is in a session of another kind than those of drivers. Its `lsid` has further fields beside `id`: then it is another
/// session to servers, of another user or within the one of that `id`. Or it is one of Keyward's own.
pub fn is_in_other_session(body: Doc<'_>) -> Result<bool, Malformed> {
    let is_other = |field: &Element<'_>| match field.name {
        b"id" => Ok(uuid(*field).is_some_and(|name| is_own_session(&name))),
        _ => Ok(true),
    };
    body.nested("lsid")?.map_or(Ok(false), |lsid| lsid.any(is_other))
}

/// The 16 bytes of a binary, if `element` is one of that length: they come after an int32 and the subtype.
fn uuid(element: Element<'_>) -> Option<[u8; 16]> {
    let binary = Some(element).filter(|element| element.kind == ElementType::Binary)?;
    binary.value.get(5..)?.try_into().ok()
}

/// Whether a majority may be too little for the client's write concern: `w` is a larger number of members, or names them.
pub fn asks_beyond_majority(body: Doc<'_>) -> Result<bool, Malformed> {
    let w = body.value_at("writeConcern.w")?;
    Ok(w.is_some_and(|w| match w.kind {
        ElementType::String => w.as_str() != Some("majority"),
        _ => w.as_whole_number().is_none_or(|members| members > 1),
    }))
}

/// Fields that every command of a transaction must repeat.
pub const API: [&str; 3] = ["apiVersion", "apiStrict", "apiDeprecationErrors"];

/// Appends the fields of `body` whose names are in `names`.
pub fn append_fields(builder: &mut Builder, body: Doc<'_>, names: &[&str]) -> Result<(), Malformed> {
    for name in names {
        if let Some(element) = body.get(name)? {
            builder.element(&element);
        }
    }
    Ok(())
}

/// A time limit as a command states it.
pub fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

/// Whether a client's field controls how its command runs, so that Keyward sets it anew.
pub fn is_about_running(element: &Element<'_>) -> bool {
    const NAMES: [&[u8]; 14] = [
        b"$clusterTime",
        b"lsid",
        b"txnNumber",
        b"autocommit",
        b"startTransaction",
        b"readConcern",
        b"writeConcern",
        b"stmtId",
        b"stmtIds",
        b"$db",
        b"$readPreference",
        b"apiVersion",
        b"apiStrict",
        b"apiDeprecationErrors",
    ];
    NAMES.contains(&element.name)
}

#[cfg(test)]
mod tests {
    use bson::{Binary, Document, doc, spec::BinarySubtype};

    use super::*;
    use crate::server::own_session::own_session;

    fn binary(subtype: BinarySubtype, bytes: &[u8]) -> Binary {
        let bytes = bytes.to_vec();
        Binary { subtype, bytes }
    }

    /// Drivers send `id` alone. Servers take a session with `uid` for that of another user, and with `txnUUID` for one within another.
    #[test]
    fn only_a_session_as_drivers_start_it_is_the_clients() {
        let id = binary(BinarySubtype::Uuid, &[7; 16]);
        let of = |lsid: Document| {
            let body = doc! { "insert": "c", "lsid": lsid }.to_vec().unwrap();
            let body = Doc::new(&body).unwrap();
            (session_of(body).unwrap(), is_in_other_session(body).unwrap())
        };
        assert_eq!(of(doc! { "id": &id }), (Some([7; 16]), false));
        assert_eq!(of(doc! { "id": 7 }), (None, false));
        let txn_uuid = binary(BinarySubtype::Uuid, &[8; 16]);
        for further in [
            doc! { "uid": binary(BinarySubtype::Generic, &[9; 32]) },
            doc! { "txnUUID": &txn_uuid },
            doc! { "txnNumber": 3_i64, "txnUUID": &txn_uuid },
        ] {
            let mut lsid = doc! { "id": &id };
            lsid.extend(further);
            assert_eq!(of(lsid.clone()), (None, true), "{lsid}");
        }
        let own = binary(BinarySubtype::Uuid, &own_session([7; 16]));
        assert_eq!(of(doc! { "id": own }), (None, true));
    }

    #[test]
    fn only_a_larger_number_of_members_or_a_name_asks_beyond_a_majority() {
        let asks = |write_concern: Document| {
            let body = doc! { "writeConcern": write_concern }.to_vec().unwrap();
            asks_beyond_majority(Doc::new(&body).unwrap()).unwrap()
        };
        assert!(!asks(doc! {}));
        assert!(!asks(doc! { "w": 1 }));
        assert!(!asks(doc! { "w": 0 }));
        assert!(!asks(doc! { "w": "majority", "wtimeout": 10 }));
        assert!(asks(doc! { "w": 3 }));
        assert!(asks(doc! { "w": "everywhere" }));
    }
}
