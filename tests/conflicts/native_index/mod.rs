//! A native unique index as the judge: generated documents go one after another into a real server's collection with a
//! unique index, and into a simulation made of nothing but Keyward's keys; every answer must be the same, byte for byte.
//!
//! The reservations' `_id`s are judged, too: the server's own `_id` index must take and refuse exactly what it should.
//! `KEYWARD_SEED` replays a run (each failure prints its seed), `KEYWARD_INDEXES` says how many indexes to try.

#![allow(clippy::unwrap_used)]

pub mod generate;
mod refused;
pub mod server;

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use bson::{Document, doc, spec::ElementType};
use keyward::constraint::{Constraint, IndexSpec, Key, KeyError, SpecError};
use keyward::namespace::Namespace;
use keyward::raw::{Builder, Doc};
use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::given;

use crate::native_index::generate::Generator;
use crate::native_index::server::Server;

const DOCUMENTS: usize = 120;

#[test]
fn every_document_gets_the_answer_that_a_native_unique_index_gives() {
    compare_indexes(Generator::index_spec);
}

#[test]
fn every_document_gets_the_answer_that_a_native_unique_index_with_a_collation_gives() {
    compare_indexes(Generator::collated_index_spec);
}

fn compare_indexes(index_spec: fn(&mut Generator) -> IndexSpec) {
    let mut server = Server::connect();
    let (seed, indexes) = (
        given::number("KEYWARD_SEED"),
        given::number("KEYWARD_INDEXES").unwrap_or(80),
    );
    let seeds = match seed {
        Some(seed) => seed..seed + 1,
        None => {
            let first = rand::rng().random::<u64>() >> 1;
            first..first + indexes
        }
    };
    let mut seen = Seen::default();
    for seed in seeds {
        let _replay = given::Replay(seed);
        compare(&mut server, seed, index_spec, &mut seen);
    }
    println!("{seen:?}");
    assert!(
        seed.is_some() || seen.refused * 10 > seen.documents,
        "too few conflicts to show anything: {seen:?}"
    );
}

/// What the generated documents met with, to see that they test something.
#[derive(Debug, Default)]
struct Seen {
    documents: usize,
    refused: usize,
    not_indexable: usize,
    uncollatable: usize,
    keys: usize,
    keys_refused: usize,
    indexes: usize,
    indexes_refused: usize,
}

fn compare(server: &mut Server, seed: u64, index_spec: fn(&mut Generator) -> IndexSpec, seen: &mut Seen) {
    let mut generator = Generator::new(StdRng::seed_from_u64(seed));
    let namespace = Namespace::new("native", format!("c{seed}"));
    let spec = index_spec(&mut generator);
    server.drop(&namespace);
    let created = server.create_index(&namespace, &spec);
    let constraint = match Constraint::new(namespace.clone(), spec.clone()) {
        Ok(constraint) => constraint,
        Err(SpecError::Refused { code, message }) => {
            let (theirs, text) = created.expect_err(&format!("seed {seed}: only we refuse {spec:?}: {message}"));
            assert_eq!(
                code, theirs,
                "seed {seed}: {spec:?}: we say {message}, the server {text}"
            );
            seen.indexes_refused += 1;
            return;
        }
        // Keyward's own: a range of strings has another order there.
        Err(SpecError::FilterUnsupported { .. }) if spec.collation.is_some() => return,
        Err(other) => panic!("seed {seed}: {spec:?}: {other}"),
    };
    created.unwrap_or_else(|error| panic!("seed {seed}: only the server refuses {spec:?}: {error:?}"));
    seen.indexes += 1;

    let documents: Vec<Vec<u8>> = (0..DOCUMENTS)
        .map(|id| match generator.document(id) {
            document if is_uncollatable(&constraint, &document) => {
                seen.uncollatable += 1;
                let mut other = Builder::new();
                other.int32("_id", id as i32);
                other.finish()
            }
            document => document,
        })
        .collect();
    if let Some(filter) = &spec.partial_filter_expression {
        compare_filter(server, seed, &constraint, filter, &documents);
    }
    let mut simulation = Simulation::default();
    let expected: Vec<Vec<Option<Vec<u8>>>> = documents
        .iter()
        .enumerate()
        .map(|(index, document)| simulation.insert(server, &constraint, index, document))
        .collect();
    let answers = server.insert(&namespace, &documents);
    seen.documents += documents.len();
    for (index, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
        assert!(
            expected.contains(answer),
            "seed {seed}: document {index} of {spec:?}\n{}\nserver {}\nkeyward {}",
            show(Some(&documents[index])),
            show(answer.as_ref()),
            show(expected[0].as_ref()),
        );
        seen.refused += usize::from(answer.is_some());
    }
    seen.not_indexable += simulation.not_indexable;
    compare_reservations(server, seed, &constraint, &simulation.keys, seen);
    server.drop(&namespace);
}

/// The documents that a query by the partial filter finds must be those that have keys.
fn compare_filter(server: &mut Server, seed: u64, constraint: &Constraint, filter: &Document, documents: &[Vec<u8>]) {
    let namespace = Namespace::new("native", format!("plain{seed}"));
    server.drop(&namespace);
    assert!(server.insert(&namespace, documents).iter().all(Option::is_none));
    let collation = constraint
        .collation()
        .map(|collation| Document::try_from(collation).unwrap());
    let found = server.find_ids(&namespace, filter, &collation.unwrap_or(doc! { "locale": "simple" }));
    for (id, document) in documents.iter().enumerate() {
        let keys = constraint.keys(Doc::new(document).unwrap());
        let matches = !keys.is_ok_and(|keys| keys.is_empty());
        let context = || format!("seed {seed}: {filter}\n{}", show(Some(document)));
        assert_eq!(found.contains(&(id as i64)), matches, "{}", context());
    }
    server.drop(&namespace);
}

/// The server's `_id` index must refuse a reservation's `_id` exactly where an equal key came before.
fn compare_reservations(server: &mut Server, seed: u64, constraint: &Constraint, keys: &[Key], seen: &mut Seen) {
    let proxy_collection = constraint.proxy_collection();
    let ids: Vec<_> = keys.iter().map(Key::reservation_id).collect();
    let reservations: Vec<Vec<u8>> = ids
        .iter()
        .map(|id| {
            let mut reservation = Builder::new();
            reservation.document("_id", Doc::new(id.as_bytes()).unwrap());
            reservation.finish()
        })
        .collect();
    server.drop(&proxy_collection);
    let answers = server.insert(&proxy_collection, &reservations);
    let mut taken = HashSet::new();
    for ((key, id), answer) in keys.iter().zip(&ids).zip(answers) {
        let code = answer
            .as_deref()
            .map(|entry| Doc::new(entry).unwrap().get("code").unwrap().unwrap());
        let expected = (!taken.insert(key)).then_some(11000);
        assert_eq!(
            code.map(|code| code.as_whole_number().unwrap()),
            expected,
            "seed {seed}: {id:?} {}",
            show(answer.as_ref())
        );
        assert_eq!(
            Key::from_reservation_id(constraint, id).as_ref(),
            Ok(key),
            "seed {seed}: {id:?}"
        );
        seen.keys += 1;
        seen.keys_refused += usize::from(expected.is_some());
    }
    server.drop(&proxy_collection);
}

/// A collection with one unique index, reduced to the keys that are taken.
#[derive(Default)]
struct Simulation {
    taken: HashSet<Key>,
    /// Every key of every document, taken or not.
    keys: Vec<Key>,
    not_indexable: usize,
    sort_keys: HashMap<Vec<u8>, Vec<u8>>,
}

impl Simulation {
    /// The entry of `writeErrors`, if the document is refused; it may name any of several keys under a collation, whose
    /// order isn't the server's.
    fn insert(
        &mut self,
        server: &mut Server,
        constraint: &Constraint,
        index: usize,
        document: &[u8],
    ) -> Vec<Option<Vec<u8>>> {
        let mut entry = Builder::new();
        entry.int32("index", index as i32);
        match constraint.keys(Doc::new(document).unwrap()) {
            Ok(keys) => {
                self.keys.extend_from_slice(&keys);
                let taken: Vec<&Key> = keys.iter().filter(|key| self.taken.contains(key)).collect();
                let named = if constraint.collation().is_some() {
                    usize::MAX
                } else {
                    1
                };
                let mut entries = Vec::new();
                for key in taken.into_iter().take(named) {
                    let mut entry = Builder::new();
                    entry.int32("index", index as i32);
                    let sort_keys = self.sort_keys(server, constraint, key);
                    constraint
                        .duplicate_showing(key, &sort_keys)
                        .append_to_write_error(&mut entry);
                    entries.push(Some(entry.finish()));
                }
                if entries.is_empty() {
                    self.taken.extend(keys);
                    entries.push(None);
                }
                entries
            }
            Err(KeyError::Malformed(malformed)) => panic!("a generated document is malformed: {malformed}"),
            Err(error) => {
                self.not_indexable += 1;
                entry.int32("code", error.code()).string("errmsg", &error.errmsg());
                vec![Some(entry.finish())]
            }
        }
    }

    /// The server's sort keys of the strings in `key`, each asked for once.
    fn sort_keys(&mut self, server: &mut Server, constraint: &Constraint, key: &Key) -> HashMap<Vec<u8>, Vec<u8>> {
        let Some(collation) = constraint.collation() else {
            return HashMap::new();
        };
        let collation = Document::try_from(collation).unwrap();
        for text in constraint.collated_strings(key) {
            let sort_key = |text: &Vec<u8>| server.sort_key(&collation, text);
            self.sort_keys.entry(text).or_insert_with_key(sort_key);
        }
        self.sort_keys.clone()
    }
}

/// Whether Keyward refuses the document because it can't be sure of its strings.
fn is_uncollatable(constraint: &Constraint, document: &[u8]) -> bool {
    let keys = constraint.keys(Doc::new(document).unwrap());
    matches!(keys, Err(KeyError::Uncollatable { .. }))
}

#[test]
fn strings_are_equal_where_the_server_calls_them_equal() {
    let mut server = Server::connect();
    let seed = testkit::given::seed();
    for (number, collation) in [
        doc! { "locale": "en", "strength": 1 },
        doc! { "locale": "en", "strength": 1, "caseLevel": true },
        doc! { "locale": "en", "strength": 2 },
        doc! { "locale": "sv", "strength": 2, "numericOrdering": true },
        doc! { "locale": "de@collation=phonebook" },
        doc! { "locale": "fr_CA", "strength": 2 },
        doc! { "locale": "tr", "strength": 2, "normalization": true },
        doc! { "locale": "ja", "strength": 4, "alternate": "shifted" },
        doc! { "locale": "en", "strength": 3, "alternate": "shifted", "maxVariable": "space" },
        doc! { "locale": "en", "strength": 5 },
    ]
    .into_iter()
    .enumerate()
    {
        let mut generator = Generator::new(StdRng::seed_from_u64(seed));
        let namespace = Namespace::new("native_strings", format!("c{number}"));
        let spec = IndexSpec {
            key: doc! { "v": 1 },
            name: Some("v".to_owned()),
            collation: Some(collation.clone()),
            ..Default::default()
        };
        server.drop(&namespace);
        server.create_index(&namespace, &spec).unwrap();
        let constraint = Constraint::new(namespace.clone(), spec).unwrap();
        let document = |text: &str| doc! { "v": text }.to_vec().unwrap();
        let any_character = |random: &mut StdRng| char::from_u32(random.random_range(1..0x2_0000)).unwrap_or('\'');
        let mut random = StdRng::seed_from_u64(seed);
        let documents: Vec<Vec<u8>> = (0..4000)
            .map(|count| match count % 4 {
                0 => document(&format!("{}{}", generator.word(), any_character(&mut random))),
                _ => document(&generator.word()),
            })
            .filter(|document| !is_uncollatable(&constraint, document))
            .collect();
        assert!(documents.len() > 3000, "too many are refused");
        let answers = server.insert(&namespace, &documents);
        let mut taken = HashSet::new();
        for (document, answer) in documents.iter().zip(answers) {
            let key = constraint.keys(Doc::new(document).unwrap()).unwrap().remove(0);
            let context = || format!("seed {seed}: {collation} {}", show(Some(document)));
            assert_eq!(!taken.insert(key), answer.is_some(), "{}", context());
        }
        server.drop(&namespace);
    }
}

#[test]
fn keys_are_in_the_servers_index_order() {
    let mut server = Server::connect();
    let seed = testkit::given::seed();
    let mut generator = Generator::new(StdRng::seed_from_u64(seed));
    // Inside a document no array is expanded: each has one key.
    let documents: Vec<Vec<u8>> = (0..3000).map(|id| generator.nested_value(id)).collect();
    for direction in [1, -1] {
        let namespace = Namespace::new("native_order", format!("c{direction}"));
        let spec = IndexSpec {
            key: doc! { "v": direction },
            name: Some("v".to_owned()),
            ..Default::default()
        };
        let index = doc! { "key": spec.key.clone(), "name": "v" };
        let command = doc! { "createIndexes": &namespace.collection, "indexes": [index], "$db": &namespace.database };
        server.run(&command, &[]);
        assert!(server.insert(&namespace, &documents).iter().all(Option::is_none));
        let constraint = Constraint::new(namespace.clone(), spec).unwrap();
        let key = |id: i64| {
            let keys = constraint.keys(Doc::new(&documents[id as usize]).unwrap()).unwrap();
            keys.into_iter().next().unwrap()
        };
        // Large keys are ordered by their digests: by how the server sees them only while they are a document's keys.
        let ordered: Vec<i64> = server.ids_in_index_order(&namespace, direction);
        let small: Vec<_> = ordered.iter().filter(|id| key(**id).canonical()[0] != 0).collect();
        assert!(small.len() > 2000);
        for pair in small.windows(2) {
            let (a, b) = (key(*pair[0]), key(*pair[1]));
            assert!((&a, pair[0]) < (&b, pair[1]), "seed {seed}: {a:?} before {b:?}");
        }
    }
}

#[test]
fn a_find_and_modify_is_refused_with_the_servers_fields() {
    let mut server = Server::connect();
    let namespace = Namespace::new("native_fam", "c");
    let spec = IndexSpec {
        key: doc! { "v": 1, "w": -1 },
        name: Some("v".to_owned()),
        ..Default::default()
    };
    server.create_index(&namespace, &spec).unwrap();
    let constraint = Constraint::new(namespace.clone(), spec).unwrap();
    let texts = [
        &b"x"[..],
        b"\xff",
        b"\x80",
        b"\xc3\xa9",
        b"\xc3",
        b"\xc1\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xf8\x88\x80\x80\x80",
    ];
    for (id, text) in texts.into_iter().enumerate() {
        let mut document = Builder::new();
        document.int32("_id", id as i32).string("v", text);
        let document = document.finish();
        assert_eq!(server.insert(&namespace, std::slice::from_ref(&document)), [None]);
        let command = upsert_of(&namespace, text);
        let reply = server.run_raw(&command, &[]);
        let key = &constraint.keys(Doc::new(&document).unwrap()).unwrap()[0];
        let mut expected = Builder::new();
        let prefix = "Plan executor error during findAndModify :: caused by :: ";
        constraint.duplicate(key).append_to_command_error(prefix, &mut expected);
        let expected = expected.finish();
        let fields = &expected[4..expected.len() - 1];
        assert!(
            reply[4..].starts_with(fields),
            "{} {}",
            show(Some(&reply)),
            show(Some(&expected))
        );
    }
    server.drop(&namespace);
}

/// A findAndModify that would insert a document with `v: text`, which need not be UTF-8.
fn upsert_of(namespace: &Namespace, text: &[u8]) -> Vec<u8> {
    let mut command = Builder::new();
    command.string("findAndModify", namespace.collection.as_bytes());
    command.open(ElementType::EmbeddedDocument, b"query");
    command.int32("_id", 99).close();
    command.open(ElementType::EmbeddedDocument, b"update");
    command.string("v", text).close();
    command
        .boolean("upsert", true)
        .string("$db", namespace.database.as_bytes());
    command.finish()
}

#[test]
fn index_specifications_are_refused_with_the_servers_code_and_text() {
    let mut server = Server::connect();
    for (number, spec) in refused::refused_specs().into_iter().enumerate() {
        let namespace = Namespace::new("native_specs", format!("c{number}"));
        let theirs = server.create_index(&namespace, &spec);
        match (Constraint::new(namespace.clone(), spec.clone()), theirs) {
            (Err(SpecError::Refused { code, message }), Err((their_code, text))) => {
                assert_eq!(code, their_code, "{spec:?}: {message} / {text}");
                assert!(text.contains(&message), "{spec:?}: {message} / {text}");
            }
            (ours, theirs) => panic!("{spec:?}: {ours:?}, the server {theirs:?}"),
        }
        server.drop(&namespace);
    }
}

/// A document for a human: decoded if it can be.
fn show(document: Option<&Vec<u8>>) -> String {
    let Some(bytes) = document else {
        return "accepts".to_owned();
    };
    let mut text = match bson::deserialize_from_slice::<Document>(bytes) {
        Ok(document) => document.to_string(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    };
    write!(
        text,
        "  ({})",
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    )
    .unwrap();
    text
}
