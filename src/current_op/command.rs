//! Reads the commands that list or end operations from their messages, and writes their forms for the server.
//!
//! It does no I/O.

use bson::oid::ObjectId;
use bson::spec::ElementType;
use bson::{Document, doc};

use crate::command::running::is_about_running;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::server::cursor;

/// A command about operations, which Keyward serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationCommand {
    /// `currentOp`.
    List,
    /// An `aggregate` that begins with `$currentOp`.
    Aggregate,
    /// `killOp` of the build with this number.
    Kill(ObjectId),
}

/// The beginning of the `opid` of a build; the number of its `createIndexes` follows. A router's own `opid`s have the form `shard:number`.
const OPID_PREFIX: &str = "keyward:";

/// The `opid` of the build with this number.
pub fn opid_of(command: ObjectId) -> String {
    format!("{OPID_PREFIX}{command}")
}

/// The build that the `killOp` `body` names, if it names one.
pub fn killed_build(body: Doc<'_>) -> Result<Option<ObjectId>, Malformed> {
    let named = body.get("op")?.and_then(|op| op.as_str());
    let number = named.and_then(|name| name.strip_prefix(OPID_PREFIX));
    Ok(number.and_then(|number| ObjectId::parse_str(number).ok()))
}

impl OperationCommand {
    /// Whether the command `body` asks for the operations of all users.
    pub fn asks_for_all_users(self, body: Doc<'_>) -> Result<bool, Malformed> {
        match self {
            OperationCommand::List => Ok(!body.is_set("$ownOps")?),
            OperationCommand::Aggregate => {
                let stages = body.nested("pipeline")?.unwrap_or(Doc::empty());
                let all_users = stages.value_at("0.$currentOp.allUsers")?;
                Ok(all_users.is_some_and(|all| all.is_truthy()))
            }
            OperationCommand::Kill(_) => Ok(false),
        }
    }

    /// The `aggregate` for the server that lists the server's operations and then `own`, in the way of the command `body`.
    pub fn listing_also(self, own: &[Vec<u8>], body: Doc<'_>) -> Result<Vec<u8>, Malformed> {
        let stages = match self {
            OperationCommand::List => stages_of_command(body)?,
            _ => stages_of(body)?,
        };
        let mut command = Builder::new();
        let is_kept = |field: &Element<'_>| match self {
            OperationCommand::List => is_generic(field),
            _ => field.name != b"pipeline",
        };
        if self == OperationCommand::List {
            command.int32("aggregate", 1).document("cursor", Doc::empty());
        }
        // The name of an `aggregate` stays in front.
        command.elements_where(body, is_kept)?;
        let mut pipeline = Vec::new();
        for (position, stage) in stages.into_iter().enumerate() {
            pipeline.push(stage);
            if position == 0 {
                pipeline.extend(appending(own));
            }
        }
        command.documents("pipeline", &pipeline);
        Ok(command.finish())
    }

    /// The reply to the command, from the `answer` to its [`OperationCommand::listing_also`].
    pub fn reply(self, answer: Vec<u8>) -> Result<Vec<u8>, Malformed> {
        if self != OperationCommand::List {
            return Ok(answer);
        }
        let answer = Doc::new(&answer)?;
        let listed = cursor::batch(answer)?.into_iter().next();
        let listed = listed.map(|group| group.nested("inprog")).transpose()?.flatten();
        let mut reply = Builder::new();
        let operations = listed.unwrap_or(Doc::empty());
        reply.append(ElementType::Array, b"inprog", operations.bytes());
        reply.elements_where(answer, |field| field.name != b"cursor")?;
        Ok(reply.finish())
    }
}

/// The stages that a router makes of the `currentOp` `body`: its other fields are a filter.
fn stages_of_command(body: Doc<'_>) -> Result<Vec<Vec<u8>>, Malformed> {
    const OPTIONS: [&[u8]; 3] = [b"$all", b"$ownOps", b"$truncateOps"];
    let name = body.elements().next().transpose()?.map(|first| first.name);
    let mut filter = Builder::new();
    filter.elements_where(body, |field| {
        Some(field.name) != name && !OPTIONS.contains(&field.name) && !is_generic(field)
    })?;
    let mut matching = Builder::new();
    matching.document("$match", Doc::new(&filter.finish())?);
    let operations = doc! { "$currentOp": {
        "idleConnections": body.is_set("$all")?, "allUsers": !body.is_set("$ownOps")?, "truncateOps": true,
    } };
    Ok(vec![
        bytes_of(&operations),
        matching.finish(),
        bytes_of(&doc! { "$sort": { "shard": 1 } }),
        bytes_of(&doc! { "$group": { "_id": 0, "inprog": { "$push": "$$ROOT" } } }),
    ])
}

/// The stages of the `aggregate` `body`.
fn stages_of(body: Doc<'_>) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut stages = Vec::new();
    for stage in body.nested("pipeline")?.into_iter().flat_map(Doc::elements) {
        stages.extend(stage?.as_document_or_array()?.map(|stage| stage.bytes().to_vec()));
    }
    Ok(stages)
}

/// The stages that append `documents` to those of the stages before. All servers that Keyward supports have them.
fn appending(documents: &[Vec<u8>]) -> [Vec<u8>; 4] {
    let mut literal = Builder::new();
    literal.documents("$literal", documents);
    let mut concatenating = Builder::new();
    concatenating
        .open(ElementType::EmbeddedDocument, b"$project")
        .open(ElementType::EmbeddedDocument, b"operations")
        .open(ElementType::Array, b"$concatArrays")
        .string("0", b"$operations")
        .append(ElementType::EmbeddedDocument, b"1", &literal.finish())
        .close()
        .close()
        .close();
    [
        bytes_of(&doc! { "$group": { "_id": 0, "operations": { "$push": "$$ROOT" } } }),
        concatenating.finish(),
        bytes_of(&doc! { "$unwind": "$operations" }),
        bytes_of(&doc! { "$replaceRoot": { "newRoot": "$operations" } }),
    ]
}

/// Whether every command may have this field: it is no part of a filter.
fn is_generic(field: &Element<'_>) -> bool {
    const NAMES: [&[u8]; 4] = [b"comment", b"maxTimeMS", b"$client", b"clientOperationKey"];
    is_about_running(field) || NAMES.contains(&field.name)
}

fn bytes_of(document: &Document) -> Vec<u8> {
    document.to_vec().unwrap_or_else(|_| Doc::empty().bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use bson::Bson;

    use super::*;

    fn listed(command: OperationCommand, body: &Document) -> Document {
        let body = body.to_vec().unwrap();
        let own = [doc! { "opid": "keyward:1" }.to_vec().unwrap()];
        let listing = command.listing_also(&own, Doc::new(&body).unwrap()).unwrap();
        Document::from_reader(listing.as_slice()).unwrap()
    }

    fn appended() -> Vec<Bson> {
        let own = doc! { "$literal": [{ "opid": "keyward:1" }] };
        vec![
            doc! { "$group": { "_id": 0, "operations": { "$push": "$$ROOT" } } }.into(),
            doc! { "$project": { "operations": { "$concatArrays": ["$operations", own] } } }.into(),
            doc! { "$unwind": "$operations" }.into(),
            doc! { "$replaceRoot": { "newRoot": "$operations" } }.into(),
        ]
    }

    #[test]
    fn the_other_fields_of_a_current_op_are_a_filter() {
        let body = doc! {
            "currentOp": 1, "$ownOps": 1, "ns": "shop.users", "command.createIndexes": { "$exists": true },
            "comment": "c", "lsid": { "id": 1 }, "$db": "admin",
        };
        let operations = doc! { "idleConnections": false, "allUsers": false, "truncateOps": true };
        let mut pipeline = vec![doc! { "$currentOp": operations }.into()];
        pipeline.extend(appended());
        let filter = doc! { "ns": "shop.users", "command.createIndexes": { "$exists": true } };
        pipeline.push(doc! { "$match": filter }.into());
        pipeline.push(doc! { "$sort": { "shard": 1 } }.into());
        pipeline.push(doc! { "$group": { "_id": 0, "inprog": { "$push": "$$ROOT" } } }.into());
        let expected = doc! {
            "aggregate": 1, "cursor": {}, "comment": "c", "lsid": { "id": 1 }, "$db": "admin", "pipeline": pipeline,
        };
        assert_eq!(listed(OperationCommand::List, &body), expected);
    }

    #[test]
    fn an_aggregate_gets_the_builds_right_behind_the_first_stage() {
        let first = doc! { "$currentOp": { "allUsers": true } };
        let count = doc! { "$count": "n" };
        let body = doc! { "aggregate": 1, "pipeline": [first.clone(), count.clone()], "cursor": {}, "$db": "admin" };
        let bytes = body.to_vec().unwrap();
        let (command, read) = (OperationCommand::Aggregate, Doc::new(&bytes).unwrap());
        assert!(command.asks_for_all_users(read).unwrap());
        let mut pipeline = vec![first.into()];
        pipeline.extend(appended());
        pipeline.push(count.into());
        let expected = doc! { "aggregate": 1, "cursor": {}, "$db": "admin", "pipeline": pipeline };
        assert_eq!(listed(command, &body), expected);
    }

    #[test]
    fn a_reply_lists_what_the_last_stage_gathered() {
        let reply = |batch: Vec<Document>| {
            let answer = doc! { "cursor": { "firstBatch": batch, "id": 0_i64, "ns": "admin.$cmd" }, "ok": 1.0 };
            let reply = OperationCommand::List.reply(answer.to_vec().unwrap()).unwrap();
            Document::from_reader(reply.as_slice()).unwrap()
        };
        assert_eq!(reply(vec![]), doc! { "inprog": [], "ok": 1.0 });
        let gathered = doc! { "_id": 0, "inprog": [{ "opid": 1 }] };
        assert_eq!(reply(vec![gathered]), doc! { "inprog": [{ "opid": 1 }], "ok": 1.0 });
    }

    #[test]
    fn only_a_builds_opid_names_a_build() {
        let id = ObjectId::new();
        for (op, named) in [
            (Bson::String(opid_of(id)), Some(id)),
            ("keyward:7".into(), None),
            ("shard01:7".into(), None),
            (7.into(), None),
        ] {
            let body = doc! { "killOp": 1, "op": op }.to_vec().unwrap();
            assert_eq!(killed_build(Doc::new(&body).unwrap()).unwrap(), named);
        }
    }
}
