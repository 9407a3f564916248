//! Where one statement goes, by the rules and with the errors of `mongos` 6.0; but what can't be met goes nowhere, as with the
//! newest.

use std::sync::Arc;

use bson::oid::ObjectId;
use bson::spec::ElementType;
use bytes::Bytes;

use super::{Batch, Kind};
use crate::router::display::display;
use crate::router::error::{ServerError, code};
use crate::router::raw::{Builder, Doc, Element};
use crate::router::routing::{Collection, KeyValue, Routing, compare_elements, exact_id, exact_point, shards_for};

/// The shards of one statement.
#[derive(Debug)]
pub enum Target {
    /// One shard.
    One(Arc<str>),
    /// Several: a multi-document write, or one that names an `_id` but no shard key.
    Several(Vec<Arc<str>>),
    /// None: no document can meet its query. The newest `mongos` folds that before it looks for a shard key, looks for the
    /// document on all shards and finds none; what a shard remembers of the statement it doesn't come to hear.
    Nowhere,
}

/// Targets a statement. An insert without `_id` gets one here, as the shards must all agree on it.
pub fn target(batch: &mut Batch<'_>, routing: &Routing, index: usize) -> Result<Target, ServerError> {
    let collection = match routing {
        Routing::Unsharded { shard, .. } => return Ok(Target::One(Arc::clone(shard))),
        Routing::Sharded(collection) => collection,
    };
    let owners = Owners {
        collection,
        at: batch.operation.read_time(),
    };
    if batch.kind == Kind::Insert {
        return target_insert(batch, &owners, index);
    }
    let statement = Doc::new(&batch.statements[index])?;
    let query = document(statement, "q")?.unwrap_or_else(Doc::empty);
    let simple = is_simple(document(statement, "collation")?, collection.collation.as_deref());
    let is_single = match batch.kind {
        Kind::Delete => truthy(statement, "limit")?,
        _ => !truthy(statement, "multi")? && !truthy(statement, "upsert")?,
    };
    if is_single && batch.operation.router.is_for_nothing(query) {
        return Ok(Target::Nowhere);
    }
    match batch.kind {
        Kind::Delete => target_delete(&owners, statement, query, simple),
        _ => target_update(&owners, statement, query, simple),
    }
}

/// Who owns the chunks of a collection at the time that the statement reads.
struct Owners<'a> {
    collection: &'a Collection,
    at: Option<u64>,
}

impl Owners<'_> {
    fn of(&self, point: &[KeyValue<'_>], simple: bool) -> Result<Target, String> {
        let chunk = self.collection.chunk_for(point, simple)?;
        Ok(Target::One(Arc::clone(chunk.owner(self.at))))
    }

    /// The shard of the point; it is an error that there is none.
    fn of_exact(&self, point: Option<Vec<KeyValue<'_>>>, simple: bool, what: &str) -> Result<Target, ServerError> {
        let reason = match point.map(|point| self.of(&point, simple)) {
            Some(Ok(target)) => return Ok(target),
            Some(Err(reason)) => format!("caused by :: {reason}"),
            None => "could not extract exact shard key".to_owned(),
        };
        Err(ServerError::new(
            code::SHARD_KEY_NOT_FOUND,
            format!("{what} :: {reason}"),
        ))
    }

    /// The shards that the query can match on; at least one.
    fn for_query(&self, query: Doc<'_>, simple: bool) -> Vec<Arc<str>> {
        shards_for(self.collection, query, simple, self.at)
    }

    /// Whether the statement names one `_id` exactly: by the collation that the collection has for it.
    fn has_exact_id(&self, statement: Doc<'_>, query: Doc<'_>) -> Result<bool, ServerError> {
        let given = document(statement, "collation")?.filter(|given| !given.is_empty());
        let default = self.collection.collation.as_deref();
        let is_default = |given: Doc<'_>| match default {
            Some(default) => is_same_collation(given, default),
            None => is_simple(Some(given), None),
        };
        let has_default = given.is_none_or(is_default);
        Ok(exact_id(query).is_some_and(|id| has_default || !id.is_collatable()))
    }

    fn pattern(&self) -> String {
        Doc::new(&self.collection.key.pattern).map(display).unwrap_or_default()
    }
}

/// Whether strings compare by their bytes: the command says so, or it says nothing and the collection doesn't either.
pub fn is_simple(given: Option<Doc<'_>>, default: Option<&[u8]>) -> bool {
    match given.filter(|given| !given.is_empty()) {
        Some(given) => {
            let locale = given.get("locale").ok().flatten();
            locale.is_some_and(|locale| locale.as_str() == Some("simple"))
        }
        None => default.is_none(),
    }
}

/// Whether what a client names of a collation is what the collection's default has there.
fn is_same_collation(given: Doc<'_>, default: &[u8]) -> bool {
    let Ok(default) = Doc::new(default) else { return false };
    given.elements().flatten().all(|element| {
        let other = default.elements().flatten().find(|other| other.name == element.name);
        other.is_some_and(|other| compare_elements(&element, &other).is_eq())
    })
}

fn target_insert(batch: &mut Batch<'_>, owners: &Owners<'_>, index: usize) -> Result<Target, ServerError> {
    let document = Doc::new(&batch.statements[index])?;
    if document.get("_id")?.is_none() {
        batch.statements[index] = with_new_id(document);
    }
    let document = Doc::new(&batch.statements[index])?;
    match owners.collection.key.point(document)? {
        Some(point) => owners
            .of(&point, true)
            .map_err(|reason| ServerError::new(code::SHARD_KEY_NOT_FOUND, reason)),
        None => Err(ServerError::new(
            code::SHARD_KEY_NOT_FOUND,
            "Shard key cannot contain array values or array descendants.",
        )),
    }
}

fn with_new_id(document: Doc<'_>) -> Bytes {
    let mut with_id = Builder::new();
    with_id.append(ElementType::ObjectId, b"_id", &ObjectId::new().bytes());
    for element in document.elements().flatten() {
        with_id.element(&element);
    }
    with_id.finish().into()
}

fn target_update(owners: &Owners<'_>, statement: Doc<'_>, query: Doc<'_>, simple: bool) -> Result<Target, ServerError> {
    let multi = truthy(statement, "multi")?;
    let replacement = replacement(statement)?;
    if replacement.is_some() && multi {
        return Err(ServerError::new(
            code::INVALID_OPTIONS,
            "Replacement-style updates cannot be {multi:true}",
        ));
    }
    if truthy(statement, "upsert")? {
        let point = exact_point(&owners.collection.key, query);
        return owners.of_exact(point, simple, "Failed to target upsert by query");
    }
    let shards = owners.for_query(query, simple);
    if let [only] = shards.as_slice() {
        return Ok(Target::One(Arc::clone(only)));
    }
    if let Some(replacement) = replacement {
        return target_replacement(owners, replacement, query, simple);
    }
    if !multi && !owners.has_exact_id(statement, query)? {
        let message = format!(
            "A {{multi:false}} update on a sharded collection must contain an exact match on _id (and have the collection \
             default collation) or target a single shard (and have the simple collation), but this update targeted {} \
             shards. Update request: {}, shard key pattern: {}",
            shards.len(),
            display_update(statement)?,
            owners.pattern(),
        );
        return Err(ServerError::new(code::INVALID_OPTIONS, message));
    }
    Ok(Target::Several(shards))
}

/// An update as the server prints it: parsed, with defaults.
fn display_update(statement: Doc<'_>) -> Result<String, ServerError> {
    let mut parsed = Builder::new();
    let given = |parsed: &mut Builder, names: &[&str]| -> Result<(), ServerError> {
        for name in names {
            if let Some(element) = statement.get(name)? {
                parsed.element(&element);
            }
        }
        Ok(())
    };
    given(&mut parsed, &["q", "u", "c", "arrayFilters", "hint"])?;
    for flag in ["multi", "upsert"] {
        parsed.boolean(flag, truthy(statement, flag)?);
    }
    given(&mut parsed, &["collation"])?;
    Ok(display(Doc::new(&parsed.finish())?))
}

fn target_replacement(
    owners: &Owners<'_>,
    replacement: Doc<'_>,
    query: Doc<'_>,
    simple: bool,
) -> Result<Target, ServerError> {
    // The replaced document keeps its `_id`, which the query may name.
    let id = exact_id(query).filter(|_| !matches!(replacement.get("_id"), Ok(Some(_))));
    let mut whole = Builder::new();
    if let Some(id) = &id {
        let id = id.as_element();
        whole.append(id.kind, b"_id", id.value);
    }
    whole.elements(replacement)?;
    let whole = whole.finish();
    let point = owners.collection.key.point(Doc::new(&whole)?)?;
    owners.of_exact(point, simple, "Failed to target update by replacement document")
}

fn target_delete(owners: &Owners<'_>, statement: Doc<'_>, query: Doc<'_>, simple: bool) -> Result<Target, ServerError> {
    let exact = exact_point(&owners.collection.key, query);
    if let Some(Ok(target)) = exact.map(|point| owners.of(&point, simple)) {
        return Ok(target);
    }
    if truthy(statement, "limit")? && !owners.has_exact_id(statement, query)? {
        let message = format!(
            "A single delete on a sharded collection must contain an exact match on _id (and have the collection default \
             collation) or contain the shard key (and have the simple collation). Delete request: {}, shard key pattern: {}",
            display(statement),
            owners.pattern(),
        );
        return Err(ServerError::new(code::SHARD_KEY_NOT_FOUND, message));
    }
    let shards = owners.for_query(query, simple);
    match shards.as_slice() {
        [only] => Ok(Target::One(Arc::clone(only))),
        _ => Ok(Target::Several(shards)),
    }
}

/// `u`, if it is a replacement document.
fn replacement(statement: Doc<'_>) -> Result<Option<Doc<'_>>, ServerError> {
    let Some(update) = statement
        .get("u")?
        .filter(|update| update.kind == ElementType::EmbeddedDocument)
    else {
        return Ok(None);
    };
    let update = Doc::new(update.value)?;
    let is_operator = |element: &Element<'_>| element.name.starts_with(b"$");
    let first = update.elements().next().transpose()?;
    Ok(Some(update).filter(|_| !first.is_some_and(|first| is_operator(&first))))
}

fn document<'a>(statement: Doc<'a>, name: &str) -> Result<Option<Doc<'a>>, ServerError> {
    match statement.get(name)? {
        Some(element) => Ok(element.as_document_or_array()?),
        None => Ok(None),
    }
}

fn truthy(statement: Doc<'_>, name: &str) -> Result<bool, ServerError> {
    Ok(statement.get(name)?.is_some_and(|element| element.is_truthy()))
}
