//! Constraints that the cluster has as enforced and a configuration doesn't have: whoever goes without one lets writes by that
//! nobody reserves for.
//!
//! Of a collection that the configuration names, that is noted: by a start before the first write passes, by a reload before it
//! holds. Of any other collection it is only said: this Keyward may have nothing to do with it, and a fleet with
//! another configuration may be the one that enforces it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{Bson, Document, doc};
use mongodb::Client;

use super::PrepareError;
use super::definition::{Definitions, Written};
use crate::constraint::Constraint;
use crate::proxy_collection::{StoreError, answered};

/// The databases in which no constraint can be.
const OF_MONGODB: [&str; 3] = ["admin", "config", "local"];

/// Notes in the cluster that those aren't enforced which `constraints` leave out of a collection that they name; warns of
/// these, and of those on other collections of the same databases.
///
/// A start may serve nothing before that. Killed midway, it has noted of some what nobody needed to know: they are taken in once more.
/// # Errors
/// [`PrepareError`] if the cluster doesn't do as it is asked.
pub async fn note_left_out(client: &Client, constraints: &[Arc<Constraint>]) -> Result<(), PrepareError> {
    for database in databases(constraints) {
        let definitions = Definitions::in_database(client, database);
        let mut elsewhere = Vec::new();
        for written in definitions.enforced().await? {
            let mut named = constraints
                .iter()
                .filter(|constraint| *constraint.namespace() == written.namespace)
                .peekable();
            if named.peek().is_none() {
                elsewhere.push(written);
            } else if named.all(|constraint| constraint.name() != written.name) {
                definitions.suspend_written(&written).await?;
                tracing::warn!(
                    namespace = %written.namespace, constraint = written.name,
                    "the configuration leaves out a constraint that the cluster had as enforced: it is noted as not enforced, and \
                     whoever has it again takes every document in"
                );
            }
        }
        warn(&elsewhere);
    }
    Ok(())
}

/// Warns of those in databases that `constraints` don't name, as far as Keyward's user may look into them.
pub async fn warn_of_others(client: &Client, constraints: &[Arc<Constraint>]) {
    let named = databases(constraints);
    let there = match names(client).await {
        Ok(there) => there,
        Err(error) => {
            tracing::debug!(%error, "the databases could not be listed");
            return;
        }
    };
    let mut all = Vec::new();
    for database in there {
        if named.contains(database.as_str()) || OF_MONGODB.contains(&database.as_str()) {
            continue;
        }
        match Definitions::in_database(client, &database).enforced().await {
            Ok(enforced) => all.extend(enforced),
            // It isn't this Keyward's business what it may not read.
            Err(error) => tracing::debug!(%error, database, "the constraints of another database could not be read"),
        }
    }
    warn(&all);
}

fn databases(constraints: &[Arc<Constraint>]) -> BTreeSet<&str> {
    constraints
        .iter()
        .map(|constraint| constraint.namespace().database.as_str())
        .collect()
}

/// The databases that Keyward's user has a right on.
async fn names(client: &Client) -> Result<Vec<String>, StoreError> {
    let list = doc! { "listDatabases": 1, "nameOnly": true, "authorizedDatabases": true };
    let reply: Document = answered(client.database("admin").run_command(list).into_future()).await?;
    let databases = reply.get_array("databases");
    let databases = databases.map_err(|_| StoreError::Unexpected("the list of databases"))?;
    let name = |database: &Bson| Some(database.as_document()?.get_str("name").ok()?.to_owned());
    Ok(databases.iter().filter_map(name).collect())
}

fn warn(elsewhere: &[Written]) {
    if elsewhere.is_empty() {
        return;
    }
    let names: Vec<String> = elsewhere.iter().map(ToString::to_string).collect();
    tracing::warn!(
        constraints = names.join(", "),
        "the cluster has constraints as enforced on collections that the configuration doesn't name: where no other Keyward \
         enforces one, delete its document from keyward.constraints before it is configured again, or run \
         `keyward verify --repair` once after that"
    );
}
