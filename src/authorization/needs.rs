//! Lists the rights that a write needs, as the server's own commands check them.

use std::collections::HashSet;

use crate::classify::{Target, Write};
use crate::raw::{Doc, Malformed};
use crate::wire::OpMsg;

/// A set of the actions that writes and commands about indexes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Actions(u16);

impl Actions {
    /// Reads documents.
    pub const FIND: Actions = Actions(1);
    /// Inserts documents.
    pub const INSERT: Actions = Actions(2);
    /// Changes documents.
    pub const UPDATE: Actions = Actions(4);
    /// Deletes documents.
    pub const REMOVE: Actions = Actions(8);
    /// Leaves out the collection's validator.
    pub const BYPASS_VALIDATION: Actions = Actions(16);
    /// Drops the collection.
    pub const DROP_COLLECTION: Actions = Actions(32);
    /// Makes an index.
    pub const CREATE_INDEX: Actions = Actions(64);
    /// Drops an index.
    pub const DROP_INDEX: Actions = Actions(128);
    /// Changes an option of a collection or an index.
    pub const COLL_MOD: Actions = Actions(256);

    /// The action that the server calls `name`, or none if no write needs it.
    pub fn named(name: &[u8]) -> Actions {
        match name {
            b"find" => Actions::FIND,
            b"insert" => Actions::INSERT,
            b"update" => Actions::UPDATE,
            b"remove" => Actions::REMOVE,
            b"bypassDocumentValidation" => Actions::BYPASS_VALIDATION,
            b"dropCollection" => Actions::DROP_COLLECTION,
            b"createIndex" => Actions::CREATE_INDEX,
            b"dropIndex" => Actions::DROP_INDEX,
            b"collMod" => Actions::COLL_MOD,
            _ => Actions::default(),
        }
    }

    /// Both sets in one.
    pub fn and(self, other: Actions) -> Actions {
        Actions(self.0 | other.0)
    }

    /// Whether all of `other` are in it.
    pub fn contain(self, other: Actions) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The privileges that a write needs on one collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Need<'a> {
    pub database: &'a [u8],
    pub collection: &'a [u8],
    pub actions: Actions,
}

impl<'a> Need<'a> {
    /// All that `write` needs before anything is done for it. A drop needs nothing here: Keyward asks about each step before the
    /// drop, and the client gets the server's answer to the drop itself.
    pub fn of(write: &Write<'a>, message: &OpMsg<'a>) -> Result<Vec<Need<'a>>, Malformed> {
        let body = message.body;
        let (target, actions) = match write {
            Write::Insert(target) => (target, Actions::INSERT),
            Write::Update(target) => {
                let upserts = any(message, "updates", is_upsert)?;
                (target, with_insert(Actions::UPDATE, upserts))
            }
            Write::Delete(target) => (target, Actions::REMOVE),
            Write::FindAndModify(target) => {
                let writes = match body.is_set("remove")? {
                    true => Actions::REMOVE,
                    false => with_insert(Actions::UPDATE, is_upsert(body)?),
                };
                (target, writes.and(Actions::FIND))
            }
            Write::BulkWrite => return in_bulk(message),
            Write::Drop(_) | Write::ShardKeyChange | Write::DropDatabase { .. } => return Ok(Vec::new()),
        };
        Ok(vec![Need {
            database: target.database,
            collection: target.collection,
            actions: actions.and(bypass(body)?),
        }])
    }
}

/// The privileges that each kind of operation needs on its collection in `nsInfo`, one entry for each kind.
fn in_bulk<'a>(message: &OpMsg<'a>) -> Result<Vec<Need<'a>>, Malformed> {
    let bypass = bypass(message.body)?;
    let namespaces = documents(message, "nsInfo")?;
    let (mut needs, mut seen) = (Vec::new(), HashSet::new());
    let mut of_any = None;
    let mut need = |entry: Doc<'a>, actions: Actions| {
        if let Some(Target { database, collection }) = named(entry)? {
            let actions = actions.and(bypass);
            let need = Need {
                database,
                collection,
                actions,
            };
            if seen.insert(need) {
                needs.push(need);
            }
        }
        Ok::<_, Malformed>(())
    };
    for operation in documents(message, "ops")? {
        let Some(first) = operation.elements().next().transpose()? else {
            continue;
        };
        let actions = match first.name {
            b"insert" => Some(Actions::INSERT),
            b"update" => Some(with_insert(Actions::UPDATE, is_upsert(operation)?)),
            b"delete" => Some(Actions::REMOVE),
            _ => None,
        };
        let index = first.as_whole_number().and_then(|index| usize::try_from(index).ok());
        match (actions, index) {
            (Some(actions), Some(index)) => match namespaces.get(index) {
                Some(entry) => need(*entry, actions)?,
                None => continue,
            },
            // It may do anything to any of them.
            _ => of_any = Some(Actions::INSERT.and(Actions::UPDATE).and(Actions::REMOVE)),
        }
    }
    if let Some(actions) = of_any {
        namespaces.iter().try_for_each(|entry| need(*entry, actions))?;
    }
    Ok(needs)
}

/// The collection that an entry of `nsInfo` names.
fn named(entry: Doc<'_>) -> Result<Option<Target<'_>>, Malformed> {
    let namespace = entry.get("ns")?.and_then(|namespace| namespace.as_string_bytes());
    let dot = |text: &[u8]| text.iter().position(|byte| *byte == b'.');
    Ok(namespace.and_then(|text| {
        let dot = dot(text)?;
        Some(Target {
            database: &text[..dot],
            collection: &text[dot + 1..],
        })
    }))
}

fn any(message: &OpMsg<'_>, field: &str, is: impl Fn(Doc<'_>) -> Result<bool, Malformed>) -> Result<bool, Malformed> {
    for document in documents(message, field)? {
        if is(document)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The documents of a field, wherever in the message they are. The write path, or the server, refuses any other value.
fn documents<'a>(message: &OpMsg<'a>, field: &str) -> Result<Vec<Doc<'a>>, Malformed> {
    match message.documents(field)? {
        Some(batch) => Ok(batch.iter()?.filter_map(Result::ok).collect()),
        None => Ok(Vec::new()),
    }
}

fn with_insert(actions: Actions, upserts: bool) -> Actions {
    match upserts {
        true => actions.and(Actions::INSERT),
        false => actions,
    }
}

fn is_upsert(statement: Doc<'_>) -> Result<bool, Malformed> {
    statement.is_set("upsert")
}

fn bypass(body: Doc<'_>) -> Result<Actions, Malformed> {
    Ok(match body.is_set("bypassDocumentValidation")? {
        true => Actions::BYPASS_VALIDATION,
        false => Actions::default(),
    })
}
