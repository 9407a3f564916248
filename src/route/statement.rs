//! Recognises statements that write one document by a unique field.

use bson::{RawBson, RawDocumentBuf, cstr, rawdoc};

use super::AskedFor;
use crate::catalog::Protected;
use crate::command::filter_rewriting::{nothing, pin};
use crate::command::statement::Statement;
use crate::proxy_collection::Owner;
use crate::raw::{Doc, Malformed};

impl AskedFor {
    /// The key that a statement about one document asks for.
    ///
    /// An upsert isn't one: where it finds nothing, it inserts by its own query. A sorted statement isn't one, either: while the
    /// constraint isn't enforced yet, two documents may hold the key, and the order says which of them is meant.
    pub fn by_statement(statement: Statement<'_>, protected: &Protected) -> Option<AskedFor> {
        let has = |option: &str| statement.raw.get(option).is_ok_and(|option| option.is_some());
        let keeps_its_way = ["collation", "hint", "sort"].into_iter().any(has);
        if !protected.routes() || !statement.is_single || statement.is_upsert || keeps_its_way {
            return None;
        }
        AskedFor::by(statement.query().ok()??, protected)
    }
}

/// Whether Keyward itself carries the statement out, although it may change no key: a router of MongoDB 6.0 refuses a statement
/// without `_id` and shard key, and a driver's retry may find the key with another document.
///
/// The answer depends on the statement and the constraints only, so a retry gets the same one.
pub fn needs_routing(statement: Statement<'_>, protected: &Protected) -> bool {
    let names_id = |query: Doc<'_>| query.get("_id").is_ok_and(|id| id.is_some());
    let query = statement.query().ok().flatten();
    query.is_some_and(|query| !names_id(query)) && AskedFor::by_statement(statement, protected).is_some()
}

/// `query` for one shard, matching nothing: the server still checks the statement.
pub fn nowhere(query: Doc<'_>, protected: &Protected) -> Result<Vec<u8>, Malformed> {
    let mut route = RawDocumentBuf::new();
    for path in &protected.shard_key {
        if let Ok(path) = bson::raw::CString::try_from(path.as_str()) {
            route.append(path, RawBson::Null);
        }
    }
    let nobody = Owner {
        id: RawBson::Null,
        route: Some(route),
    };
    let id = rawdoc! { cstr!("_id"): RawBson::Null };
    nothing(Doc::new(&pin(query, id.as_bytes(), &nobody)?)?)
}
