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

use bson::{Bson, Document, oid::ObjectId};
use tokio::time::Instant;

use super::build::{build, same_in};
use super::building::WantedConstraints;
use super::command::{index_documents, without_unique};
use super::list::existing_indexes;
use super::refusal::IndexRefusal;
use super::specification::{is_index_of, server_can_keep, specification_of};
use super::{IndexContext, refused};
use crate::authorization::Rights;
use crate::classify::Target;
use crate::client_constraints::{ClientConstraint, ClientConstraints};
use crate::constraint::{Constraint, IndexSpec};
use crate::namespace::Namespace;
use crate::prepare::Existing;
use crate::proxy_collection::answered;
use crate::raw::{Builder, Doc, Malformed};
use crate::server::reply;
use crate::upstream::{Connection, shard_keys};
use crate::wire::OpMsg;
use crate::write::ForwardError;

/// Carries out the command. Returns nothing if no index is to be a constraint: Keyward then forwards the command unchanged.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: Keyward must then close the client's connection.
pub async fn create_indexes(
    context: &IndexContext<'_>,
    message: &OpMsg<'_>,
    target: Target<'_>,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let (Ok(database), Ok(collection)) = (str::from_utf8(target.database), str::from_utf8(target.collection)) else {
        return Ok(None);
    };
    let namespace = Namespace::new(database, collection);
    // The server judges every command in a transaction: an existing sharded collection gets no index there.
    if message.body.get("autocommit")?.is_some() {
        return Ok(None);
    }
    let indexes = index_documents(message)?;
    let (positions, wanted) = match wanted(context, &indexes, &namespace).await? {
        Ok((positions, _)) if positions.is_empty() => return Ok(None),
        Ok(wanted) => wanted,
        Err(refusal) => {
            return refused(
                context,
                &refusal,
                (Rights::may_create_index, target),
                message.body,
                upstream,
            )
            .await;
        }
    };
    let deadline = deadline(message.body)?;
    let before = existing_indexes(&namespace, message.body, upstream).await?;
    let reply = upstream.run(&without_unique(message, &positions)?).await?;
    if !reply::is_ok(Doc::new(&reply)?)? {
        return Ok(Some(reply));
    }
    let failed = match build(&context.building(), &wanted, before.as_deref(), deadline).await {
        Ok(()) => return Ok(Some(reply)),
        Err(failed) => failed,
    };
    if failed.is_withdrawn {
        // Without the list, it isn't known which the server made now.
        let was_there = |name: &String| {
            before
                .as_ref()
                .is_none_or(|before| before.iter().any(|index| index.name == *name))
        };
        let names = wanted.entries.iter().map(|entry| entry.constraint.name().to_owned());
        let made: Vec<String> = names.filter(|name| !was_there(name)).collect();
        drop_made(&namespace, &made, message.body, upstream).await?;
    }
    Ok(Some(failed.reply))
}

/// The indexes that are to be constraints, or why one can't be. Their positions in the command come first, including those that the
/// configuration file states already.
async fn wanted(
    context: &IndexContext<'_>,
    indexes: &[Doc<'_>],
    namespace: &Namespace,
) -> Result<Result<(Vec<usize>, WantedConstraints), IndexRefusal>, Malformed> {
    let mut specifications = Vec::new();
    for (position, index) in indexes.iter().enumerate() {
        match (index.is_set("unique")?, specification_of(*index)?) {
            (true, Some(specification)) => specifications.push((position, specification)),
            (false, Some(IndexSpec { name: Some(name), .. })) if is_of_client(context, namespace, &name) => {
                return Ok(Err(IndexRefusal::SameName { name }));
            }
            _ => {}
        }
    }
    Ok(async {
        let client = context.service.upstream.client();
        let shard_keys = answered(shard_keys(client, &[namespace])).await?;
        let shard_key = shard_keys.get(&namespace.to_string());
        let list = context.list.store.read().await?;
        // A collection that isn't sharded can have any unique index. But it may be about to be sharded, by `keyward shard`.
        let is_any_listed = |(_, specification): &(usize, IndexSpec)| is_listed(specification, namespace, &list);
        if shard_key.is_none() && !specifications.iter().any(is_any_listed) {
            return Ok(Default::default());
        }
        let existing = Existing::read(client, namespace).await?;
        let of_file: Vec<_> = context.of_file(namespace).cloned().collect();
        let (mut positions, mut wanted, command) = (Vec::new(), WantedConstraints::default(), ObjectId::new());
        let can_keep = |specification: &IndexSpec| {
            shard_key.is_none_or(|key| server_can_keep(specification, existing.collation.as_ref(), key))
        };
        for (position, specification) in specifications {
            if can_keep(&specification) && !is_listed(&specification, namespace, &list) {
                continue;
            }
            let ids = (command, context.membership.id());
            wanted.add(namespace, specification, &existing, &of_file, ids)?;
            positions.push(position);
        }
        let is_present = |same: &ClientConstraint| same.collection_uuid == existing.uuid;
        let is_made = |entry: &ClientConstraint| matches!(same_in(&list, entry), Ok(Some(same)) if is_present(same));
        let new: Vec<_> = wanted.entries.iter().filter(|entry| !is_made(entry)).collect();
        context.building().check_fleet(&new).await?;
        Ok((positions, wanted))
    }
    .await)
}

/// Whether the list has this index already. Then it stays Keyward's, also if its field has become the shard key: the server has it without
/// `unique`.
fn is_listed(specification: &IndexSpec, namespace: &Namespace, list: &ClientConstraints) -> bool {
    let mut listed = list.constraints.iter().map(|entry| &entry.constraint);
    listed.any(|constraint| constraint.namespace() == namespace && is_index_of(specification, constraint))
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

/// Until when the client waits.
fn deadline(body: Doc<'_>) -> Result<Option<Instant>, Malformed> {
    let limit = body
        .whole_number("maxTimeMS")?
        .and_then(|limit| u64::try_from(limit).ok());
    let limit = limit.filter(|limit| *limit > 0);
    Ok(limit.map(|limit| Instant::now() + Duration::from_millis(limit)))
}

/// Drops the indexes that the server made for a command that failed.
async fn drop_made(
    namespace: &Namespace,
    made: &[String],
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<(), ForwardError> {
    if made.is_empty() {
        return Ok(());
    }
    let names: Vec<Bson> = made.iter().map(|name| Bson::String(name.clone())).collect();
    let mut command = Document::new();
    command.insert("dropIndexes", &namespace.collection);
    command.insert("index", names);
    let mut draft = Builder::from_document(&command.to_vec().unwrap_or_default());
    super::append_session(&mut draft, body)?;
    draft.string("$db", namespace.database.as_bytes());
    let reply = upstream.run(&draft.finish()).await?;
    if !reply::is_ok(Doc::new(&reply)?)? {
        let error = reply::errmsg(Doc::new(&reply)?)?.unwrap_or_default();
        let error = String::from_utf8_lossy(error);
        tracing::warn!(%namespace, ?made, %error, "indexes of a createIndexes that failed stay, without being unique");
    }
    Ok(())
}
