//! Reads the fields of a command that control how it runs, not what it does: its session and transaction, its concerns, its API
//! version.

use std::time::Duration;

use bson::spec::ElementType;

use crate::raw::{Builder, Doc, Element, Malformed};

/// The client's session, if its command names one in the drivers' form.
pub fn session_of(body: Doc<'_>) -> Result<Option<[u8; 16]>, Malformed> {
    let id = body.nested("lsid")?.map(|lsid| lsid.get("id")).transpose()?.flatten();
    // A binary of subtype 4: int32 length, subtype, 16 bytes.
    let id = id.filter(|id| id.kind == ElementType::Binary);
    Ok(id.and_then(|id| id.value.get(5..)?.try_into().ok()))
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
    use bson::{Document, doc};

    use super::*;

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
