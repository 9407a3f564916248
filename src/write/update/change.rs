//! Computes the change that a statement in place makes to a document that Keyward has read.
//!
//! The result has the statement as Keyward sends it, and the keys that the document gets and loses.

use std::collections::BTreeSet;

use super::document_keys::{DocumentAsRead, with_same_keys};
use crate::catalog::Protected;
use crate::claims::{ConstrainedKey, keys_of};
use crate::command::filter_rewriting::pin;
use crate::command::key_update::{KeyUpdate, UpdatedDocument};
use crate::command::statement::Statement;
use crate::constraint::KeyError;
use crate::proxy_collection::ProxyCollection;
use crate::raw::{Doc, Malformed};
use crate::wire::BODY_BYTES_MAX;

/// Keyward doesn't send a statement that is larger than this, with the values that it is pinned to: a command has other fields,
/// and a router adds its own.
const PINNED_BYTES_MAX: usize = BODY_BYTES_MAX - 8 * 1024;

/// A statement's change of one document.
pub struct Change {
    /// The statement, pinned to this document and to the values that its keys are made of.
    pub rewritten: Vec<u8>,
    /// The keys that the document gets.
    pub new: Vec<ConstrainedKey>,
    /// The keys that it loses.
    pub old: Vec<ConstrainedKey>,
}

/// The change, or the reason why there is none.
pub enum PlannedChange {
    /// Keyward can send the statement after the new keys are held.
    Sendable(Change),
    /// The server refuses the statement, because it can't compute a value.
    Refused,
    /// The new document can't be indexed.
    Unindexable(KeyError),
    /// The statement can't be pinned to the values that it is to replace: they are too large.
    TooLarge,
}

/// The change that the `statement`, whose effect is `key_update`, makes to the document that was `seen`.
pub fn change_of(
    statement: Statement<'_>,
    protected: &Protected,
    key_update: &KeyUpdate<'_>,
    seen: &DocumentAsRead,
) -> Result<PlannedChange, Malformed> {
    let before: BTreeSet<ConstrainedKey> = seen.document_keys.keys.iter().cloned().collect();
    let after = match key_update.applied_to(Doc::new(&seen.document)?)? {
        UpdatedDocument::Kept(after) => keys_of(protected, Doc::new(&after)?).all(),
        UpdatedDocument::Removed => Ok(Vec::new()),
        UpdatedDocument::Refused => return Ok(PlannedChange::Refused),
    };
    let after: BTreeSet<ConstrainedKey> = match after {
        Ok(after) => after.into_iter().collect(),
        Err(error) => return Ok(PlannedChange::Unindexable(error)),
    };
    let rewritten = pinned(statement, protected, key_update, seen)?;
    if rewritten.len() > PINNED_BYTES_MAX {
        return Ok(PlannedChange::TooLarge);
    }
    Ok(PlannedChange::Sendable(Change {
        rewritten,
        new: after.difference(&before).cloned().collect(),
        old: before.difference(&after).cloned().collect(),
    }))
}

fn pinned(
    statement: Statement<'_>,
    protected: &Protected,
    key_update: &KeyUpdate<'_>,
    seen: &DocumentAsRead,
) -> Result<Vec<u8>, Malformed> {
    let query = pin(
        statement.query()?.unwrap_or(Doc::empty()),
        &seen.document_keys.id,
        &seen.document_keys.owner,
    )?;
    let is_affected = |proxy: &&ProxyCollection| proxy.constraint.paths().any(|path| key_update.changes(path));
    let affected = protected.constraints.iter().filter(is_affected);
    let query = with_same_keys(
        affected,
        &key_update.operands(),
        Doc::new(&query)?,
        Doc::new(&seen.document)?,
    )?;
    statement.without_upsert(&query)
}
