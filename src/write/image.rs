//! Documents as a transaction sees them before and after a statement, as far as constraints care.

use bson::spec::ElementType;

use super::transaction::{Failure, Transaction};
use crate::catalog::Protected;
use crate::claims::{ConstrainedKey, keys_of, owner_of};
use crate::constraint::KeyError;
use crate::proxy_collection::Owner;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::upstream::Connection;

/// A document's identity and keys.
#[derive(Debug, Clone)]
pub struct Image {
    /// The document's `_id` as an element, for queries.
    pub id: Vec<u8>,
    /// Its `_id` and route.
    pub owner: Owner,
    /// Its keys; none for a document that can't be indexed, which must have been written past Keyward.
    pub keys: Result<Vec<ConstrainedKey>, KeyError>,
}

/// Which documents a statement is about, in the words of `find`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection<'a> {
    /// The query; everything if there is none.
    pub query: Option<Doc<'a>>,
    /// `sort`, `collation`, `hint` and `let`, as far as the statement has them.
    pub options: [Option<Element<'a>>; 4],
    /// Whether it is about one document only.
    pub is_single: bool,
}

/// Reads the documents that `selection` selects, no more than `most` of them.
///
/// # Errors
/// [`Failure`]; the transaction is over then.
pub async fn read(
    protected: &Protected,
    selection: &Selection<'_>,
    most: usize,
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<Vec<Image>, Failure> {
    let mut command = Builder::new();
    command.string("find", protected.namespace.collection.as_bytes());
    if let Some(query) = selection.query {
        command.document("filter", query);
    }
    for option in selection.options.iter().flatten() {
        command.element(option);
    }
    append_projection(&mut command, protected);
    match i32::try_from(most) {
        _ if selection.is_single => command.int32("limit", 1),
        Ok(most) => command.int32("limit", most),
        Err(_) => &mut command,
    };
    let database = &protected.namespace.database;
    let mut reply = transaction.run(upstream, database, command, None).await?;
    let mut images = Vec::new();
    loop {
        let next = take_batch(protected, Doc::new(&reply)?, &mut images)?;
        let Some(id) = next else { return Ok(images) };
        let mut more = Builder::new();
        more.append(ElementType::Int64, b"getMore", &id.to_le_bytes());
        more.string("collection", protected.namespace.collection.as_bytes());
        reply = transaction.run(upstream, database, more, None).await?;
    }
}

/// The documents with these `_id`s, as a query.
pub fn by_ids<'i>(ids: impl Iterator<Item = &'i [u8]>) -> Result<Vec<u8>, Malformed> {
    let mut query = Builder::new();
    query
        .open(ElementType::EmbeddedDocument, b"_id")
        .open(ElementType::Array, b"$in");
    for (index, id) in ids.enumerate() {
        if let Some(id) = Doc::new(id)?.get("_id")? {
            query.append(id.kind, index.to_string().as_bytes(), id.value);
        }
    }
    Ok(query.finish())
}

/// The top-level fields that keys and routes are made of.
fn append_projection(command: &mut Builder, protected: &Protected) {
    let of_constraints = protected.constraints.iter().flat_map(|proxy| proxy.constraint.paths());
    let paths = of_constraints
        .chain(protected.shard_key.iter().map(String::as_str))
        .chain(["_id"]);
    let mut roots: Vec<&str> = paths.map(|path| path.split('.').next().unwrap_or(path)).collect();
    roots.sort_unstable();
    roots.dedup();
    command.open(ElementType::EmbeddedDocument, b"projection");
    for root in roots {
        command.int32(root, 1);
    }
    command.close();
}

/// Takes the documents of a cursor's batch; gives the cursor's id if there is more.
fn take_batch(protected: &Protected, reply: Doc<'_>, images: &mut Vec<Image>) -> Result<Option<i64>, Malformed> {
    let cursor = reply.nested("cursor")?;
    let Some(cursor) = cursor else { return Ok(None) };
    for name in ["firstBatch", "nextBatch"] {
        let batch = cursor.nested(name)?;
        for document in batch.into_iter().flat_map(Doc::elements) {
            if let Some(document) = document?.as_document_or_array()? {
                images.push(image(protected, document)?);
            }
        }
    }
    let id = cursor.get("id")?.and_then(|id| id.as_whole_number()).unwrap_or(0);
    Ok((id != 0).then_some(id))
}

fn image(protected: &Protected, document: Doc<'_>) -> Result<Image, Malformed> {
    let mut id = Builder::new();
    if let Some(element) = document.get("_id")? {
        id.element(&element);
    }
    Ok(Image {
        id: id.finish(),
        owner: owner_of(protected, document)?,
        keys: keys_of(protected, document),
    })
}
