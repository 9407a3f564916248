//! Reads the documents in the reply of a command that opens a cursor or fetches more documents; composes the commands about a cursor.

use bson::spec::ElementType;

use crate::raw::{Builder, Doc, Malformed};

/// The id in a reply that leaves no cursor open.
pub const CLOSED: i64 = 0;

/// Whether the reply is that of a cursor.
pub fn is_in(reply: Doc<'_>) -> Result<bool, Malformed> {
    Ok(reply.nested("cursor")?.is_some())
}

/// The documents of the reply's batch, first or later.
pub fn batch(reply: Doc<'_>) -> Result<Vec<Doc<'_>>, Malformed> {
    let Some(cursor) = reply.nested("cursor")? else {
        return Ok(Vec::new());
    };
    let mut documents = Vec::new();
    for name in ["firstBatch", "nextBatch"] {
        for document in cursor.nested(name)?.into_iter().flat_map(Doc::elements) {
            documents.extend(document?.as_document_or_array()?);
        }
    }
    Ok(documents)
}

/// The reply with `documents` as its first batch.
pub fn with_first_batch(reply: Doc<'_>, documents: &[Vec<u8>]) -> Result<Vec<u8>, Malformed> {
    let mut edited = Builder::new();
    for field in reply.elements() {
        let field = field?;
        let Some(cursor) = field.as_document_or_array()?.filter(|_| field.name == b"cursor") else {
            edited.element(&field);
            continue;
        };
        edited.open(ElementType::EmbeddedDocument, b"cursor");
        for field in cursor.elements() {
            let field = field?;
            match field.name {
                b"firstBatch" => edited.documents("firstBatch", documents),
                _ => edited.element(&field),
            };
        }
        edited.close();
    }
    Ok(edited.finish())
}

/// The cursor's id to fetch more with; `None` if there is no more.
pub fn more(reply: Doc<'_>) -> Result<Option<i64>, Malformed> {
    let id = reply.nested("cursor")?.map(|cursor| cursor.get("id")).transpose()?;
    let id = id.flatten().and_then(|id| id.as_whole_number());
    Ok(id.filter(|id| *id != CLOSED))
}

/// The name by which a `getMore` names the collection of the reply's cursor; empty if the reply has no cursor.
pub fn collection(reply: Doc<'_>) -> Result<&[u8], Malformed> {
    let namespace = reply.nested("cursor")?.map(|cursor| cursor.get("ns")).transpose()?;
    let namespace = namespace.flatten().and_then(|namespace| namespace.as_string_bytes());
    let namespace = namespace.unwrap_or_default();
    let dot = namespace.iter().position(|byte| *byte == b'.');
    Ok(dot.map_or(&[], |dot| &namespace[dot + 1..]))
}

/// The command that fetches more of a cursor on `collection`, without its database.
pub fn get_more(collection: &[u8], cursor: i64) -> Builder {
    let mut command = Builder::new();
    command.int64("getMore", cursor).string("collection", collection);
    command
}

/// The command that closes a cursor on `collection`, without its database.
pub fn kill(collection: &[u8], cursor: i64) -> Builder {
    let mut command = Builder::new();
    command.string("killCursors", collection);
    command.open(ElementType::Array, b"cursors").int64("0", cursor).close();
    command
}

/// Limits a `find` to `most` documents, all in the first batch.
pub fn in_one_batch(find: &mut Builder, most: usize) {
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    find.int32("limit", most)
        .int32("batchSize", most)
        .boolean("singleBatch", true);
}
