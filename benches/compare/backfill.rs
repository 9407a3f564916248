//! How fast existing documents are backfilled, against inserting the same reservations with `insertMany` in parallel, in
//! the order of their documents: as an application would that goes through them.

use std::time::Instant;

use bson::{Document, doc, oid::ObjectId};
use testbed::Cluster;

use crate::filling;
use crate::goal::verdict;
use crate::ground::{DATABASE, Ground, shard_on};
use crate::scenarios::user;
use crate::spread::Spread;
use testkit::Keyward;
use testkit::wire::Connection;

/// Of the rate of `insertMany`.
const GOAL: f64 = 0.8;

/// Measures it on so many documents; the table.
pub fn table(ground: &Ground, documents: usize, rounds: usize) -> String {
    let cluster = Cluster::shared();
    shard_on(cluster, "backfilled", doc! { "_id": "hashed" });
    filling::insert(&ground.router, "backfilled", documents, |_| {
        // As drivers make them.
        let mut user = user();
        user.insert("_id", ObjectId::new());
        user
    });
    let (mut backfill, mut by_insert) = (Vec::new(), Vec::new());
    // The first round warms up; each has collections of its own.
    for round in 0..=rounds {
        let name = format!("round{round}");
        let constraint = format!("  - {{ collection: {DATABASE}.backfilled, key: {{ email: 1 }}, name: {name} }}\n");
        let began = Instant::now();
        Keyward::backfill(&cluster.uri(), &constraint);
        let taken = began.elapsed();
        let mut reservations = read_all(&ground.router, &format!("keyward.backfilled.{name}"));
        reservations.sort_by_key(|reservation| reservation.get_object_id("owner").unwrap());
        assert_eq!(reservations.len(), documents);
        let copy = format!("copy{round}");
        // As a proxy collection is sharded.
        shard_on(cluster, &copy, doc! { "_id.h": "hashed" });
        let inserted = filling::insert(&ground.router, &copy, documents, |n| reservations[n].clone());
        if round > 0 {
            backfill.push(documents as f64 / taken.as_secs_f64());
            by_insert.push(documents as f64 / inserted.as_secs_f64());
        }
    }
    let ratio = Spread::of_ratios(&backfill, &by_insert);
    format!(
        "| documents | insertMany, a second | backfill, a second | ratio | goal |\n| ---: | ---: | ---: | --- | --- |\n| \
         {documents} | {:.0} | {:.0} | {ratio} | rate ≥ {GOAL:.2}: {} |",
        Spread::of(by_insert).median,
        Spread::of(backfill).median,
        verdict(ratio.median >= GOAL),
    )
}

fn read_all(address: &str, collection: &str) -> Vec<Document> {
    let mut connection = Connection::greeted(address);
    let mut all = Vec::new();
    let mut command = doc! { "find": collection, "batchSize": 10_000, "$db": DATABASE };
    loop {
        let reply: Document = connection.must_raw(&command).try_into().unwrap();
        let cursor = reply.get_document("cursor").unwrap();
        let batch = cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"))
            .unwrap();
        all.extend(batch.iter().map(|document| document.as_document().unwrap().clone()));
        let id = cursor.get_i64("id").unwrap();
        if id == 0 {
            return all;
        }
        command = doc! { "getMore": id, "collection": collection, "batchSize": 10_000, "$db": DATABASE };
    }
}
