//! What is to be done about a write, read from its message and the constraints alone: nothing is asked of anybody.

use crate::catalog::Catalog;
use crate::classify::Write;
use crate::command::affected_keys::may_affect;
use crate::command::statement::StatementKind;
use crate::raw::{Doc, Malformed};
use crate::wire::OpMsg;

/// Whether no statement of the write can change a key, so that it goes on as it came, like a read. False for what can't be
/// read, too.
///
/// A driver's retry goes on as its first try did: the answer depends on the statement and the constraints, never on
/// documents.
pub fn is_forwarded(write: &Write<'_>, message: &OpMsg<'_>, catalog: &Catalog) -> bool {
    let (target, kind) = match write {
        Write::Update(target) => (target, StatementKind::Update),
        Write::FindAndModify(target) => (target, StatementKind::FindAndModify),
        _ => return false,
    };
    let Some(protected) = catalog.protected(target.database, target.collection) else {
        return false;
    };
    let paths = protected.paths();
    let affects_keys = match kind.list() {
        Some(list) => any_affects_keys(kind, message, list, &paths),
        None => affects_keys(kind, message.body, &paths).ok(),
    };
    affects_keys == Some(false)
}

/// Whether any statement of the batch `list` may change a key; `None` if they can't be read.
fn any_affects_keys(kind: StatementKind, message: &OpMsg<'_>, list: &str, paths: &[&str]) -> Option<bool> {
    let batch = message.documents(list).ok()??;
    // The server refuses what comes in the body and beside it, and a batch of nothing.
    let mut statements = batch.iter().ok()?.peekable();
    statements.peek()?;
    for own in statements {
        if affects_keys(kind, own.ok()?, paths).ok()? {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether the statement `own` may change a key, and so must be watched. What the server always refuses needn't be.
///
/// # Errors
/// [`Malformed`] if it isn't BSON.
pub fn affects_keys(kind: StatementKind, own: Doc<'_>, paths: &[&str]) -> Result<bool, Malformed> {
    let update = match kind {
        StatementKind::Delete => return Ok(true),
        StatementKind::Update => "u",
        StatementKind::FindAndModify => "update",
    };
    if own.is_set("upsert")? {
        return Ok(true);
    }
    match own.get(update)? {
        Some(update) => may_affect(&update, paths),
        None => Ok(kind == StatementKind::FindAndModify && own.is_set("remove")?),
    }
}
