//! Reads the fields of a command that control how it runs, not what it does: its session and transaction, its concerns, its API
//! version.

use bson::spec::ElementType;

use crate::raw::{Builder, Doc, Element, Malformed};

/// The client's session, if its command names one in the drivers' form.
pub fn session_of(body: Doc<'_>) -> Result<Option<[u8; 16]>, Malformed> {
    let id = body.nested("lsid")?.map(|lsid| lsid.get("id")).transpose()?.flatten();
    // A binary of subtype 4: int32 length, subtype, 16 bytes.
    let id = id.filter(|id| id.kind == ElementType::Binary);
    Ok(id.and_then(|id| id.value.get(5..)?.try_into().ok()))
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
