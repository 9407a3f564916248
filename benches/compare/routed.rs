//! A `find` by a unique field without the shard key: routed to the owner's shard, against a broadcast to all shards.

use bson::{Document, doc};
use testkit::wire::Connection;

use crate::goal::Figure;
use crate::ground::DATABASE;
use crate::measure::{self, Effort, Operation, Outcome, Scenario};
use crate::scenarios::target;
use crate::shards::{Place, SHARDS};

/// The documents in each collection.
const DOCUMENTS: i64 = 2_000;
/// The reads of which the commands are counted.
const COUNTED: i64 = 200;
/// The collection whose constraint routes, and one whose constraint doesn't.
const COLLECTIONS: [&str; 2] = ["routed", "users"];

/// The table.
pub fn table(effort: Effort) -> String {
    let mut table = "\
| shards | clients | commands, broadcast | routed | p50 µs, broadcast | routed | ratio | op/s, broadcast | routed | ratio |
| ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- |"
        .to_owned();
    for shards in SHARDS {
        eprintln!("finds on {shards} shards");
        let mut place = Place::prepare(shards);
        fill(&place);
        let commands = COLLECTIONS.map(|collection| counted(&mut place, collection));
        for connections in [1, 64] {
            let outcome = measure::run(&scenario(&place, connections), effort);
            table += &line(shards, commands, &outcome);
        }
    }
    table
}

fn line(shards: usize, [routed, broadcast]: [f64; 2], outcome: &Outcome) -> String {
    let figures = |figure| {
        let [broadcast, routed] = medians(outcome, figure);
        let ratio = outcome.ratio(&outcome.targets[1], figure);
        format!("{broadcast:.0} | {routed:.0} | {ratio}")
    };
    format!(
        "\n| {shards} | {} | {broadcast:.1} | {routed:.1} | {} | {} |",
        outcome.connections,
        figures(Figure::P50),
        figures(Figure::Throughput)
    )
}

fn medians(outcome: &Outcome, figure: Figure) -> [f64; 2] {
    [0, 1].map(|target| outcome.targets[target].figure(figure).median)
}

/// Documents in both collections, with an index on the field, so that no shard reads all of its documents for a broadcast.
fn fill(place: &Place) {
    let mut connection = Connection::greeted(&place.keyward.address);
    for collection in COLLECTIONS {
        let index = doc! { "key": { "number": 1 }, "name": "number" };
        connection.must(DATABASE, &doc! { "createIndexes": collection, "indexes": [index] });
        let document = |n: i64| doc! { "_id": n, "region": n, "number": n };
        let documents: Vec<Document> = (0..DOCUMENTS).map(document).collect();
        connection.must(DATABASE, &doc! { "insert": collection, "documents": documents });
    }
}

fn scenario(place: &Place, connections: usize) -> Scenario {
    let address = &place.keyward.address;
    Scenario {
        name: "find by a unique field".to_owned(),
        connections,
        targets: vec![
            target("broadcast", address, || finds("users")),
            target("routed", address, || finds("routed")),
        ],
    }
}

/// Finds one document after the other, each by its number.
fn finds(collection: &'static str) -> Operation {
    let mut next = measure::fresh();
    Box::new(move |connection| {
        next += 1;
        find(connection, collection, next.rem_euclid(DOCUMENTS));
    })
}

fn find(connection: &mut Connection, collection: &str, number: i64) {
    connection.must_raw(&doc! { "find": collection, "filter": { "number": number }, "$db": DATABASE });
}

/// Commands of a read, on all shards together.
fn counted(place: &mut Place, collection: &str) -> f64 {
    let mut connection = Connection::greeted(&place.keyward.address);
    find(&mut connection, collection, 0);
    place.operations();
    for number in 0..COUNTED {
        find(&mut connection, collection, number);
    }
    place.operations() as f64 / COUNTED as f64
}
