//! Counts, in a constraint's document, what audits have found that was written past Keyward.
//!
//! An audit repairs what it finds. Afterwards the documents don't show any more that something writes past Keyward.

use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::ReadConcern;

use super::stored_definition::{DEFINITIONS, definition_id};
use crate::constraint::Constraint;
use crate::proxy_collection::{READ_MAX, StoreError, answered};

/// The field with the count. Earlier versions don't write it.
const WRITTEN_PAST: &str = "writtenPast";

/// Notes that an audit has made so many `findings`.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't confirm it.
pub async fn note_written_past(client: &Client, constraint: &Constraint, findings: u64) -> Result<(), StoreError> {
    let namespace = constraint.namespace();
    let definitions = client.database(&namespace.database).collection::<Document>(DEFINITIONS);
    let id = doc! { "_id": definition_id(namespace, constraint.name()) };
    let findings = i64::try_from(findings).unwrap_or(i64::MAX);
    let noting = definitions.update_one(id, doc! { "$inc": { WRITTEN_PAST: findings } });
    answered(noting.into_future()).await.map(drop)
}

/// How many findings audits of this constraint have noted, now or later than now.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't answer.
pub async fn written_past(client: &Client, constraint: &Constraint) -> Result<u64, StoreError> {
    let namespace = constraint.namespace();
    let definitions = client.database(&namespace.database).collection::<Document>(DEFINITIONS);
    let find = definitions.find_one(doc! { "_id": definition_id(namespace, constraint.name()) });
    let find = find.read_concern(ReadConcern::linearizable()).max_time(READ_MAX);
    let found = answered(find.into_future()).await?;
    let findings = found.and_then(|found| found.get_i64(WRITTEN_PAST).ok());
    Ok(findings.and_then(|findings| findings.try_into().ok()).unwrap_or(0))
}
