//! How fast a verification is, and how much memory it takes: run with
//! `cargo test --release --test verify figure -- --ignored --nocapture`; `DOCUMENTS` says how many.

use std::process::Stdio;
use std::time::Instant;

use bson::{Document, doc};
use testbed::Cluster;

use crate::run::Config;
use crate::support;

#[tokio::test]
#[ignore = "takes minutes, and shows a figure"]
async fn figure() {
    let count: i64 = std::env::var("DOCUMENTS").map_or(1_000_000, |count| count.parse().unwrap());
    let cluster = Cluster::shared();
    support::shard_on_two(cluster, "verify_figure.users", doc! { "n": 1 }, doc! { "n": count / 2 });
    let users = cluster
        .client()
        .database("verify_figure")
        .collection::<Document>("users");
    for first in (0..count).step_by(10_000) {
        let user =
            |id: i64| doc! { "_id": id, "n": id, "email": format!("user{id}@example.com"), "text": "x".repeat(200) };
        users
            .insert_many((first..count.min(first + 10_000)).map(user))
            .await
            .unwrap();
    }
    let constraints = "  - { collection: verify_figure.users, key: { email: 1 } }\n";
    let config = Config::new(&cluster.uri(), "2s", constraints);
    for (command, options) in [("backfill", &[][..]), ("verify", &["--rate", "1000000"])] {
        let started = Instant::now();
        let mut running = config
            .command(command, options)
            .stdout(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut peak = String::new();
        let status = format!("/proc/{}/status", running.id());
        while running.try_wait().unwrap().is_none() {
            if let Ok(status) = std::fs::read_to_string(&status)
                && let Some(line) = status.lines().find(|line| line.starts_with("VmHWM"))
            {
                line.clone_into(&mut peak);
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("{command}: {count} documents in {seconds:.0} s, {peak}");
    }
}
