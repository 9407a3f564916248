//! What nobody conflicts with is settled by the sweeper: reservations that no document holds any more disappear, all others
//! stay.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use keyward::catalog::Catalog;
use keyward::constraint::{Constraint, IndexSpec};
use keyward::metrics::Metrics;
use keyward::namespace::Namespace;
use keyward::reservation::{Token, WriteId};
use keyward::sweep;
use testbed::Cluster;
use testkit::Keyward;
use testkit::relay::Relay;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
const USERS: &str = "  - { collection: sweep.users, key: { email: 1 } }\n";

/// A reservation for `users` as a Keyward would leave it that crashed at the time `at`.
fn abandoned(email: &str, owner: i32, at: u32) -> Document {
    let spec = IndexSpec {
        key: doc! { "email": 1 },
        ..IndexSpec::default()
    };
    let constraint = Constraint::new(Namespace::new("sweep", "users"), spec).unwrap();
    let document = doc! { "email": email }.to_vec().unwrap();
    let key = constraint
        .keys(keyward::raw::Doc::new(&document).unwrap())
        .unwrap()
        .remove(0);
    let token = Token {
        write: WriteId([owner as u8; 16]),
        position: 0,
        retry_id: None,
    }
    .to_bytes();
    let token = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: token,
    };
    doc! {
        "_id": Bson::Document(Document::try_from(key.reservation_id()).unwrap()),
        "owner": owner, "route": { "region": "a" }, "token": token, "lease": 1_000_i64,
        "at": bson::Timestamp { time: at, increment: 1 },
    }
}

#[tokio::test]
async fn what_no_document_holds_is_swept_away_and_nothing_else() {
    let cluster = Cluster::shared();
    testkit::shard_on_two(cluster, "sweep.users", doc! { "region": 1 }, doc! { "region": "m" });
    let keywards = [
        Keyward::start_sweeping(&cluster.uri(), USERS),
        Keyward::start_sweeping(&cluster.uri(), USERS),
    ];
    // Not through one of those: within their lease a busy machine doesn't write so many.
    let patient = Keyward::start_with_lease(&cluster.uri(), "5s\nsweep: 1s", USERS);
    let users = patient.client().await.database("sweep").collection::<Document>("users");
    let user = |id: i32| doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": format!("{id}@x") };
    users.insert_many((0..500).map(user)).await.unwrap();
    // Deleted past Keyward, as a TTL index does it; changed past it; and left behind by a crash.
    let direct = cluster.client().database("sweep");
    let past = direct.collection::<Document>("users");
    past.delete_many(doc! { "_id": { "$lt": 100 } }).await.unwrap();
    past.update_one(
        doc! { "_id": 100, "region": "a" },
        doc! { "$set": { "email": "other@x" } },
    )
    .await
    .unwrap();
    let proxy = direct.collection::<Document>("keyward.users.email_1");
    proxy.insert_one(abandoned("nobody@x", 1_000, 1_000)).await.unwrap();
    // The owner is there, and its reservation, as old as the others, names the wrong shard.
    proxy.delete_many(doc! { "owner": 101 }).await.unwrap();
    proxy.insert_one(abandoned("101@x", 101, 1_000)).await.unwrap();
    // What isn't a reservation, before and after all that are, is in nobody's way.
    let strangers = [doc! { "_id": 5 }, doc! { "_id": true }];
    proxy.insert_many(&strangers).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while proxy.count_documents(doc! {}).await.unwrap() > 399 + 2 {
        assert!(
            Instant::now() < deadline,
            "{} left",
            proxy.count_documents(doc! {}).await.unwrap()
        );
        tokio::time::sleep(PAUSE).await;
    }
    // Another whole sweep takes nothing more.
    let swept = |metrics: &str| {
        let line = metrics
            .lines()
            .find(|line| line.starts_with("keyward_constraint_sweeps_total{"))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let total = || keywards.iter().map(|keyward| swept(&keyward.metrics())).sum::<u64>();
    let before = total();
    while total() < before + 2 {
        assert!(Instant::now() < deadline, "no further sweep");
        tokio::time::sleep(PAUSE).await;
    }
    for stranger in strangers {
        assert_eq!(proxy.delete_one(stranger).await.unwrap().deleted_count, 1);
    }
    // The one that was changed past Keyward is in nobody's name: all others agree.
    past.delete_one(doc! { "_id": 100, "region": "a" }).await.unwrap();
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, "sweep", "users", "email_1", email).await;
}

/// One reply doesn't have all owners, and each further one would ignore prepared transactions. So the sweeper asks for fewer at a time.
#[tokio::test]
async fn owners_that_no_one_reply_holds_are_looked_up_in_parts() {
    const DATABASE: &str = "sweep_large";
    let cluster = Cluster::shared();
    shard_users(cluster, DATABASE);
    let constraint = format!("  - {{ collection: {DATABASE}.users, key: {{ contact.email: 1 }} }}\n");
    let keyward = Keyward::start_with_lease(&cluster.uri(), "5s\nsweep: 1s", &constraint);
    let users = keyward
        .client()
        .await
        .database(DATABASE)
        .collection::<Document>("users");
    for id in 0..5 {
        let contact = doc! { "email": id, "text": "x".repeat(7_000_000) };
        users
            .insert_one(doc! { "_id": id, "region": "a", "contact": contact })
            .await
            .unwrap();
    }
    let direct = cluster.client().database(DATABASE);
    let past = direct.collection::<Document>("users");
    past.delete_one(doc! { "_id": 4, "region": "a" }).await.unwrap();
    let proxy = direct.collection::<Document>("keyward.users.contact.email_1");
    // Where it names, no owner is.
    let elsewhere = proxy
        .update_many(doc! {}, doc! { "$set": { "route.region": "z" } })
        .await;
    assert_eq!(elsewhere.unwrap().modified_count, 5);
    let deadline = Instant::now() + Duration::from_secs(60);
    while proxy.count_documents(doc! { "owner": 4 }).await.unwrap() > 0 {
        assert!(Instant::now() < deadline, "it isn't swept");
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(proxy.count_documents(doc! {}).await.unwrap(), 4);
}

/// It looked for the owner where the collection had lain when Keyward was started, and swept nothing.
#[tokio::test]
async fn what_is_left_in_a_collection_that_is_sharded_later_is_swept_away() {
    let cluster = Cluster::shared();
    let strict = "  - { collection: sweep_late.users, key: { email: 1 }, strategy: transaction }\n";
    let _keyward = Keyward::start_sweeping(&cluster.uri(), strict);
    testkit::shard_on_two(
        cluster,
        "sweep_late.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let direct = cluster.client().database("sweep_late");
    let proxy = direct.collection::<Document>("keyward.users.email_1");
    proxy.insert_one(abandoned("nobody@x", 1_000, 1_000)).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while proxy.count_documents(doc! {}).await.unwrap() > 0 {
        assert!(Instant::now() < deadline, "it isn't swept");
        tokio::time::sleep(PAUSE).await;
    }
}

fn user(id: i32, region: &str, email: &str, active: bool) -> Document {
    doc! { "_id": id, "region": region, "email": email, "active": active }
}

/// A Keyward that has another definition by which the document doesn't hold its key: it hasn't applied a change yet.
#[tokio::test(flavor = "multi_thread")]
async fn no_keyward_sweeps_by_a_definition_that_was_replaced() {
    const DATABASE: &str = "sweep_replaced";
    let cluster = Cluster::shared();
    shard_users(cluster, DATABASE);
    let all = format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}\n");
    // It sweeps once, as it starts. Within the shortest lease a busy machine may not write.
    let keyward = Keyward::start_with_lease(&cluster.uri(), "5s\nsweep: 1h", &all);
    keyward.insert(DATABASE, user(1, "a", "a@x", false)).unwrap();
    let former = IndexSpec {
        key: doc! { "email": 1 },
        partial_filter_expression: Some(doc! { "active": true }),
        ..IndexSpec::default()
    };
    let former = [Arc::new(
        Constraint::new(Namespace::new(DATABASE, "users"), former).unwrap(),
    )];
    let (client, metrics) = (cluster.client(), Metrics::new(&former));
    let protected = keyward::prepare::prepared(&client, &former, Duration::from_secs(1), &metrics);
    let protected = protected.await.unwrap().remove(0);
    let page = protected.constraints[0].page(None, 10).await.unwrap();
    let (key, seen) = page.into_iter().next().unwrap().read.unwrap();
    let catalog = Arc::new(Catalog::new(vec![protected.clone()]));
    let swept = format!("keyward_constraint_sweeps_total{{constraint=\"{DATABASE}.users.email_1\"}}");
    keyward.until("its own sweep", || keyward.metric(&swept) >= 1);
    // Others may have their turn at once.
    let free = doc! { "q": {}, "u": { "$unset": { "sweep": 1 } } };
    cluster
        .run(DATABASE, doc! { "update": "keyward.constraints", "updates": [free] })
        .unwrap();
    // It asks for the catalog before each sweep, and before each page.
    let asked = Arc::new(AtomicU32::new(0));
    let asking = asked.clone();
    let current = move || {
        asking.fetch_add(1, Ordering::SeqCst);
        catalog.clone()
    };
    let sweeping = tokio::spawn(sweep::run(client, current, Duration::from_millis(50)));
    let proxy = &protected.constraints[0];
    let deadline = Instant::now() + Duration::from_secs(60);
    let until = async |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < deadline, "no sweep");
            tokio::time::sleep(PAUSE).await;
        }
    };
    until(&|| proxy.is_over(&seen)).await;
    // Every other sweep finds that its turn hasn't come yet.
    let before = asked.load(Ordering::SeqCst);
    until(&|| asked.load(Ordering::SeqCst) >= before + 10).await;
    sweeping.abort();
    assert!(proxy.read(&[&key]).await.unwrap()[0].is_some(), "it is swept");
    assert_eq!(keyward.insert(DATABASE, user(2, "z", "a@x", true)), Err(11_000));
}

fn shard_users(cluster: &Cluster, database: &str) {
    let namespace = format!("{database}.users");
    testkit::shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
}

/// A sweep whose deletion is held up. Meanwhile its Keyward is gone, and the document has got the key again by another definition.
#[test]
fn a_late_deletion_of_a_sweep_leaves_what_a_backfill_relies_on() {
    const DATABASE: &str = "sweep_late_deletion";
    // Others would wait for the Keyward that is killed.
    let cluster = Cluster::alone().unwrap();
    shard_users(&cluster, DATABASE);
    let relay = Relay::start(cluster.router_address());
    let former = format!(
        "  - {{ collection: {DATABASE}.users, key: {{ email: 1 }}, partialFilterExpression: {{ active: true }} }}\n"
    );
    let past = |command: Document| cluster.run(DATABASE, command).unwrap();
    // Not through the sweeper: within its lease a busy machine may not write.
    let patient = Keyward::start_with_lease(&cluster.uri(), "5s\nsweep: 1h", &former);
    patient.insert(DATABASE, user(1, "a", "a@x", true)).unwrap();
    patient.stop();
    // The sweeper doesn't wait until the turn of the one that has ended is over.
    let free = doc! { "q": {}, "u": { "$unset": { "sweep": 1 } } };
    past(doc! { "update": "keyward.constraints", "updates": [free] });
    let mut sweeper = Keyward::start_sweeping(&relay.uri(), &former);
    let proxy = "keyward.users.email_1";
    let length = i32::try_from(proxy.len() + 1).unwrap().to_le_bytes();
    let deletion = [b"\x02delete\0", &length[..], proxy.as_bytes(), b"\0"].concat();
    let held = relay.hold(&deletion);
    let update = doc! { "q": { "_id": 1, "region": "a" }, "u": { "$set": { "active": false } } };
    past(doc! { "update": "users", "updates": [update] });
    held.wait();
    sweeper.kill();
    let all = doc! { "q": {}, "limit": 0 };
    cluster
        .run("keyward", doc! { "delete": "keywards", "deletes": [all.clone()] })
        .unwrap();
    past(doc! { "delete": "keyward.constraints", "deletes": [all] });
    let all = format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}\n");
    let keyward = Keyward::start_with_lease(&cluster.uri(), "5s\nsweep: 1h", &all);
    let count = || past(doc! { "count": proxy }).get_i32("n").unwrap();
    assert_eq!(count(), 1);
    let counters = || {
        let deletes = |shard: &testbed::ReplicaSet| {
            let status = shard.run("admin", doc! { "serverStatus": 1 }).unwrap();
            let commands = status
                .get_document("metrics")
                .unwrap()
                .get_document("commands")
                .unwrap();
            let delete = commands.get_document("delete").unwrap();
            delete.get_i64("total").unwrap()
        };
        cluster.shards().iter().map(deletes).sum::<i64>()
    };
    let before = counters();
    drop(held);
    keyward.until("the deletion", || counters() > before);
    assert_eq!(keyward.insert(DATABASE, user(2, "z", "a@x", true)), Err(11_000));
    assert_eq!(count(), 1);
}

/// A change of the constraints makes no abandoned key wait for its lease again.
#[tokio::test(flavor = "multi_thread")]
async fn the_ages_of_reservations_stay_known_over_a_reload() {
    const DATABASE: &str = "sweep_ages";
    const LEASE: Duration = Duration::from_secs(20);
    let cluster = Cluster::shared();
    shard_users(cluster, DATABASE);
    let settings = |more: &str| {
        format!(
            "upstream: {}\nlease: 20s\nsweep: 1h\nreload_interval: 0s\nconstraints:\n  - {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}\n{more}",
            cluster.uri()
        )
    };
    let keyward = Keyward::of(&settings(""));
    let proxy = cluster
        .client()
        .database(DATABASE)
        .collection::<Document>("keyward.users.email_1");
    for (email, owner) in [("a@x", 1_000), ("b@x", 1_001)] {
        proxy.insert_one(abandoned(email, owner, 1_000)).await.unwrap();
    }
    // This Keyward first waits until it knows them for as long as a lease.
    keyward.insert(DATABASE, user(1, "a", "a@x", true)).unwrap();
    let more = format!("  - {{ collection: {DATABASE}.orders, key: {{ number: 1 }} }}\n");
    assert_eq!(keyward.reload(&settings(&more))["outcome"], "applied");
    let began = Instant::now();
    keyward.insert(DATABASE, user(2, "z", "b@x", true)).unwrap();
    assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
}

/// A sweep ended, or a sweeper was killed, while a clock was ahead by a day.
#[test]
fn a_turn_that_was_noted_while_a_clock_was_ahead_keeps_no_one_from_sweeping() {
    const DATABASE: &str = "sweep_clock";
    let cluster = Cluster::shared();
    shard_users(cluster, DATABASE);
    let all = format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}\n");
    Keyward::backfill(&cluster.uri(), &all);
    let tomorrow =
        vec![doc! { "$set": { "sweep.until": { "$add": ["$$NOW", 86_400_000_i64] }, "sweep.by": "another" } }];
    let noted = doc! { "update": "keyward.constraints", "updates": [{ "q": {}, "u": tomorrow, "multi": true }] };
    let noted = cluster.run(DATABASE, noted).unwrap();
    assert!(noted.get_i32("nModified").unwrap() >= 1, "{noted}");
    let keyward = Keyward::start_with_lease(&cluster.uri(), "5s\nsweep: 1s", &all);
    let swept = format!("keyward_constraint_sweeps_total{{constraint=\"{DATABASE}.users.email_1\"}}");
    keyward.until("a sweep", || keyward.metric(&swept) >= 1);
}
