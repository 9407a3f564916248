//! What really happened, from the shards' own logs: every change of a document or a reservation, in its order.
//!
//! A transaction's changes belong together, also where several shards took part; what a moving chunk copies and removes is
//! no change. The log holds only what a majority has, and for each change when the server made it.
//!
//! Each shard's log is in its order by cluster time. Between two shards cluster time says nothing here: clocks leap, each shard
//! by itself, and who has heard of a leap may be killed before it tells. There the machine's own clock decides, which all
//! servers read when they write their log: what happened because of something else has the later reading.

use std::collections::HashMap;

use bson::{Bson, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use testbed::Cluster;

use crate::nemesis::history::Millis;

/// One document changed.
#[derive(Debug, Clone)]
pub struct Change {
    /// When the server of its shard made it.
    pub wall: Millis,
    /// Session and number of the transaction that it is of, if any.
    pub transaction: Option<String>,
    pub collection: String,
    pub id: Bson,
    pub before: Option<Document>,
    pub after: Option<Document>,
}

/// What was changed at one moment.
#[derive(Debug, Clone)]
pub struct Moment {
    pub at: Timestamp,
    /// By the machine's clock.
    pub wall: Millis,
    pub changes: Vec<Change>,
}

/// What an entry of a log does, its document's earlier state not yet known.
#[derive(Debug)]
struct Raw {
    at: Timestamp,
    wall: Millis,
    /// Where it belongs among other shards' changes.
    order: Millis,
    transaction: Option<String>,
    /// Whether it was prepared: other shards may have taken part.
    is_prepared: bool,
    entry: Document,
}

/// Everything that happened in `database` since `since`, from the logs of all shards.
pub async fn moments(cluster: &Cluster, database: &str, since: Millis) -> Vec<Moment> {
    let mut raw = Vec::new();
    for shard in cluster.shards() {
        let client = shard.direct_client().unwrap();
        let log = client.database("local").collection::<Document>("oplog.rs");
        let first = log.find_one(doc! {}).await.unwrap().unwrap();
        let oldest = first.get_datetime("wall").unwrap().timestamp_millis();
        assert!(oldest <= since, "the log is too short for so long a run");
        let namespace = doc! { "$regex": format!("^{database}\\.") };
        let filter = doc! { "$or": [{ "ns": namespace }, { "op": "c", "ns": "admin.$cmd" }] };
        let entries: Vec<Document> = log.find(filter).await.unwrap().try_collect().await.unwrap();
        raw.extend(of_one_shard(entries));
    }
    in_one_order(&mut raw);
    let prefix = format!("{database}.");
    let mut replay = Replay::default();
    for raw in raw {
        let Some(collection) = raw.entry.get_str("ns").unwrap().strip_prefix(&prefix) else {
            continue;
        };
        let collection = collection.to_owned();
        replay.apply(collection, raw);
    }
    replay.moments
}

/// Puts the changes of all shards into the order in which they happened.
fn in_one_order(raw: &mut [Raw]) {
    // Others may act on a transaction's commit once the first shard has it: nothing of it is later than that.
    let mut committed: HashMap<String, Millis> = HashMap::new();
    for raw in raw.iter().filter(|raw| raw.is_prepared) {
        let first = committed.entry(commit_of(raw)).or_insert(raw.order);
        *first = raw.order.min(*first);
    }
    for raw in raw.iter_mut().filter(|raw| raw.is_prepared) {
        raw.order = committed[&commit_of(raw)];
    }
    // The sort is stable: a shard's entries of one moment stay in their order.
    raw.sort_by_key(|raw| (raw.order, raw.at));
}

/// What a transaction's changes have in common on all shards.
fn commit_of(raw: &Raw) -> String {
    format!("{:?} {}", raw.transaction, raw.at)
}

/// The changes of one shard's log, those of a transaction at its commit.
fn of_one_shard(entries: Vec<Document>) -> Vec<Raw> {
    let mut prepared: HashMap<String, Vec<Document>> = HashMap::new();
    let mut all = Vec::new();
    let mut latest = Millis::MIN;
    for entry in entries {
        if entry.get_bool("fromMigrate").unwrap_or(false) {
            continue;
        }
        let at = entry.get_timestamp("ts").unwrap();
        let wall = entry.get_datetime("wall").unwrap().timestamp_millis();
        let transaction = format!("{:?} {:?}", entry.get("lsid"), entry.get("txnNumber"));
        // Of two writes at once the server may read the clock in the other order.
        latest = latest.max(wall);
        let made = |at, transaction, is_prepared, entry| Raw {
            at,
            wall,
            order: latest,
            transaction,
            is_prepared,
            entry,
        };
        let of_transaction = |at, is_prepared, operations: Vec<Document>| -> Vec<Raw> {
            let operations = operations.into_iter();
            operations
                .map(|entry| made(at, Some(transaction.clone()), is_prepared, entry))
                .collect()
        };
        let command = entry.get_document("o").unwrap();
        match entry.get_str("op").unwrap() {
            "i" | "u" | "d" => all.push(made(at, None, false, entry)),
            "c" if command.contains_key("applyOps") => {
                let operations = command.get_array("applyOps").unwrap().iter();
                let operations = operations.map(|operation| operation.as_document().unwrap().clone());
                let is_part = ["prepare", "partialTxn"]
                    .iter()
                    .any(|flag| command.get_bool(flag).unwrap_or(false));
                let pending = prepared.entry(transaction.clone()).or_default();
                pending.extend(operations);
                if !is_part {
                    let operations = std::mem::take(pending);
                    all.extend(of_transaction(at, false, operations));
                }
            }
            "c" if command.contains_key("commitTransaction") => {
                let at = command.get_timestamp("commitTimestamp").unwrap();
                let operations = prepared.remove(&transaction).unwrap_or_default();
                all.extend(of_transaction(at, true, operations));
            }
            "c" if command.contains_key("abortTransaction") => {
                prepared.remove(&transaction);
            }
            _ => {}
        }
    }
    all
}

/// The documents as they are while the changes are gone through.
#[derive(Default)]
struct Replay {
    documents: HashMap<(String, String), Document>,
    moments: Vec<Moment>,
}

impl Replay {
    fn apply(&mut self, collection: String, raw: Raw) {
        let operation = raw.entry.get_str("op").unwrap();
        let what = raw.entry.get_document("o").unwrap();
        let id = match operation {
            "u" => raw.entry.get_document("o2").unwrap().get("_id"),
            _ => what.get("_id"),
        };
        let Some(id) = id.cloned() else { return };
        let place = (collection.clone(), format!("{id:?}"));
        let before = self.documents.get(&place).cloned();
        let after = match operation {
            "i" => Some(what.clone()),
            "d" => None,
            "u" if what.contains_key("$v") => {
                let mut document = before.clone().unwrap_or_default();
                patch(&mut document, what.get_document("diff").unwrap());
                Some(document)
            }
            "u" => Some(what.clone()),
            _ => return,
        };
        match &after {
            Some(document) => drop(self.documents.insert(place, document.clone())),
            None => drop(self.documents.remove(&place)),
        }
        let change = Change {
            wall: raw.wall,
            transaction: raw.transaction,
            collection,
            id,
            before,
            after,
        };
        match self.moments.last_mut() {
            Some(moment) if moment.at == raw.at && moment.wall == raw.order => moment.changes.push(change),
            _ => self.moments.push(Moment {
                at: raw.at,
                wall: raw.order,
                changes: vec![change],
            }),
        }
    }
}

/// Applies the server's own description of a change (`$v: 2`).
fn patch(document: &mut Document, diff: &Document) {
    for (name, value) in diff {
        match (name.as_str(), value) {
            ("d", Bson::Document(fields)) => fields.keys().for_each(|field| drop(document.remove(field))),
            ("u" | "i", Bson::Document(fields)) => document.extend(fields.clone()),
            (nested, Bson::Document(diff)) if nested.starts_with('s') => match document.get_mut(&nested[1..]) {
                Some(Bson::Document(inner)) => patch(inner, diff),
                Some(Bson::Array(array)) => patch_array(array, diff),
                other => panic!("{diff} of {other:?}"),
            },
            _ => panic!("unknown change {diff}"),
        }
    }
}

fn patch_array(array: &mut Vec<Bson>, diff: &Document) {
    for (name, value) in diff {
        let (what, index) = name.split_at(1);
        match (what, index.parse::<usize>(), value) {
            ("a", ..) => {}
            ("l", _, length) => {
                let length = length.as_i64().or(length.as_i32().map(i64::from)).unwrap();
                array.resize(usize::try_from(length).unwrap(), Bson::Null);
            }
            ("u", Ok(index), value) => {
                array.resize(array.len().max(index + 1), Bson::Null);
                array[index] = value.clone();
            }
            ("s", Ok(index), Bson::Document(diff)) => match &mut array[index] {
                Bson::Document(inner) => patch(inner, diff),
                Bson::Array(inner) => patch_array(inner, diff),
                other => panic!("{diff} of {other}"),
            },
            _ => panic!("unknown change {diff}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_applied_as_the_server_describes_it() {
        let mut document = doc! { "_id": 1, "email": "a", "tags": [1, 2, 3], "gone": 1 };
        let diff = doc! { "d": { "gone": false }, "u": { "email": "b" }, "i": { "n": 1 },
        "stags": { "a": true, "l": 4, "u0": 7, "u3": 9 } };
        patch(&mut document, &diff);
        assert_eq!(document, doc! { "_id": 1, "email": "b", "tags": [7, 2, 3, 9], "n": 1 });
    }

    fn entry(time: u32, operation: &str, what: Document) -> Document {
        doc! { "ts": Timestamp { time, increment: 1 }, "wall": bson::DateTime::from_millis(0), "op": operation,
        "ns": "d.c", "o": what, "lsid": 1, "txnNumber": 1 }
    }

    #[test]
    fn a_prepared_transaction_counts_from_its_commit_and_an_aborted_one_not_at_all() {
        let insert = doc! { "op": "i", "ns": "d.c", "o": { "_id": 1 } };
        let prepare = entry(1, "c", doc! { "applyOps": [insert], "prepare": true });
        let committed_at = Timestamp { time: 3, increment: 1 };
        let commit = entry(4, "c", doc! { "commitTransaction": 1, "commitTimestamp": committed_at });
        let raw = of_one_shard(vec![prepare.clone(), entry(2, "i", doc! { "_id": 2 }), commit.clone()]);
        assert_eq!(raw.iter().map(|raw| raw.at.time).collect::<Vec<_>>(), [2, 3]);
        let abort = entry(3, "c", doc! { "abortTransaction": 1 });
        assert!(of_one_shard(vec![prepare, abort]).is_empty());
    }

    fn at_wall(mut entry: Document, wall: Millis) -> Document {
        entry.insert("wall", bson::DateTime::from_millis(wall));
        entry
    }

    /// The numbers of the documents that were inserted, in the order found.
    fn in_order(shards: [Vec<Document>; 2]) -> Vec<i32> {
        let mut raw: Vec<Raw> = shards.into_iter().flat_map(of_one_shard).collect();
        in_one_order(&mut raw);
        let id = |raw: &Raw| raw.entry.get_document("o").unwrap().get_i32("_id").unwrap();
        raw.iter().map(id).collect()
    }

    #[test]
    fn between_two_shards_a_leap_of_one_clock_decides_nothing() {
        let insert = |time, wall, id| at_wall(entry(time, "i", doc! { "_id": id }), wall);
        let ahead = vec![insert(3_600, 10, 1), insert(3_601, 30, 3)];
        let behind = vec![insert(2, 20, 2), insert(3, 40, 4)];
        assert_eq!(in_order([ahead, behind]), [1, 2, 3, 4]);
    }

    #[test]
    fn a_shard_keeps_its_own_order_whatever_its_clock_read() {
        let insert = |time, wall, id| at_wall(entry(time, "i", doc! { "_id": id }), wall);
        let own = vec![insert(1, 20, 1), insert(2, 10, 2)];
        assert_eq!(in_order([own, vec![insert(9, 15, 0)]]), [0, 1, 2]);
    }

    #[test]
    fn a_transaction_over_two_shards_happens_when_the_first_one_has_its_commit() {
        let part = |id: i32, wall| {
            let insert = doc! { "op": "i", "ns": "d.c", "o": { "_id": id } };
            let prepare = entry(1, "c", doc! { "applyOps": [insert], "prepare": true });
            let committed_at = Timestamp { time: 2, increment: 0 };
            let commit = entry(3, "c", doc! { "commitTransaction": 1, "commitTimestamp": committed_at });
            vec![at_wall(prepare, 5), at_wall(commit, wall)]
        };
        let mut first = part(1, 10);
        first.push(at_wall(entry(4, "i", doc! { "_id": 3 }), 15));
        assert_eq!(in_order([first, part(2, 20)]), [1, 2, 3]);
    }

    #[test]
    fn what_a_moving_chunk_copies_is_no_change() {
        let mut copy = entry(1, "i", doc! { "_id": 1 });
        copy.insert("fromMigrate", true);
        assert!(of_one_shard(vec![copy]).is_empty());
    }
}
