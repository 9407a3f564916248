//! Every write, with native unique indexes as the judge: generated sequences of commands run through a Keyward on a
//! sharded collection and on an unsharded one with the same indexes; every reply and what is left must be the same.
//!
//! `KEYWARD_SEED` replays one sequence, or with it `KEYWARD_SEQUENCES` so many from there on; alone this says how many to
//! try. What fails is made shorter before it is shown.

#![allow(clippy::unwrap_used)]

mod differences;
mod found;
mod generate;
mod pair;

use std::fmt::Write;

use bson::{Document, doc};
use generate::{Regions, SEQUENCES_A_SCHEMA, Step};
use pair::{Pair, Seen};
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, given, shard_on_two};

/// So many collections are written to at the same time.
const THREADS: usize = 4;

#[test]
fn every_write_gets_the_answer_that_native_unique_indexes_give() {
    let seeds: Vec<u64> = match given::number("KEYWARD_SEED") {
        Some(seed) => (seed..seed + given::number("KEYWARD_SEQUENCES").unwrap_or(1)).collect(),
        None => {
            let first = (rand::random::<u64>() >> 16) * SEQUENCES_A_SCHEMA;
            (first..first + given::number("KEYWARD_SEQUENCES").unwrap_or(200)).collect()
        }
    };
    let by_schema: Vec<&[u64]> = seeds
        .chunk_by(|one, other| one / SEQUENCES_A_SCHEMA == other / SEQUENCES_A_SCHEMA)
        .collect();
    let schemas: Vec<Schema> = by_schema
        .iter()
        .map(|seeds| {
            let schema = seeds[0] / SEQUENCES_A_SCHEMA;
            let (name, regions) = (format!("c{schema}"), Regions::of(schema));
            let mut of_number = Schema::of("every_write", &name, generate::indexes(schema), regions);
            of_number.strategy = generate::strategy(schema);
            of_number
        })
        .collect();
    let keywards = [(); 2].map(|()| start(&schemas));
    let work: Vec<(&Schema, &[u64])> = schemas.iter().zip(by_schema).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let (seen, failures) = std::thread::scope(|scope| {
        let worker = || {
            let (mut seen, mut failures) = (Seen::default(), Vec::new());
            while let Some((schema, seeds)) = work.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                let mut pair = schema.pair(keywards.each_ref());
                // The first failure of a collection: what follows may only be its consequence.
                failures.extend(seeds.iter().find_map(|seed| try_sequence(&mut pair, schema, *seed)));
                seen.add(pair.seen);
            }
            (seen, failures)
        };
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        let mut all = (Seen::default(), Vec::new());
        for worker in workers {
            match worker.join() {
                Ok((seen, failures)) => {
                    all.0.add(seen);
                    all.1.extend(failures);
                }
                // What the others found is said, too.
                Err(_) => all.1.push("a worker panicked; its words stand above".to_owned()),
            }
        }
        all
    });
    println!("{seen:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    let replayed = seeds.len() == 1;
    assert!(
        replayed || seen.duplicates * 20 > seen.commands,
        "too few conflicts to show anything: {seen:?}"
    );
    assert!(
        replayed || seen.upserts.iter().all(|count| count * 400 > seen.commands),
        "too few upserts to show anything: {seen:?}"
    );
    assert!(
        replayed || seen.computed[0] * 40 > seen.commands && seen.computed[1] * 400 > seen.commands,
        "too few computed values to show anything: {seen:?}"
    );
}

/// A collection that is to be compared.
struct Schema {
    database: String,
    collection: String,
    indexes: Vec<Document>,
    strategy: &'static str,
}

impl Schema {
    /// Shards the collection over two shards.
    fn new(database: &str, collection: &str, indexes: Vec<Document>) -> Self {
        Schema::of(database, collection, indexes, Regions::Words)
    }

    /// The same by these values of the shard key.
    fn of(database: &str, collection: &str, indexes: Vec<Document>, regions: Regions) -> Self {
        let namespace = format!("{database}.{collection}");
        shard_on_two(Cluster::shared(), &namespace, doc! { "region": 1 }, regions.split());
        Schema {
            database: database.to_owned(),
            collection: collection.to_owned(),
            indexes,
            strategy: "compensating",
        }
    }

    fn pair(&self, keywards: [&Keyward; 2]) -> Pair {
        Pair::new(
            &self.database,
            &self.collection,
            keywards.map(|keyward| keyward.address.as_str()),
            &Cluster::shared().router_address(),
            &ReplicaSet::shared().addresses()[0],
            &self.indexes,
        )
    }
}

/// A Keyward that makes the indexes of all `schemas` its constraints.
fn start(schemas: &[Schema]) -> Keyward {
    let mut constraints = String::new();
    for schema in schemas {
        for index in &schema.indexes {
            let mut constraint = doc! { "collection": format!("{}.{}", schema.database, schema.collection) };
            constraint.extend(index.clone());
            constraint.insert("strategy", schema.strategy);
            constraint.remove("route");
            if generate::is_routed(index) {
                constraint.insert("route", true);
            }
            // A document's text is JSON, and so YAML.
            writeln!(constraints, "  - {constraint}").unwrap();
        }
    }
    // The connection on which a retry comes late may be silent for long before.
    let settings = "10s\nlimits: { handshake_timeout: 10m }";
    Keyward::start_with_lease(&Cluster::shared().uri(), settings, &constraints)
}

/// Runs the sequence of `seed`; what differs and the shortest way there, if anything does.
fn try_sequence(pair: &mut Pair, schema: &Schema, seed: u64) -> Option<String> {
    let _replay = given::Replay(seed);
    let mut steps = generate::sequence(seed, &schema.collection);
    let mut difference = pair.run(&steps).err()?;
    eprintln!("KEYWARD_SEED={seed} {:?}\n{difference}", schema.indexes);
    let mut position = steps.len();
    while position > 0 {
        position -= 1;
        let mut shorter = steps.clone();
        shorter.remove(position);
        if let Err(still) = pair.run(&shorter)
            && !still.starts_with(pair::NOT_EMPTIED)
        {
            (steps, difference) = (shorter, still);
        }
    }
    let steps: Vec<String> = steps.iter().map(Step::to_string).collect();
    let indexes: Vec<String> = schema.indexes.iter().map(Document::to_string).collect();
    Some(format!(
        "KEYWARD_SEED={seed}\nindexes {}\n{}\n{difference}",
        indexes.join(" "),
        steps.join("\n")
    ))
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.commands += other.commands;
        self.errors += other.errors;
        self.transactions += other.transactions;
        self.duplicates += other.duplicates;
        self.intended += other.intended;
        self.late += other.late;
        for (own, other) in self.computed.iter_mut().zip(other.computed) {
            *own += other;
        }
        for (own, other) in self.upserts.iter_mut().zip(other.upserts) {
            *own += other;
        }
    }
}
