//! What is measured against what.

use bson::{Document, doc};

use crate::goal::{Figure, Goal};
use crate::ground::{DATABASE, Ground};
use crate::measure::{Operation, Scenario, Target, fresh};
use testkit::wire::Connection;

/// What is passed on, as it is without Keyward: measured against HAProxy.
pub fn passed_on(ground: &Ground) -> Vec<Scenario> {
    let mut all = Vec::new();
    for connections in [1, 16, 128] {
        let mut add = |name, plain, protected| all.push(forwarded(ground, name, connections, plain, protected));
        add("ping", ping, ping);
        add("find", || finds("plain"), || finds("plain"));
        add("insert, unprotected", || inserts("plain"), || inserts("plain"));
        add("find, protected", || finds("plain"), || finds("protected"));
        add(
            "$set of no key, protected",
            || renames("plain", "name"),
            || renames("protected", "name"),
        );
    }
    all
}

/// Protected writes, against what an application would do instead.
pub fn protected(ground: &Ground) -> Vec<Scenario> {
    let mut all = Vec::new();
    for connections in [1, 64] {
        let goals: &'static [Goal] = match connections {
            1 => &[Goal::AtMost(Figure::P50, 1.05)],
            _ => &[Goal::AtLeast(Figure::Throughput, 1.5)],
        };
        let mut targets = vec![
            target("the application by hand", &ground.router, || Box::new(insert_by_hand)),
            target("Keyward", &ground.keyward, || inserts("protected")).reaching(goals),
            target("a transaction of the application's", &ground.router, transactions),
            target("without uniqueness", &ground.router, || inserts("plain")),
        ];
        // What it takes to be on the way, whatever is done there.
        targets.extend(
            ground
                .haproxy
                .iter()
                .map(|address| target("by hand through HAProxy", address, || Box::new(insert_by_hand))),
        );
        all.push(Scenario {
            name: "insert".to_owned(),
            connections,
            targets,
        });
    }
    for is_ordered in [true, false] {
        let order = if is_ordered { "ordered" } else { "unordered" };
        all.push(Scenario {
            name: format!("insertMany of 1,000, {order}"),
            connections: 1,
            targets: vec![
                target("without uniqueness", &ground.router, move || many("plain", is_ordered)),
                target("Keyward", &ground.keyward, move || many("protected", is_ordered))
                    .reaching(&[Goal::AtMost(Figure::P50, 1.8)]),
            ],
        });
    }
    all.push(Scenario {
        name: "a duplicate refused".to_owned(),
        connections: 1,
        targets: vec![
            target("the application by hand", &ground.router, || {
                duplicates(doc! { "insert": "byhand_email", "documents": [{ "_id": "taken" }], "$db": DATABASE })
            }),
            target("Keyward", &ground.keyward, || {
                duplicates(doc! { "insert": "protected", "documents": [{ "email": "taken" }], "$db": DATABASE })
            })
            .reaching(&[Goal::AtMost(Figure::P50, 1.5)]),
        ],
    });
    for connections in [1, 64] {
        all.push(update_of_a_key(ground, connections));
        all.push(Scenario {
            name: "insert, strict on shards".to_owned(),
            connections,
            targets: vec![
                target("a transaction of the application's", &ground.router, transactions),
                target("Keyward", &ground.keyward, || inserts("strict"))
                    .reaching(&[Goal::AtLeast(Figure::Throughput, 2.0)]),
            ],
        });
        all.push(Scenario {
            name: "insert, on a replica set".to_owned(),
            connections,
            targets: vec![
                target("the application by hand", &ground.replica_set, || {
                    Box::new(insert_by_hand)
                }),
                target("Keyward, strict", &ground.keyward_on_replica_set, || {
                    inserts("protected")
                })
                .reaching(&[Goal::AtLeast(Figure::Throughput, 1.3)]),
                target("a native unique index", &ground.replica_set, || inserts("native")),
            ],
        });
    }
    all
}

fn update_of_a_key(ground: &Ground, connections: usize) -> Scenario {
    let goals: &'static [Goal] = match connections {
        64 => &[Goal::AtLeast(Figure::Throughput, 1.2)],
        _ => &[],
    };
    Scenario {
        name: "$set of a key".to_owned(),
        connections,
        targets: vec![
            target("the application by hand", &ground.router, renames_by_hand),
            target("Keyward", &ground.keyward, || renames("protected", "email")).reaching(goals),
        ],
    }
}

/// The same directly and through HAProxy, on a collection without constraints, and through Keyward, measured against HAProxy.
fn forwarded(
    ground: &Ground,
    name: &str,
    connections: usize,
    plain: fn() -> Operation,
    through_keyward: fn() -> Operation,
) -> Scenario {
    let haproxy = ground.haproxy.iter().map(|address| target("HAProxy", address, plain));
    let direct = target("direct", &ground.router, plain);
    // What it must reach is a part of what HAProxy does.
    let goals = ground.haproxy.as_ref().map_or(&[][..], |_| Goal::AS_HAPROXY);
    let keyward = target("Keyward", &ground.keyward, through_keyward).reaching(goals);
    Scenario {
        name: name.to_owned(),
        connections,
        targets: haproxy.chain([direct, keyward]).collect(),
    }
}

pub fn target(name: &'static str, address: &str, operation: impl Fn() -> Operation + Sync + 'static) -> Target {
    Target {
        name,
        address: address.to_owned(),
        operation: Box::new(operation),
        goals: &[],
    }
}

impl Target {
    pub fn reaching(self, goals: &'static [Goal]) -> Target {
        Target { goals, ..self }
    }
}

fn ping() -> Operation {
    Box::new(|connection| {
        connection.must_raw(&doc! { "ping": 1, "$db": "admin" });
    })
}

fn finds(collection: &'static str) -> Operation {
    Box::new(move |connection| {
        connection.must_raw(&doc! { "find": collection, "filter": { "_id": fresh() }, "limit": 1, "$db": DATABASE });
    })
}

pub fn user() -> Document {
    doc! { "_id": fresh(), "email": format!("{}@example.com", fresh()), "name": "x".repeat(200) }
}

pub fn insert(collection: &str, documents: Vec<Document>) -> Document {
    doc! { "insert": collection, "documents": documents, "$db": DATABASE }
}

pub fn inserts(collection: &'static str) -> Operation {
    Box::new(move |connection| {
        connection.must_raw(&insert(collection, vec![user()]));
    })
}

pub fn many(collection: &'static str, is_ordered: bool) -> Operation {
    Box::new(move |connection| {
        let mut command = insert(collection, (0..1_000).map(|_| user()).collect());
        command.insert("ordered", is_ordered);
        connection.must_raw(&command);
    })
}

/// The manual's way: the value first, into a collection of its own, then the document.
pub fn insert_by_hand(connection: &mut Connection) {
    let user = user();
    reserve_by_hand(connection, user.get_str("email").unwrap());
    connection.must_raw(&insert("byhand", vec![user]));
}

pub fn reserve_by_hand(connection: &mut Connection, email: &str) {
    connection.must_raw(&insert("byhand_email", vec![doc! { "_id": email }]));
}

/// Both in one transaction.
pub fn transactions() -> Operation {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let subtype = bson::spec::BinarySubtype::Uuid;
    let lsid = doc! { "id": bson::Binary { subtype, bytes } };
    let mut number = 0_i64;
    Box::new(move |connection| {
        number += 1;
        let joined = |mut command: Document, is_first: bool| {
            command.insert("lsid", lsid.clone());
            command.insert("txnNumber", number);
            command.insert("autocommit", false);
            if is_first {
                command.insert("startTransaction", true);
            }
            command
        };
        let user = user();
        let email = doc! { "_id": user.get_str("email").unwrap() };
        connection.must_raw(&joined(insert("byhand_email", vec![email]), true));
        connection.must_raw(&joined(insert("byhand", vec![user]), false));
        connection.must_raw(&joined(doc! { "commitTransaction": 1, "$db": "admin" }, false));
    })
}

/// Tries for ever to insert what is there.
pub fn duplicates(command: Document) -> Operation {
    let mut is_there = false;
    Box::new(move |connection| {
        if !is_there {
            connection.raw(&command);
            is_there = true;
        }
        connection.must_be_duplicate(&command);
    })
}

fn set(collection: &str, id: i64, set: Document) -> Document {
    let update = doc! { "q": { "_id": id }, "u": { "$set": set } };
    doc! { "update": collection, "updates": [update], "$db": DATABASE }
}

/// A document of its own whose field gets a new value each time.
pub fn renames(collection: &'static str, field: &'static str) -> Operation {
    let mut id = None;
    Box::new(move |connection| {
        let id = *id.get_or_insert_with(|| {
            let user = user();
            let id = user.get_i64("_id").unwrap();
            connection.must_raw(&insert(collection, vec![user]));
            id
        });
        connection.must_raw(&set(collection, id, doc! { field: fresh().to_string() }));
    })
}

/// What an application does that keeps the manual's promise in updates, too: look, reserve, update, release.
pub fn renames_by_hand() -> Operation {
    let mut id = None;
    Box::new(move |connection| {
        let id = *id.get_or_insert_with(|| {
            let user = user();
            let id = user.get_i64("_id").unwrap();
            reserve_by_hand(connection, user.get_str("email").unwrap());
            connection.must_raw(&insert("byhand", vec![user]));
            id
        });
        let find = doc! { "find": "byhand", "filter": { "_id": id }, "projection": { "email": 1 }, "$db": DATABASE };
        let found = connection.must_raw(&find);
        let first = found
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .get_document(0)
            .unwrap();
        let old = first.get_str("email").unwrap().to_owned();
        let new = fresh().to_string();
        reserve_by_hand(connection, &new);
        connection.must_raw(&set("byhand", id, doc! { "email": new }));
        let release = doc! { "q": { "_id": old }, "limit": 1 };
        connection.must_raw(&doc! { "delete": "byhand_email", "deletes": [release], "$db": DATABASE });
    })
}
