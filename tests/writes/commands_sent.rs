//! What a statement costs in commands, counted on the shards: as many on six shards as on two.
//!
//! It counts the `opcounters` of all shards together, over many statements of one kind. They include monitoring and the register of
//! Keywards, which add little to each statement. A transaction that writes on several shards takes two commands for each of them
//! at its commit. So the more shards, the more often a document, its old key and its new key lie on three shards; but never on more.

use std::time::{Duration, Instant};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use testbed::Cluster;
use testkit::Keyward;
use testkit::wire::Connection;

/// So many statements of each kind.
const STATEMENTS: i32 = 60;
/// They are sent in so many rounds.
const ROUNDS: i32 = 3;
/// Monitoring adds to the count of a statement, and chance decides which shard has which key.
const TOLERANCE: f64 = 1.5;
const REGIONS: [&str; 6] = ["a", "c", "e", "g", "i", "k"];

/// A kind of statement: the `n`th one, about the `n`th document of its own.
struct Kind {
    name: &'static str,
    /// No more commands than this, whatever the number of shards.
    most: f64,
    /// Whether it is sent as a driver's retryable write.
    is_retryable: bool,
    command: fn(n: i32) -> Document,
}

fn region(n: i32) -> &'static str {
    REGIONS[n.unsigned_abs() as usize % REGIONS.len()]
}

fn user(n: i32) -> Document {
    doc! { "_id": n, "region": region(n), "number": n * 1000, "group": n / 2 }
}

fn update(n: i32, change: impl Into<bson::Bson>, is_upsert: bool) -> Document {
    let query = doc! { "_id": n, "region": region(n) };
    doc! { "update": "users", "updates": [{ "q": query, "u": change, "upsert": is_upsert }] }
}

/// Keyward leaves the evaluation to the server.
fn add_by_pipeline() -> Vec<Document> {
    vec![doc! { "$set": { "number": { "$add": ["$number", 1] } } }]
}

const KINDS: [Kind; 27] = [
    Kind {
        name: "insert",
        most: 2.0,
        is_retryable: true,
        command: |n| doc! { "insert": "users", "documents": [user(10_000 + n)] },
    },
    Kind {
        name: "insert, strict",
        most: 4.0,
        is_retryable: false,
        command: |n| doc! { "insert": "strict", "documents": [user(10_000 + n)] },
    },
    Kind {
        name: "insert, strict, retryable",
        most: 11.0,
        is_retryable: true,
        command: |n| doc! { "insert": "strict", "documents": [user(20_000 + n)] },
    },
    Kind {
        name: "refused duplicate",
        most: 3.0,
        is_retryable: true,
        command: |n| doc! { "insert": "users", "documents": [doc! { "_id": -1 - n, "region": region(n), "number": n * 1000 }] },
    },
    Kind {
        name: "refused duplicate, remembered",
        most: 2.0,
        is_retryable: true,
        command: |n| doc! { "insert": "users", "documents": [doc! { "_id": -1 - n, "region": region(n), "number": n * 1000 }] },
    },
    Kind {
        name: "$set of a key",
        most: 5.0,
        is_retryable: true,
        command: |n| update(n, doc! { "$set": { "number": n * 1000 + 1 } }, false),
    },
    Kind {
        name: "replacement",
        most: 5.0,
        is_retryable: true,
        command: |n| {
            update(
                n,
                doc! { "region": region(n), "number": n * 1000 + 50, "group": n / 2 },
                false,
            )
        },
    },
    Kind {
        name: "$inc of a key",
        most: 5.0,
        is_retryable: false,
        command: |n| update(n, doc! { "$inc": { "number": 1 } }, false),
    },
    Kind {
        name: "$inc of a key, retryable",
        most: 5.0,
        is_retryable: true,
        command: |n| update(n, doc! { "$inc": { "number": 1 } }, false),
    },
    Kind {
        name: "pipeline",
        most: 14.0,
        is_retryable: false,
        command: |n| update(n, add_by_pipeline(), false),
    },
    Kind {
        name: "findAndModify with $inc",
        most: 5.0,
        is_retryable: false,
        command: |n| {
            let query = doc! { "_id": n, "region": region(n) };
            doc! { "findAndModify": "users", "query": query, "update": { "$inc": { "number": 1 } } }
        },
    },
    Kind {
        name: "pipeline, retryable",
        most: 16.0,
        is_retryable: true,
        command: |n| update(n, add_by_pipeline(), false),
    },
    Kind {
        name: "findAndModify by a pipeline",
        most: 14.0,
        is_retryable: false,
        command: |n| {
            let query = doc! { "_id": n, "region": region(n) };
            doc! { "findAndModify": "users", "query": query, "update": add_by_pipeline() }
        },
    },
    Kind {
        name: "the same that shows it",
        most: 13.0,
        is_retryable: false,
        command: |n| {
            let query = doc! { "_id": n, "region": region(n) };
            doc! { "findAndModify": "users", "query": query, "update": add_by_pipeline(), "new": true }
        },
    },
    Kind {
        name: "upsert that inserts",
        most: 3.0,
        is_retryable: true,
        command: |n| update(30_000 + n, doc! { "$set": { "number": (30_000 + n) * 1000 } }, true),
    },
    Kind {
        name: "upsert that matches",
        most: 5.0,
        is_retryable: true,
        command: |n| update(n, doc! { "$set": { "number": n * 1000 + 10 } }, true),
    },
    // As a `$merge` sends it: with the `_id` and the shard key.
    Kind {
        name: "$set of the whole document",
        most: 5.0,
        is_retryable: true,
        command: |n| {
            let whole = doc! { "_id": n, "region": region(n), "number": n * 1000 + 15, "group": n / 2 };
            update(n, doc! { "$set": whole }, true)
        },
    },
    Kind {
        name: "upsert by a pipeline",
        most: 14.0,
        is_retryable: false,
        command: |n| update(n, vec![doc! { "$set": { "number": n * 1000 + 20 } }], true),
    },
    Kind {
        name: "find by another field",
        most: 6.0,
        is_retryable: false,
        command: |n| doc! { "find": "routed", "filter": { "number": { "$in": [n * 1000] } } },
    },
    Kind {
        name: "find by a unique field",
        most: 2.0,
        is_retryable: false,
        command: |n| doc! { "find": "routed", "filter": { "number": n * 1000 } },
    },
    Kind {
        name: "count by a unique field",
        most: 2.0,
        is_retryable: false,
        command: |n| doc! { "count": "routed", "query": { "number": n * 1000 } },
    },
    Kind {
        name: "updateOne by a unique field",
        most: 12.0,
        is_retryable: true,
        command: |n| {
            let change = doc! { "$set": { "name": n } };
            doc! { "update": "routed", "updates": [{ "q": { "number": n * 1000 }, "u": change }] }
        },
    },
    Kind {
        name: "findAndModify by a unique field",
        most: 15.0,
        is_retryable: false,
        command: |n| doc! { "findAndModify": "routed", "query": { "number": n * 1000 }, "update": { "$inc": { "number": 1 } } },
    },
    Kind {
        name: "updateMany by the shard key",
        most: 15.0,
        is_retryable: false,
        command: |n| {
            let query = doc! { "region": region(n), "_id": { "$in": [n, n + 1_000_000] } };
            doc! { "update": "users", "updates": [{ "q": query, "u": { "$inc": { "number": 1 } }, "multi": true }] }
        },
    },
    Kind {
        name: "deleteMany by the shard key",
        most: 11.0,
        is_retryable: false,
        command: |n| {
            let query = doc! { "region": region(n), "_id": { "$in": [n, n + 1_000_000] } };
            doc! { "delete": "users", "deletes": [{ "q": query, "limit": 0 }] }
        },
    },
    // It looks for the document on every shard, twice, and each is part of its commit.
    Kind {
        name: "change of the shard key",
        most: 40.0,
        is_retryable: true,
        command: |n| {
            let query = doc! { "_id": 30_000 + n, "region": region(30_000 + n) };
            let change = doc! { "$set": { "region": region(30_001 + n) } };
            doc! { "update": "users", "updates": [{ "q": query, "u": change }] }
        },
    },
    // It takes the documents away from the kinds before it.
    Kind {
        name: "deleteOne",
        most: 4.0,
        is_retryable: true,
        command: |n| {
            let query = doc! { "_id": 10_000 + n, "region": region(10_000 + n) };
            doc! { "delete": "users", "deletes": [{ "q": query, "limit": 1 }] }
        },
    },
];

/// Operations that the shards have counted so far.
fn operations(cluster: &Cluster) -> i64 {
    let mut sum = 0;
    for shard in cluster.shards() {
        let status = shard.run("admin", doc! { "serverStatus": 1 }).unwrap();
        let counters = status.get_document("opcounters").unwrap();
        for kind in ["insert", "query", "update", "delete", "getmore", "command"] {
            sum += counters
                .get(kind)
                .unwrap()
                .as_i64()
                .unwrap_or_else(|| counters.get_i32(kind).unwrap().into());
        }
    }
    sum
}

/// A cluster of so many shards, over which all collections are spread.
fn cluster(shards: usize) -> Cluster {
    let cluster = Cluster::builder().shards(shards).start().unwrap();
    for collection in ["users", "strict", "routed"] {
        let namespace = format!("commands.{collection}");
        cluster
            .shard_collection(&namespace, doc! { "region": 1 }, false)
            .unwrap();
        for (position, region) in REGIONS.iter().enumerate().skip(1) {
            cluster.split(&namespace, doc! { "region": *region }).unwrap();
            let shard = cluster.shards()[position % shards].name().to_owned();
            cluster
                .move_chunk(&namespace, doc! { "region": *region }, &shard)
                .unwrap();
        }
    }
    cluster
}

/// What a statement takes.
struct Cost {
    /// Commands, on average.
    commands: f64,
    /// The median of the times until the reply.
    time: Duration,
}

/// The commands in a second without any statement: the fewest of several looks, because the first ones may see a start.
fn of_monitoring(cluster: &Cluster, shards: usize) -> f64 {
    let look = || {
        let (started, before) = (Instant::now(), operations(cluster));
        std::thread::sleep(Duration::from_millis(300));
        let asked = i64::try_from(shards).unwrap();
        (operations(cluster) - before - asked) as f64 / started.elapsed().as_secs_f64()
    };
    std::iter::repeat_with(look).take(5).fold(f64::INFINITY, f64::min)
}

/// The cost of a statement of each kind.
fn counted(shards: usize) -> Vec<Cost> {
    let cluster = cluster(shards);
    let constraints = "  - { collection: commands.users, key: { number: 1 } }\n  - { collection: commands.routed, key: { number: 1 }, \
                       route: true }\n  - { collection: commands.strict, key: { number: 1 }, \
                       strategy: transaction }\n";
    let keyward = Keyward::quiet(&cluster.uri(), constraints);
    let mut connection = Connection::greeted(&keyward.address);
    let mut transactions = 0;
    let mut send = |connection: &mut Connection, kind: &Kind, n: i32| {
        let mut command = (kind.command)(n);
        if kind.is_retryable {
            transactions += 1;
            let id = Binary {
                subtype: BinarySubtype::Uuid,
                bytes: vec![7; 16],
            };
            command.insert("lsid", doc! { "id": id });
            command.insert("txnNumber", i64::from(transactions));
        }
        connection.must("commands", &command)
    };
    for n in 0..STATEMENTS + 1 {
        for collection in ["users", "routed"] {
            connection.must("commands", &doc! { "insert": collection, "documents": [user(n)] });
        }
    }
    // On a slow machine, much of it falls into the time of one statement.
    let of_monitoring = of_monitoring(&cluster, shards);
    let mut counts = Vec::new();
    for kind in &KINDS {
        // The first of a kind makes connections and reads what routers keep.
        send(&mut connection, kind, STATEMENTS);
        // Monitoring, and a transaction that is run again, only add: the round with the fewest commands counts.
        let mut fewest = f64::INFINITY;
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let (begun, before) = (Instant::now(), operations(&cluster));
            for n in round * STATEMENTS / ROUNDS..(round + 1) * STATEMENTS / ROUNDS {
                let started = Instant::now();
                let reply = send(&mut connection, kind, n);
                times.push(started.elapsed());
                let is_refused = reply.contains_key("writeErrors");
                assert_eq!(is_refused, kind.name.starts_with("refused"), "{}: {reply}", kind.name);
                let count = reply.get_i32("n").unwrap_or(1);
                assert!(is_refused || count > 0, "{} is about no document: {reply}", kind.name);
            }
            // Asking them is counted, too.
            let asked = i64::try_from(shards).unwrap();
            let commands = operations(&cluster) - before - asked;
            let commands = commands as f64 - of_monitoring * begun.elapsed().as_secs_f64();
            fewest = fewest.min(commands / f64::from(STATEMENTS / ROUNDS));
        }
        times.sort_unstable();
        counts.push(Cost {
            commands: fewest,
            time: times[times.len() / 2],
        });
    }
    counts
}

#[test]
fn a_statement_takes_as_many_commands_on_six_shards_as_on_two() {
    let [two, six] = [2, 6].map(counted);
    let mut faults = Vec::new();
    for ((kind, two), six) in KINDS.iter().zip(two).zip(six) {
        let [commands, times] = [
            [two.commands, six.commands],
            [two.time, six.time].map(|time| time.as_secs_f64() * 1e3),
        ];
        println!(
            "{:<30} {:5.1} {:5.1}  {:6.2} ms {:6.2} ms",
            kind.name, commands[0], commands[1], times[0], times[1]
        );
        if commands.iter().any(|commands| *commands > kind.most + TOLERANCE) {
            faults.push(kind.name);
        }
    }
    assert!(faults.is_empty(), "more commands than they may take: {faults:?}");
}

/// Otherwise every strict insert of the whole cluster, as drivers send it, would write to one shard.
#[test]
fn the_results_of_retryable_writes_are_on_all_shards() {
    let cluster = Cluster::shared();
    let namespace = "spread_results.users";
    testkit::shard_on_two(cluster, namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let constraint = "  - { collection: spread_results.users, key: { number: 1 }, strategy: transaction }\n";
    let keyward = Keyward::start(&cluster.uri(), constraint);
    let mut connection = Connection::open(&keyward.address);
    for number in 1..=40 {
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![9; 16],
        };
        let insert = doc! {
            "insert": "users", "documents": [user(number)], "lsid": { "id": id }, "txnNumber": i64::from(number),
        };
        assert_eq!(connection.must("spread_results", &insert).get_i32("n").unwrap(), 1);
    }
    for shard in cluster.shards() {
        let count = doc! { "count": "keyward.results" };
        let reply = shard.run("spread_results", count).unwrap();
        assert!(reply.get_i32("n").unwrap() > 5, "{}: {reply}", shard.name());
    }
}
