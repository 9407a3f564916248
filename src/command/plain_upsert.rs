//! Recognises upserts whose new document Keyward can read from the statement, as far as keys are made of it.
//!
//! The server makes the new document from the query's equalities and the update. Keyward reads only plain forms: equalities with
//! scalar values, and the updates of [`KeyUpdate`]. The query names the document's shard. It also names the document's `_id`, or
//! a key that the new document gets. So no two upserts with this query insert a document each.

use bson::spec::ElementType;

use super::affected_keys::Paths;
use super::filter_rewriting::{equality, is_short, names_shard};
use super::kept_place::is_scalar;
use super::key_update::{KeyUpdate, UpdatedDocument, assigned, can_be_read};
use super::statement::Statement;
use crate::catalog::Protected;
use crate::constraint::Constraint;
use crate::raw::{Builder, Doc, Element, Malformed};

/// A plain upsert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainUpsert<'a> {
    /// The effect on an existing document.
    pub key_update: KeyUpdate<'a>,
    /// The new document, with all fields that its keys and its place are made of. Without an `_id` if the query names none.
    pub document: Vec<u8>,
}

impl<'a> PlainUpsert<'a> {
    /// The effect of `statement`, if it is a plain upsert. That depends on the statement, the constraints and the shard key
    /// alone.
    pub fn of(statement: Statement<'a>, protected: &Protected) -> Result<Option<PlainUpsert<'a>>, Malformed> {
        let query = statement.query()?.unwrap_or(Doc::empty());
        // The server refuses other types. Keyward leaves the option out for an existing document, so it must refuse them itself.
        let is_boolean = |option: Element<'_>| option.kind == ElementType::Boolean;
        if !statement.is_upsert
            || !statement.raw.get("upsert")?.is_some_and(is_boolean)
            || statement.raw.get("upsertSupplied")?.is_some()
            || !is_short(query)
            || !names_shard(query, &protected.shard_key)?
        {
            return Ok(None);
        }
        let Some(key_update) = KeyUpdate::of(statement, protected)? else {
            return Ok(None);
        };
        let Some(asked_for) = equalities(query, protected)? else {
            return Ok(None);
        };
        let document = match &key_update {
            KeyUpdate::Removal => None,
            KeyUpdate::Replacement(replacement) => replaced(query, *replacement)?,
            KeyUpdate::Fields(_) => updated(statement, &key_update, &asked_for, protected)?,
        };
        let Some(document) = document else {
            return Ok(None);
        };
        for proxy in &protected.constraints {
            if proxy.constraint.server_fills_in(Doc::new(&document)?)? {
                return Ok(None);
            }
        }
        let mut is_about_one = equality(query, "_id")?.is_some();
        for proxy in &protected.constraints {
            is_about_one |= asks_for_key(query, &proxy.constraint, &asked_for, &document)?;
        }
        Ok(is_about_one.then_some(PlainUpsert { key_update, document }))
    }
}

/// The document that the query's equalities make. `None` if another document could come of it, or the server might read the query
/// in another way.
fn equalities(query: Doc<'_>, protected: &Protected) -> Result<Option<Vec<u8>>, Malformed> {
    let mut document = Builder::new().finish();
    let mut paths: Vec<&[u8]> = Vec::new();
    for condition in query.elements() {
        let condition = condition?;
        let path = condition.name;
        let value = match std::str::from_utf8(path) {
            Ok(path) => equality(query, path)?,
            Err(_) => None,
        };
        let Some(value) = value.filter(is_scalar) else {
            return Ok(None);
        };
        if path.starts_with(b"_id.") || !can_be_read(path, protected.paths(), paths.iter().copied()) {
            return Ok(None);
        }
        paths.push(path);
        document = assigned(Doc::new(&document)?, path, Some(&value))?;
    }
    Ok(Some(document))
}

/// The replacement as a new document, with the `_id` of the query. `None` if only the replacement names an `_id`, or another one.
fn replaced(query: Doc<'_>, replacement: Doc<'_>) -> Result<Option<Vec<u8>>, Malformed> {
    let (asked_for, own) = (equality(query, "_id")?, replacement.get("_id")?);
    let is_same = |own: &Element<'_>| {
        let asked_for = asked_for.as_ref();
        asked_for.is_some_and(|id| id.kind == own.kind && id.value == own.value)
    };
    if own.is_some_and(|own| !is_same(&own)) {
        return Ok(None);
    }
    let mut document = Builder::new();
    if let Some(id) = &asked_for {
        document.append(id.kind, b"_id", id.value);
    }
    document.elements_where(replacement, |element| element.name != b"_id")?;
    Ok(Some(document.finish()))
}

/// The document that the update's operators make of the query's equalities, `asked_for`. `None` if it can't be read.
fn updated(
    statement: Statement<'_>,
    key_update: &KeyUpdate<'_>,
    asked_for: &[u8],
    protected: &Protected,
) -> Result<Option<Vec<u8>>, Malformed> {
    let UpdatedDocument::Kept(mut document) = key_update.applied_to(Doc::new(asked_for)?)? else {
        return Ok(None);
    };
    let (keys, place) = (protected.key_paths(), protected.place_paths());
    let operators = statement.update()?.map(|update| update.as_document_or_array());
    let operators = operators.transpose()?.flatten().unwrap_or(Doc::empty());
    let mut set: Vec<&[u8]> = Vec::new();
    for operator in operators.elements() {
        let operator = operator?;
        if operator.name != b"$setOnInsert" {
            continue;
        }
        let Some(fields) = operator.as_document_or_array()? else {
            return Ok(None);
        };
        for field in fields.elements() {
            let field = field?;
            if place.overlap(field.name) {
                return Ok(None);
            }
            if !keys.overlap(field.name) {
                continue;
            }
            if !can_be_read(field.name, keys.iter().copied(), set.iter().copied()) {
                return Ok(None);
            }
            set.push(field.name);
            document = assigned(Doc::new(&document)?, field.name, Some(&field))?;
        }
    }
    Ok(Some(document))
}

/// Whether the query asks for a key of `constraint` that the new `document` gets, too. Every other document with the query's values,
/// `asked_for`, holds that key.
fn asks_for_key(query: Doc<'_>, constraint: &Constraint, asked_for: &[u8], document: &[u8]) -> Result<bool, Malformed> {
    if constraint.is_partial() {
        return Ok(false);
    }
    for path in constraint.paths() {
        if equality(query, path)?.is_none() {
            return Ok(false);
        }
    }
    Ok(
        match (
            constraint.keys(Doc::new(asked_for)?),
            constraint.keys(Doc::new(document)?),
        ) {
            (Ok(asked_for), Ok(held)) => asked_for.iter().all(|key| held.contains(key)),
            _ => false,
        },
    )
}
