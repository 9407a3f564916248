//! The same faults among very many documents, how fast they are found and with how much memory:
//! `cargo test --release --test operations verify::million -- --ignored --nocapture`; `DOCUMENTS` says how many.

use std::process::Stdio;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use testbed::Cluster;

use crate::verify::planted::{self, LEASE, Writers, item, user};
use crate::verify::run::{Config, Verified};
use testkit::Keyward;

/// Runs a command, and shows how long it takes and the most memory it has.
async fn measured(config: &Config, command: &str, options: &[&str], documents: i64) -> Verified {
    let began = Instant::now();
    let mut running = tokio::process::Command::from(config.command(command, options));
    let running = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", running.id().unwrap());
    let peak = tokio::spawn(async move {
        let mut peak = String::new();
        while let Ok(status) = std::fs::read_to_string(&status)
            && let Some(line) = status.lines().find(|line| line.starts_with("VmHWM"))
        {
            line.clone_into(&mut peak);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        peak
    });
    let ended = Verified::of(running.wait_with_output().await.unwrap());
    let (seconds, peak) = (began.elapsed().as_secs_f64(), peak.await.unwrap());
    println!(
        "{command}: {documents} documents in {seconds:.0} s, {peak}; {}",
        ended.summary
    );
    ended
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, and shows figures"]
async fn planted_faults_are_found_among_a_million_documents_and_nothing_else() {
    let count: i64 = testkit::given::number("DOCUMENTS").map_or(1_000_000, |count| count as i64);
    testbed::process::use_disk();
    let cluster = Cluster::shared();
    planted::shard(cluster, "verify_million");
    let database = cluster.client().database("verify_million");
    let users = database.collection::<Document>("users");
    let long = |id: i64| {
        let mut user = user(id);
        user.insert("text", "x".repeat(200));
        user
    };
    let batches = (0..count).step_by(5_000).map(|first| {
        let some = first..count.min(first + 5_000);
        users.insert_many(some.map(long)).into_future()
    });
    stream::iter(batches)
        .buffer_unordered(8)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
    database
        .collection::<Document>("items")
        .insert_many((0..50).map(item))
        .await
        .unwrap();
    let constraints = planted::constraints("verify_million");
    let config = Config::new(&cluster.uri(), LEASE, &constraints);
    let backfilled = measured(&config, "backfill", &[], count).await;
    assert_eq!(backfilled.exit, Some(0), "{}", backfilled.errors);

    // A sweep would settle some of what is planted: as if one had just ended.
    let until = bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() + 86_400_000);
    database
        .collection::<Document>("keyward.constraints")
        .update_many(doc! {}, doc! { "$set": { "sweep": { "until": until } } })
        .await
        .unwrap();
    let keyward = Keyward::start_with_lease(&cluster.uri(), &format!("{LEASE}\nsweep: 1day"), &constraints);
    let client = keyward.client().await;
    let through = client.database("verify_million");
    planted::adorn(&through.collection("users")).await;
    let writers = Writers::start(&through, 3);
    let planted = planted::plant(&database).await;
    let before = writers.written();
    let found = measured(&config, "verify", &["--json", "--rate", "1000000"], count).await;
    println!("{} writes meanwhile", writers.written() - before);
    assert!(writers.written() > before, "nobody wrote meanwhile");
    assert_eq!(found.listed(), planted, "{:#?}", found.findings);
    assert_eq!(found.exit, Some(1));
    writers.stop().await;
}
