//! Recognises reads by a unique field (`find`, `count`, `distinct`, `aggregate`, and `explain` of one of these), and restricts
//! them to the owner.
//!
//! Each has a list of fields with which the reply stays the same. A field that isn't in the list keeps the command as it is: a
//! hint, a transaction, a snapshot, a read preference.

use bson::spec::ElementType;

use super::{AskedFor, pinned};
use crate::catalog::Protected;
use crate::classify::Target;
use crate::proxy_collection::Owner;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::wire::OpMsg;

/// Fields that any of the commands may have.
const GENERAL: [&[u8]; 11] = [
    b"$db",
    b"lsid",
    b"$clusterTime",
    b"$readPreference",
    b"readConcern",
    b"maxTimeMS",
    b"comment",
    b"collation",
    b"apiVersion",
    b"apiStrict",
    b"apiDeprecationErrors",
];

/// Stages that give nothing if they get nothing. So a result shows that the first `$match` has found a document.
const STAGES: [&[u8]; 13] = [
    b"$match",
    b"$project",
    b"$addFields",
    b"$set",
    b"$unset",
    b"$sort",
    b"$limit",
    b"$skip",
    b"$group",
    b"$count",
    b"$unwind",
    b"$replaceRoot",
    b"$replaceWith",
];

/// The kind of a command that reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadKind {
    Find,
    Count,
    Distinct,
    Aggregate,
}

/// A command that reads the document of one key.
#[derive(Debug)]
pub struct ReadByKey<'m> {
    /// The key.
    pub asked: AskedFor,
    /// Whether the client wants the plan, not the documents.
    pub is_explained: bool,
    kind: ReadKind,
    body: Doc<'m>,
    /// The command itself: the body, or what the body explains.
    read: Doc<'m>,
    query: Doc<'m>,
}

/// The collection that a command with this first field reads, if it may be routed.
pub fn read_target<'m>(database: &'m [u8], first: &Element<'m>) -> Option<Target<'m>> {
    let named = match first.name {
        b"explain" => first.as_document_or_array().ok()??.elements().next()?.ok()?,
        _ => *first,
    };
    ReadKind::of(named.name)?;
    let collection = named.as_string_bytes().filter(|_| named.kind == ElementType::String)?;
    Some(Target { database, collection })
}

impl ReadKind {
    fn of(name: &[u8]) -> Option<ReadKind> {
        Some(match name {
            b"find" => ReadKind::Find,
            b"count" => ReadKind::Count,
            b"distinct" => ReadKind::Distinct,
            b"aggregate" => ReadKind::Aggregate,
            _ => return None,
        })
    }

    /// The fields that only this kind has. The value says whether the reply stays the same.
    fn allows(self, field: &Element<'_>) -> Result<bool, Malformed> {
        let is_number = |least: i64| field.as_whole_number().is_some_and(|number| number >= least);
        Ok(match (self, field.name) {
            (ReadKind::Find, b"find" | b"filter" | b"let" | b"allowDiskUse") => true,
            (ReadKind::Find, b"singleBatch") => field.kind == ElementType::Boolean,
            (ReadKind::Find, b"sort") => is_plain_sort(field)?,
            (ReadKind::Find, b"projection") => is_plain_projection(field)?,
            (ReadKind::Find, b"limit") => is_number(0),
            // An empty first batch wouldn't show whether there is a document.
            (ReadKind::Find, b"batchSize") => is_number(1),
            (ReadKind::Count, b"count" | b"query") => true,
            (ReadKind::Count, b"limit") => is_number(0),
            (ReadKind::Distinct, b"distinct" | b"key" | b"query") => true,
            (ReadKind::Aggregate, b"aggregate" | b"let" | b"allowDiskUse") => true,
            (ReadKind::Aggregate, b"pipeline") => is_plain_pipeline(field)?,
            (ReadKind::Aggregate, b"cursor") => is_plain_cursor(field)?,
            _ => false,
        })
    }

    fn query(self, read: Doc<'_>) -> Result<Option<Doc<'_>>, Malformed> {
        let query = match self {
            ReadKind::Find => read.get("filter")?,
            ReadKind::Count | ReadKind::Distinct => read.get("query")?,
            ReadKind::Aggregate => {
                let first = read.nested("pipeline")?.and_then(|stages| stages.elements().next());
                let stage = first
                    .transpose()?
                    .map(|first| first.as_document_or_array())
                    .transpose()?;
                stage.flatten().map(|stage| stage.get("$match")).transpose()?.flatten()
            }
        };
        Ok(query.map(|query| query.as_document()).transpose()?.flatten())
    }
}

impl<'m> ReadByKey<'m> {
    /// The command as a read by a key, if its reply stays the same when it is routed.
    pub fn of(message: &OpMsg<'m>, protected: &Protected) -> Option<ReadByKey<'m>> {
        // The server refuses such a message, or reads the pipeline from there.
        if message.sequences().next().is_some() {
            return None;
        }
        Self::of_body(message.body, protected).ok()?
    }

    fn of_body(body: Doc<'m>, protected: &Protected) -> Result<Option<ReadByKey<'m>>, Malformed> {
        let Some(first) = body.elements().next().transpose()? else {
            return Ok(None);
        };
        let is_explained = first.name == b"explain";
        let read = match is_explained {
            true => first.as_document_or_array()?.unwrap_or(Doc::empty()),
            false => body,
        };
        let named = read.elements().next().transpose()?;
        let Some(kind) = named.and_then(|named| ReadKind::of(named.name)) else {
            return Ok(None);
        };
        if is_explained && !are_allowed(body, |field| Ok(matches!(field.name, b"explain" | b"verbosity")))?
            || !are_allowed(read, |field| kind.allows(field))?
        {
            return Ok(None);
        }
        let Some(query) = kind.query(read)? else {
            return Ok(None);
        };
        Ok(AskedFor::by(query, protected).map(|asked| ReadByKey {
            asked,
            is_explained,
            kind,
            body,
            read,
            query,
        }))
    }

    /// The whole command, for the document `owner` only. `None` if the reservation doesn't have the present shard key.
    pub fn pinned(&self, owner: &Owner, protected: &Protected) -> Result<Option<Vec<u8>>, Malformed> {
        let Some(query) = pinned(self.query, owner, protected)? else {
            return Ok(None);
        };
        let mut command = Builder::new();
        if !self.is_explained {
            self.append_read(&mut command, &query)?;
            return Ok(Some(command.finish()));
        }
        for field in self.body.elements() {
            let field = field?;
            if field.name == b"explain" {
                command.open(ElementType::EmbeddedDocument, b"explain");
                self.append_read(&mut command, &query)?;
                command.close();
            } else {
                command.element(&field);
            }
        }
        Ok(Some(command.finish()))
    }

    fn append_read(&self, command: &mut Builder, query: &[u8]) -> Result<(), Malformed> {
        for field in self.read.elements() {
            let field = field?;
            match (self.kind, field.name) {
                (ReadKind::Find, b"filter") | (ReadKind::Count | ReadKind::Distinct, b"query") => {
                    command.append(ElementType::EmbeddedDocument, field.name, query);
                }
                (ReadKind::Aggregate, b"pipeline") => {
                    command.open(ElementType::Array, b"pipeline");
                    for (position, stage) in field
                        .as_document_or_array()?
                        .into_iter()
                        .flat_map(Doc::elements)
                        .enumerate()
                    {
                        if position == 0 {
                            command
                                .open(ElementType::EmbeddedDocument, b"0")
                                .append(ElementType::EmbeddedDocument, b"$match", query)
                                .close();
                        } else {
                            command.element(&stage?);
                        }
                    }
                    command.close();
                }
                _ => {
                    command.element(&field);
                }
            }
        }
        Ok(())
    }
}

/// Whether each field of `body` occurs once and keeps the reply the same.
fn are_allowed<'a>(body: Doc<'a>, is_own: impl Fn(&Element<'a>) -> Result<bool, Malformed>) -> Result<bool, Malformed> {
    let mut names: Vec<&[u8]> = Vec::with_capacity(16);
    for field in body.elements() {
        let field = field?;
        let is_allowed = match field.name {
            b"readConcern" => is_plain_concern(&field)?,
            b"$readPreference" => is_primary(&field)?,
            b"collation" => is_simple(&field)?,
            name if GENERAL.contains(&name) => true,
            _ => is_own(&field)?,
        };
        if !is_allowed || names.contains(&field.name) {
            return Ok(false);
        }
        names.push(field.name);
    }
    Ok(true)
}

/// Whether a read concern names no moment, and leaves out documents of moved chunks.
fn is_plain_concern(field: &Element<'_>) -> Result<bool, Malformed> {
    all_of(field, |part| match part.name {
        b"level" => matches!(part.as_str(), Some("local" | "majority" | "linearizable")),
        b"afterClusterTime" | b"provenance" => true,
        _ => false,
    })
}

/// A secondary may lag behind the primary that has the reservation.
fn is_primary(field: &Element<'_>) -> Result<bool, Malformed> {
    all_of(field, |part| part.name == b"mode" && part.as_str() == Some("primary"))
}

fn is_simple(field: &Element<'_>) -> Result<bool, Malformed> {
    let is_stated = field
        .as_document_or_array()?
        .is_some_and(|collation| !collation.is_empty());
    let is_simple = all_of(field, |part| part.name == b"locale" && part.as_str() == Some("simple"))?;
    Ok(is_stated && is_simple)
}

fn is_plain_sort(field: &Element<'_>) -> Result<bool, Malformed> {
    all_of(field, |part| {
        !part.name.starts_with(b"$") && part.as_whole_number().is_some()
    })
}

/// Operators that show something of the plan or of chance.
const OF_PLAN: [&[u8]; 3] = [b"$meta", b"$rand", b"$function"];

/// Whether a projection shows nothing of the plan, and no position that the query has matched.
fn is_plain_projection(field: &Element<'_>) -> Result<bool, Malformed> {
    let has_no_position = all_of(field, |part| !part.name.ends_with(b".$"))?;
    Ok(has_no_position && !Doc::new(field.value)?.mentions(&OF_PLAN)?)
}

fn is_plain_pipeline(field: &Element<'_>) -> Result<bool, Malformed> {
    let mut stages = field.as_document_or_array()?.unwrap_or(Doc::empty()).elements();
    let is_plain = stages.try_fold(true, |are_plain, stage| {
        let stage = stage?.as_document_or_array()?.unwrap_or(Doc::empty());
        let mut names = stage.elements();
        let is_plain = match names.next().transpose()? {
            Some(name) => STAGES.contains(&name.name) && names.next().is_none(),
            None => false,
        };
        Ok::<_, Malformed>(are_plain && is_plain && !stage.mentions(&OF_PLAN)?)
    })?;
    Ok(field.kind == ElementType::Array && is_plain)
}

fn is_plain_cursor(field: &Element<'_>) -> Result<bool, Malformed> {
    all_of(field, |part| {
        part.name == b"batchSize" && part.as_whole_number().is_some_and(|size| size > 0)
    })
}

/// Whether the field is a document all of whose parts pass.
fn all_of(field: &Element<'_>, passes: impl Fn(&Element<'_>) -> bool) -> Result<bool, Malformed> {
    match field.as_document()? {
        Some(document) => document.all(|part| Ok(passes(part))),
        None => Ok(false),
    }
}
