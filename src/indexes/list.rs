//! Carries out `listIndexes` on a protected collection: shows the indexes of constraints as unique.

use bson::spec::ElementType;

use super::specification::{is_index_of, specification_of};
use crate::catalog::Protected;
use crate::constraint::{Constraint, IndexSpec};
use crate::namespace::Namespace;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::server::{code, cursor, reply};
use crate::upstream::Connection;
use crate::write::ForwardError;

/// Carries out the command. Its reply has all indexes in one batch: a collection has at most 64.
pub async fn list_indexes(
    protected: &Protected,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let mut whole = Builder::new();
    for field in body.elements() {
        let field = field?;
        match field.name {
            b"cursor" if field.kind == ElementType::EmbeddedDocument => whole.document("cursor", Doc::empty()),
            _ => whole.element(&field),
        };
    }
    let listed = upstream.run(&whole.finish()).await?;
    let answer = Doc::new(&listed)?;
    // An error, or more than a server ever sends at once.
    if !reply::is_ok(answer)? || cursor::more(answer)?.is_some() {
        return Ok(listed);
    }
    Ok(showing_unique(answer, protected)?)
}

/// The reply with `unique` in each index that has the key and the options of a constraint.
fn showing_unique(answer: Doc<'_>, protected: &Protected) -> Result<Vec<u8>, Malformed> {
    let mut indexes = Vec::new();
    for index in cursor::batch(answer)? {
        let specification = specification_of(index).ok().flatten();
        let is_of = |constraint: &Constraint| specification.as_ref().is_some_and(|one| is_index_of(one, constraint));
        let is_constraint = protected.constraints.iter().any(|proxy| is_of(&proxy.constraint));
        indexes.push(
            match is_constraint && index.get("unique")?.is_none() && !is_on_id(index)? {
                true => with_unique(index)?,
                false => index.bytes().to_vec(),
            },
        );
    }
    cursor::with_first_batch(answer, &indexes)
}

/// Whether it is the index on `_id`, which a server shows without `unique`.
fn is_on_id(index: Doc<'_>) -> Result<bool, Malformed> {
    Ok(index
        .get("name")?
        .is_some_and(|name| name.as_string_bytes() == Some(b"_id_")))
}

/// The index with `unique` where the server puts it: behind the name.
fn with_unique(index: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let is_before = |field: &Element<'_>| matches!(field.name, b"v" | b"key" | b"name" | b"background");
    let mut shown = Builder::new();
    shown.elements_where(index, is_before)?.boolean("unique", true);
    shown.elements_where(index, |field| !is_before(field))?;
    Ok(shown.finish())
}

/// An index of a collection, as the server has it.
pub struct ListedIndex {
    /// Its name.
    pub name: String,
    /// Its specification, without `unique`; none if no constraint could have it.
    pub specification: Option<IndexSpec>,
    /// Whether the server keeps it unique.
    pub is_unique: bool,
}

impl ListedIndex {
    /// Reads an index from its document in the reply to `listIndexes`. Returns `None` if it has no name.
    pub fn of(index: Doc<'_>) -> Result<Option<ListedIndex>, Malformed> {
        let name = index.get("name")?;
        let Some(name) = name.and_then(|name| name.as_str().map(str::to_owned)) else {
            return Ok(None);
        };
        Ok(Some(ListedIndex {
            name,
            specification: specification_of(index).ok().flatten(),
            is_unique: index.is_set("unique")?,
        }))
    }
}

/// The indexes of a collection, as a command that makes indexes found them.
#[derive(Clone, Copy)]
pub struct FoundIndexes<'a> {
    /// The indexes before the command, if they are known.
    pub before: Option<&'a [ListedIndex]>,
    /// Whether the server made an index for the command, on any shard.
    pub is_any_made: bool,
}

impl FoundIndexes<'_> {
    /// Whether the index of this name may have been missing when the command reached the server.
    pub fn may_have_lacked(&self, name: &str) -> bool {
        let is_known_missing = |before: &[ListedIndex]| !before.iter().any(|index| index.name == name);
        self.is_any_made || self.before.is_some_and(is_known_missing)
    }
}

/// The indexes of a collection, asked for in the session of the client's command `body`; none if the client may not list them.
pub async fn existing_indexes(
    namespace: &Namespace,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Option<Vec<ListedIndex>>, ForwardError> {
    let mut list = Builder::new();
    list.string("listIndexes", namespace.collection.as_bytes());
    list.document("cursor", Doc::empty());
    super::append_session(&mut list, body)?;
    list.string("$db", namespace.database.as_bytes());
    let listed = upstream.run(&list.finish()).await?;
    let answer = Doc::new(&listed)?;
    if has_no_indexes(answer)? {
        return Ok(Some(Vec::new()));
    }
    if !reply::is_ok(answer)? || cursor::more(answer)?.is_some() {
        return Ok(None);
    }
    let mut indexes = Vec::new();
    for index in cursor::batch(answer)? {
        indexes.extend(ListedIndex::of(index)?);
    }
    Ok(Some(indexes))
}

/// Whether a reply says that there is no collection of this name which could have indexes.
pub fn has_no_indexes(reply: Doc<'_>) -> Result<bool, Malformed> {
    let code = reply::code(reply)?;
    Ok(!reply::is_ok(reply)?
        && matches!(
            code,
            Some(code::NAMESPACE_NOT_FOUND | code::COMMAND_NOT_SUPPORTED_ON_VIEW)
        ))
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn unique_stands_behind_the_name() {
        let index = doc! { "v": 2, "key": { "a": 1 }, "name": "a_1", "sparse": true };
        let index = index.to_vec().unwrap();
        let shown = with_unique(Doc::new(&index).unwrap()).unwrap();
        let shown = Document::from_reader(shown.as_slice()).unwrap();
        let names: Vec<&String> = shown.keys().collect();
        assert_eq!(names, ["v", "key", "name", "unique", "sparse"]);
    }
}
