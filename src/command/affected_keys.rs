//! Decides from an update's statement alone whether it can change a key; in doubt, it can.
//!
//! A statement can't change a key if it inserts nothing and changes no path of a constraint or of the shard key (a
//! reservation's route). Keyward forwards such a statement unchanged. The comparison ignores positions in arrays, so `a.0.b`,
//! `a.$[].b` and `a.b` are one path.
//!
//! Two updates reach further than their paths. An update at a numbered position may add elements to an array. Each new element
//! adds a value, perhaps null, to every key below the array. So Keyward treats it as an update of the whole array. The same holds
//! for the position `$`: the server takes it from the last array that the query matched. That may be another array, and a longer
//! one. The positions `$[]` and `$[id]` add no elements. A pipeline's
//! dotted field replaces each value on its way that isn't a document by a document, also the scalars of an array. For example,
//! `{$set: {"a.c": 1}}` turns `[5]` into `[{c: 1}]`, and only the latter has an `a.b` that is null. So Keyward treats it as an
//! update of the path's first name.

use bson::spec::ElementType;

use super::statement::StatementKind;
use crate::catalog::Protected;
use crate::raw::{Doc, Element, Malformed};
use crate::wire::OpMsg;

/// The statements of a command that may change a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    /// No statement can.
    None,
    /// The statement at this index is the first that may.
    From(usize),
    /// Keyward must check each statement.
    Unknown,
}

impl KeyChange {
    /// The statements in `message`, an update or `findAndModify`, that may change a key. Returns `Unknown` if Keyward can't read them.
    pub fn of(kind: StatementKind, message: &OpMsg<'_>, paths: &impl Paths) -> KeyChange {
        let first = match kind.list() {
            Some(list) => first_affecting(kind, message, list, paths),
            // The server knows none for this command.
            None if message.sequences().next().is_some() => None,
            None => affects_keys(kind, message.body, paths)
                .ok()
                .map(|affects| affects.then_some(0)),
        };
        match first {
            Some(Some(index)) => KeyChange::From(index),
            Some(None) => KeyChange::None,
            None => KeyChange::Unknown,
        }
    }

    /// Whether the statement at `index` may change a key; `None` if Keyward must check it.
    pub fn of_statement(self, index: usize) -> Option<bool> {
        match self {
            KeyChange::From(first) if index <= first => Some(index == first),
            KeyChange::From(_) | KeyChange::Unknown => None,
            KeyChange::None => Some(false),
        }
    }
}

/// The index of the first statement of the batch `list` that may change a key, if any does; `None` if they can't be read.
fn first_affecting(kind: StatementKind, message: &OpMsg<'_>, list: &str, paths: &impl Paths) -> Option<Option<usize>> {
    let batch = message.documents(list).ok()??;
    // The server refuses a batch that is both in the body and in a sequence, and an empty batch.
    let mut any = None;
    for (index, raw) in batch.iter().ok()?.enumerate() {
        if affects_keys(kind, raw.ok()?, paths).ok()? {
            return Some(Some(index));
        }
        any = Some(None);
    }
    any
}

/// Whether the statement `raw` may change a key, so that Keyward must watch it. A statement that the server always refuses need
/// not be watched.
///
/// # Errors
/// [`Malformed`] if it isn't BSON.
pub fn affects_keys(kind: StatementKind, raw: Doc<'_>, paths: &impl Paths) -> Result<bool, Malformed> {
    let (mut update, mut removes) = (None, false);
    for field in raw.elements() {
        let field = field?;
        match field.name {
            b"upsert" if field.is_truthy() => return Ok(true),
            b"u" | b"update" => match update {
                None => update = Some(field),
                // No driver sends a second update: the full plan decides.
                Some(_) => return Ok(true),
            },
            b"remove" => removes |= field.is_truthy(),
            _ => {}
        }
    }
    match (kind, update) {
        (StatementKind::Delete, _) => Ok(true),
        (_, Some(update)) => may_affect(&update, paths),
        (StatementKind::Update, None) => Ok(false),
        (StatementKind::FindAndModify, None) => Ok(removes),
    }
}

/// Whether the update `u` (operators, a replacement or a pipeline) may change a value at one of `paths`.
pub fn may_affect(update: &Element<'_>, paths: &impl Paths) -> Result<bool, Malformed> {
    let Some(document) = update.as_document_or_array()? else {
        return Ok(true);
    };
    match update.kind {
        ElementType::Array => pipeline_may_affect(document, paths),
        _ => operators_may_affect(document, paths),
    }
}

/// Whether the update operator changes only the fields whose paths are its own field names.
pub fn changes_named_fields(operator: &[u8]) -> bool {
    matches!(
        operator,
        b"$set"
            | b"$unset"
            | b"$inc"
            | b"$mul"
            | b"$min"
            | b"$max"
            | b"$currentDate"
            | b"$bit"
            | b"$push"
            | b"$addToSet"
            | b"$pull"
            | b"$pullAll"
            | b"$pop"
    )
}

fn operators_may_affect(update: Doc<'_>, paths: &impl Paths) -> Result<bool, Malformed> {
    for operator in update.elements() {
        let operator = operator?;
        let Some(fields) = operator.as_document_or_array()? else {
            return Ok(true);
        };
        match operator.name {
            // This function doesn't cover inserted documents: an upsert may always change a key.
            b"$setOnInsert" => continue,
            name if changes_named_fields(name) => {}
            // A replacement, `$rename`, or an operator of a newer server.
            _ => return Ok(true),
        }
        if fields.any(|field| Ok(paths.overlap(reached(operator.name, field.name))))? {
            return Ok(true);
        }
    }
    // An update without fields is a replacement by an empty document.
    Ok(update.is_empty())
}

fn pipeline_may_affect(pipeline: Doc<'_>, paths: &impl Paths) -> Result<bool, Malformed> {
    for stage in pipeline.elements() {
        let Some(stage) = stage?.as_document_or_array()? else {
            return Ok(true);
        };
        for operator in stage.elements() {
            let operator = operator?;
            let fields = operator.as_document_or_array()?;
            let is_affected = match (operator.name, fields) {
                (b"$set" | b"$addFields", Some(fields)) => {
                    fields.any(|field| Ok(paths.overlap(first_name(field.name))))?
                }
                // It removes fields, and leaves values that aren't documents unchanged.
                (b"$unset", Some(fields)) => {
                    fields.any(|field| Ok(field.as_string_bytes().is_none_or(|path| paths.overlap(path))))?
                }
                (b"$unset", None) => operator.as_string_bytes().is_none_or(|path| paths.overlap(path)),
                _ => true,
            };
            if is_affected {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The path that `operator` may change if it is given `path`: the array that it may add elements to, or the path itself.
pub fn reached<'p>(operator: &[u8], path: &'p [u8]) -> &'p [u8] {
    if let b"$unset" | b"$pull" | b"$pullAll" | b"$pop" = operator {
        return path;
    }
    let mut end = 0;
    for name in path.split(|byte| *byte == b'.') {
        if name == b"$" || name.iter().all(u8::is_ascii_digit) {
            return &path[..end.max(1) - 1];
        }
        end += name.len() + 1;
    }
    path
}

/// Whether `path` goes through the element that the query matched. Conditions that Keyward adds to the query could then change
/// the path's meaning: the server takes the position from the last array that the query matched.
pub fn names_matched_position(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'.').any(|name| name == b"$")
}

/// Whether an update by operators has such a path.
pub fn names_matched_position_in(update: &Element<'_>) -> Result<bool, Malformed> {
    let Some(operators) = update.as_document()? else {
        return Ok(false);
    };
    operators.any(|operator| {
        let fields = operator.as_document()?;
        fields.map_or(Ok(false), |fields| {
            fields.any(|field| Ok(names_matched_position(field.name)))
        })
    })
}

/// The part that a pipeline may change if it sets `path`: everything below the first name.
fn first_name(path: &[u8]) -> &[u8] {
    path.split(|byte| *byte == b'.').next().unwrap_or(path)
}

/// A set of paths.
pub trait Paths {
    /// Whether `path` overlaps with any of them.
    fn overlap(&self, path: &[u8]) -> bool;
}

impl Paths for Vec<&str> {
    fn overlap(&self, path: &[u8]) -> bool {
        self.iter().any(|own| overlap(path, own.as_bytes()))
    }
}

impl Paths for Protected {
    fn overlap(&self, path: &[u8]) -> bool {
        let overlaps = |own: &str| overlap(path, own.as_bytes());
        self.constraints.iter().any(|proxy| proxy.constraint.has_path(overlaps))
            || self.shard_key.iter().any(|own| overlaps(own))
    }
}

/// Whether one path begins with the other, without positions.
pub fn overlap(one: &[u8], other: &[u8]) -> bool {
    // Most paths differ in their first letter.
    let begins_a_position = |first: u8| matches!(first, b'$' | b'.' | b'0'..=b'9');
    if let ([first, ..], [other_first, ..]) = (one, other)
        && first != other_first
        && !begins_a_position(*first)
        && !begins_a_position(*other_first)
    {
        return false;
    }
    names(one).zip(names(other)).all(|(one, other)| one == other)
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_position = |name: &&[u8]| name.starts_with(b"$") || name.iter().all(u8::is_ascii_digit);
    path.split(|byte| *byte == b'.').filter(move |name| !is_position(name))
}

#[cfg(test)]
mod tests {
    use bson::{Bson, bson, doc};

    use super::*;
    use crate::wire::{Draft, Flags, OutSequence};

    fn affects(update: Bson, paths: &[&str]) -> bool {
        let bytes = doc! { "u": update }.to_vec().unwrap();
        let update = Doc::new(&bytes).unwrap().get("u").unwrap().unwrap();
        may_affect(&update, &paths.to_vec()).unwrap()
    }

    /// A server that took a sequence for a field of the command would carry out another update than Keyward has read.
    #[test]
    fn of_a_find_and_modify_with_a_sequence_nothing_is_known() {
        let body = doc! { "findAndModify": "c", "query": {}, "$db": "d" }.to_vec().unwrap();
        let set = doc! { "$set": { "email": 1 } }.to_vec().unwrap();
        let update = OutSequence {
            name: b"update",
            documents: vec![&set],
        };
        let of = |sequences| {
            let draft = Draft {
                flags: Flags(0),
                body: &body,
                sequences,
            };
            let message = draft.frame(0, 0).unwrap().to_vec();
            let message = OpMsg::parse(&message).unwrap();
            KeyChange::of(StatementKind::FindAndModify, &message, &vec!["email"])
        };
        assert_eq!(of(vec![]), KeyChange::None);
        assert_eq!(of(vec![update]), KeyChange::Unknown);
    }

    #[test]
    fn only_what_cannot_change_a_key_passes() {
        let paths = ["email", "accounts.bank", "status"];
        for harmless in [
            bson!({ "$set": { "name": 1 } }),
            bson!({ "$inc": { "visits": 1 }, "$push": { "log": 1 } }),
            bson!({ "$set": { "accounts.$[a].balance": 1, "accounts.$[].log.0.at": 1 } }),
            bson!({ "$unset": { "accounts.0.balance": 1 }, "$pull": { "accounts.0.tags": 1 } }),
            bson!({ "$set": { "log.0.at": 1, "account.1": 1 } }),
            bson!({ "$set": { "log.$.at": 1, "account.$": 1 } }),
            bson!({ "$unset": { "accounts.$.balance": 1 }, "$pull": { "accounts.$.tags": 1 } }),
            bson!([{ "$set": { "account.balance": 1 } }, { "$unset": "accounts.balance" }]),
            bson!({ "$set": { "accounts.balance": 1 } }),
            bson!({ "$set": { "emails": 1 } }),
            bson!([{ "$set": { "name": "$email" } }, { "$unset": ["x", "y.z"] }, { "$unset": "z" }]),
        ] {
            assert!(!affects(harmless.clone(), &paths), "{harmless}");
        }
        for affecting in [
            bson!({ "$set": { "email": 1 } }),
            bson!({ "$set": { "email.x": 1 } }),
            bson!({ "$unset": { "accounts": 1 } }),
            bson!({ "$set": { "accounts.3": {} } }),
            bson!({ "$set": { "accounts.3.balance": 1 } }),
            bson!({ "$inc": { "accounts.3.balance": 1 } }),
            bson!({ "$push": { "accounts.3.log": 1 } }),
            bson!({ "$set": { "accounts.$.balance": 1 } }),
            bson!({ "$inc": { "accounts.$.balance": 1 } }),
            bson!({ "$addToSet": { "accounts.$.log": 1 } }),
            bson!({ "$set": { "accounts.$[].log": 1, "accounts.$.log": 1 } }),
            bson!({ "$set": { "3": 1 } }),
            bson!({ "$set": { "accounts.$[].bank": 1 } }),
            bson!({ "$rename": { "name": "other" } }),
            bson!({ "email": 1 }),
            bson!({}),
            bson!({ "$unknown": { "name": 1 } }),
            bson!([{ "$set": { "status": 1 } }]),
            bson!([{ "$set": { "accounts.balance": 1 } }]),
            bson!([{ "$addFields": { "accounts.log.last.at": 1 } }]),
            bson!([{ "$replaceWith": "$x" }]),
            bson!([{ "$project": { "name": 1 } }]),
            bson!([{ "$unset": ["email"] }]),
            bson!("no update"),
        ] {
            assert!(affects(affecting.clone(), &paths), "{affecting}");
        }
    }
}
