//! Recognises statements about one document whose effect on its keys can be read from the statement itself.
//!
//! They set, unset or compute plain values, replace the document, or delete it. The statement and the constraints alone decide
//! which statements these are, never the document. A driver's retry must run in the same way as its first try, because the first
//! try's result is recorded there.

use bson::spec::ElementType;

use super::affected_keys::{Paths, changes_named_fields, names_matched_position, overlap, reached};
use super::arithmetic::ComputingOperator;
use super::filter_rewriting::{equality, is_targeted, names_shard};
use super::kept_place::is_kept;
use super::running::asks_beyond_majority;
use super::statement::{Statement, StatementKind};
use crate::catalog::Protected;
use crate::constraint::fills_in;
use crate::raw::{Builder, Doc, Element, Malformed};

/// Keyward doesn't pin a larger statement to the values that it replaces: they might not fit into its command. The server
/// accepts a command of 16 MiB and a little more.
const STATEMENT_BYTES_MAX: usize = 16_000_000;
/// The most parts of a path that Keyward sets itself. A server refuses documents that are about twice as deep. It answers a statement with a
/// longer path.
const PATH_DEPTH_MAX: usize = 100;

/// The effect on the fields that keys are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyUpdate<'a> {
    /// These fields are set, unset or computed; others may change, but no key changes with them.
    Fields(Vec<Assignment<'a>>),
    /// The document is replaced by this one.
    Replacement(Doc<'a>),
    /// The document is deleted.
    Removal,
}

/// A field with its new value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment<'a> {
    path: &'a str,
    value: NewValue<'a>,
}

/// The new value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NewValue<'a> {
    /// This value.
    Set(Element<'a>),
    /// None: the field is removed.
    Unset,
    /// The operator's result for the old value and this operand.
    Computed(ComputingOperator, Element<'a>),
}

/// The effect of a key update on one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdatedDocument {
    /// Its new version, with the fields that keys are made of.
    Kept(Vec<u8>),
    /// It is deleted.
    Removed,
    /// The server refuses the statement, because it can't compute a value.
    Refused,
}

impl<'a> KeyUpdate<'a> {
    /// The effect of `statement` on an existing document, if it can be read and needs no transaction.
    pub fn of(statement: Statement<'a>, protected: &Protected) -> Result<Option<KeyUpdate<'a>>, Malformed> {
        // The server compares old values, and under a collation other values would equal them.
        let has_collation = protected.is_collated || statement.raw.get("collation")?.is_some();
        let query = statement.query()?.unwrap_or(Doc::empty());
        // The server of one shard remembers the document that a `findAndModify` returned. Without the shard key, Keyward
        // couldn't find out which shard's answer that is.
        let is_known_by_record = statement.kind == StatementKind::FindAndModify
            && statement.body.get("txnNumber")?.is_some()
            && !names_shard(query, &protected.shard_key)?;
        if is_known_by_record
            || !statement.is_single
            || has_collation
            || is_large(statement.raw)?
            || names_a_position(statement.raw)?
            // Such a projection may fail after the server has changed the document. In a transaction that undoes the change.
            || computes_fields(statement.raw)?
            || !is_targeted(query, &protected.shard_key)?
            // The release of old keys waits for a majority: a rolled-back write would restore them. So Keyward couldn't keep a
            // stronger concern.
            || asks_beyond_majority(statement.body)?
        {
            return Ok(None);
        }
        if statement.deletes()? {
            return Ok(Some(KeyUpdate::Removal));
        }
        let Some(update) = statement
            .update()?
            .filter(|update| update.kind == ElementType::EmbeddedDocument)
        else {
            return Ok(None);
        };
        match statement.replacement()? {
            Some(document) => replacement(document, query, protected),
            None => fields(Doc::new(update.value)?, query, protected),
        }
    }

    /// Whether it changes the value at `path`.
    pub fn changes(&self, path: &str) -> bool {
        match self {
            KeyUpdate::Replacement(_) | KeyUpdate::Removal => true,
            KeyUpdate::Fields(assignments) => {
                let is_affected = |assignment: &Assignment<'_>| overlap(assignment.path.as_bytes(), path.as_bytes());
                assignments.iter().any(is_affected)
            }
        }
    }

    /// The paths of the values that new ones are computed from.
    pub fn operands(&self) -> Vec<&'a str> {
        let KeyUpdate::Fields(assignments) = self else {
            return Vec::new();
        };
        let is_computed = |assignment: &&Assignment<'_>| matches!(assignment.value, NewValue::Computed(..));
        assignments
            .iter()
            .filter(is_computed)
            .map(|assignment| assignment.path)
            .collect()
    }

    /// The effect on `document`. If the server refuses the statement although the result isn't [`UpdatedDocument::Refused`], the
    /// result doesn't matter.
    pub fn applied_to(&self, document: Doc<'_>) -> Result<UpdatedDocument, Malformed> {
        match self {
            KeyUpdate::Removal => Ok(UpdatedDocument::Removed),
            KeyUpdate::Replacement(replacement) => {
                let mut replaced = Builder::new();
                // The server stores the replacement's, which may have another type. If it doesn't equal the document's, it refuses the statement.
                if let Some(id) = replacement.get("_id")?.or(document.get("_id")?) {
                    replaced.element(&id);
                }
                replaced.elements_where(*replacement, |element| element.name != b"_id")?;
                Ok(UpdatedDocument::Kept(replaced.finish()))
            }
            KeyUpdate::Fields(assignments) => {
                let mut document = document.bytes().to_vec();
                for assignment in assignments {
                    match assignment.applied_to(Doc::new(&document)?)? {
                        Some(changed) => document = changed,
                        None => return Ok(UpdatedDocument::Refused),
                    }
                }
                Ok(UpdatedDocument::Kept(document))
            }
        }
    }
}

impl Assignment<'_> {
    /// `document` with the new value; `None` if that can't be computed.
    fn applied_to(&self, document: Doc<'_>) -> Result<Option<Vec<u8>>, Malformed> {
        let path = self.path.as_bytes();
        match &self.value {
            NewValue::Set(value) => assigned(document, path, Some(value)).map(Some),
            NewValue::Unset => assigned(document, path, None).map(Some),
            NewValue::Computed(operator, operand) => {
                let old = document.value_at(self.path)?;
                if old.is_none() && !can_be_created(document, self.path)? {
                    return Ok(None);
                }
                let Some(computed) = operator.apply(old.as_ref(), operand) else {
                    return Ok(None);
                };
                let value = Element {
                    kind: computed.kind,
                    name: path,
                    value: &computed.bytes,
                };
                assigned(document, path, Some(&value)).map(Some)
            }
        }
    }
}

/// Whether the server creates the missing field at `path`: it does so below documents only.
fn can_be_created(document: Doc<'_>, path: &str) -> Result<bool, Malformed> {
    let Some((first, rest)) = path.split_once('.') else {
        return Ok(true);
    };
    match document.get(first)? {
        None => Ok(true),
        Some(parent) if parent.kind == ElementType::EmbeddedDocument => can_be_created(Doc::new(parent.value)?, rest),
        Some(_) => Ok(false),
    }
}

/// Whether a `findAndModify` asks for the array element that its query matched: the server then accepts no expressions.
pub fn names_a_position(raw: Doc<'_>) -> Result<bool, Malformed> {
    match raw.nested("fields")? {
        Some(fields) => fields.any(|field| Ok(field.name.ends_with(b".$"))),
        None => Ok(false),
    }
}

/// Whether a `findAndModify` asks for fields by more than their names.
fn computes_fields(raw: Doc<'_>) -> Result<bool, Malformed> {
    let is_name = |field: &Element<'_>| field.as_whole_number().is_some() || field.kind == ElementType::Boolean;
    match raw.nested("fields")? {
        Some(fields) => fields.any(|field| Ok(!is_name(field))),
        None => Ok(false),
    }
}

/// Whether the query and the update leave too little room for the pinned values. Other fields don't count: a driver's retry may
/// carry a newer `$clusterTime`.
fn is_large(raw: Doc<'_>) -> Result<bool, Malformed> {
    let mut bytes = 0;
    for element in raw.elements() {
        let element = element?;
        if matches!(element.name, b"q" | b"query" | b"u" | b"update") {
            bytes += element.value.len();
        }
    }
    Ok(bytes > STATEMENT_BYTES_MAX)
}

/// The key update of a replacement that leaves the document on its shard, and that the server stores unchanged.
fn replacement<'a>(
    replacement: Doc<'a>,
    query: Doc<'_>,
    protected: &Protected,
) -> Result<Option<KeyUpdate<'a>>, Malformed> {
    for path in &protected.shard_key {
        let asked_for = equality(query, path)?;
        let stays = match (replacement.value_at(path)?, asked_for) {
            (Some(new), Some(old)) => new.kind == old.kind && new.value == old.value,
            (None, Some(_)) => path == "_id",
            (_, None) => false,
        };
        if !stays {
            return Ok(None);
        }
    }
    // Keys as well as the shard key.
    if fills_in(replacement, protected.paths())? {
        return Ok(None);
    }
    Ok(Some(KeyUpdate::Replacement(replacement)))
}

/// Operators that change keys only by whole values that are set, unset or computed, each once.
fn fields<'a>(operators: Doc<'a>, query: Doc<'_>, protected: &Protected) -> Result<Option<KeyUpdate<'a>>, Malformed> {
    let (paths, unchangeable) = (protected.key_paths(), protected.place_paths());
    let mut assignments: Vec<Assignment<'a>> = Vec::new();
    for operator in operators.elements() {
        let operator = operator?;
        match operator.name {
            b"$setOnInsert" => continue,
            name if name == b"$rename" || changes_named_fields(name) => {}
            // An operator of a newer server may change fields that it names in another way.
            _ => return Ok(None),
        }
        let Some(changed) = operator.as_document_or_array()? else {
            return Ok(None);
        };
        for field in changed.elements() {
            let field = field?;
            // The values to which Keyward pins the statement would be conditions, perhaps on arrays.
            if names_matched_position(field.name) {
                return Ok(None);
            }
            let changes_place = unchangeable.overlap(field.name);
            if changes_place && !(operator.name == b"$set" && is_kept(&field, query, &unchangeable)?) {
                return Ok(None);
            }
            let renamed_to = match operator.name {
                b"$rename" => field.as_string_bytes(),
                _ => None,
            };
            if renamed_to.is_some_and(|path| paths.overlap(path) || unchangeable.overlap(path)) {
                return Ok(None);
            }
            if !paths.overlap(reached(operator.name, field.name)) {
                continue;
            }
            let (Some(value), Ok(path)) = (new_value(operator.name, field), std::str::from_utf8(field.name)) else {
                return Ok(None);
            };
            let others = assignments.iter().map(|other| other.path.as_bytes());
            if !can_be_read(field.name, paths.iter().copied(), others) {
                return Ok(None);
            }
            assignments.push(Assignment { path, value });
        }
    }
    Ok(Some(KeyUpdate::Fields(assignments)))
}

/// Whether setting the field at `path` shows which value each of the `needed` paths gets, if `others` are set, too.
pub fn can_be_read<'p>(
    path: &[u8],
    mut needed: impl Iterator<Item = &'p str>,
    mut others: impl Iterator<Item = &'p [u8]>,
) -> bool {
    is_plain_path(path)
        && needed.all(|needed| is_whole(path, needed.as_bytes()))
        && others.all(|other| !overlap(path, other))
}

/// The value that `operator` gives a field; `None` if Keyward can't tell.
fn new_value<'a>(operator: &[u8], operand: Element<'a>) -> Option<NewValue<'a>> {
    match operator {
        b"$set" => Some(NewValue::Set(operand)),
        b"$unset" => Some(NewValue::Unset),
        _ => {
            let operator = ComputingOperator::named(operator)?;
            operator
                .takes(&operand)
                .then_some(NewValue::Computed(operator, operand))
        }
    }
}

/// Whether every part of the path is a field's name in any document, and the path isn't too deep for one.
fn is_plain_path(path: &[u8]) -> bool {
    path.iter().filter(|byte| **byte == b'.').count() < PATH_DEPTH_MAX
        && path
            .split(|byte| *byte == b'.')
            .all(|name| !name.is_empty() && !name.starts_with(b"$") && !name.iter().all(u8::is_ascii_digit))
}

/// Whether setting `changed` sets the whole value at `path`, or nothing of it. An embedded document's value depends on the
/// order of its fields, which Keyward couldn't know after an update of a part.
fn is_whole(changed: &[u8], path: &[u8]) -> bool {
    let names = |path: &[u8]| path.split(|byte| *byte == b'.').count();
    !overlap(changed, path) || names(changed) <= names(path)
}

/// `document` with the field at `path` set to `value`, or without that field. It calls itself for each part of the path.
pub fn assigned(document: Doc<'_>, path: &[u8], value: Option<&Element<'_>>) -> Result<Vec<u8>, Malformed> {
    let (first, rest) = match path.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&path[..dot], Some(&path[dot + 1..])),
        None => (path, None),
    };
    let mut changed = Builder::new();
    let mut is_there = false;
    for element in document.elements() {
        let element = element?;
        if element.name != first || is_there {
            changed.element(&element);
            continue;
        }
        is_there = true;
        match (rest, element.kind) {
            (None, _) => {
                if let Some(value) = value {
                    changed.append(value.kind, first, value.value);
                }
            }
            (Some(rest), ElementType::EmbeddedDocument) => {
                let nested = assigned(Doc::new(element.value)?, rest, value)?;
                changed.append(ElementType::EmbeddedDocument, first, &nested);
            }
            // Nothing can be set below a value that isn't a document, and there is nothing to unset.
            (Some(_), _) => {
                changed.element(&element);
            }
        }
    }
    match (is_there, rest, value) {
        (false, None, Some(value)) => {
            changed.append(value.kind, first, value.value);
        }
        (false, Some(rest), Some(_)) => {
            let nested = assigned(Doc::empty(), rest, value)?;
            changed.append(ElementType::EmbeddedDocument, first, &nested);
        }
        _ => {}
    }
    Ok(changed.finish())
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn assign(document: Document, path: &str, value: Option<Document>) -> Document {
        let (document, value) = (document.to_vec().unwrap(), value.map(|value| value.to_vec().unwrap()));
        let value = value
            .as_ref()
            .map(|value| Doc::new(value).unwrap().get("v").unwrap().unwrap());
        let assigned = assigned(Doc::new(&document).unwrap(), path.as_bytes(), value.as_ref()).unwrap();
        Document::from_reader(assigned.as_slice()).unwrap()
    }

    #[test]
    fn a_value_is_set_where_the_server_sets_it() {
        let one = || Some(doc! { "v": 1 });
        assert_eq!(assign(doc! { "a": 0, "b": 2 }, "a", one()), doc! { "a": 1, "b": 2 });
        assert_eq!(assign(doc! {}, "c.d.e", one()), doc! { "c": { "d": { "e": 1 } } });
        assert_eq!(
            assign(doc! { "c": { "x": 0 } }, "c.d", one()),
            doc! { "c": { "x": 0, "d": 1 } }
        );
        assert_eq!(
            assign(doc! { "c": [{ "d": 0 }] }, "c.d", one()),
            doc! { "c": [{ "d": 0 }] }
        );
        assert_eq!(assign(doc! { "c": { "d": 0 } }, "c.d", None), doc! { "c": {} });
        assert_eq!(assign(doc! { "c": 1 }, "c.d", None), doc! { "c": 1 });
        assert_eq!(assign(doc! {}, "c.d", None), doc! {});
    }

    #[test]
    fn a_replaced_document_has_the_id_of_its_replacement() {
        let replaced = |document: Document, replacement: Document| {
            let (document, replacement) = (document.to_vec().unwrap(), replacement.to_vec().unwrap());
            let update = KeyUpdate::Replacement(Doc::new(&replacement).unwrap());
            match update.applied_to(Doc::new(&document).unwrap()).unwrap() {
                UpdatedDocument::Kept(document) => Document::from_reader(document.as_slice()).unwrap(),
                UpdatedDocument::Removed | UpdatedDocument::Refused => panic!("it is kept"),
            }
        };
        assert_eq!(
            replaced(doc! { "_id": 1, "a": 1 }, doc! { "b": 2, "_id": 1.0 }),
            doc! { "_id": 1.0, "b": 2 }
        );
        assert_eq!(
            replaced(doc! { "a": 1, "_id": 1 }, doc! { "b": 2 }),
            doc! { "_id": 1, "b": 2 }
        );
    }

    #[test]
    fn a_value_is_computed_where_the_server_computes_it() {
        let computed = |document: Document, path: &'static str| {
            let (document, operand) = (document.to_vec().unwrap(), doc! { "v": 2 }.to_vec().unwrap());
            let operand = Doc::new(&operand).unwrap().get("v").unwrap().unwrap();
            let value = NewValue::Computed(ComputingOperator::Add, operand);
            let changed = Assignment { path, value }.applied_to(Doc::new(&document).unwrap());
            changed
                .unwrap()
                .map(|changed| Document::from_reader(changed.as_slice()).unwrap())
        };
        assert_eq!(computed(doc! { "a": 1, "b": 0 }, "a"), Some(doc! { "a": 3, "b": 0 }));
        assert_eq!(
            computed(doc! { "a": i32::MAX }, "a"),
            Some(doc! { "a": 2_147_483_649_i64 })
        );
        assert_eq!(computed(doc! {}, "c.d"), Some(doc! { "c": { "d": 2 } }));
        assert_eq!(
            computed(doc! { "c": { "d": 0.5 } }, "c.d"),
            Some(doc! { "c": { "d": 2.5 } })
        );
        for (refused, path) in [
            (doc! { "a": i64::MAX }, "a"),
            (doc! { "a": "1" }, "a"),
            (doc! { "a": bson::Bson::Null }, "a"),
            (doc! { "a": [1] }, "a"),
            (doc! { "c": [{ "d": 1 }] }, "c.d"),
            (doc! { "c": 1 }, "c.d"),
        ] {
            assert_eq!(computed(refused.clone(), path), None, "{refused}");
        }
    }

    #[test]
    fn only_whole_values_at_plain_paths_are_read() {
        for path in ["email", "c.d"] {
            assert!(is_plain_path(path.as_bytes()), "{path}");
        }
        for path in ["t.0", "t.$", "t.$[]", "t.$[e].x", "a..b", ""] {
            assert!(!is_plain_path(path.as_bytes()), "{path}");
        }
        let of = |parts: usize| vec!["x"; parts].join(".");
        assert!(is_plain_path(of(PATH_DEPTH_MAX).as_bytes()));
        assert!(!is_plain_path(of(PATH_DEPTH_MAX + 1).as_bytes()));
        assert!(is_whole(b"c", b"c.d"));
        assert!(is_whole(b"c.d", b"c.d"));
        assert!(is_whole(b"c.e", b"c.d"));
        assert!(!is_whole(b"c.d.e", b"c.d"));
    }

    #[test]
    fn a_query_that_may_reach_another_shard_next_time_is_not_targeted() {
        let targeted = |query: Document| {
            let query = query.to_vec().unwrap();
            is_targeted(Doc::new(&query).unwrap(), &["region".to_owned(), "n".to_owned()]).unwrap()
        };
        assert!(targeted(doc! { "_id": 1 }));
        assert!(targeted(doc! { "_id": { "$eq": 1 } }));
        assert!(targeted(doc! { "region": "a", "n": 2, "x": { "$gt": 1 } }));
        assert!(!targeted(doc! { "region": "a" }));
        assert!(!targeted(doc! { "_id": { "$gt": 1 } }));
        assert!(!targeted(doc! { "email": "a@x" }));
    }
}
