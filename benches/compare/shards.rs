//! What a statement costs as the cluster grows: commands on all shards together, and time, on 2 to 16 shards.
//!
//! Each statement is about one document that the router can target. Turn by turn, the same statements go to Keyward, and directly to
//! the router on a collection without constraints. The servers' `opcounters` count the commands. They include monitoring and what
//! a two-phase commit does inside its coordinator: four commands, and two for each shard that takes part.

use std::time::Instant;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use testbed::Cluster;
use testkit::Keyward;
use testkit::wire::Connection;

use crate::goal::verdict;
use crate::ground::{DATABASE, shard_on};
use crate::spread::Spread;

/// The numbers of shards.
pub const SHARDS: [usize; 4] = [2, 4, 8, 16];
/// The statements of one kind in a round.
const STATEMENTS: i64 = 30;
/// Documents of different kinds are this far apart.
const KINDS_APART: i64 = 1_000_000;
/// Monitoring adds to each count, and chance decides which shard has which key.
const TOLERANCE: f64 = 0.5;

/// A cluster of so many shards over which all collections are spread, and a Keyward before it.
pub struct Place {
    pub keyward: Keyward,
    router: String,
    /// One to each shard, so that a question about its counters is one command.
    shards: Vec<Connection>,
    /// All their counters together, when they were last read.
    counted: i64,
    _cluster: Cluster,
}

/// One kind of statement.
struct Kind {
    name: &'static str,
    /// The protected collection.
    collection: &'static str,
    /// No more commands than this, if there is a goal.
    most: Option<f64>,
    /// Whether it is sent as a driver's retryable write.
    is_retryable: bool,
    /// Whether its documents are inserted before.
    has_documents: bool,
    is_refused: bool,
    /// The statement about a document of the kind, in a collection.
    command: fn(collection: &str, id: i64) -> Document,
}

impl Kind {
    /// A retryable statement about a document that exists.
    const fn of(name: &'static str, most: f64, command: fn(&str, i64) -> Document) -> Kind {
        Kind {
            name,
            collection: "users",
            most: Some(most),
            is_retryable: true,
            has_documents: true,
            is_refused: false,
            command,
        }
    }

    const fn inserting(self) -> Kind {
        Kind {
            has_documents: false,
            ..self
        }
    }

    const fn strict(self) -> Kind {
        Kind {
            collection: "strict",
            ..self
        }
    }

    const fn without_retries(self) -> Kind {
        Kind {
            is_retryable: false,
            ..self
        }
    }

    const fn refused(self) -> Kind {
        Kind {
            is_refused: true,
            ..self
        }
    }
}

const KINDS: [Kind; 18] = [
    Kind::of("insert", 2.0, insert).inserting(),
    Kind::of("insert, strict", 4.0, insert)
        .inserting()
        .strict()
        .without_retries(),
    Kind::of("insert, strict, retryable", 5.0, insert).inserting().strict(),
    Kind::of("refused duplicate", 3.0, insert_duplicate).refused(),
    Kind::of("refused duplicate, remembered", 2.0, insert_duplicate_again).refused(),
    Kind::of("$set of a key", 5.0, |collection, id| {
        update(collection, id, doc! { "$set": { "number": id * 1000 + 1 } }, false)
    }),
    Kind::of("replacement", 5.0, |collection, id| {
        let replacement = doc! { "region": id, "number": id * 1000 + 1 };
        update(collection, id, replacement, false)
    }),
    Kind::of("deleteOne", 4.0, |collection, id| {
        doc! { "delete": collection, "deletes": [{ "q": { "_id": id, "region": id }, "limit": 1 }] }
    }),
    Kind::of("upsert that inserts", 4.0, |collection, id| {
        update(collection, id, doc! { "$set": { "number": id * 1000 } }, true)
    })
    .inserting(),
    Kind::of("upsert that matches", 6.0, |collection, id| {
        update(collection, id, doc! { "$set": { "number": id * 1000 + 1 } }, true)
    }),
    Kind::of("$inc of a key", 9.0, increment).without_retries(),
    Kind::of("$inc of a key, retryable", 9.0, increment),
    Kind::of("pipeline", 9.0, add).without_retries(),
    Kind::of("pipeline, retryable", 9.0, add),
    Kind::of("findAndModify with $inc", 9.0, find_and_modify).without_retries(),
    Kind::of("findAndModify with $inc, retryable", 9.0, find_and_modify),
    Kind {
        most: None,
        ..Kind::of("updateMany by the shard key", 0.0, |collection, id| {
            let change = doc! { "q": { "region": id }, "u": { "$inc": { "number": 1 } }, "multi": true };
            doc! { "update": collection, "updates": [change] }
        })
        .without_retries()
    },
    Kind {
        most: None,
        ..Kind::of("deleteMany by the shard key", 0.0, |collection, id| {
            doc! { "delete": collection, "deletes": [{ "q": { "region": id }, "limit": 0 }] }
        })
        .without_retries()
    },
];

fn document(id: i64) -> Document {
    doc! { "_id": id, "region": id, "number": id * 1000 }
}

fn insert(collection: &str, id: i64) -> Document {
    doc! { "insert": collection, "documents": [document(id)] }
}

/// Another document with the key of an existing one. Directly, it is refused because of its `_id`.
fn insert_duplicate(collection: &str, id: i64) -> Document {
    let own = if collection == "plain" { id } else { -1 - id };
    doc! { "insert": collection, "documents": [{ "_id": own, "region": id, "number": id * 1000 }] }
}

/// The same a second time: about the documents of the kind before.
fn insert_duplicate_again(collection: &str, id: i64) -> Document {
    insert_duplicate(collection, id - KINDS_APART)
}

fn update(collection: &str, id: i64, change: impl Into<Bson>, is_upsert: bool) -> Document {
    let statement = doc! { "q": { "_id": id, "region": id }, "u": change, "upsert": is_upsert };
    doc! { "update": collection, "updates": [statement] }
}

fn increment(collection: &str, id: i64) -> Document {
    update(collection, id, doc! { "$inc": { "number": 1 } }, false)
}

fn add(collection: &str, id: i64) -> Document {
    let stage = doc! { "$set": { "number": { "$add": ["$number", 1] } } };
    update(collection, id, vec![stage], false)
}

fn find_and_modify(collection: &str, id: i64) -> Document {
    let (query, change) = (doc! { "_id": id, "region": id }, doc! { "$inc": { "number": 1 } });
    doc! { "findAndModify": collection, "query": query, "update": change, "new": true }
}

/// The cost of one kind on one number of shards: Keyward's, and that of the direct statement.
struct Cost {
    commands: [f64; 2],
    p50_ms: [f64; 2],
    ratio: Spread,
}

impl Place {
    pub fn prepare(shards: usize) -> Place {
        let cluster = Cluster::builder().shards(shards).start().unwrap();
        cluster.run("admin", doc! { "enableSharding": DATABASE }).unwrap();
        for collection in ["plain", "users", "strict", "routed"] {
            shard_on(&cluster, collection, doc! { "region": "hashed" });
        }
        // With a long lease, Keyward seldom reads every proxy collection on every shard to learn the time.
        let settings = format!(
            "upstream: {}\nlease: 10m\nsweep: 1day\nreload_interval: 0s\nconstraints:\n  - {{ collection: {DATABASE}.users, key: {{ \
             number: 1 }} }}\n  - {{ collection: {DATABASE}.routed, key: {{ number: 1 }}, route: true }}\n  - {{ collection: \
             {DATABASE}.strict, key: {{ number: 1 }}, strategy: transaction }}\n",
            cluster.uri()
        );
        let keyward = Keyward::of(&settings);
        let primaries = cluster.shards().iter().map(|shard| shard.addresses()[0].clone());
        Place {
            keyward,
            router: cluster.router_address(),
            shards: primaries.map(|address| Connection::greeted(&address)).collect(),
            counted: 0,
            _cluster: cluster,
        }
    }

    /// Operations that the shards have counted since the last call.
    pub fn operations(&mut self) -> i64 {
        let counted = self.shards.iter_mut().map(|shard| {
            let status = shard.must("admin", &doc! { "serverStatus": 1 });
            let counters = status.get_document("opcounters").unwrap();
            let kinds = ["insert", "query", "update", "delete", "getmore", "command"];
            let count = |kind: &str| {
                counters
                    .get_i64(kind)
                    .unwrap_or_else(|_| counters.get_i32(kind).unwrap().into())
            };
            kinds.into_iter().map(count).sum::<i64>()
        });
        let counted: i64 = counted.sum();
        // Each shard has counted the question.
        let since = counted - self.counted - self.shards.len() as i64;
        self.counted = counted;
        since
    }

    /// The cost of each kind of statement.
    fn costs(&mut self, rounds: usize) -> Vec<Cost> {
        let mut connections = [
            Connection::greeted(&self.keyward.address),
            Connection::greeted(&self.router),
        ];
        let mut retries = Retries::default();
        let kinds = (1..).zip(&KINDS);
        kinds
            .map(|(number, kind)| {
                let first = number * KINDS_APART;
                let count = STATEMENTS * (rounds as i64 + 1);
                if kind.has_documents {
                    for (connection, collection) in connections.iter_mut().zip([kind.collection, "plain"]) {
                        let documents: Vec<Document> = (first..first + count).map(document).collect();
                        connection.must(DATABASE, &doc! { "insert": collection, "documents": documents });
                    }
                }
                self.cost(kind, first, rounds, &mut connections, &mut retries)
            })
            .collect()
    }

    fn cost(
        &mut self,
        kind: &Kind,
        first: i64,
        rounds: usize,
        connections: &mut [Connection; 2],
        retries: &mut Retries,
    ) -> Cost {
        let (mut commands, mut p50_ms): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
        // The first round makes connections and reads what routers keep.
        for round in 0..=rounds {
            for (target, connection) in connections.iter_mut().enumerate() {
                let collection = [kind.collection, "plain"][target];
                self.operations();
                let mut times = Vec::new();
                for statement in 0..STATEMENTS {
                    let id = first + round as i64 * STATEMENTS + statement;
                    let mut command = (kind.command)(collection, id);
                    if kind.is_retryable {
                        retries.append_to(&mut command);
                    }
                    let began = Instant::now();
                    let reply = connection.must(DATABASE, &command);
                    times.push(began.elapsed().as_secs_f64() * 1e3);
                    assert_eq!(reply.contains_key("writeErrors"), kind.is_refused, "{command}: {reply}");
                    assert!(
                        kind.is_refused || reply.get_i32("n").unwrap_or(1) == 1,
                        "{command}: {reply}"
                    );
                }
                if round > 0 {
                    commands[target].push(self.operations() as f64 / STATEMENTS as f64);
                    p50_ms[target].push(Spread::of(times).median);
                }
            }
        }
        Cost {
            ratio: Spread::of_ratios(&p50_ms[0], &p50_ms[1]),
            // Monitoring comes for all shards at once, and only adds. So does a transaction that runs again.
            commands: commands.map(|counts| Spread::of(counts).least),
            p50_ms: p50_ms.map(|times| Spread::of(times).median),
        }
    }
}

/// The numbers of a driver's retryable writes.
#[derive(Default)]
struct Retries(i64);

impl Retries {
    fn append_to(&mut self, command: &mut Document) {
        self.0 += 1;
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![7; 16],
        };
        command.insert("lsid", doc! { "id": id });
        command.insert("txnNumber", self.0);
    }
}

/// The two tables, commands and times.
pub fn table(rounds: usize) -> String {
    let costs = SHARDS.map(|shards| {
        eprintln!("statements on {shards} shards");
        Place::prepare(shards).costs(rounds)
    });
    let head = SHARDS.map(|shards| format!("{shards} shards")).join(" | ");
    let rule = SHARDS.map(|_| "---:").join(" | ");
    let mut commands = format!("| commands | direct | {head} | goal |\n| --- | ---: | {rule} | --- |");
    let mut times = format!("| p50, ratio to the direct statement | {head} |\n| --- | {rule} |");
    for (position, kind) in KINDS.iter().enumerate() {
        let of_kind: Vec<&Cost> = costs.iter().map(|costs| &costs[position]).collect();
        let counts: Vec<f64> = of_kind.iter().map(|cost| cost.commands[0]).collect();
        let goal = kind.most.map_or(String::new(), |most| {
            let is_met = counts.iter().all(|count| *count <= most + TOLERANCE);
            format!("≤ {most}: {}", verdict(is_met))
        });
        let counted: Vec<String> = counts.iter().map(|count| format!("{count:.1}")).collect();
        let direct = of_kind[0].commands[1];
        commands += &format!("\n| {} | {direct:.1} | {} | {goal} |", kind.name, counted.join(" | "));
        let timed = of_kind.iter().map(|cost| {
            let [keyward, direct] = cost.p50_ms;
            format!("{} {keyward:.1}/{direct:.1} ms", cost.ratio)
        });
        times += &format!("\n| {} | {} |", kind.name, timed.collect::<Vec<_>>().join(" | "));
    }
    format!("{commands}\n\n{times}")
}
