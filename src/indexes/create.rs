//! Carries out `createIndexes` with unique indexes that the server couldn't keep unique: makes constraints of them.
//!
//! 1. The server makes the indexes, without `unique`, on the client's connection. So it has checked the client's privileges and the
//!    whole command before Keyward changes anything.
//! 2. Keyward adds the constraints to the list of clients' constraints, and waits until they hold.
//! 3. If one can't hold, none stays, and the server drops the indexes that it made for this command.
//!
//! If Keyward is killed in between, the indexes or the constraints stay, and the same command goes on from there: another Keyward
//! builds the constraints to their end.

use std::time::Duration;

use bson::{Document, doc, oid::ObjectId};
use tokio::time::Instant;

use super::build::{FailedBuild, build};
use super::building::WantedConstraints;
use super::command::{asks_for_unique, flag, index_documents, without_unique};
use super::list::{FoundIndexes, ListedIndex, existing_indexes};
use super::refusal::IndexRefusal;
use super::specification::{is_index_of, readable_specification, server_can_keep};
use super::waiting::WaitingClient;
use super::{IndexContext, refused};
use crate::authorization::{Actions, logged_in_users};
use crate::classify::Target;
use crate::client_constraints::ClientConstraint;
use crate::constraint::{Constraint, IndexSpec, SpecError};
use crate::namespace::Namespace;
use crate::prepare::Existing;
use crate::proxy_collection::{StoreError, answered};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::{code, reply};
use crate::upstream::{Connection, shard_keys};
use crate::wire::OpMsg;
use crate::write::ForwardError;

/// Carries out the command. Returns nothing if no index is to be a constraint: Keyward then forwards the command unchanged.
pub async fn create_indexes(
    context: &IndexContext<'_>,
    message: &OpMsg<'_>,
    target: Target<'_>,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let Some(namespace) = target.namespace() else {
        return Ok(None);
    };
    let indexes = index_documents(message)?;
    // The server judges every command in a transaction: an existing sharded collection gets no index there. It refuses too many, and Keyward would
    // read the definitions once for each.
    if message.body.get("autocommit")?.is_some() || indexes.len() > INDEXES_MAX {
        return Ok(None);
    }
    let before = match asks_for_unique(message)? {
        true => existing_indexes(&namespace, message.body, upstream).await?,
        false => None,
    };
    let (positions, wanted) = match wanted(context, &indexes, &namespace, before.as_deref()).await? {
        Ok(Some(wanted)) => wanted,
        Ok(None) => return Ok(None),
        Err(refusal) => {
            return refused(
                context,
                &refusal,
                (Actions::CREATE_INDEX, target),
                message.body,
                upstream,
            )
            .await;
        }
    };
    let (deadline, before) = (deadline(message.body)?, before.as_deref());
    let plain = without_unique(message, &positions)?;
    let (first, waiting) = (
        wanted.entries.first(),
        waiting_client(context, message.body, upstream).await?,
    );
    let _waiting = first.map(|entry| context.service.waiting.wait(entry.command, waiting));
    for turn in 0..TRIES_MAX {
        let reply = upstream.run(&plain).await?;
        if !reply::is_ok(Doc::new(&reply)?)? {
            if turn > 0 {
                end_without_index(context, &wanted, message.body, upstream).await?;
            }
            return Ok(Some(reply));
        }
        let is_any_made = is_any_made(Doc::new(&reply)?)?;
        let found = FoundIndexes { before, is_any_made };
        if let Err(failed) = build(&context.building(), &wanted, found, deadline).await {
            let found = (before, &plain[..]);
            let reply = take_back(context, &wanted, found, (failed, deadline), message.body, upstream).await?;
            return Ok(Some(reply));
        }
        let indexes = existing_indexes(&namespace, message.body, upstream).await?;
        // Another client's command may have dropped an index before the list had its constraint.
        if indexes.is_none_or(|indexes| wanted.names().all(|name| has(&indexes, name))) {
            return Ok(Some(reply));
        }
        if has_other_collection(context, &wanted).await {
            break;
        }
    }
    end_without_index(context, &wanted, message.body, upstream).await?;
    Ok(first.map(|entry| IndexRefusal::dropped(&entry.constraint).error().body()))
}

/// Whether the collection is known not to be the one that the command was judged by. If another client has dropped it, the server would make
/// it anew with the indexes.
async fn has_other_collection(context: &IndexContext<'_>, wanted: &WantedConstraints) -> bool {
    let present = Existing::read(context.service.upstream.client(), &wanted.namespace).await;
    present.is_ok_and(|present| present.uuid != wanted.existing.uuid)
}

/// Drops the indexes that the server made for a command whose build failed; returns the client's reply. If another client's command has
/// made a constraint again meanwhile, the server makes its index again by the `plain` command. The client gets its reply by the `deadline`.
async fn take_back(
    context: &IndexContext<'_>,
    wanted: &WantedConstraints,
    (before, plain): (Option<&[ListedIndex]>, &[u8]),
    (failed, deadline): (FailedBuild, Option<Instant>),
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let mut tries = 0..TRIES_MAX;
    while failed.is_withdrawn && drop_made(context, wanted, before, body, upstream).await? && tries.next().is_some() {
        upstream.run(plain).await?;
    }
    failed.await_ended(&context.building(), deadline).await;
    Ok(failed.reply)
}

/// Ends those of the wanted constraints that the list has, and whose indexes are gone: another client has dropped them before the list had
/// the constraints. Returns whether there is one.
pub(super) async fn end_without_index(
    context: &IndexContext<'_>,
    wanted: &WantedConstraints,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<bool, ForwardError> {
    // Read before the indexes: if another client makes one again meanwhile, the list has changed, and the constraint stays.
    let Ok(list) = context.list.store.read().await else {
        return Ok(false);
    };
    let Some(indexes) = existing_indexes(&wanted.namespace, body, upstream).await? else {
        return Ok(false);
    };
    let is_gone = |entry: &&ClientConstraint| {
        let name = entry.constraint.name();
        wanted.names().any(|wanted| wanted == name) && !has(&indexes, name)
    };
    let gone: Vec<&ClientConstraint> = list.on(&wanted.namespace).filter(is_gone).collect();
    let ids: Vec<ObjectId> = gone.iter().map(|entry| entry.id).collect();
    let constraints: Vec<_> = gone.iter().map(|entry| entry.constraint.clone()).collect();
    if ids.is_empty() {
        return Ok(false);
    }
    let ended = async {
        let is_removed = context.list.remove_from(list, &ids).await?;
        if is_removed {
            context.building().await_ended(&constraints).await?;
        }
        Ok::<_, StoreError>(is_removed)
    };
    Ok(ended.await.unwrap_or_else(|error| {
        tracing::warn!(%error, namespace = %wanted.namespace, "a constraint whose index was dropped stays; send dropIndexes for it");
        true
    }))
}

/// How often the server makes the indexes for one command at most, if other clients drop them meanwhile.
const TRIES_MAX: usize = 3;

/// Whether one of `indexes` has this name.
fn has(indexes: &[ListedIndex], name: &str) -> bool {
    indexes.iter().any(|index| index.name == name)
}

/// The indexes that are to be constraints, or why one can't be; none if none is to be. Their positions in the command come first, including
/// those that the configuration file states already. The collection has the indexes `before`, if that is known.
async fn wanted(
    context: &IndexContext<'_>,
    indexes: &[Doc<'_>],
    namespace: &Namespace,
    before: Option<&[ListedIndex]>,
) -> Result<Result<Option<(Vec<usize>, WantedConstraints)>, IndexRefusal>, Malformed> {
    let mut specifications = Vec::new();
    for (position, index) in indexes.iter().enumerate() {
        match (flag(*index, "unique")?, readable_specification(*index)?) {
            // The server refuses `unique` for the index on `_id`.
            (Some(true), Some((specification, _))) if specification.is_on_id() => {}
            // The server keeps it unique, also while `keyward shard` takes it over: it answers whether the command asks for the same.
            (Some(true), Some((specification, _))) if is_unique_at_server(&specification, before) => {}
            (Some(true), Some((specification, unreadable))) => specifications.push(AskedIndex {
                position,
                specification,
                unreadable,
            }),
            (Some(false), Some((IndexSpec { name: Some(name), .. }, _))) if is_of_client(context, namespace, &name) => {
                return Ok(Err(IndexRefusal::SameName { name }));
            }
            _ => {}
        }
    }
    if specifications.is_empty() {
        return Ok(Ok(None));
    }
    Ok(wanted_of(context, namespace, before, specifications).await)
}

/// The most indexes of a collection.
const INDEXES_MAX: usize = 64;

/// A unique index that a command asks for.
pub(super) struct AskedIndex {
    /// Its position in the command.
    pub position: usize,
    /// Its specification, without an option that can't be read.
    pub specification: IndexSpec,
    /// Why such an option can't be read.
    pub unreadable: Option<SpecError>,
}

/// The same for these indexes.
pub(super) async fn wanted_of(
    context: &IndexContext<'_>,
    namespace: &Namespace,
    before: Option<&[ListedIndex]>,
    asked: Vec<AskedIndex>,
) -> Result<Option<(Vec<usize>, WantedConstraints)>, IndexRefusal> {
    let client = context.service.upstream.client();
    let shard_keys = answered(shard_keys(client, &[namespace])).await?;
    let shard_key = shard_keys.get(&namespace.to_string());
    let list = context.list.store.read().await?;
    // A collection that isn't sharded can have any unique index. But it may be about to be sharded, by `keyward shard`.
    if shard_key.is_none() && list.on(namespace).next().is_none() {
        return Ok(None);
    }
    let mut wanted = WantedConstraints::on(namespace, Existing::read(client, namespace).await?);
    let of_file: Vec<_> = context.of_file(namespace).cloned().collect();
    let (mut positions, command) = (Vec::new(), ObjectId::new());
    for AskedIndex {
        position,
        specification,
        unreadable,
    } in asked
    {
        let default = wanted.existing.collation.as_ref();
        let can_keep = shard_key.is_none_or(|key| server_can_keep(&specification, default, key));
        // One that is listed stays Keyward's, also if its field has become the shard key: the server has it without `unique`.
        if !wanted.is_listed(&specification, &list, before)? && can_keep {
            continue;
        }
        if let Some(unreadable) = unreadable {
            return Err(IndexRefusal::Specification(unreadable));
        }
        let ids = (command, context.membership.id());
        wanted.add(specification, &of_file, ids)?;
        positions.push(position);
    }
    context.building().check_fleet(&wanted.new_in(&list)).await?;
    Ok((!positions.is_empty()).then_some((positions, wanted)))
}

/// Whether the server has an index of this name that it keeps unique.
fn is_unique_at_server(specification: &IndexSpec, indexes: Option<&[ListedIndex]>) -> bool {
    let is_it = |index: &ListedIndex| index.is_unique && specification.name.as_ref() == Some(&index.name);
    indexes.is_some_and(|indexes| indexes.iter().any(is_it))
}

/// Whether a client's constraint has this name, which an index that isn't unique can't have then. A constraint of the configuration file
/// may have such an index beside it, for queries.
fn is_of_client(context: &IndexContext<'_>, namespace: &Namespace, name: &str) -> bool {
    let mut constraints = context.constraints_on(namespace);
    constraints.any(|constraint| constraint.client_entry().is_some() && constraint.name() == name)
}

/// Whether a constraint on the same collection is the `wanted` one.
///
/// # Errors
/// [`IndexRefusal`] if a server couldn't have both indexes.
pub fn is_same_index(wanted: &Constraint, existing: &Constraint) -> Result<bool, IndexRefusal> {
    let name = existing.name().to_owned();
    match (name == wanted.name(), is_index_of(wanted.spec(), existing)) {
        (true, is_same) if is_same => Ok(true),
        (true, _) => Err(IndexRefusal::SameName { name }),
        (false, true) => Err(IndexRefusal::OtherName { name }),
        (false, false) => Ok(false),
    }
}

/// The client of this command, as `currentOp` shows it while it waits.
pub(super) async fn waiting_client(
    context: &IndexContext<'_>,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<WaitingClient, ForwardError> {
    Ok(WaitingClient {
        address: context.address,
        users: logged_in_users(context.service.upstream.has_credential(), body, upstream).await?,
        body: shown_body(body)?,
    })
}

/// The `body` as `currentOp` shows it: without large fields, which would need much memory for as long as the client waits.
fn shown_body(body: Doc<'_>) -> Result<Document, Malformed> {
    let mut shown = Builder::new();
    shown.elements_where(body, |field| field.value.len() <= SHOWN_FIELD_MAX)?;
    let shown = shown.finish();
    Ok(match shown.len() <= SHOWN_MAX {
        true => Document::from_reader(&shown[..]).unwrap_or_default(),
        false => Document::new(),
    })
}

/// The largest field of a command that `currentOp` shows while its client waits, in bytes, and the largest command.
const SHOWN_FIELD_MAX: usize = 64 << 10;
const SHOWN_MAX: usize = 256 << 10;

/// Until when the client waits.
pub(super) fn deadline(body: Doc<'_>) -> Result<Option<Instant>, Malformed> {
    let limit = body
        .whole_number("maxTimeMS")?
        .and_then(|limit| u64::try_from(limit).ok());
    let limit = limit.filter(|limit| *limit > 0);
    Ok(limit.map(|limit| Instant::now() + Duration::from_millis(limit)))
}

/// Whether the server made an index just now, on any shard. A reply that doesn't say so counts as one of a server that did.
fn is_any_made(reply: Doc<'_>) -> Result<bool, Malformed> {
    let Some(shards) = reply.nested("raw")? else {
        return Ok(true);
    };
    shards.any(|shard| {
        let Some(shard) = shard.as_document()? else {
            return Ok(true);
        };
        let counts = [
            shard.whole_number("numIndexesBefore")?,
            shard.whole_number("numIndexesAfter")?,
        ];
        Ok(!matches!(counts, [Some(before), Some(after)] if before == after))
    })
}

/// Drops the indexes that the server made for a command that failed. The collection had the indexes `before`; if that isn't known, all
/// stay. Another client may have sent the same command since: then the list has the constraint again, and the index stays. Returns whether
/// the list has a constraint by now whose index was dropped.
async fn drop_made(
    context: &IndexContext<'_>,
    wanted: &WantedConstraints,
    before: Option<&[ListedIndex]>,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<bool, ForwardError> {
    let namespace = &wanted.namespace;
    let listed = async || {
        let list = context.list.store.read().await?;
        let names = list.on(namespace).map(|entry| entry.constraint.name().to_owned());
        Ok::<_, StoreError>(names.collect::<Vec<_>>())
    };
    let stay = |error: String, made: Vec<&str>| {
        let made = made.join(", ");
        tracing::warn!(%namespace, made, error, "indexes of a createIndexes that failed stay, without being unique");
        Ok(false)
    };
    let is_made = |name: &&str| before.is_some_and(|before| !has(before, name));
    let mut made: Vec<&str> = wanted.names().filter(is_made).collect();
    match listed().await {
        Ok(listed) => made.retain(|name| !listed.iter().any(|one| one == name)),
        Err(error) => return stay(error.to_string(), made),
    }
    if made.is_empty() {
        return Ok(false);
    }
    // One at a time: the server drops none of a list if one is missing, and another client may have dropped it.
    let mut kept = Vec::new();
    let mut errors = Vec::new();
    for name in &made {
        let command = doc! { "dropIndexes": &namespace.collection, "index": *name };
        let mut draft = Builder::from_document(&command.to_vec().unwrap_or_default());
        super::append_session(&mut draft, body)?;
        draft.string("$db", namespace.database.as_bytes());
        let reply = upstream.run(&draft.finish()).await?;
        let reply = Doc::new(&reply)?;
        if !reply::is_ok(reply)? && reply::code(reply)? != Some(code::INDEX_NOT_FOUND) {
            kept.push(*name);
            errors.push(String::from_utf8_lossy(reply::errmsg(reply)?.unwrap_or_default()).into_owned());
        }
    }
    if !kept.is_empty() {
        return stay(errors.join("; "), kept);
    }
    // If the list can't be read, the index may be missing, and queries are slower. The constraint holds without it.
    let listed = listed().await.unwrap_or_default();
    Ok(made.iter().any(|name| listed.iter().any(|one| one == name)))
}
