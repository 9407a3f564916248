//! Checks whether a command has the shape that drivers send.
//!
//! A command of another shape has unknown fields, fields given twice, or values of
//! an unexpected type. Keyward first probes whether the server refuses such a command.

use std::mem::replace;

use bson::spec::ElementType;

use super::statement::StatementKind;
use crate::raw::{Doc, Element, Malformed};
use crate::wire::OpMsg;

/// The values that a field of a usual command may hold.
#[derive(Clone, Copy)]
enum Holds {
    Text,
    Boolean,
    True,
    False,
    /// A boolean, or a number that the server accepts as one: not NaN.
    Flag,
    Number,
    Int,
    Long,
    Document,
    Documents,
    Ints,
    DocumentOrDocuments,
    DocumentOrText,
    /// Zero or one.
    Limit,
    /// The only existing version.
    ApiVersion,
    /// A session's id in the drivers' form.
    Session,
    WriteConcern,
    /// One of the modes, and nothing that may contradict it.
    ReadPreference,
    /// A cluster time as servers state it, with its signature.
    ClusterTime,
    Anything,
}

/// The most members of a replica set: the server refuses a larger `w`.
const MEMBERS_MAX: i64 = 50;

/// The modes of a read preference.
const MODES: [&str; 5] = [
    "primary",
    "primaryPreferred",
    "secondary",
    "secondaryPreferred",
    "nearest",
];
/// The bytes of a cluster time's signature (SHA-1).
const HASH_BYTES: usize = 20;

type Fields = &'static [(&'static str, Holds)];

/// The fields that any command may carry: session, concerns and so on.
const CIRCUMSTANCES: Fields = &[
    ("$db", Holds::Text),
    ("lsid", Holds::Session),
    ("txnNumber", Holds::Long),
    ("autocommit", Holds::False),
    ("startTransaction", Holds::True),
    ("writeConcern", Holds::WriteConcern),
    ("readConcern", Holds::Document),
    ("$readPreference", Holds::ReadPreference),
    ("$clusterTime", Holds::ClusterTime),
    ("maxTimeMS", Holds::Number),
    ("apiVersion", Holds::ApiVersion),
    ("apiStrict", Holds::Boolean),
    ("apiDeprecationErrors", Holds::Boolean),
    ("comment", Holds::Anything),
];

/// An `insert` has all of these but the last.
const OF_A_BATCH: Fields = &[
    ("ordered", Holds::Boolean),
    ("bypassDocumentValidation", Holds::Flag),
    ("stmtId", Holds::Int),
    ("stmtIds", Holds::Ints),
    ("let", Holds::Document),
];

const OF_FIND_AND_MODIFY: Fields = &[
    ("query", Holds::Document),
    ("update", Holds::DocumentOrDocuments),
    ("remove", Holds::Flag),
    ("new", Holds::Flag),
    ("upsert", Holds::Flag),
    ("fields", Holds::Document),
    ("sort", Holds::Document),
    ("hint", Holds::DocumentOrText),
    ("collation", Holds::Document),
    ("arrayFilters", Holds::Documents),
    ("let", Holds::Document),
    ("bypassDocumentValidation", Holds::Flag),
    ("stmtId", Holds::Int),
];

/// Servers before 8.0 refuse `sort`, with the whole batch. So Keyward asks about it.
const OF_AN_UPDATE: Fields = &[
    ("q", Holds::Document),
    ("u", Holds::DocumentOrDocuments),
    ("c", Holds::Document),
    ("multi", Holds::Flag),
    ("upsert", Holds::Flag),
    ("upsertSupplied", Holds::Flag),
    ("arrayFilters", Holds::Documents),
    ("collation", Holds::Document),
    ("hint", Holds::DocumentOrText),
];

const OF_A_DELETE: Fields = &[
    ("q", Holds::Document),
    ("limit", Holds::Limit),
    ("collation", Holds::Document),
    ("hint", Holds::DocumentOrText),
];

/// A write command, by the form of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An `insert`.
    Insert,
    /// A command of statements that change documents.
    Changes(StatementKind),
}

impl Form {
    /// The command's name.
    pub fn name(self) -> &'static str {
        match self {
            Form::Insert => "insert",
            Form::Changes(StatementKind::Update) => "update",
            Form::Changes(StatementKind::Delete) => "delete",
            Form::Changes(StatementKind::FindAndModify) => "findAndModify",
        }
    }

    /// The name of the batch; `None` if the command itself is the statement.
    pub fn list(self) -> Option<&'static str> {
        match self {
            Form::Insert => Some("documents"),
            Form::Changes(kind) => kind.list(),
        }
    }

    /// Whether the command itself has a field of this name.
    pub fn has_field(self, name: &[u8]) -> bool {
        self.of_command().iter().any(|(own, _)| name == own.as_bytes())
    }

    fn of_command(self) -> Fields {
        match self {
            Form::Insert => &OF_A_BATCH[..OF_A_BATCH.len() - 1],
            Form::Changes(StatementKind::FindAndModify) => OF_FIND_AND_MODIFY,
            Form::Changes(StatementKind::Update | StatementKind::Delete) => OF_A_BATCH,
        }
    }

    /// The fields of a statement, and those that it must have.
    fn of_statement(self) -> Option<(Fields, &'static [&'static str])> {
        match self {
            Form::Changes(StatementKind::Update) => Some((OF_AN_UPDATE, &["q", "u"])),
            Form::Changes(StatementKind::Delete) => Some((OF_A_DELETE, &["q", "limit"])),
            Form::Insert | Form::Changes(StatementKind::FindAndModify) => None,
        }
    }

    /// Whether its required batch is missing.
    pub fn lacks_its_batch(self, message: &OpMsg<'_>) -> Result<bool, Malformed> {
        match self.list() {
            Some(list) => Ok(message.documents(list)?.is_none()),
            None => Ok(false),
        }
    }

    /// Whether a driver may have sent it.
    pub fn has_driver_shape(self, message: &OpMsg<'_>) -> Result<bool, Malformed> {
        let list = self.list();
        let mut sequences = message.sequences();
        if sequences.any(|sequence| list.is_none_or(|list| sequence.name != list.as_bytes())) {
            return Ok(false);
        }
        if self.lacks_its_batch(message)? {
            return Ok(false);
        }
        let is_list = |field: &Element<'_>| list.is_some_and(|list| field.name == list.as_bytes());
        let (mut known, mut has_list) = (FoundFields::default(), message.sequences().next().is_some());
        for (position, field) in message.body.elements().enumerate() {
            let field = field?;
            let has_driver_shape = match position {
                0 => field.kind == ElementType::String,
                _ if is_list(&field) => !replace(&mut has_list, true) && is_of_documents(&field)?,
                _ => known.holds(&field, self.of_command(), 0)? || known.holds(&field, CIRCUMSTANCES, 16)?,
            };
            if !has_driver_shape {
                return Ok(false);
            }
        }
        let has = |name| known.has(name, CIRCUMSTANCES, 16);
        let lacks_something = has("txnNumber") && !has("lsid")
            || has("autocommit") && !has("txnNumber")
            || has("startTransaction") && !has("autocommit")
            || has("readConcern") && !has("startTransaction");
        if lacks_something {
            return Ok(false);
        }
        let Some((fields, required)) = self.of_statement() else {
            return Ok(true);
        };
        let Some(batch) = list.and_then(|list| message.documents(list).transpose()).transpose()? else {
            return Ok(false);
        };
        for statement in batch.iter()? {
            let Ok(statement) = statement else { return Ok(false) };
            let mut known = FoundFields::default();
            for field in statement.elements() {
                if !known.holds(&field?, fields, 0)? {
                    return Ok(false);
                }
            }
            for name in required {
                if statement.get(name)?.is_none() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The fields of one document that were found, a bit for each.
#[derive(Default)]
struct FoundFields(u32);

impl FoundFields {
    /// Whether `field` is one of `fields`, occurs for the first time and holds an expected value. The first of `fields` has bit
    /// `first_bit`.
    fn holds(&mut self, field: &Element<'_>, fields: Fields, first_bit: u32) -> Result<bool, Malformed> {
        let bits = first_bit..;
        let Some((bit, (_, holds))) = bits.zip(fields).find(|(_, (name, _))| field.name == name.as_bytes()) else {
            return Ok(false);
        };
        let is_first = self.0 & 1 << bit == 0;
        self.0 |= 1 << bit;
        Ok(is_first && holds.fits(field)?)
    }

    /// Whether the one of `fields` with this name was found.
    fn has(&self, name: &str, fields: Fields, first_bit: u32) -> bool {
        let mut bits = (first_bit..).zip(fields);
        bits.any(|(bit, (field, _))| *field == name && self.0 & 1 << bit != 0)
    }
}

/// Whether it holds a `txnNumber` in the drivers' form.
pub fn is_transaction_number(field: &Element<'_>) -> bool {
    field.kind == ElementType::Int64 && field.as_whole_number() >= Some(0)
}

impl Holds {
    fn fits(self, field: &Element<'_>) -> Result<bool, Malformed> {
        let kind = field.kind;
        Ok(match self {
            Holds::Text => kind == ElementType::String,
            Holds::Boolean => kind == ElementType::Boolean,
            Holds::True => kind == ElementType::Boolean && field.is_truthy(),
            Holds::False => kind == ElementType::Boolean && !field.is_truthy(),
            Holds::Flag => kind == ElementType::Boolean || is_number(kind) && !is_nan(field),
            Holds::Number => is_number(kind),
            Holds::Int => kind == ElementType::Int32,
            Holds::Long => is_transaction_number(field),
            Holds::Document => kind == ElementType::EmbeddedDocument,
            Holds::Documents => is_of_documents(field)?,
            Holds::Ints => match field.as_document_or_array()? {
                Some(numbers) if kind == ElementType::Array => {
                    numbers.all(|number| Ok(number.kind == ElementType::Int32))?
                }
                _ => false,
            },
            Holds::DocumentOrDocuments => kind == ElementType::EmbeddedDocument || is_of_documents(field)?,
            Holds::DocumentOrText => matches!(kind, ElementType::EmbeddedDocument | ElementType::String),
            Holds::Limit => is_number(kind) && matches!(field.as_whole_number(), Some(0 | 1)),
            Holds::ApiVersion => field.as_str() == Some("1"),
            Holds::Session => of_document(field, is_session)?,
            Holds::WriteConcern => of_document(field, is_write_concern)?,
            Holds::ReadPreference => of_document(field, is_read_preference)?,
            Holds::ClusterTime => of_document(field, is_cluster_time)?,
            Holds::Anything => true,
        })
    }
}

/// Whether it holds a document that `fits`.
fn of_document(field: &Element<'_>, fits: fn(Doc<'_>) -> Result<bool, Malformed>) -> Result<bool, Malformed> {
    field.as_document()?.map_or(Ok(false), fits)
}

fn is_session(session: Doc<'_>) -> Result<bool, Malformed> {
    let is_known = session.all(|part| Ok(matches!(part.name, b"id" | b"uid") && part.kind == ElementType::Binary))?;
    let id = session.get("id")?;
    Ok(is_known && id.is_some_and(|id| id.value.len() == 21 && id.value[4] == 4))
}

fn is_write_concern(concern: Doc<'_>) -> Result<bool, Malformed> {
    concern.all(|part| {
        let number = part.as_whole_number();
        Ok(match part.name {
            b"w" => part.kind == ElementType::String || number.is_some_and(|w| (0..=MEMBERS_MAX).contains(&w)),
            b"j" => part.kind == ElementType::Boolean,
            b"wtimeout" => number.is_some_and(|wait| i32::try_from(wait).is_ok()),
            _ => false,
        })
    })
}

fn is_read_preference(preference: Doc<'_>) -> Result<bool, Malformed> {
    let is_mode = |part: &Element<'_>| part.as_str().is_some_and(|mode| MODES.contains(&mode));
    Ok(!preference.is_empty() && preference.all(|part| Ok(part.name == b"mode" && is_mode(part)))?)
}

fn is_cluster_time(time: Doc<'_>) -> Result<bool, Malformed> {
    let (mut has_time, mut has_signature) = (false, false);
    let is_known = time.all(|part| {
        Ok(match part.name {
            b"clusterTime" => !replace(&mut has_time, true) && part.kind == ElementType::Timestamp,
            b"signature" => !replace(&mut has_signature, true) && of_document(part, is_signature)?,
            _ => false,
        })
    })?;
    Ok(is_known && has_time && has_signature)
}

/// Whether it is a signature of a cluster time, in the form that servers send. Only a server can check it.
fn is_signature(signature: Doc<'_>) -> Result<bool, Malformed> {
    let (mut has_hash, mut has_key) = (false, false);
    let is_known = signature.all(|part| {
        Ok(match part.name {
            // int32 length, subtype, the bytes.
            b"hash" => {
                !replace(&mut has_hash, true)
                    && part.kind == ElementType::Binary
                    && part.value.len() == 5 + HASH_BYTES
                    && part.value[4] == 0
            }
            // Without access control it is 0. Drivers whose language has one type of number send that as an int32.
            b"keyId" => !replace(&mut has_key, true) && matches!(part.kind, ElementType::Int32 | ElementType::Int64),
            _ => false,
        })
    })?;
    Ok(is_known && has_hash && has_key)
}

/// Whether it is an array of documents whose elements are numbered in order; the server accepts no other array as a batch.
pub fn is_of_documents(field: &Element<'_>) -> Result<bool, Malformed> {
    let Some(documents) = field
        .as_document_or_array()?
        .filter(|_| field.kind == ElementType::Array)
    else {
        return Ok(false);
    };
    let mut position = 0_usize;
    documents.all(|document| {
        let number = std::str::from_utf8(document.name)
            .ok()
            .and_then(|name| name.parse().ok());
        let is_next = number == Some(position);
        position += 1;
        Ok(is_next && document.kind == ElementType::EmbeddedDocument)
    })
}

fn is_nan(field: &Element<'_>) -> bool {
    let bytes = field.value.try_into();
    field.kind == ElementType::Double && bytes.is_ok_and(|bytes| f64::from_le_bytes(bytes).is_nan())
}

fn is_number(kind: ElementType) -> bool {
    matches!(kind, ElementType::Int32 | ElementType::Int64 | ElementType::Double)
}

#[cfg(test)]
mod tests;
