//! Generated merges, each run natively and through Keyward.

use std::collections::BTreeSet;

use bson::{Bson, Document, doc};
use keyward::constraint::{Constraint, IndexSpec, Key};
use keyward::namespace::Namespace;
use keyward::raw::Doc;
use rand::SeedableRng;
use rand::rngs::StdRng;
use testbed::Cluster;
use testkit::wire::{Connection, is_ok};
use testkit::{given, in_one_order};

use super::generate::{Case, case};
use super::{fill, native, sharded, sharded_inside, unsharded};

/// How many merges are tried.
const CASES: usize = 250;

#[derive(Debug, Default)]
struct Seen {
    succeeded: usize,
    changed: usize,
    duplicates: usize,
    unmatched: usize,
    on_email: usize,
    /// Duplicates of both `_id` and e-mail, of which the server reports the other one.
    other_duplicates: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_merges_do_what_native_ones_do_on_shards() {
    let database = "merged_on_shards";
    let keyward = sharded(database);
    let past = Connection::open(&Cluster::shared().router_address());
    let places = [native(database).await, Connection::open(&keyward.address), past];
    compare(database, places, Matching::ShardKey);
}

/// The server's `$merge` sets the whole document, and so the shard key.
#[tokio::test(flavor = "multi_thread")]
async fn generated_merges_by_a_shard_key_inside_another_field_do_what_native_ones_do() {
    for strategy in ["compensating", "transaction"] {
        let database = format!("merged_inside_{strategy}");
        let keyward = sharded_inside(&database, strategy);
        let mut native = native(&database).await;
        let index = doc! { "key": { "place.region": 1, "_id": 1 }, "name": "by_place", "unique": true };
        native.must(&database, &doc! { "createIndexes": "users", "indexes": [index] });
        let past = Connection::open(&Cluster::shared().router_address());
        let places = [native, Connection::open(&keyward.address), past];
        compare(&database, places, Matching::NestedShardKey);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_merges_do_what_native_ones_do_in_strict_mode() {
    let database = "merged_strictly";
    let (set, keyward) = unsharded(database);
    let past = Connection::open(&set.addresses()[0]);
    let places = [native(database).await, Connection::open(&keyward.address), past];
    compare(database, places, Matching::AnyField);
}

/// The fields by which merges match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Matching {
    AnyField,
    ShardKey,
    NestedShardKey,
}

/// `past` goes past Keyward.
fn compare(database: &str, [mut native, mut keyward, mut past]: [Connection; 3], matching: Matching) {
    let mut random = StdRng::seed_from_u64(given::seed());
    let mut seen = Seen::default();
    for number in 0..CASES {
        let mut case = case(&mut random);
        match matching {
            Matching::AnyField => {}
            Matching::ShardKey => case.match_by_shard_key(),
            Matching::NestedShardKey => case.match_by_nested_shard_key(),
        }
        for connection in [&mut native, &mut keyward] {
            fill(connection, database, "source", &case.source);
            fill(connection, database, "users", &case.target);
        }
        let expected = native.run(database, &case.command);
        let got = keyward.run(database, &case.command);
        let described = format!("case {number}: {case:#?}\nKeyward  {got}\nnatively {expected}");
        // A document may violate both indexes.
        let is_other_duplicate = [&got, &expected].map(|reply| reply.get_i32("code").ok()) == [Some(11000); 2]
            && got.get_document("keyPattern").ok() != expected.get_document("keyPattern").ok();
        match is_other_duplicate {
            true => seen.other_duplicates += 1,
            false => assert_eq!(comparable(got), comparable(expected.clone()), "{described}"),
        }
        let [left, expected_left] = [&mut past, &mut native].map(|one| one.all(database, "users"));
        assert_eq!(without_new_ids(&left), without_new_ids(&expected_left), "{described}");
        assert_eq!(
            reserved(&mut past, database),
            held(&left, database),
            "{described}\n{left:?}"
        );
        seen.note(&case, &expected, &expected_left);
    }
    println!("{seen:?}");
    let often = [seen.succeeded, seen.changed, seen.duplicates, seen.unmatched];
    assert!(often.iter().all(|times| *times > 2), "{seen:?}");
    assert_eq!(seen.on_email > 2, matching == Matching::AnyField, "{seen:?}");
    assert!(seen.other_duplicates < seen.duplicates / 2, "{seen:?}");
}

impl Seen {
    fn note(&mut self, case: &Case, reply: &Document, left: &[Document]) {
        let has_changed = left.iter().any(|document| document.get("old").is_none());
        self.succeeded += usize::from(is_ok(reply));
        self.changed += usize::from(is_ok(reply) && has_changed);
        self.duplicates += usize::from(reply.get_i32("code").ok() == Some(11000));
        self.unmatched += usize::from(reply.get_i32("code").ok() == Some(13113));
        let by_email = format!("{:?}", case.command).contains("\"on\": String(\"email\")");
        self.on_email += usize::from(by_email && is_ok(reply));
    }
}

/// The reply's bytes, without the new `_id` that an error may show.
fn comparable(mut reply: Document) -> Vec<u8> {
    if let Ok(text) = reply.get_str("errmsg")
        && let Some(start) = text.find("ObjectId('")
    {
        reply.insert("errmsg", text[..start].to_owned());
    }
    // A router has a code of its own for fields that no index makes unique.
    if reply.get_i32("code").ok() == Some(51190) {
        reply.insert("code", 51183);
        reply.insert("codeName", "Location51183");
    }
    in_one_order(reply)
}

/// The documents without the `_id`s that the merge made, in an order that doesn't depend on them.
fn without_new_ids(documents: &[Document]) -> Vec<String> {
    let mut documents: Vec<String> = documents
        .iter()
        .map(|document| {
            let mut document = document.clone();
            if let Some(Bson::ObjectId(_)) = document.get("_id") {
                document.insert("_id", "new");
            }
            document.to_string()
        })
        .collect();
    documents.sort();
    documents
}

fn constraint(database: &str) -> Constraint {
    let spec = IndexSpec {
        key: bson::doc! { "email": 1 },
        ..IndexSpec::default()
    };
    Constraint::new(Namespace::new(database, "users"), spec).unwrap()
}

/// The keys that documents hold, each with its owner.
fn held(documents: &[Document], database: &str) -> BTreeSet<(Key, String)> {
    let constraint = constraint(database);
    let keys = documents.iter().flat_map(|document| {
        let bytes = document.to_vec().unwrap();
        let owner = document.get("_id").unwrap().to_string();
        let keys = constraint.keys(Doc::new(&bytes).unwrap()).unwrap();
        keys.into_iter().map(move |key| (key, owner.clone()))
    });
    keys.collect()
}

fn reserved(past: &mut Connection, database: &str) -> BTreeSet<(Key, String)> {
    let constraint = constraint(database);
    let reservations = past.all(database, &constraint.proxy_collection().collection);
    let keys = reservations.iter().map(|reservation| {
        let id = reservation.get_document("_id").unwrap().to_vec().unwrap();
        let key = Key::from_reservation_id(&constraint, bson::RawDocument::from_bytes(&id).unwrap()).unwrap();
        (key, reservation.get("owner").unwrap().to_string())
    });
    keys.collect()
}
