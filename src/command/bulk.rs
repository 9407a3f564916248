//! Reads a `bulkWrite`: each of its operations becomes a statement of an `insert`, `update` or `delete`.
//!
//! If the server would refuse the command's shape, Keyward refuses it with the server's code before it carries out any
//! operation.

use std::borrow::Cow;
use std::time::Duration;

use bson::spec::ElementType;

use super::batch::{
    BATCH_MAX, check_copies, check_numbers, copied_bytes, documents, is_ordered, is_unacknowledged, malformed,
    max_time, numbers, numbers_from,
};
use super::shape::Form;
use super::statement::StatementKind;
use crate::raw::{Builder, Doc, Element};
use crate::reply::{BulkFault, WriteRefusal};
use crate::wire::OpMsg;

/// The most bytes of entries that fit into a reply beside its errors.
const ENTRIES_BYTES_MAX: usize = 9 << 20;
/// The most bytes of an entry, without an upserted `_id`.
const ENTRY_BYTES: usize = 80;

/// A namespace that operations use.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The database.
    pub database: &'a [u8],
    /// The collection.
    pub collection: &'a [u8],
    /// The entry of `nsInfo`.
    pub entry: Doc<'a>,
}

/// One operation.
#[derive(Debug)]
pub struct BulkOperation<'a> {
    /// The form of a command of such operations.
    pub form: Form,
    /// The namespace, by position in `nsInfo`.
    pub namespace: usize,
    /// The document to insert, or the statement of an `update` or `delete`.
    pub statement: Cow<'a, [u8]>,
}

/// The command.
#[derive(Debug)]
pub struct BulkWrite<'a> {
    /// The body, which may contain `ops` and `nsInfo`.
    pub body: Doc<'a>,
    /// `nsInfo`.
    pub namespaces: Vec<Named<'a>>,
    /// `ops`.
    pub operations: Vec<BulkOperation<'a>>,
    /// Whether the command stops at its first failure.
    pub ordered: bool,
    /// Whether the reply lists only failures one by one.
    pub errors_only: bool,
    /// The client's own time limit.
    pub max_time: Option<Duration>,
    /// Whether the client asked for no acknowledgement (`w: 0`).
    pub unacknowledged: bool,
    /// The statements' numbers, if it is a retryable write.
    pub numbers: Option<Vec<i32>>,
    /// Whether it is part of a transaction.
    pub in_transaction: bool,
}

/// The fields of an entry of `nsInfo`.
const FIELDS_OF_NAMESPACE: [&[u8]; 4] = [
    b"ns",
    b"collectionUUID",
    b"encryptionInformation",
    b"isTimeseriesNamespace",
];

impl<'a> BulkWrite<'a> {
    /// Reads a command.
    ///
    /// # Errors
    /// [`WriteRefusal`] if the server would refuse its shape, its results might not fit into a reply, or its parts would take too many bytes.
    pub fn parse(message: &OpMsg<'a>) -> Result<Self, WriteRefusal> {
        let body = message.body;
        let field = |name| body.get(name).map_err(malformed);
        if field("$db")?.and_then(|db| db.as_string_bytes()) != Some(b"admin") {
            return Err(WriteRefusal::Bulk(BulkFault::NotAdmin));
        }
        if field("autocommit")?.is_some_and(|autocommit| autocommit.is_nothing()) {
            return Err(WriteRefusal::WrongType("autocommit"));
        }
        let namespaces = documents(message, "nsInfo", "bulkWrite.nsInfo")?;
        let namespaces: Vec<Named<'a>> = namespaces.into_iter().map(named).collect::<Result<_, _>>()?;
        let ops = documents(message, "ops", "bulkWrite.ops")?;
        if !(1..=BATCH_MAX).contains(&ops.len()) {
            return Err(WriteRefusal::BatchSize(ops.len()));
        }
        let mut operations = Vec::with_capacity(ops.len());
        for (position, op) in ops.iter().enumerate() {
            operations.push(operation(*op, position, namespaces.len())?);
        }
        let errors_only = field("errorsOnly")?.map(|field| flag(&field, "bulkWrite.errorsOnly"));
        let errors_only = errors_only.transpose()?.unwrap_or(false);
        if !errors_only && entries_bytes(&ops) > ENTRIES_BYTES_MAX {
            return Err(WriteRefusal::Bulk(BulkFault::TooLong));
        }
        let in_transaction = field("autocommit")?.is_some();
        let numbers = match field("txnNumber")? {
            Some(_) if !in_transaction => Some(statement_numbers(body, operations.len())?),
            _ => None,
        };
        check_numbers(numbers.as_deref().unwrap_or_default())?;
        let copied = copied_bytes(body, &["ops", "nsInfo"])?;
        // A command for operations also has the fields of their namespace's entry.
        let copies = operations
            .iter()
            .map(|operation| copied + namespaces[operation.namespace].entry.bytes().len());
        check_copies(copies.sum(), operations.len())?;
        Ok(BulkWrite {
            body,
            namespaces,
            ordered: field("ordered")?.is_none_or(is_ordered),
            errors_only,
            max_time: max_time(field("maxTimeMS")?)?,
            unacknowledged: is_unacknowledged(field("writeConcern")?)?,
            numbers,
            in_transaction,
            operations,
        })
    }

    /// The end of the run of operations that begins at `start`. A run has one kind and one namespace, and one command carries
    /// it out. If the reply must list each outcome, an update or delete forms its own run: its command only reports sums.
    pub fn end_of_run(&self, start: usize) -> usize {
        let first = &self.operations[start];
        if !self.errors_only && first.form != Form::Insert {
            return start + 1;
        }
        let same = self.operations[start..]
            .iter()
            .take_while(|other| other.form == first.form && other.namespace == first.namespace);
        start + same.count()
    }
}

fn missing(path: &str) -> WriteRefusal {
    WriteRefusal::MissingField(path.to_owned())
}

fn named(entry: Doc<'_>) -> Result<Named<'_>, WriteRefusal> {
    for field in entry.elements() {
        let field = field.map_err(malformed)?;
        // They go on in the operations' commands, where another field would count as the command's: `autocommit`, for example.
        if !FIELDS_OF_NAMESPACE.contains(&field.name) {
            return Err(unknown("nsInfo", field.name));
        }
    }
    let ns = entry.get("ns").map_err(malformed)?;
    let ns = ns.ok_or_else(|| missing("bulkWrite.nsInfo.ns"))?;
    let name = match ns.kind {
        ElementType::String | ElementType::Symbol => ns.as_string_bytes(),
        _ => None,
    };
    let name = name.ok_or(WriteRefusal::WrongType("bulkWrite.nsInfo.ns"))?;
    match name.iter().position(|byte| *byte == b'.') {
        Some(dot) if dot > 0 && dot + 1 < name.len() => Ok(Named {
            database: &name[..dot],
            collection: &name[dot + 1..],
            entry,
        }),
        _ => Err(WriteRefusal::Bulk(BulkFault::Namespace(
            String::from_utf8_lossy(name).into_owned(),
        ))),
    }
}

fn operation<'a>(op: Doc<'a>, position: usize, namespaces: usize) -> Result<BulkOperation<'a>, WriteRefusal> {
    let first = op.elements().next().transpose().map_err(malformed)?;
    let first = first.ok_or_else(|| missing("bulkWrite.ops.insert"))?;
    let form = match first.name {
        b"insert" => Form::Insert,
        b"update" => Form::Changes(StatementKind::Update),
        b"delete" => Form::Changes(StatementKind::Delete),
        name => return Err(unknown("ops", name)),
    };
    let index = first.as_whole_number().and_then(|index| usize::try_from(index).ok());
    let index = index.filter(|index| *index < namespaces);
    Ok(BulkOperation {
        form,
        namespace: index.ok_or(WriteRefusal::Bulk(BulkFault::NamespaceIndex(position)))?,
        statement: match form {
            Form::Insert => Cow::Borrowed(document_to_insert(op)?.bytes()),
            Form::Changes(StatementKind::Update) => Cow::Owned(update(op)?),
            Form::Changes(_) => Cow::Owned(delete(op)?),
        },
    })
}

fn document_to_insert(op: Doc<'_>) -> Result<Doc<'_>, WriteRefusal> {
    let mut document = None;
    for field in op.elements().skip(1) {
        let field = field.map_err(malformed)?;
        match field.name {
            b"document" => document = Some(embedded(&field, "bulkWrite.ops.document")?),
            name => return Err(unknown("insert", name)),
        }
    }
    document.ok_or_else(|| missing("bulkWrite.ops.document"))
}

/// The statement of an `update` command.
fn update(op: Doc<'_>) -> Result<Vec<u8>, WriteRefusal> {
    let mut statement = Builder::new();
    let (mut has_query, mut has_update) = (false, false);
    for field in op.elements().skip(1) {
        let field = field.map_err(malformed)?;
        match field.name {
            b"filter" => {
                has_query = true;
                statement.document("q", embedded(&field, "bulkWrite.ops.filter")?);
            }
            b"updateMods" => {
                has_update = true;
                statement.append(field.kind, b"u", field.value);
            }
            b"constants" => {
                statement.append(field.kind, b"c", field.value);
            }
            b"multi" | b"upsert" | b"upsertSupplied" | b"arrayFilters" | b"hint" | b"collation" | b"sort" => {
                statement.element(&field);
            }
            name => return Err(unknown("update", name)),
        }
    }
    match (has_query, has_update) {
        (false, _) => Err(missing("bulkWrite.ops.filter")),
        (_, false) => Err(missing("bulkWrite.ops.updateMods")),
        _ => Ok(statement.finish()),
    }
}

/// The statement of a `delete` command.
fn delete(op: Doc<'_>) -> Result<Vec<u8>, WriteRefusal> {
    let mut statement = Builder::new();
    let mut has_query = false;
    let mut limit = 1;
    for field in op.elements().skip(1) {
        let field = field.map_err(malformed)?;
        match field.name {
            b"filter" => {
                has_query = true;
                statement.document("q", embedded(&field, "bulkWrite.ops.filter")?);
            }
            b"multi" => limit = if flag(&field, "bulkWrite.ops.multi")? { 0 } else { 1 },
            b"hint" | b"collation" => {
                statement.element(&field);
            }
            name => return Err(unknown("delete", name)),
        }
    }
    statement.int32("limit", limit);
    match has_query {
        true => Ok(statement.finish()),
        false => Err(missing("bulkWrite.ops.filter")),
    }
}

fn embedded<'a>(field: &Element<'a>, path: &'static str) -> Result<Doc<'a>, WriteRefusal> {
    let document = field.as_document().map_err(malformed)?;
    document.ok_or(WriteRefusal::WrongType(path))
}

/// Whether an option is set that must be a boolean. To a server, null is none.
fn flag(field: &Element<'_>, path: &'static str) -> Result<bool, WriteRefusal> {
    match field.kind {
        ElementType::Boolean | ElementType::Null | ElementType::Undefined => Ok(field.is_truthy()),
        _ => Err(WriteRefusal::WrongType(path)),
    }
}

fn unknown(of: &str, name: &[u8]) -> WriteRefusal {
    let name = String::from_utf8_lossy(name);
    WriteRefusal::Bulk(BulkFault::UnknownField(format!("bulkWrite.{of}.{name}")))
}

fn statement_numbers(body: Doc<'_>, operations: usize) -> Result<Vec<i32>, WriteRefusal> {
    let all = body.get("stmtIds").map_err(malformed)?;
    let first = body.get("stmtId").map_err(malformed)?;
    match (all, first) {
        (Some(_), Some(_)) => Err(WriteRefusal::Bulk(BulkFault::TwoNumberings)),
        (Some(all), None) => {
            let numbers = numbers(&all)?;
            match numbers.len() == operations {
                true => Ok(numbers),
                false => Err(WriteRefusal::StatementNumbers {
                    numbers: numbers.len(),
                    statements: operations,
                }),
            }
        }
        (None, first) => {
            let first = match first {
                Some(first) => first.as_whole_number().and_then(|first| i32::try_from(first).ok()),
                None => Some(0),
            };
            let first = first.ok_or(WriteRefusal::WrongType("bulkWrite.stmtId"))?;
            Ok(numbers_from(first, operations))
        }
    }
}

/// The most bytes that a reply's entries take: an upserted `_id` is part of its operation.
fn entries_bytes(ops: &[Doc<'_>]) -> usize {
    let of_id = |op: &Doc<'_>| match op.get("upsert") {
        Ok(Some(upsert)) if upsert.is_truthy() => op.bytes().len(),
        _ => 0,
    };
    ops.iter().map(|op| ENTRY_BYTES + of_id(op)).sum()
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;
    use crate::wire::Draft;

    const COUNT: usize = 100_000;

    /// The number of operations of a command of [`COUNT`] deletes, with these fields beside them and in the entry of `nsInfo`.
    fn parse(beside: Document, of_entry: Document) -> Result<usize, WriteRefusal> {
        let mut entry = doc! { "ns": "db.users" };
        entry.extend(of_entry);
        let deletes = vec![doc! { "delete": 0, "filter": {} }; COUNT];
        let mut command = doc! { "bulkWrite": 1, "ops": deletes, "nsInfo": [entry], "$db": "admin" };
        command.extend(beside);
        let bytes = command.to_vec().unwrap();
        let frame = Draft::of_body(&bytes).frame(0, 0).unwrap().to_vec();
        let message = OpMsg::parse(&frame).unwrap();
        BulkWrite::parse(&message).map(|bulk| bulk.operations.len())
    }

    #[test]
    fn a_command_is_ordered_unless_it_says_otherwise() {
        for (value, expected) in [(bson::Bson::Null, true), (true.into(), true), (false.into(), false)] {
            let ops = [doc! { "delete": 0, "filter": {} }];
            let command = doc! {
                "bulkWrite": 1, "ops": ops.to_vec(), "nsInfo": [{ "ns": "db.users" }], "ordered": value, "$db": "admin",
            };
            let bytes = command.to_vec().unwrap();
            let frame = Draft::of_body(&bytes).frame(0, 0).unwrap().to_vec();
            let message = OpMsg::parse(&frame).unwrap();
            assert_eq!(BulkWrite::parse(&message).unwrap().ordered, expected, "{command}");
        }
    }

    /// Neither the operations nor their numbers are copied.
    #[test]
    fn the_fields_beside_many_operations_are_small() {
        let large = |bytes: usize| doc! { "v": "x".repeat(bytes) };
        let numbers: Vec<i32> = (0..100_000).collect();
        let small = doc! { "let": large(5_000), "stmtIds": numbers };
        assert_eq!(parse(small, doc! {}), Ok(COUNT));
        for (beside, of_entry) in [
            (doc! { "let": large(22_000) }, doc! {}),
            (doc! {}, doc! { "encryptionInformation": large(22_000) }),
        ] {
            let refused = parse(beside, of_entry);
            assert!(
                matches!(refused, Err(WriteRefusal::TooManyCopies { .. })),
                "{refused:?}"
            );
        }
    }
}
