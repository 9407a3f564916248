//! Determines the collation of a constraint that states none.

use std::sync::Arc;

use bson::{Document, doc};
use mongodb::Client;

use super::definition::Definitions;
use super::stored_definition::is_same;
use super::{PrepareError, not_collated};
use crate::constraint::Constraint;

/// The constraint as `createIndex` would define it on a collection with this default collation.
///
/// A client's constraint keeps the collation that it was defined with, as an index does. Its collection may have been dropped past Keyward,
/// and created with another default collation. If Keyward refused the constraint then, it would stop all others with it: no start and no
/// change of the list would succeed. If it went on without the constraint, other Keywards could count on it still.
pub(super) async fn collated(
    client: &Client,
    constraint: &Arc<Constraint>,
    default: Option<&Document>,
) -> Result<Arc<Constraint>, PrepareError> {
    let inheriting = inheriting(constraint, default);
    if constraint.client_entry().is_none() || constraint.states_collation() {
        return inheriting;
    }
    let definitions = Definitions::of(client, constraint.namespace());
    let Some(defined) = definitions.definition(constraint).await? else {
        // The list has it only if it could have the default collation of that time.
        return Ok(inheriting.unwrap_or_else(|_| constraint.clone()));
    };
    if inheriting
        .as_ref()
        .is_ok_and(|one| is_same(&one.definition(), &defined))
    {
        return inheriting;
    }
    let collation = defined.get_document("collation").cloned();
    let collation = collation.unwrap_or_else(|_| doc! { "locale": "simple" });
    match constraint.inheriting(Some(&collation)) {
        Ok(Some(former)) if is_same(&former.definition(), &defined) => {
            tracing::warn!(
                namespace = %constraint.namespace(), constraint = constraint.name(),
                "the collection of a client's unique constraint was replaced by one with another default collation; the constraint \
                 keeps its collation: send createIndexes to make it anew, or dropIndexes to end it"
            );
            Ok(Arc::new(former))
        }
        _ => inheriting,
    }
}

fn inheriting(constraint: &Arc<Constraint>, default: Option<&Document>) -> Result<Arc<Constraint>, PrepareError> {
    match constraint.inheriting(default) {
        Ok(Some(collated)) => Ok(Arc::new(collated)),
        Ok(None) => Ok(constraint.clone()),
        Err(error) => Err(not_collated(
            constraint,
            format_args!("{error}; it is the collection's default, state another one, or {{ locale: simple }}"),
        )),
    }
}
