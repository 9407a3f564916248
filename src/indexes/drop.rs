//! Carries out `dropIndexes`: a constraint that a client made ends with its index.

use std::sync::Arc;

use bson::Document;
use bson::oid::ObjectId;

use super::command::DroppedIndexes;
use super::list::{existing_indexes, has_no_indexes};
use super::refusal::IndexRefusal;
use super::specification::has_key;
use super::{IndexContext, refused};
use crate::authorization::Actions;
use crate::classify::Target;
use crate::client_constraints::{BuildState, ClientConstraints};
use crate::constraint::Constraint;
use crate::namespace::Namespace;
use crate::raw::{Doc, Malformed};
use crate::server::{code, reply};
use crate::upstream::Connection;
use crate::write::ForwardError;

/// Carries out the command, as the server does. If it names the index of a constraint in the configuration file, Keyward refuses it.
/// Returns nothing if it ends no constraint: Keyward then forwards the command unchanged.
pub async fn drop_indexes(
    context: &IndexContext<'_>,
    target: Target<'_>,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let Some(namespace) = target.namespace() else {
        return Ok(None);
    };
    let list = match context.list.store.read().await {
        Ok(list) => list,
        Err(error) => return Ok(Some(IndexRefusal::from(error).error().body())),
    };
    let dropped = match dropped(&constraints_on(context, &list, &namespace), body)? {
        Ok(dropped) if dropped.is_empty() => return Ok(None),
        Ok(dropped) => dropped,
        Err(refusal) => return refused(context, &refusal, (Actions::DROP_INDEX, target), body, upstream).await,
    };
    let answer = upstream.run(body.bytes()).await?;
    let reply = Doc::new(&answer)?;
    let ended = match (reply::is_ok(reply)?, reply::code(reply)?) {
        // The server keeps an index that begins with the shard key.
        (true, _) if DroppedIndexes::of(body)? == Some(DroppedIndexes::All) => {
            match without_index(dropped, &namespace, body, upstream).await? {
                Some(without_index) => without_index,
                None => return Ok(Some(IndexRefusal::Unlisted(namespace).error().body())),
            }
        }
        (true, _) => dropped,
        // The server has dropped none.
        (false, code) if code == Some(code::INDEX_NOT_FOUND) || has_no_indexes(reply)? => {
            let without_index = without_index(dropped, &namespace, body, upstream).await?;
            without_index.unwrap_or_default()
        }
        (false, _) => Vec::new(),
    };
    if ended.is_empty() {
        return Ok(Some(answer));
    }
    let ended = take_out(context, list, ended, (&namespace, body), upstream).await?;
    let ended = match ended {
        Ok(ended) => context.building().await_ended(&ended).await.map_err(IndexRefusal::from),
        Err(refusal) => Err(refusal),
    };
    match ended {
        Ok(()) => Ok(Some(answer)),
        Err(refusal) => Ok(Some(refusal.error().body())),
    }
}

/// The constraints on a collection: those of the configuration file, and those of clients. The latter come from the list itself: another
/// Keyward may have added one that this Keyward doesn't enforce yet.
fn constraints_on(context: &IndexContext<'_>, list: &ClientConstraints, namespace: &Namespace) -> Vec<Arc<Constraint>> {
    let of_file: Vec<_> = context.of_file(namespace).cloned().collect();
    let mut constraints = list.with(&of_file);
    constraints.retain(|constraint| constraint.namespace() == namespace);
    constraints
}

/// The constraints of clients whose indexes the command drops.
fn dropped(
    constraints: &[Arc<Constraint>],
    body: Doc<'_>,
) -> Result<Result<Vec<Arc<Constraint>>, IndexRefusal>, Malformed> {
    let Some(indexes) = DroppedIndexes::of(body)? else {
        return Ok(Ok(Vec::new()));
    };
    let key = match &indexes {
        DroppedIndexes::OfKey(key) => Document::from_reader(key.bytes()).unwrap_or_default(),
        _ => Document::new(),
    };
    let mut of_clients = Vec::new();
    for constraint in constraints {
        let is_dropped = match &indexes {
            DroppedIndexes::All => constraint.client_entry().is_some(),
            DroppedIndexes::Named(names) => names.contains(&constraint.name().as_bytes()),
            DroppedIndexes::OfKey(_) => has_key(&key, constraint),
        };
        match (is_dropped && !constraint.is_on_id(), constraint.client_entry()) {
            (true, Some(_)) => of_clients.push(constraint.clone()),
            (true, None) => return Ok(Err(IndexRefusal::InFile(constraint.full_name()))),
            (false, _) => {}
        }
    }
    Ok(Ok(of_clients))
}

/// The constraints among `constraints` that have no index; none if the client may not list the indexes.
async fn without_index(
    mut constraints: Vec<Arc<Constraint>>,
    namespace: &Namespace,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Option<Vec<Arc<Constraint>>>, ForwardError> {
    let Some(indexes) = existing_indexes(namespace, body, upstream).await? else {
        return Ok(None);
    };
    constraints.retain(|constraint| !indexes.iter().any(|one| one.name == constraint.name()));
    Ok(Some(constraints))
}

/// Takes the constraints out of `list`, which was read before the server dropped their indexes. Returns those that it took out.
///
/// Since then another client may have made an index again. It has changed the list, so the constraint stays with its index. It may also have
/// made another constraint, whose index the server dropped with the others.
async fn take_out(
    context: &IndexContext<'_>,
    mut list: ClientConstraints,
    mut constraints: Vec<Arc<Constraint>>,
    (namespace, body): (&Namespace, Doc<'_>),
    upstream: &mut Connection,
) -> Result<Result<Vec<Arc<Constraint>>, IndexRefusal>, ForwardError> {
    loop {
        let entries: Vec<ObjectId> = constraints.iter().filter_map(|one| one.client_entry()).collect();
        match context.list.remove_from(list, &entries).await {
            Ok(true) => return Ok(Ok(constraints)),
            Ok(false) => {}
            Err(error) => return Ok(Err(error.into())),
        }
        // The list comes first: an index that is made after this reading changes the list after it.
        list = match context.list.store.read().await {
            Ok(list) => list,
            Err(error) => return Ok(Err(error.into())),
        };
        let built = built_since(&entries, context, &list, namespace, body)?;
        constraints.extend(built);
        constraints = match without_index(constraints, namespace, body, upstream).await? {
            Some(constraints) => constraints,
            None => return Ok(Err(IndexRefusal::Unlisted(namespace.clone()))),
        };
    }
}

/// The constraints of `list` that the command ends, too, and that were built since `entries` were read. One that is still being built makes
/// its index again.
fn built_since(
    entries: &[ObjectId],
    context: &IndexContext<'_>,
    list: &ClientConstraints,
    namespace: &Namespace,
    body: Doc<'_>,
) -> Result<Vec<Arc<Constraint>>, Malformed> {
    let mut built = dropped(&constraints_on(context, list, namespace), body)?.unwrap_or_default();
    built.retain(|constraint| {
        let entry = constraint.client_entry().filter(|id| !entries.contains(id));
        let entry = entry.and_then(|id| list.entry(id));
        entry.is_some_and(|entry| entry.state == BuildState::Built)
    });
    Ok(built)
}
