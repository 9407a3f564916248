//! Generated values set, one after another, in the same few documents: through Keyward and under a native unique index.
//! Every update gets the same answer, byte for byte: whatever stands in a document can be pinned, and replaced.
//!
//! `KEYWARD_SEED` replays a run.

use bson::{doc, spec::ElementType};
use keyward::namespace::Namespace;
use keyward::raw::{Builder, Doc};
use rand::{Rng, SeedableRng, rngs::StdRng};
use testbed::{Cluster, ReplicaSet};

use crate::native_index::generate::Generator;
use crate::native_index::server::Server;
use testkit::{Keyward, shard_on_two};

const UPDATES: usize = 700;
const DOCUMENTS: i32 = 8;
const DATABASE: &str = "set_values";

/// Constraints as Keyward's configuration has them, and as the server takes them.
fn shapes() -> Vec<(&'static str, bson::Document)> {
    vec![
        ("plain", doc! { "a": 1 }),
        ("compound", doc! { "a": 1, "b": -1 }),
        ("dotted", doc! { "a.b": 1 }),
        ("positional", doc! { "a.0": 1, "c": 1 }),
    ]
}

fn region(id: i32) -> &'static [u8] {
    if id % 2 == 0 { b"a" } else { b"z" }
}

/// An update of one document to the values of a generated one: set, unset or replaced.
fn update(generator: &mut Generator, random: &mut StdRng, database: &str, collection: &str) -> Vec<u8> {
    let values = generator.document(0);
    let fields = || {
        Doc::new(&values)
            .unwrap()
            .elements()
            .flatten()
            .filter(|field| field.name != b"_id")
    };
    let id = random.random_range(0..DOCUMENTS);
    let mut command = Builder::new();
    command
        .string("update", collection.as_bytes())
        .string("$db", database.as_bytes());
    command
        .open(ElementType::Array, b"updates")
        .open(ElementType::EmbeddedDocument, b"0");
    command.open(ElementType::EmbeddedDocument, b"q");
    command.int32("_id", id).string("region", region(id)).close();
    command.open(ElementType::EmbeddedDocument, b"u");
    match random.random_range(0..4) {
        0 => {
            command.string("region", region(id));
            for field in fields() {
                command.element(&field);
            }
        }
        1 => {
            command
                .open(ElementType::EmbeddedDocument, b"$unset")
                .int32("a", 1)
                .close();
        }
        _ => {
            command.open(ElementType::EmbeddedDocument, b"$set");
            for field in fields() {
                command.element(&field);
            }
            command.close();
        }
    }
    command.finish()
}

/// The reply's fields without its times, by name: a router has them in another order than a server.
fn comparable(reply: &[u8]) -> Vec<u8> {
    let mut fields: Vec<_> = Doc::new(reply).unwrap().elements().map(Result::unwrap).collect();
    fields.retain(|field| ![&b"$clusterTime"[..], b"operationTime", b"electionId", b"opTime"].contains(&field.name));
    fields.sort_by_key(|field| field.name);
    let mut comparable = Builder::new();
    fields.iter().for_each(|field| {
        comparable.element(field);
    });
    comparable.finish()
}

#[test]
fn any_value_can_follow_any_other_in_a_field() {
    any_value_can_follow_any_other(0);
}

#[test]
fn any_value_can_follow_any_other_in_a_compound_key() {
    any_value_can_follow_any_other(1);
}

#[test]
fn any_value_can_follow_any_other_in_a_subdocument() {
    any_value_can_follow_any_other(2);
}

#[test]
fn any_value_can_follow_any_other_in_an_array() {
    any_value_can_follow_any_other(3);
}

fn any_value_can_follow_any_other(number: usize) {
    let seed = testkit::given::seed();
    let cluster = Cluster::shared();
    let (name, key) = shapes().swap_remove(number);
    let database = format!("{DATABASE}_{name}");
    let namespace = format!("{database}.{name}");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let keyward = Keyward::start(
        &cluster.uri(),
        &format!("  - {{ collection: {namespace}, key: {key} }}\n"),
    );
    let native_address = &ReplicaSet::shared().addresses()[0];
    let mut random = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
    let mut generator = Generator::new(StdRng::seed_from_u64(seed ^ number as u64));
    let (mut through_keyward, mut native) = (Server::at(&keyward.address), Server::at(native_address));
    native.drop(&Namespace::new(&*database, name));
    let index_name: Vec<String> = key.iter().map(|(path, order)| format!("{path}_{order}")).collect();
    let index = doc! { "key": key, "name": index_name.join("_"), "unique": true };
    native.run(
        &doc! { "createIndexes": name, "indexes": [index], "$db": &database },
        &[],
    );
    for id in 0..DOCUMENTS {
        let document = doc! { "_id": id, "region": str::from_utf8(region(id)).unwrap(), "a": { "b": id }, "c": id };
        let insert = doc! { "insert": name, "documents": [document], "$db": &database };
        for server in [&mut through_keyward, &mut native] {
            let reply = server.run(&insert, &[]);
            assert!(
                Doc::new(&reply).unwrap().get("writeErrors").unwrap().is_none(),
                "{name} {id}"
            );
        }
    }
    let mut refused = 0;
    for _ in 0..UPDATES {
        let command = update(&mut generator, &mut random, &database, name);
        let find = doc! { "find": name, "$db": &database };
        let before = native.run(&find, &[]);
        let expected = comparable(&native.run_raw(&command, &[]));
        let got = comparable(&through_keyward.run_raw(&command, &[]));
        refused += usize::from(Doc::new(&expected).unwrap().get("writeErrors").unwrap().is_some());
        assert!(
            got == expected,
            "{name}: of {}\nthe command {}\nKeyward  {}\nnatively {}",
            before.escape_ascii(),
            command.escape_ascii(),
            String::from_utf8_lossy(&got),
            String::from_utf8_lossy(&expected)
        );
    }
    println!("{name}: {refused} of {UPDATES} refused");
    assert!(refused > 0 && refused < UPDATES);
}
