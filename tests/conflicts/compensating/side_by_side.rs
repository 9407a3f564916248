//! Generated documents, side by side: into an unsharded collection with a native unique index, and through Keyward into
//! a sharded one. Every document gets the same answer, byte for byte.
//!
//! `KEYWARD_SEED` replays a run.

use bson::{Document, doc};
use keyward::constraint::{Constraint, IndexSpec, KeyError};
use keyward::namespace::Namespace;
use keyward::raw::Doc;
use rand::{SeedableRng, rngs::StdRng};
use testbed::{Cluster, ReplicaSet};

use crate::native_index::generate::Generator;
use crate::native_index::server::Server;
use testkit::Keyward;

const DOCUMENTS: usize = 10_000;
const DATABASE: &str = "side_by_side";

/// The constraints, as Keyward's configuration has them and as the server takes them.
fn shapes() -> Vec<(&'static str, &'static str, IndexSpec)> {
    let on = |key: Document| IndexSpec {
        key,
        ..Default::default()
    };
    let sparse = |key: Document| IndexSpec {
        sparse: true,
        ..on(key)
    };
    let partial = |key: Document, filter: Document| IndexSpec {
        partial_filter_expression: Some(filter),
        ..on(key)
    };
    vec![
        ("plain", "key: { a: 1 }", on(doc! { "a": 1 })),
        ("compound", "key: { a: 1, b: -1 }", on(doc! { "a": 1, "b": -1 })),
        ("dotted", "key: { a.b: 1 }", on(doc! { "a.b": 1 })),
        ("pairs", "key: { a.b: 1, a.c: 1 }", on(doc! { "a.b": 1, "a.c": 1 })),
        ("positional", "key: { a.0: 1, c: 1 }", on(doc! { "a.0": 1, "c": 1 })),
        ("sparse", "key: { b.a: 1 }, sparse: true", sparse(doc! { "b.a": 1 })),
        (
            "sparse_pair",
            "key: { a.b: 1, c: 1 }, sparse: true",
            sparse(doc! { "a.b": 1, "c": 1 }),
        ),
        (
            "partial",
            "key: { b: 1 }, partialFilterExpression: { a: { $exists: true } }",
            partial(doc! { "b": 1 }, doc! { "a": { "$exists": true } }),
        ),
        (
            "partial_type",
            "key: { b: 1, c: 1 }, partialFilterExpression: { a: { $type: number } }",
            partial(doc! { "b": 1, "c": 1 }, doc! { "a": { "$type": "number" } }),
        ),
    ]
}

#[test]
fn ten_thousand_documents_get_the_answers_of_a_native_unique_index() {
    let seed = testkit::given::seed();
    let cluster = Cluster::shared();
    let shapes = shapes();
    let each = DOCUMENTS.div_ceil(shapes.len());
    let mut constraints = String::new();
    for (name, yaml, _) in &shapes {
        cluster
            .shard_by_ranges(
                &format!("{DATABASE}.{name}"),
                "_id",
                &[i32::try_from(each / 2).unwrap()],
            )
            .unwrap();
        constraints += &format!("  - {{ collection: {DATABASE}.{name}, {yaml} }}\n");
    }
    let keyward = Keyward::start_with_lease(&cluster.uri(), "30s", &constraints);
    let mut through_keyward = Server::at(&keyward.address);
    let mut native = Server::connect();
    let mut refused = 0;
    for (number, (name, _, spec)) in (0..).zip(&shapes) {
        let namespace = Namespace::new(DATABASE, *name);
        native.drop(&namespace);
        let constraint = Constraint::new(namespace.clone(), spec.clone()).unwrap();
        let index = IndexSpec {
            name: Some(constraint.name().to_owned()),
            ..spec.clone()
        };
        native.create_index(&namespace, &index).unwrap();
        let mut documents = Vec::with_capacity(each);
        while documents.len() < each {
            // Each generator has its own richness: some make conflicts, others odd values.
            let mut generator = Generator::new(StdRng::seed_from_u64(seed ^ number << 32 ^ documents.len() as u64));
            let ids = documents.len()..each.min(documents.len() + 100);
            documents.extend(ids.map(|id| generator.document(id)));
        }
        let expected = native.insert(&namespace, &documents);
        let got = through_keyward.insert(&namespace, &documents);
        for (id, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert!(
                got == expected,
                "seed {seed}: document {id} of {name}\n{}\nnative  {}\nkeyward {}",
                show(&documents[id]),
                show(expected.as_deref().unwrap_or_default()),
                show(got.as_deref().unwrap_or_default()),
            );
        }
        let accepted = documents.iter().zip(&expected).filter(|(_, answer)| answer.is_none());
        assert_eq!(
            reserved(cluster, &constraint),
            keys(&constraint, accepted.map(|(document, _)| document)),
            "seed {seed}: {name}: reservations and keys of documents"
        );
        refused += expected.iter().flatten().count();
        native.drop(&namespace);
    }
    println!("{refused} of {} refused", each * shapes.len());
    assert!(
        refused * 10 > DOCUMENTS,
        "too few conflicts to show anything: {refused}"
    );
}

/// How many keys these documents have.
fn keys<'a>(constraint: &Constraint, documents: impl Iterator<Item = &'a Vec<u8>>) -> usize {
    let keys = |document: &Vec<u8>| match constraint.keys(Doc::new(document).unwrap()) {
        Ok(keys) => keys.len(),
        Err(KeyError::Malformed(malformed)) => panic!("{malformed}"),
        Err(error) => panic!("an accepted document can't be indexed: {error}"),
    };
    documents.map(keys).sum()
}

/// How many reservations the shards hold.
fn reserved(cluster: &Cluster, constraint: &Constraint) -> usize {
    let proxy = constraint.proxy_collection();
    let on_shard = |shard: &ReplicaSet| {
        let reply = shard.run(&proxy.database, doc! { "count": &proxy.collection }).unwrap();
        usize::try_from(reply.get_i32("n").unwrap()).unwrap()
    };
    cluster.shards().iter().map(on_shard).sum()
}

fn show(document: &[u8]) -> String {
    let hex: String = document.iter().map(|byte| format!("{byte:02x}")).collect();
    match bson::deserialize_from_slice::<Document>(document) {
        Ok(document) => format!("{document} ({hex})"),
        Err(_) => hex,
    }
}
