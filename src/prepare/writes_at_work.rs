//! Waits until the writes have ended that servers were carrying out at one moment.
//!
//! A server carries a write to its end, even if the client that sent it is gone. So an `updateMany` may change documents for hours after
//! its Keyward was killed. That Keyward may have lacked the constraint, and the backfill may be past those documents.
//!
//! A router runs a `$merge` or an `$out` by cursors on the shards: each shard writes once it gets the `getMore` for its cursor. Keyward may
//! not reach that router, or the router may be gone. So the cursors count, also while they are idle. A server closes those of a session
//! that nothing uses any more after half an hour.

use std::collections::{BTreeSet, HashSet};
use std::future::IntoFuture;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::action::Action;
use mongodb::options::{SelectionCriteria, ServerAddress};
use mongodb::{Client, ServerType};
use tokio::time::Instant;

use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};
use crate::server::driver;

/// How long to leave it between two looks.
const POLL: Duration = Duration::from_millis(250);
/// How many looks in sequence must show nothing.
const QUIET_LOOKS: u32 = 2;
/// The same where Keyward can't see the operations of routers: then looks with a pause after each. Meanwhile a router begins the next
/// statement of a command that it is carrying out.
const QUIET_LOOKS_WITHOUT_ROUTERS: u32 = 20;
/// How long to wait before the log says so, and between two such lines.
const QUIET: Duration = Duration::from_secs(10);

/// Waits until every write to `namespace` has ended that a server, or a router that Keyward reaches, carries out now. There is no time
/// limit.
///
/// # Errors
/// [`StoreError`] if the deployment doesn't say.
pub(super) async fn ended(client: &Client, namespace: &Namespace) -> Result<(), StoreError> {
    let mut logged = Instant::now();
    let mut pending = Pending::default();
    while pending.go_on_after(at_work(client, namespace).await?) {
        if pending.is_quiet() && !pending.lacks_routers {
            continue;
        }
        if !pending.is_quiet() && logged.elapsed() >= QUIET {
            logged = Instant::now();
            let operations = pending.operations.iter().chain(&pending.cursors);
            let operations = operations.map(String::as_str).collect::<Vec<_>>().join(", ");
            tracing::info!(
                %namespace, operations,
                "the backfill waits for writes that servers are still carrying out; killOp or killCursors ends one"
            );
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// The writes that were at work when the wait began, as far as they haven't ended.
#[derive(Debug, Default)]
struct Pending {
    operations: BTreeSet<String>,
    cursors: BTreeSet<String>,
    /// All cursors that have counted.
    known_cursors: BTreeSet<String>,
    /// How many looks in sequence have shown none of them.
    quiet_looks: u32,
    /// How many of the next looks may show cursors of pipelines that were at work as the wait began.
    looks_for_cursors: u32,
    /// Whether the looks can't show the operations of routers.
    lacks_routers: bool,
    has_begun: bool,
}

impl Pending {
    /// Takes note of the writes that a look has found. Returns whether another look is needed.
    ///
    /// A server lists its operations first and then its idle cursors. One look misses a cursor whose next `getMore` begins between the two
    /// lists. So Keyward looks twice in sequence. A pipeline may also leave its cursor only as its first command ends, under another name.
    /// So new cursors count for two looks, and for two more after each look that still shows an operation. Later ones belong to later
    /// commands.
    fn go_on_after(&mut self, found: AtWork) -> bool {
        self.lacks_routers = found.lacks_routers;
        match std::mem::replace(&mut self.has_begun, true) {
            true => self.operations.retain(|operation| found.operations.contains(operation)),
            false => {
                self.operations = found.operations;
                self.looks_for_cursors = QUIET_LOOKS;
            }
        }
        if self.looks_for_cursors > 0 {
            self.known_cursors.extend(found.cursors.iter().cloned());
        }
        self.cursors = found.cursors.intersection(&self.known_cursors).cloned().collect();
        self.looks_for_cursors = match self.operations.is_empty() {
            true => self.looks_for_cursors.saturating_sub(1),
            false => QUIET_LOOKS,
        };
        self.quiet_looks = match self.is_quiet() {
            true => self.quiet_looks + 1,
            false => 0,
        };
        self.quiet_looks
            < match self.lacks_routers {
                true => QUIET_LOOKS_WITHOUT_ROUTERS,
                false => QUIET_LOOKS,
            }
    }

    /// Whether nothing was at work at the last look.
    fn is_quiet(&self) -> bool {
        self.operations.is_empty() && self.cursors.is_empty()
    }
}

/// The writes that one look has found, each by the name that `killOp` takes, or by its cursor. A router's have its address before them.
#[derive(Debug, Default)]
struct AtWork {
    operations: BTreeSet<String>,
    cursors: BTreeSet<String>,
    /// Whether there are routers whose operations can't be seen.
    lacks_routers: bool,
}

impl AtWork {
    /// Adds `found`, with `prefix` before each name.
    fn add(&mut self, found: &[Bson], prefix: &str) {
        for one in found.iter().filter_map(Bson::as_document) {
            if let Some(name) = cursor_of(one) {
                self.cursors.insert(format!("{prefix}{name}"));
            } else if let Some(name) = name_of(one) {
                self.operations.insert(format!("{prefix}{name}"));
            }
        }
    }
}

/// The writes to `namespace` that are being carried out.
async fn at_work(client: &Client, namespace: &Namespace) -> Result<AtWork, StoreError> {
    let mut found = AtWork::default();
    // The routers first: a router sends the statements of one command to the shards one after the other.
    let routers = routers(client).await?;
    found.lacks_routers = routers.is_none();
    for router in routers.unwrap_or_default() {
        let here = doc! { "allUsers": true, "localOps": true, "idleCursors": true };
        let at = router.clone();
        let only = SelectionCriteria::Predicate(Arc::new(move |server| *server.address() == at));
        let operations = operations(client, here, namespace, Some(only)).await?;
        found.add(&operations, &format!("{router} "));
    }
    let everywhere = doc! { "allUsers": true, "idleCursors": true };
    found.add(&operations(client, everywhere, namespace, None).await?, "");
    Ok(found)
}

/// The routers that Keyward's driver reaches now: several `mongos` may be named upstream, and each knows its own operations only. None if
/// a load balancer hides them: each question goes to another `mongos`.
async fn routers(client: &Client) -> Result<Option<HashSet<ServerAddress>>, StoreError> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let all = SelectionCriteria::Predicate(Arc::new(move |server| {
        let mut seen = note.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((server.address().clone(), server.server_type()));
        true
    }));
    let admin = client.database("admin");
    let hello = admin.run_command(doc! { "hello": 1 }).selection_criteria(all);
    let hello = answered(hello.into_future()).await?;
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    if seen.iter().any(|(_, kind)| *kind == ServerType::LoadBalancer) {
        return Ok(None);
    }
    Ok(Some(match driver::is_of_router(&hello) {
        true => seen.into_iter().map(|(address, _)| address).collect(),
        false => HashSet::new(),
    }))
}

/// The operations and cursors that may write to `namespace`, in the place that `stage` describes.
async fn operations(
    client: &Client,
    stage: Document,
    namespace: &Namespace,
    selection: Option<SelectionCriteria>,
) -> Result<Vec<Bson>, StoreError> {
    let pipeline = vec![
        doc! { "$currentOp": stage },
        doc! { "$match": writes_to(namespace) },
        doc! { "$project": { "opid": 1, "shard": 1, "cursor.cursorId": 1 } },
    ];
    // Stated, because a cluster may have another default.
    let local = doc! { "level": "local" };
    let command =
        doc! { "aggregate": 1, "pipeline": pipeline, "cursor": { "batchSize": 100_000 }, "readConcern": local };
    let admin = client.database("admin");
    let running = admin
        .run_command(command)
        .optional(selection, |run, selection| run.selection_criteria(selection));
    let reply = answered(running.into_future()).await?;
    let cursor = reply.get_document("cursor");
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.map_err(|_| StoreError::Unexpected("the operations in progress"))?;
    Ok(batch.clone())
}

/// Matches operations that may write to `namespace`, and the cursors of pipelines that do, in use or idle.
fn writes_to(namespace: &Namespace) -> Document {
    let by_command = ["update", "insert", "delete", "findAndModify", "findandmodify"];
    let by_command = by_command.map(|name| doc! { format!("command.{name}"): { "$exists": true } });
    let mut kinds = vec![doc! { "op": { "$in": ["update", "insert", "remove"] } }];
    kinds.extend(by_command);
    let mut any = vec![doc! { "ns": namespace.to_string(), "$or": kinds }];
    // The others name their targets inside the command. Their namespace is the collection that they read.
    any.push(doc! { "op": "bulkWrite" });
    for name in ["bulkWrite", "mapReduce", "mapreduce"] {
        any.push(doc! { format!("command.{name}"): { "$exists": true } });
    }
    for target in ["$merge", "$merge.into", "$merge.into.coll", "$out", "$out.coll"] {
        any.push(doc! { format!("command.pipeline.{target}"): &namespace.collection });
    }
    let in_use = doc! { "active": true, "$or": any };
    doc! { "$or": [in_use, { "$or": cursors_of_outputs_to(namespace) }] }
}

/// Matches the cursors of pipelines that write to `namespace`, in each form. Pipelines into other databases don't count: the wait could have
/// no end.
fn cursors_of_outputs_to(Namespace { database, collection }: &Namespace) -> Vec<Document> {
    let command = "cursor.originatingCommand";
    // Without a database it is that of the command.
    let database = doc! { "$in": [database, Bson::Null] };
    let in_same = ["$merge", "$merge.into", "$out"].map(|target| {
        doc! { format!("{command}.pipeline.{target}"): collection, format!("{command}.$db"): database.clone() }
    });
    let in_named = ["$merge.into", "$out"].map(|target| {
        let target = format!("{command}.pipeline.{target}");
        doc! { format!("{target}.coll"): collection, format!("{target}.db"): database.clone() }
    });
    in_same.into_iter().chain(in_named).collect()
}

/// A number, or with the shard's name before it.
fn name_of(operation: &Document) -> Option<String> {
    match operation.get("opid")? {
        Bson::String(name) => Some(name.clone()),
        number => Some(number.to_string()),
    }
}

/// The cursor of an operation, or an idle one.
fn cursor_of(found: &Document) -> Option<String> {
    let number = found.get_document("cursor").ok()?.get_i64("cursorId").ok()?;
    Some(match found.get_str("shard") {
        Ok(shard) => format!("{shard} cursor {number}"),
        Err(_) => format!("cursor {number}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look<'d>(found: impl IntoIterator<Item = &'d Document>) -> AtWork {
        let found: Vec<Bson> = found.into_iter().cloned().map(Bson::Document).collect();
        let mut at_work = AtWork::default();
        at_work.add(&found, "");
        at_work
    }

    #[test]
    fn a_cursor_is_waited_for_though_its_pipeline_has_another_name_and_one_look_misses_it() {
        let opening = doc! { "opid": "a:1", "shard": "a" };
        let later = doc! { "opid": "a:2", "shard": "a" };
        let cursor = doc! { "shard": "a", "cursor": { "cursorId": 7_i64 } };
        let used = doc! { "opid": "a:3", "shard": "a", "cursor": { "cursorId": 7_i64 } };
        let mut pending = Pending::default();
        assert!(pending.go_on_after(look([&opening])));
        assert!(pending.go_on_after(look([&cursor, &later])));
        assert!(pending.go_on_after(look([&later])), "it may have been in between");
        assert!(pending.go_on_after(look([&used, &later])));
        assert!(pending.go_on_after(look([&later])));
        assert!(
            !pending.go_on_after(look([&later])),
            "an update that began later isn't waited for"
        );
    }

    #[test]
    fn behind_a_load_balancer_a_pause_between_two_statements_is_no_end() {
        let unseen = |found: &[&Document]| AtWork {
            lacks_routers: true,
            ..look(found.iter().copied())
        };
        let mut pending = Pending::default();
        assert!(pending.go_on_after(unseen(&[])));
        let quiet = (0..QUIET_LOOKS_WITHOUT_ROUTERS).take_while(|_| pending.go_on_after(unseen(&[])));
        assert_eq!(quiet.count() + 2, QUIET_LOOKS_WITHOUT_ROUTERS as usize);
    }

    #[test]
    fn cursors_of_later_pipelines_are_not_waited_for() {
        let cursor = |id: i64| doc! { "shard": "a", "cursor": { "cursorId": id } };
        let mut pending = Pending::default();
        assert!(pending.go_on_after(look([&cursor(1)])));
        assert!(pending.go_on_after(look([&cursor(1), &cursor(2)])));
        assert!(pending.go_on_after(look([&cursor(2), &cursor(3)])));
        assert!(pending.go_on_after(look([&cursor(3), &cursor(4)])));
        assert!(!pending.go_on_after(look([&cursor(4), &cursor(5)])));
    }
}
