//! Reads documents before and after a statement, inside its transaction or outside, as far as constraints need them.

use std::collections::HashSet;

use bson::RawBson;
use bson::spec::ElementType;

use crate::catalog::Protected;
use crate::claims::{ConstrainedKey, KeysOfDocument, keys_of, owner_of};
use crate::command::filter_rewriting::{equality, of_same_types, pin, same_type, unchanged};
use crate::command::running::{API, append_fields};
use crate::command::statement::Selection;
use crate::constraint::{KeyError, id_identity, root_of};
use crate::proxy_collection::{ABSENT_FIELD, Owner, ProxyCollection};
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::reply::WriteRefusal;
use crate::server::{cursor, reply::is_ok};
use crate::upstream::Connection;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::txn::{Failure, Transaction, append_read_concern};

/// The most bytes of `_id`s in one query: half of a command's limit.
const IDS_BYTES_MAX: usize = 8 << 20;

/// The most bytes of keys that a delete of many deletes in one transaction. A key of several fields repeats their values for each element of an
/// array.
const KEY_BYTES_MAX: usize = 64 << 20;

/// The most bytes of memory that the keys of documents read together may take, if there are several documents.
const KEY_MEMORY_MAX: usize = 512 << 20;

/// The most keys of documents that a delete of many deletes in one transaction. The server gives a transaction a minute, and a busy machine
/// deletes as few as 300 reservations in a second.
const KEYS_MAX: usize = 5_000;

/// The most documents that one read of several expects: more than have the `_id`s that it asks for.
const SEVERAL_MAX: i32 = 10_000;

/// A document's identity and keys.
#[derive(Debug, Clone)]
pub struct DocumentKeys {
    /// The document `{_id}`, for queries; empty for a new document, for which there are none.
    pub id: Vec<u8>,
    /// Its `_id` and route.
    pub owner: Owner,
    /// Its keys, under those constraints that can index it.
    pub keys: Vec<ConstrainedKey>,
    /// Why another constraint can't, if there is one. A document that Keyward has read was then written past it, or is older than
    /// the constraint.
    pub unindexable: Option<KeyError>,
}

impl DocumentKeys {
    /// The identity and the keys of `document`.
    pub fn of(protected: &Protected, document: Doc<'_>) -> Result<DocumentKeys, Malformed> {
        let mut id = Builder::new();
        if let Some(element) = document.get("_id")? {
            id.element(&element);
        }
        let KeysOfDocument { keys, unindexable } = keys_of(protected, document);
        Ok(DocumentKeys {
            id: id.finish(),
            owner: owner_of(protected, document)?,
            keys,
            unindexable,
        })
    }

    /// The bytes of its keys.
    pub fn key_bytes(&self) -> usize {
        self.keys.iter().map(|key| key.key.size()).sum()
    }

    /// The document's place among all others of the collection: its `{_id}`, and its shard key if there is one.
    pub fn place(&self) -> (&[u8], Option<&[u8]>) {
        let route = self.owner.route.as_ref();
        (&self.id, route.map(|route| route.as_bytes()))
    }

    /// Whether a query that names the place of one of them also finds the other: the server takes 1 for 1.0.
    pub fn is_found_at_place_of(&self, other: &DocumentKeys) -> bool {
        let route = |keys: &DocumentKeys| {
            keys.owner
                .route
                .clone()
                .map(|route| id_identity(&RawBson::Document(route)))
        };
        self.owner.has_same_id_as(&other.owner) && route(self) == route(other)
    }
}

/// A document that was read outside any transaction.
#[derive(Debug, Clone)]
pub struct DocumentAsRead {
    /// Its identity and keys.
    pub document_keys: DocumentKeys,
    /// The top-level fields that keys and routes are made of.
    pub document: Vec<u8>,
    /// Whether other documents have the same `_id` and, as Keyward knows it, the same shard key: that isn't the present one.
    pub is_one_of_several: bool,
}

/// Counts the keys of documents.
#[derive(Default)]
struct KeyCount {
    keys: usize,
    bytes: usize,
    memory: usize,
}

impl KeyCount {
    /// Adds those of another document; returns whether they are no more than one evaluation may have.
    fn add(&mut self, document: &DocumentKeys) -> bool {
        self.keys += document.keys.len();
        self.bytes += document.key_bytes();
        self.memory += document.keys.iter().map(|key| key.key.memory()).sum::<usize>();
        self.keys <= KEYS_MAX && self.bytes <= KEY_BYTES_MAX
    }
}

/// How many of these documents have no more keys than one evaluation may have; at least one.
pub fn with_few_keys(documents: &[DocumentKeys]) -> usize {
    let mut count = KeyCount::default();
    let fit = documents.iter().take_while(|document| count.add(document)).count();
    fit.max(1)
}

/// How many documents to read.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// The maximum number of documents.
    pub documents: usize,
    /// Whether to stop behind the first document by which their keys are more than one evaluation may have.
    pub are_keys_limited: bool,
}

impl Most {
    /// All of them.
    pub const ALL: Most = Most::of(usize::MAX);

    /// So many documents, with any number of keys.
    pub const fn of(documents: usize) -> Most {
        Most {
            documents,
            are_keys_limited: false,
        }
    }
}

/// Reads the documents that `selection` selects, at most `most` of them. `kept` gets the top-level fields that keys and routes are made of, of
/// each document of the first reply.
///
/// # Errors
/// [`Failure::Refused`], and the transaction is aborted, if their keys take too much memory.
pub async fn read(
    protected: &Protected,
    selection: &Selection<'_>,
    most: Most,
    kept: Option<&mut Vec<Vec<u8>>>,
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<Vec<DocumentKeys>, Failure> {
    let command = find_command(protected, selection, most.documents)?;
    let database = &protected.namespace.database;
    let mut reply = transaction.run(upstream, database, command, None).await?;
    if let Some(kept) = kept {
        let documents = cursor::batch(Doc::new(&reply)?)?.into_iter();
        kept.extend(documents.map(|document| document.bytes().to_vec()));
    }
    let collection = protected.namespace.collection.as_bytes();
    let (mut documents, mut count) = (Vec::new(), KeyCount::default());
    loop {
        let mut fits = true;
        for document in cursor::batch(Doc::new(&reply)?)? {
            let document = DocumentKeys::of(protected, document)?;
            // The second one shows that there are more than one.
            fits = count.add(&document) || !most.are_keys_limited || documents.is_empty();
            documents.push(document);
            if !fits {
                break;
            }
            if documents.len() > 1 && count.memory > KEY_MEMORY_MAX {
                transaction.abort(upstream).await?;
                return Err(Failure::Refused(WriteRefusal::TooManyKeys {
                    namespace: protected.namespace.clone(),
                    bytes_max: KEY_MEMORY_MAX,
                }));
            }
        }
        let Some(id) = cursor::more(Doc::new(&reply)?)? else {
            return Ok(documents);
        };
        if !fits {
            transaction
                .run(upstream, database, cursor::kill(collection, id), None)
                .await?;
            return Ok(documents);
        }
        let more = cursor::get_more(collection, id);
        reply = transaction.run(upstream, database, more, None).await?;
    }
}

/// Reads the documents with these `_id`s, given as elements, that meet `selection`; in as many commands as needed. The query of
/// `selection` has no condition on `_id`.
pub async fn read_these(
    protected: &Protected,
    ids: &[&[u8]],
    selection: Selection<'_>,
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<Vec<DocumentKeys>, Failure> {
    let mut documents: Vec<DocumentKeys> = Vec::new();
    let mut rest = ids;
    while !rest.is_empty() {
        let (these, others) = rest.split_at(in_one_query(rest.iter().copied()));
        rest = others;
        let mut query = Builder::from_document(selection.query.unwrap_or(Doc::empty()).bytes());
        append_ids(&mut query, these.iter().copied())?;
        let query = query.finish();
        let selection = Selection {
            query: Some(Doc::new(&query)?),
            ..selection
        };
        documents.extend(read(protected, &selection, Most::ALL, None, transaction, upstream).await?);
    }
    if ids.len() > in_one_query(ids.iter().copied()) {
        // Two of them may be equal, as 1 and 1.0 are.
        let mut seen = HashSet::new();
        documents.retain(|document| {
            let (id, route) = document.place();
            seen.insert((id.to_vec(), route.map(<[u8]>::to_vec)))
        });
    }
    Ok(documents)
}

/// How many of these `_id`s one query can name, at least one, with room for its other conditions.
pub fn in_one_query<'i>(ids: impl Iterator<Item = &'i [u8]>) -> usize {
    let mut bytes = 0;
    // In an array each `_id` has a number as its name.
    let fits = |id: &&[u8]| {
        bytes += id.len() + 8;
        bytes <= IDS_BYTES_MAX
    };
    ids.take_while(fits).count().max(1)
}

/// Reads the first document that `selection` selects, outside any transaction. If the server refuses, returns the server's
/// reply.
pub async fn read_outside(
    op: &mut WriteOp<'_>,
    selection: &Selection<'_>,
) -> Result<Result<Option<DocumentAsRead>, Vec<u8>>, ForwardError> {
    // Each shard has one document with an `_id`, so the others cost no search.
    let names_id = equality(selection.query.unwrap_or(Doc::empty()), "_id")?.is_some();
    let selection = Selection {
        is_single: !names_id,
        ..*selection
    };
    let mut command = find_command(op.protected, &selection, usize::MAX)?;
    command.boolean("singleBatch", true);
    // The state that a write sees, whatever the cluster's default for reads: a majority may not have the latest state yet.
    append_read_concern(&mut command, b"local");
    let documents = match first_batch(op, command).await? {
        Ok(documents) => documents,
        Err(refused) => return Ok(Err(refused)),
    };
    let keys = documents
        .iter()
        .map(|document| DocumentKeys::of(op.protected, Doc::new(document)?));
    let mut keys = keys.collect::<Result<Vec<_>, Malformed>>()?.into_iter();
    let Some(first) = keys.next() else {
        return Ok(Ok(None));
    };
    Ok(Ok(documents.into_iter().next().map(|document| DocumentAsRead {
        is_one_of_several: keys.any(|other| other.is_found_at_place_of(&first)),
        document_keys: first,
        document,
    })))
}

/// Reads the documents that `query` matches, outside any transaction. Returns none if the server refuses, if one reply can't hold them, or if
/// their keys are too large: all documents with one `_id` must be seen.
pub async fn read_several_outside(op: &mut WriteOp<'_>, query: Doc<'_>) -> Result<Vec<DocumentAsRead>, ForwardError> {
    let protected = op.protected;
    let selection = Selection {
        query: Some(query),
        options: [None, None, None, None, op.command.body.get("maxTimeMS")?],
        ..Selection::default()
    };
    let mut command = find_command(protected, &selection, usize::MAX)?;
    command.int32("batchSize", SEVERAL_MAX);
    // The state that a write sees, as in `read_outside`.
    append_read_concern(&mut command, b"local");
    let reply = run_outside(op, command).await?;
    let reply = Doc::new(&reply)?;
    if !is_ok(reply)? {
        return Ok(Vec::new());
    }
    if let Some(more) = cursor::more(reply)? {
        run_outside(op, cursor::kill(protected.namespace.collection.as_bytes(), more)).await?;
        return Ok(Vec::new());
    }
    let (mut documents, mut key_bytes) = (Vec::new(), 0);
    for document in cursor::batch(reply)? {
        let document_keys = DocumentKeys::of(protected, document)?;
        key_bytes += document_keys.key_bytes();
        if key_bytes > KEY_BYTES_MAX {
            return Ok(Vec::new());
        }
        documents.push(DocumentAsRead {
            document_keys,
            document: document.bytes().to_vec(),
            is_one_of_several: false,
        });
    }
    Ok(documents)
}

/// The keys that the document of `before` holds after a majority has the writes that `reply` reported. Returns `None` if the
/// document isn't there, or isn't the only one there. If the server refuses to read it, returns the server's reply.
pub async fn read_after(
    op: &mut WriteOp<'_>,
    before: &DocumentKeys,
    reply: Doc<'_>,
) -> Result<Result<Option<Vec<ConstrainedKey>>, Vec<u8>>, ForwardError> {
    let query = pin(Doc::empty(), &before.id, &before.owner)?;
    let selection = Selection {
        query: Some(Doc::new(&query)?),
        options: [None, None, None, None, op.command.body.get("maxTimeMS")?],
        ..Selection::default()
    };
    let mut command = find_command(op.protected, &selection, 2)?;
    command.boolean("singleBatch", true);
    command
        .open(ElementType::EmbeddedDocument, b"collation")
        .string("locale", b"simple")
        .close();
    command
        .open(ElementType::EmbeddedDocument, b"readConcern")
        .string("level", b"majority");
    if let Some(time) = reply.get("operationTime")? {
        command.append(time.kind, b"afterClusterTime", time.value);
    }
    command.close();
    Ok(match first_batch(op, command).await? {
        Ok(found) => match found.as_slice() {
            [document] => Ok(Some(keys_of(op.protected, Doc::new(document)?).keys)),
            _ => Ok(None),
        },
        Err(refused) => Err(refused),
    })
}

/// Runs a `find` outside any transaction that has one batch; returns its documents, or the reply that refuses it.
async fn first_batch(op: &mut WriteOp<'_>, command: Builder) -> Result<Result<Vec<Vec<u8>>, Vec<u8>>, ForwardError> {
    let reply = run_outside(op, command).await?;
    if !is_ok(Doc::new(&reply)?)? {
        return Ok(Err(reply));
    }
    let found = cursor::batch(Doc::new(&reply)?)?.into_iter();
    Ok(Ok(found.map(|document| document.bytes().to_vec()).collect()))
}

/// Runs a command outside any transaction, under the API version of the client's command; returns the reply's body.
async fn run_outside(op: &mut WriteOp<'_>, mut command: Builder) -> Result<Vec<u8>, ForwardError> {
    append_fields(&mut command, op.command.body, &API)?;
    command.string("$db", op.protected.namespace.database.as_bytes());
    Ok(op.upstream.run(&command.finish()).await?)
}

/// The `find` for the selected documents, with the fields that constraints need.
fn find_command(protected: &Protected, selection: &Selection<'_>, most: usize) -> Result<Builder, Malformed> {
    let mut command = Builder::new();
    command.string("find", protected.namespace.collection.as_bytes());
    if let Some(query) = selection.query {
        command.document("filter", query);
    }
    for option in selection.options.iter().flatten() {
        if option.name != b"let" {
            command.element(option);
        }
    }
    append_variables(&mut command, selection)?;
    append_projection(&mut command, protected);
    match i32::try_from(most) {
        _ if selection.is_single => command.int32("limit", 1),
        Ok(most) => command.int32("limit", most),
        Err(_) => &mut command,
    };
    Ok(command)
}

/// Appends the variables that the query may use: those of the command, and a statement's constants. The server lets a constant
/// hide a variable of the same name.
fn append_variables(command: &mut Builder, selection: &Selection<'_>) -> Result<(), Malformed> {
    let variables = selection.options.iter().flatten().find(|option| option.name == b"let");
    let Some(constants) = selection.constants else {
        variables.map(|variables| command.element(variables));
        return Ok(());
    };
    command.open(ElementType::EmbeddedDocument, b"let");
    let variables = variables.map(Element::as_document).transpose()?.flatten();
    let hidden = constants
        .elements()
        .map(|constant| constant.map(|constant| constant.name));
    let hidden: HashSet<&[u8]> = hidden.collect::<Result<_, _>>()?;
    for variable in variables.into_iter().flat_map(Doc::elements) {
        let variable = variable?;
        if !hidden.contains(variable.name) {
            command.element(&variable);
        }
    }
    for constant in constants.elements() {
        let constant = constant?;
        // The server evaluates a variable's value, but not a constant's.
        command
            .open(ElementType::EmbeddedDocument, constant.name)
            .append(constant.kind, b"$literal", constant.value)
            .close();
    }
    command.close();
    Ok(())
}

/// `query`, as long as the values that keys under these constraints are made of are the same as in `document`. Those at `operands`
/// must also have the same types.
pub fn with_same_keys<'p>(
    constraints: impl Iterator<Item = &'p ProxyCollection>,
    operands: &[&str],
    query: Doc<'_>,
    document: Doc<'_>,
) -> Result<Vec<u8>, Malformed> {
    let (mut paths, mut type_tests) = (Vec::new(), Vec::new());
    for proxy in constraints {
        paths.extend(proxy.constraint.paths());
        type_tests.extend(proxy.constraint.type_tests(document)?);
    }
    paths.extend(operands);
    for path in operands {
        type_tests.extend(same_type(path, document)?);
    }
    let query = unchanged(query, document, &paths)?;
    of_same_types(Doc::new(&query)?, &type_tests)
}

/// The documents with these `_id`s, as a query.
pub fn by_ids<'i>(ids: impl Iterator<Item = &'i [u8]>) -> Result<Vec<u8>, Malformed> {
    let mut query = Builder::new();
    append_ids(&mut query, ids)?;
    Ok(query.finish())
}

fn append_ids<'i>(query: &mut Builder, ids: impl Iterator<Item = &'i [u8]>) -> Result<(), Malformed> {
    query
        .open(ElementType::EmbeddedDocument, b"_id")
        .open(ElementType::Array, b"$in");
    for (index, id) in ids.enumerate() {
        if let Some(id) = Doc::new(id)?.get("_id")? {
            query.append(id.kind, index.to_string().as_bytes(), id.value);
        }
    }
    query.close().close();
    Ok(())
}

/// The top-level fields that keys and routes are made of, and one that no document has. So the server reads each document to its end, and it
/// shows if one of the fields comes twice.
fn append_projection(command: &mut Builder, protected: &Protected) {
    let paths = protected.paths().chain(["_id"]);
    let mut roots: Vec<&str> = paths.map(root_of).collect();
    roots.sort_unstable();
    roots.dedup();
    command.open(ElementType::EmbeddedDocument, b"projection");
    for root in roots {
        command.int32(root, 1);
    }
    command.int32(ABSENT_FIELD.as_str(), 1);
    command.close();
}
