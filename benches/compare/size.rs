//! What an insert costs where there are many reservations already, against what a direct one costs among as many documents.

use bson::doc;
use testbed::Cluster;

use crate::filling;
use crate::goal::{Figure, verdict};
use crate::ground::{DATABASE, Ground, shard_on};
use crate::measure::{self, Effort, Scenario};
use crate::scenarios::{inserts, target, user};
use crate::spread::Spread;
use testkit::Keyward;

/// Measures it at each size up to `largest`.
pub fn table(ground: &Ground, largest: u64, effort: Effort) -> String {
    let cluster = Cluster::shared();
    for collection in ["grown", "grownplain"] {
        shard_on(cluster, collection, doc! { "_id": "hashed" });
    }
    // The testbed's servers have the least that is allowed: what is measured would be their disk.
    let cache = doc! { "setParameter": 1, "wiredTigerEngineRuntimeConfig": "cache_size=3GB" };
    for shard in cluster.shards() {
        shard.run("admin", cache.clone()).unwrap();
    }
    let sizes: Vec<u64> = (4..)
        .map(|zeros| 10_u64.pow(zeros))
        .take_while(|size| *size <= largest)
        .collect();
    let (mut direct, mut keyward) = (Vec::new(), Vec::new());
    let mut there = 0;
    for size in &sizes {
        for collection in ["grown", "grownplain"] {
            filling::insert(&ground.router, collection, (size - there) as usize, |_| user());
        }
        there = *size;
        // Under another name each time, so that all of them are backfilled again.
        let constraint = format!("  - {{ collection: {DATABASE}.grown, key: {{ email: 1 }}, name: of{size} }}\n");
        Keyward::backfill(&cluster.uri(), &constraint);
        let running = Keyward::quiet(&cluster.uri(), &constraint);
        let scenario = Scenario {
            name: format!("{size} reservations"),
            connections: 1,
            targets: vec![
                target("direct", &ground.router, || inserts("grownplain")),
                target("Keyward", &running.address, || inserts("grown")),
            ],
        };
        let outcome = measure::run(&scenario, effort);
        direct.push(outcome.targets[0].figure(Figure::P50));
        keyward.push(outcome.targets[1].figure(Figure::P50));
        running.stop();
        let proxy = format!("keyward.grown.of{size}");
        cluster.run(DATABASE, doc! { "drop": proxy }).unwrap();
    }
    let growth = |figures: &[Spread]| -> Vec<Spread> {
        let base = figures[0].median;
        figures.iter().map(|figure| figure.over(base)).collect()
    };
    let (direct_growth, keyward_growth) = (growth(&direct), growth(&keyward));
    let mut table =
        "| reservations | direct, p50 µs | Keyward, p50 µs | direct, growth | Keyward, growth | goal |\n| ---: | \
                     ---: | ---: | --- | --- | --- |"
            .to_owned();
    for (at, size) in sizes.iter().enumerate() {
        let is_met = keyward_growth[at].median <= direct_growth[at].median;
        table += &format!(
            "\n| {size} | {:.0} | {:.0} | {} | {} | grows by no more: {} |",
            direct[at].median,
            keyward[at].median,
            direct_growth[at],
            keyward_growth[at],
            verdict(is_met)
        );
    }
    table
}
