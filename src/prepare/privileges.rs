//! Lists the privileges that Keyward's own user needs, and finds those that it lacks.
//!
//! `docs/security.md` shows the role with exactly these privileges.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{Bson, Document, doc};
use mongodb::Client;

use super::{DEFINITIONS, PrepareError};
use crate::constraint::Constraint;
use crate::fleet;
use crate::namespace::Namespace;
use crate::server::driver;

/// Actions on the documents of a protected database, and on Keyward's collections in it. A takeover writes a
/// placeholder into the protected collection and bypasses its validator.
const IN_DATABASE: [&str; 8] = [
    "find",
    "insert",
    "update",
    "remove",
    "bypassDocumentValidation",
    "listCollections",
    "createCollection",
    "createIndex",
];
/// Actions on the register of Keywards. A Keyward without any constraint is in it, too.
const IN_REGISTER: [&str; 4] = ["find", "insert", "update", "remove"];
/// Actions on the definitions of constraints in any other database, before clients write there.
const ELSEWHERE: [&str; 2] = ["find", "update"];
/// The further action that `shardCollection` needs.
const TO_SHARD: &str = "enableSharding";

/// The privileges for `constraints`, as `createRole` takes them.
pub fn needed(constraints: &[Arc<Constraint>], is_sharded: bool) -> Vec<Document> {
    let databases: BTreeSet<&str> = constraints
        .iter()
        .map(|constraint| constraint.namespace().database.as_str())
        .collect();
    let actions: Vec<&str> = IN_DATABASE.into_iter().chain(is_sharded.then_some(TO_SHARD)).collect();
    let in_database = |database: &&str| {
        doc! {
            "resource": { "db": *database, "collection": "" }, "actions": actions.clone(),
        }
    };
    let mut privileges: Vec<Document> = databases.iter().map(in_database).collect();
    let in_collection = |database: &str, collection: &str, actions: &[&str]| {
        doc! { "resource": { "db": database, "collection": collection }, "actions": actions }
    };
    privileges.push(in_collection(fleet::DATABASE, fleet::COLLECTION, &IN_REGISTER));
    privileges.push(in_collection("", DEFINITIONS, &ELSEWHERE));
    if databases.is_empty() {
        return privileges;
    }
    let in_cluster = |action: &str| doc! { "resource": { "cluster": true }, "actions": [action] };
    // Needed to end a transaction whose connection is lost.
    privileges.push(in_cluster("killAnySession"));
    // Needed to see which writes servers carry out for a Keyward that is gone.
    privileges.push(in_cluster("inprog"));
    privileges.push(match is_sharded {
        true => in_collection("config", "collections", &["find"]),
        false => in_cluster("shardingState"),
    });
    privileges
}

/// The privileges that Keyward's user lacks, each in words; none if the deployment requires no login.
///
/// # Errors
/// [`PrepareError::Store`] if the deployment doesn't answer.
pub async fn missing(client: &Client, constraints: &[Arc<Constraint>]) -> Result<Vec<String>, PrepareError> {
    let Some(there) = of_user(client).await? else {
        return Ok(Vec::new());
    };
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await?;
    let is_sharded = driver::is_of_router(&hello);
    let mut missing = Vec::new();
    for privilege in needed(constraints, is_sharded) {
        let Ok(resource) = privilege.get_document("resource") else {
            continue;
        };
        let have = actions_on(&there, resource);
        let lacking: Vec<String> = actions(&privilege)
            .into_iter()
            .filter(|action| !have.contains(action))
            .collect();
        if !lacking.is_empty() {
            missing.push(format!("{} on {resource}", lacking.join(", ")));
        }
    }
    Ok(missing)
}

/// Whether the user has the privilege for `action` on a collection, as far as can be seen; true if the deployment requires no login.
///
/// # Errors
/// The same.
pub async fn may(client: &Client, namespace: &Namespace, action: &str) -> Result<bool, PrepareError> {
    let resource = doc! { "db": &namespace.database, "collection": &namespace.collection };
    let there = of_user(client).await?;
    Ok(there.is_none_or(|there| actions_on(&there, &resource).contains(action)))
}

/// The user's privileges; none if the deployment requires no login.
async fn of_user(client: &Client) -> Result<Option<Vec<Document>>, PrepareError> {
    let status = doc! { "connectionStatus": 1, "showPrivileges": true };
    let status = client.database("admin").run_command(status).await?;
    let documents = |field: &str| -> Vec<Document> {
        let info = status.get_document("authInfo").ok();
        let array = info.and_then(|info| info.get_array(field).ok());
        array
            .into_iter()
            .flatten()
            .filter_map(|document| document.as_document().cloned())
            .collect()
    };
    let is_logged_in = !documents("authenticatedUsers").is_empty();
    Ok(is_logged_in.then(|| documents("authenticatedUserPrivileges")))
}

/// The actions that `privileges` give on a resource.
fn actions_on(privileges: &[Document], resource: &Document) -> BTreeSet<String> {
    let covering = privileges.iter().filter(|other| {
        other
            .get_document("resource")
            .is_ok_and(|other| covers(other, resource))
    });
    covering.flat_map(actions).collect()
}

fn actions(privilege: &Document) -> Vec<String> {
    let actions = privilege.get_array("actions").ok().into_iter().flatten();
    actions.filter_map(Bson::as_str).map(str::to_owned).collect()
}

/// Whether a privilege on `resource` includes one on `asked`. The check is generous. If it wrongly assumes a privilege,
/// a later command fails and says so. If it wrongly missed one, Keyward would not start.
fn covers(resource: &Document, asked: &Document) -> bool {
    if resource.get_bool("anyResource").unwrap_or(false) {
        return true;
    }
    if asked.contains_key("cluster") {
        return resource.get_bool("cluster").unwrap_or(false);
    }
    let is_same_or_any = |field: &str| match (resource.get_str(field), asked.get_str(field)) {
        (Ok(there), Ok(asked)) => there.is_empty() || there == asked,
        _ => false,
    };
    is_same_or_any("db") && is_same_or_any("collection")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_covers_what_lies_in_it() {
        let users = doc! { "db": "shop", "collection": "" };
        for (resource, expected) in [
            (doc! { "anyResource": true }, true),
            (doc! { "db": "", "collection": "" }, true),
            (doc! { "db": "shop", "collection": "" }, true),
            (doc! { "db": "shop", "collection": "users" }, false),
            (doc! { "db": "other", "collection": "" }, false),
            (doc! { "cluster": true }, false),
        ] {
            assert_eq!(covers(&resource, &users), expected, "{resource}");
        }
        assert!(covers(&doc! { "cluster": true }, &doc! { "cluster": true }));
        assert!(!covers(&doc! { "db": "", "collection": "" }, &doc! { "cluster": true }));
    }
}
