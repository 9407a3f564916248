//! Faults of every kind, planted past Keyward while clients write through it.

use bson::{Bson, Document, doc};
use testbed::Cluster;

use crate::verify::planted::{self, LEASE, PLANTED, Writers, item, user};
use crate::verify::run::Config;
use testkit::Keyward;

/// Until the sweeps that every Keyward begins with are over.
fn await_sweeps(keyward: &Keyward, constraints: usize) {
    let is_done = |line: &&str| line.starts_with("keyward_constraint_sweeps_total{") && !line.ends_with(" 0");
    keyward.until("the first sweeps", || {
        keyward.metrics().lines().filter(is_done).count() >= constraints
    });
}

#[tokio::test]
async fn each_planted_fault_is_found_and_nothing_else_and_what_is_safe_is_repaired() {
    let cluster = Cluster::shared();
    planted::shard(cluster, "verify");
    let constraints = planted::constraints("verify");
    let keyward = Keyward::start_with_lease(&cluster.uri(), &format!("{LEASE}\nsweep: 1day"), &constraints);
    let client = keyward.client().await;
    let users = client.database("verify").collection::<Document>("users");
    // In their order, the router would send them one by one, and a lease is short.
    users.insert_many((0..300).map(user)).ordered(false).await.unwrap();
    planted::adorn(&users).await;
    let items = client.database("verify").collection::<Document>("items");
    items.insert_many((0..50).map(item)).ordered(false).await.unwrap();
    await_sweeps(&keyward, 5);
    let config = Config::new(&cluster.uri(), LEASE, &constraints);

    let writers = Writers::start(&client.database("verify"), 3);
    let clean = config.verify(&[]).await;
    assert_eq!((clean.listed(), clean.exit), (vec![], Some(0)));

    let database = cluster.client().database("verify");
    let planted = planted::plant(&database).await;
    let before = writers.written();
    let found = config.verify(&[]).await;
    assert!(writers.written() > before, "nobody wrote meanwhile");
    assert_eq!(found.listed(), planted, "{:#?}", found.findings);
    assert_eq!((found.exit, &found.summary["left"]), (Some(1), &planted.len().into()));

    let repaired = config.verify(&["--repair"]).await;
    assert_eq!(repaired.listed(), planted, "{:#?}", repaired.findings);
    assert_eq!(repaired.exit, Some(1));
    let is_hopeless = |listed: &&str| {
        let kinds = ["duplicate", "unindexable", "unreadable"];
        kinds.iter().any(|kind| listed.starts_with(kind))
    };
    let hopeless: Vec<&str> = planted.iter().copied().filter(is_hopeless).collect();
    assert_eq!(repaired.listed_unrepaired(), hopeless, "{:#?}", repaired.findings);
    let left = config.verify(&["--repair"]).await;
    assert_eq!(left.listed(), hopeless);
    assert_eq!(left.exit, Some(1));

    // What is left is the operator's: after that all is clean.
    let emails = database.collection::<Document>("keyward.users.email_1");
    emails
        .delete_many(
            doc! { "$or": [{ "_id": 5 }, { "owner": 16_i64, "_id.k.email": "16@x", "token": { "$exists": true } }] },
        )
        .await
        .unwrap();
    let past = database.collection::<Document>("users");
    past.delete_many(doc! { "_id": { "$in": [PLANTED, PLANTED + 2, PLANTED + 3] } })
        .await
        .unwrap();
    let items = database.collection::<Document>("items");
    items.delete_one(doc! { "_id": 1_i64, "region": "a" }).await.unwrap();
    config.verify(&["--repair"]).await;
    let clean = config.verify(&[]).await;
    assert_eq!((clean.listed(), clean.exit), (vec![], Some(0)));
    writers.stop().await;
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap_or(&Bson::Null).clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, "verify", "users", "email_1", email).await;
}
