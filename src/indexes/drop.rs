//! Carries out `dropIndexes` on a protected collection: a constraint that a client made ends with its index.

use bson::Document;
use bson::oid::ObjectId;

use super::Clients;
use super::command::DroppedIndexes;
use super::refusal::IndexRefusal;
use super::specification::has_key;
use crate::catalog::Protected;
use crate::client_constraints::ClientConstraints;
use crate::constraint::Constraint;
use crate::raw::{Doc, Malformed};
use crate::server::{code, reply};
use crate::upstream::Connection;
use crate::write::ForwardError;

/// Carries out the command, as the server does. If it names the index of a constraint in the configuration file, Keyward refuses it.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: Keyward must then close the client's connection.
pub async fn drop_indexes(
    clients: &Clients<'_>,
    protected: &Protected,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let dropped = match dropped(protected, body)? {
        Ok(dropped) => dropped,
        Err(refusal) => return Ok(refusal.error().body()),
    };
    let answer = upstream.run(body.bytes()).await?;
    let ended = Doc::new(&answer)?;
    // Without its index, a constraint is what an earlier command left that was cut off.
    let is_dropped = reply::is_ok(ended)? || reply::code(ended)? == Some(code::INDEX_NOT_FOUND);
    if dropped.is_empty() || !is_dropped {
        return Ok(answer);
    }
    match end(clients, protected, &dropped).await {
        Ok(()) => Ok(answer),
        Err(refusal) => Ok(refusal.error().body()),
    }
}

/// The constraints of clients whose indexes the command drops.
fn dropped<'p>(
    protected: &'p Protected,
    body: Doc<'_>,
) -> Result<Result<Vec<&'p Constraint>, IndexRefusal>, Malformed> {
    let Some(indexes) = DroppedIndexes::of(body)? else {
        return Ok(Ok(Vec::new()));
    };
    let key = match &indexes {
        DroppedIndexes::OfKey(key) => Document::from_reader(key.bytes()).unwrap_or_default(),
        _ => Document::new(),
    };
    let mut of_clients = Vec::new();
    for proxy in &protected.constraints {
        let constraint = &*proxy.constraint;
        let is_dropped = match &indexes {
            DroppedIndexes::All => constraint.client_entry().is_some(),
            DroppedIndexes::Named(names) => names.contains(&constraint.name().as_bytes()),
            DroppedIndexes::OfKey(_) => has_key(&key, constraint),
        };
        match (is_dropped && !constraint.is_on_id(), constraint.client_entry()) {
            (true, Some(_)) => of_clients.push(constraint),
            (true, None) => {
                return Ok(Err(IndexRefusal::InFile {
                    name: constraint.name().to_owned(),
                    namespace: protected.namespace.clone(),
                }));
            }
            (false, _) => {}
        }
    }
    Ok(Ok(of_clients))
}

/// Takes the constraints out of the list, and waits until no Keyward reserves for them.
async fn end(clients: &Clients<'_>, protected: &Protected, dropped: &[&Constraint]) -> Result<(), IndexRefusal> {
    let entries: Vec<ObjectId> = dropped.iter().filter_map(|one| one.client_entry()).collect();
    let remove = |list: &mut ClientConstraints| {
        let removed = entries.iter().filter(|id| list.remove(**id)).count();
        (removed > 0).then_some(())
    };
    clients.list.store.change(remove).await?;
    clients.list.note_change();
    let constraints = protected.constraints.iter().map(|proxy| &proxy.constraint);
    let constraints = constraints.filter(|one| dropped.iter().any(|dropped| dropped.name() == one.name()));
    let constraints: Vec<_> = constraints.cloned().collect();
    clients.await_ended(&constraints).await?;
    Ok(())
}
