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
use generate::{Layout, Regions, SEQUENCES_A_SCHEMA, Step};
use pair::{Pair, Seen};
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, given, spread_on_two};

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
            let (name, layout) = (format!("c{schema}"), Layout::of(schema));
            let mut of_number = Schema::of("every_write", &name, generate::indexes(schema), layout);
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
    if seeds.len() > 1 {
        seen.assert_enough();
    }
}

/// A collection that is to be compared.
struct Schema {
    database: String,
    collection: String,
    layout: Layout,
    indexes: Vec<Document>,
    strategy: &'static str,
}

impl Schema {
    /// Shards the collection over two shards.
    fn new(database: &str, collection: &str, indexes: Vec<Document>) -> Self {
        Schema::of(database, collection, indexes, Layout::by(Regions::Words))
    }

    /// The same with this layout.
    fn of(database: &str, collection: &str, indexes: Vec<Document>, layout: Layout) -> Self {
        let (cluster, namespace) = (Cluster::shared(), format!("{database}.{collection}"));
        cluster.run("admin", doc! { "enableSharding": database }).unwrap();
        let mut shard = doc! { "shardCollection": &namespace, "key": layout.key.pattern() };
        if let Some(collation) = &layout.collation {
            let create = doc! { "create": collection, "collation": collation };
            cluster.run(database, create).unwrap();
            shard.insert("collation", doc! { "locale": "simple" });
        }
        if layout.key.is_spread() {
            // One chunk on each of the two shards.
            shard.insert("numInitialChunks", 2);
            cluster.run("admin", shard).unwrap();
        } else {
            cluster.run("admin", shard).unwrap();
            spread_on_two(cluster, &namespace, layout.split());
        }
        Schema {
            database: database.to_owned(),
            collection: collection.to_owned(),
            layout,
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
            self.layout.collation.as_ref(),
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
            if generate::is_routed(index, &schema.layout) {
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
    eprintln!(
        "KEYWARD_SEED={seed} {:?} {:?}\n{difference}",
        schema.layout, schema.indexes
    );
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
        "KEYWARD_SEED={seed}\n{:?}\nindexes {}\n{}\n{difference}",
        schema.layout,
        indexes.join(" "),
        steps.join("\n")
    ))
}

impl Seen {
    /// What ran is of all kinds.
    fn assert_enough(&self) {
        let at_least = |count: usize, one_in: usize, of: &str| {
            assert!(
                count * one_in > self.commands,
                "too few {of} to show anything: {self:?}"
            );
        };
        at_least(self.duplicates, 20, "conflicts");
        at_least(self.upserts.into_iter().min().unwrap(), 400, "upserts");
        at_least(self.computed[0], 40, "computed values");
        at_least(self.computed[1], 400, "computed values that are repeated");
        at_least(self.restated, 200, "updates that state an `_id`");
    }

    fn add(&mut self, other: Seen) {
        self.commands += other.commands;
        self.errors += other.errors;
        self.transactions += other.transactions;
        self.duplicates += other.duplicates;
        self.intended += other.intended;
        self.late += other.late;
        self.restated += other.restated;
        for (own, other) in self.computed.iter_mut().zip(other.computed) {
            *own += other;
        }
        for (own, other) in self.upserts.iter_mut().zip(other.upserts) {
            *own += other;
        }
    }
}
