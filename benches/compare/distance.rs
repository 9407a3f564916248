//! What counts where the cluster is far: the round trips in a row.
//!
//! First, only the link between the application's host and the router has a latency. Keyward is a sidecar, so its messages pass that
//! link, and the application's own do, too. How much slower a statement gets with the latency says how many round trips it waits
//! for, one after the other. Then every link has a latency of 1 ms: the one to the router, those to the shards, and those between
//! the three members of a shard, so that a majority takes a round trip.

use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};
use testbed::Cluster;
use testkit::Keyward;
use testkit::wire::Connection;

use crate::goal::{Figure, Goal};
use crate::ground::{DATABASE, shard_on};
use crate::link::{Latency, link};
use crate::measure::{self, Effort, Operation, Outcome, Scenario};
use crate::scenarios::{
    duplicates, insert, insert_by_hand, inserts, many, renames, renames_by_hand, reserve_by_hand, target, transactions,
    user,
};

/// Latencies to the router, one way, in microseconds.
const LATENCIES: [u64; 3] = [250, 1_000, 5_000];
/// The latency of every link in the second part, in microseconds.
const EVERYWHERE: u64 = 1_000;

/// The cluster behind links.
struct Place {
    to_router: Latency,
    inside: Latency,
    router: String,
    keyward: Keyward,
    _cluster: Cluster,
}

/// One statement, and the application's own way to do the same.
struct Statement {
    name: &'static str,
    by_hand: (&'static str, fn() -> Operation),
    keyward: fn() -> Operation,
    goals: &'static [Goal],
}

const STATEMENTS: [Statement; 10] = [
    Statement {
        name: "insert",
        by_hand: ("reserve, insert", || Box::new(insert_by_hand)),
        keyward: || inserts("protected"),
        goals: &[Goal::AtMost(Figure::P50, 1.03)],
    },
    Statement {
        name: "a duplicate refused",
        by_hand: ("reserve", || {
            duplicates(doc! { "insert": "byhand_email", "documents": [{ "_id": "taken" }], "$db": DATABASE })
        }),
        keyward: || duplicates(doc! { "insert": "protected", "documents": [{ "email": "taken" }], "$db": DATABASE }),
        goals: &[],
    },
    Statement {
        name: "insert, strict",
        by_hand: ("a transaction of two inserts", transactions),
        keyward: || inserts("strict"),
        goals: &[],
    },
    Statement {
        name: "insert, strict, retryable",
        by_hand: ("a transaction of two inserts", transactions),
        keyward: || retryable(|| insert("strict", vec![user()])),
        goals: &[],
    },
    Statement {
        name: "$set of a key",
        by_hand: ("find, reserve, update, release", renames_by_hand),
        keyward: || renames("protected", "email"),
        goals: &[],
    },
    Statement {
        name: "deleteOne",
        by_hand: ("find, delete, release", || Box::new(delete_by_hand)),
        keyward: || Box::new(delete),
        goals: &[],
    },
    Statement {
        name: "upsert that inserts",
        by_hand: ("reserve, upsert", || Box::new(upsert_by_hand)),
        keyward: || {
            Box::new(|connection| {
                connection.must_raw(&upsert("protected", &user()));
            })
        },
        goals: &[],
    },
    Statement {
        name: "$inc of a key",
        by_hand: ("a transaction of five commands", increments_by_hand),
        keyward: increments,
        goals: &[],
    },
    Statement {
        name: "insertMany of 1,000, ordered",
        by_hand: ("insertMany without uniqueness", || many("plain", true)),
        keyward: || many("protected", true),
        goals: &[],
    },
    Statement {
        name: "insertMany of 1,000, unordered",
        by_hand: ("insertMany without uniqueness", || many("plain", false)),
        keyward: || many("protected", false),
        goals: &[Goal::AtMost(Figure::P50, 1.3)],
    },
];

/// Measures both parts: the two tables, one after the other.
pub fn table(effort: Effort) -> String {
    let place = Place::prepare();
    let mut table = "| statement | by hand | round trips in a row, by hand | Keyward | p50 at 0.25 ms, ratio | at 1 ms | at 5 ms |\n\
                     | --- | --- | ---: | ---: | --- | --- | --- |\n"
        .to_owned();
    place.inside.set(Duration::ZERO);
    for statement in &STATEMENTS {
        eprintln!("{}", statement.name);
        table += &place.row(statement, effort);
    }
    table += "\nWith 1 ms on every link, and three members to a shard:\n\n";
    table += Outcome::HEAD;
    let everywhere = Duration::from_micros(EVERYWHERE);
    place.inside.set(everywhere);
    place.to_router.set(everywhere);
    for statement in &STATEMENTS {
        for connections in [1, 64] {
            if connections > 1 && statement.name.starts_with("insertMany") {
                continue;
            }
            eprintln!("{}, {connections} clients, 1 ms everywhere", statement.name);
            let outcome = measure::run(&place.scenario(statement, connections), effort);
            table += &format!("\n{}", outcome.lines().join("\n"));
        }
    }
    table
}

impl Place {
    fn prepare() -> Place {
        let (to_router, inside) = (Latency::default(), Latency::default());
        let between = inside.clone();
        let cluster = Cluster::builder()
            .shards(2)
            .replicas(3)
            .detour(move |address| link(address, &between))
            .start()
            .unwrap();
        cluster.run("admin", doc! { "enableSharding": DATABASE }).unwrap();
        for collection in ["plain", "byhand", "byhand_email", "protected", "strict"] {
            shard_on(&cluster, collection, doc! { "_id": "hashed" });
        }
        let constraints = format!(
            "  - {{ collection: {DATABASE}.protected, key: {{ email: 1 }} }}\n  - {{ collection: {DATABASE}.strict, key: {{ \
             email: 1 }}, strategy: transaction }}\n"
        );
        let router = link(&cluster.router_address(), &to_router);
        let keyward = Keyward::quiet(&format!("mongodb://{router}/"), &constraints);
        Place {
            to_router,
            inside,
            router,
            keyward,
            _cluster: cluster,
        }
    }

    fn scenario(&self, statement: &Statement, connections: usize) -> Scenario {
        let (by_hand, keyward) = (statement.by_hand.1, statement.keyward);
        Scenario {
            name: statement.name.to_owned(),
            connections,
            targets: vec![
                target("by hand", &self.router, by_hand),
                target("Keyward", &self.keyward.address, keyward).reaching(match connections {
                    1 => statement.goals,
                    _ if statement.name == "$set of a key" => &[Goal::AtLeast(Figure::Throughput, 1.3)],
                    _ => &[],
                }),
            ],
        }
    }

    /// One line: the round trips, and the ratios at each latency to the router.
    fn row(&self, statement: &Statement, effort: Effort) -> String {
        let scenario = self.scenario(statement, 1);
        let mut medians: [Vec<f64>; 2] = Default::default();
        let mut ratios = Vec::new();
        for latency in LATENCIES {
            self.to_router.set(Duration::from_micros(latency));
            let outcome = measure::run(&scenario, effort);
            for (medians, target) in medians.iter_mut().zip(&outcome.targets) {
                medians.push(target.figure(Figure::P50).median);
            }
            ratios.push(outcome.ratio(&outcome.targets[1], Figure::P50).to_string());
        }
        // One more microsecond of latency makes a round trip two microseconds longer.
        let [by_hand, keyward] = medians.map(|p50| (p50[2] - p50[0]) / (2 * (LATENCIES[2] - LATENCIES[0])) as f64);
        format!(
            "| {} | {} | {by_hand:.1} | {keyward:.1} | {} |\n",
            statement.name,
            statement.by_hand.0,
            ratios.join(" | ")
        )
    }
}

/// What `command` gives, each time as a driver's retryable write.
fn retryable(command: fn() -> Document) -> Operation {
    let (id, mut number) = (session(), 0_i64);
    Box::new(move |connection| {
        number += 1;
        let mut command = command();
        command.insert("lsid", doc! { "id": id.clone() });
        command.insert("txnNumber", number);
        connection.must_raw(&command);
    })
}

fn session() -> Binary {
    Binary {
        subtype: BinarySubtype::Uuid,
        bytes: rand::random::<[u8; 16]>().to_vec(),
    }
}

/// Inserts a document of each turn's own, and deletes it: the insert counts, too, on both sides.
fn delete(connection: &mut Connection) {
    let user = user();
    connection.must_raw(&insert("protected", vec![user.clone()]));
    connection.must_raw(&deletion("protected", doc! { "_id": user.get_i64("_id").unwrap() }));
}

fn delete_by_hand(connection: &mut Connection) {
    let user = user();
    let (id, email) = (user.get_i64("_id").unwrap(), user.get_str("email").unwrap().to_owned());
    reserve_by_hand(connection, &email);
    connection.must_raw(&insert("byhand", vec![user]));
    let find = doc! { "find": "byhand", "filter": { "_id": id }, "projection": { "email": 1 }, "$db": DATABASE };
    connection.must_raw(&find);
    connection.must_raw(&deletion("byhand", doc! { "_id": id }));
    connection.must_raw(&deletion("byhand_email", doc! { "_id": email }));
}

fn deletion(collection: &str, filter: Document) -> Document {
    doc! { "delete": collection, "deletes": [{ "q": filter, "limit": 1 }], "$db": DATABASE }
}

fn upsert(collection: &str, user: &Document) -> Document {
    let mut set = user.clone();
    let id = set.remove("_id").unwrap();
    let statement = doc! { "q": { "_id": id }, "u": { "$set": set }, "upsert": true };
    doc! { "update": collection, "updates": [statement], "$db": DATABASE }
}

fn upsert_by_hand(connection: &mut Connection) {
    let user = user();
    reserve_by_hand(connection, user.get_str("email").unwrap());
    connection.must_raw(&upsert("byhand", &user));
}

/// A document whose key is a number, and a statement that only the server can evaluate.
fn increments() -> Operation {
    let mut id = None;
    Box::new(move |connection| {
        let id = *id.get_or_insert_with(|| numbered(connection, "protected"));
        let statement = doc! { "q": { "_id": id }, "u": { "$inc": { "email": 1_i64 } } };
        connection.must_raw(&doc! { "update": "protected", "updates": [statement], "$db": DATABASE });
    })
}

fn numbered(connection: &mut Connection, collection: &str) -> i64 {
    let id = measure::fresh();
    // Far from other documents' numbers, so that it can be incremented many times.
    connection.must_raw(&insert(collection, vec![doc! { "_id": id, "email": id & !0xFFFF }]));
    id
}

/// The same in one transaction of the application's: look, change, move the reservation.
fn increments_by_hand() -> Operation {
    let (lsid, mut number, mut document) = (session(), 0_i64, None);
    Box::new(move |connection| {
        let (id, value) = document.get_or_insert_with(|| {
            let id = numbered(connection, "byhand");
            connection.must_raw(&insert("byhand_email", vec![doc! { "_id": id & !0xFFFF }]));
            (id, id & !0xFFFF)
        });
        number += 1;
        let mut send = |mut command: Document, is_first: bool| {
            command.insert("lsid", doc! { "id": lsid.clone() });
            command.insert("txnNumber", number);
            command.insert("autocommit", false);
            if is_first {
                command.insert("startTransaction", true);
            }
            connection.must_raw(&command);
        };
        let find = doc! { "find": "byhand", "filter": { "_id": *id }, "projection": { "email": 1 }, "$db": DATABASE };
        send(find, true);
        let statement = doc! { "q": { "_id": *id }, "u": { "$inc": { "email": 1_i64 } } };
        send(
            doc! { "update": "byhand", "updates": [statement], "$db": DATABASE },
            false,
        );
        send(insert("byhand_email", vec![doc! { "_id": *value + 1 }]), false);
        send(deletion("byhand_email", doc! { "_id": *value }), false);
        send(doc! { "commitTransaction": 1, "$db": "admin" }, false);
        *value += 1;
    })
}
