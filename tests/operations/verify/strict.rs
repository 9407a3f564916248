//! In strict mode a repair proves what it concludes, as a takeover does; what it can't prove it leaves, and says so.

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};

use crate::verify::run::Config;
use testkit::Keyward;

/// The deployment may be one replica set, where transactions are the strategy.
#[tokio::test]
async fn a_lost_owner_is_repaired_on_a_replica_set() {
    let replica_set = ReplicaSet::shared();
    let constraints = "  - { collection: verify_strict.users, key: { email: 1 } }\n";
    let keyward = Keyward::start_with_lease(&replica_set.uri(), "1s\nsweep: 1day", constraints);
    let users = keyward
        .client()
        .await
        .database("verify_strict")
        .collection::<Document>("users");
    let user = |id: i32| doc! { "_id": id, "email": format!("{id}@x") };
    users.insert_many((0..10).map(user)).await.unwrap();
    let past = replica_set.client().database("verify_strict");
    past.collection::<Document>("users")
        .delete_one(doc! { "_id": 1 })
        .await
        .unwrap();
    let reservations = past.collection::<Document>("keyward.users.email_1");
    let to = |owner: i32| doc! { "$set": { "owner": owner } };
    reservations.update_one(doc! { "owner": 2 }, to(77)).await.unwrap();
    let config = Config::new(&replica_set.uri(), "1s", constraints);
    let repaired = config.verify(&["--repair"]).await;
    assert_eq!(repaired.listed(), ["abandoned email_1 ", "foreign email_1 2"]);
    assert_eq!(repaired.exit, Some(0), "{:?}", repaired.findings);
    assert_eq!(config.verify(&[]).await.exit, Some(0));
}

#[tokio::test]
async fn what_cannot_be_proved_on_shards_is_left_and_is_in_the_way_of_nothing_else() {
    let cluster = Cluster::shared();
    let constraints = "  - { collection: verify_strict_read.users, key: { email: 1 }, strategy: transaction }\n";
    testkit::shard_on_two(
        cluster,
        "verify_strict_read.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let past = cluster.client().database("verify_strict_read");
    let users = past.collection::<Document>("users");
    let user = |id: i32| doc! { "_id": id, "region": "a", "email": format!("{id}@x") };
    users.insert_many((0..10).map(user)).await.unwrap();
    let config = Config::new(&cluster.uri(), "1s", constraints);
    assert_eq!(config.run("backfill", &[]).await.status.code(), Some(0));

    // Past Keyward: to another shard; to another place on the same one, where it is in the absent owner's way; there, and with another key.
    for (id, region, email) in [(1, "z", "1@x"), (2, "b", "2@x"), (3, "b", "other@x")] {
        users.delete_one(doc! { "_id": id, "region": "a" }).await.unwrap();
        let anew = doc! { "_id": id, "region": region, "email": email };
        users.insert_one(anew).await.unwrap();
    }
    let reservations = past.collection::<Document>("keyward.users.email_1");
    // For nobody, who may come: to a known place; nobody knows where.
    for (id, change) in [
        (4, doc! { "$set": { "owner": 77 } }),
        (5, doc! { "$set": { "owner": 77 }, "$unset": { "route": 1 } }),
    ] {
        let route = reservations.find_one(doc! { "owner": id }).await.unwrap().unwrap();
        let route = doc! { "_id": route.get("_id").unwrap().clone() };
        reservations.update_one(route, change).await.unwrap();
    }
    let planted = [
        "abandoned email_1 ",
        "foreign email_1 4",
        "foreign email_1 5",
        "misrouted email_1 1",
        "misrouted email_1 2",
        "missing email_1 3",
    ];
    let repaired = config.verify(&["--repair"]).await;
    assert_eq!(repaired.listed(), planted, "{:#?}", repaired.findings);
    assert_eq!((repaired.exit, &repaired.summary["left"]), (Some(1), &1.into()));
    assert_eq!(repaired.listed_unrepaired(), ["foreign email_1 5"]);
    let unroutable = repaired
        .findings
        .iter()
        .find(|finding| finding["documents"] == serde_json::json!([5]));
    assert!(unroutable.unwrap()["reason"].as_str().unwrap().contains("not repaired"));
    let left = config.verify(&[]).await;
    assert_eq!(left.listed(), ["foreign email_1 5"]);
    assert_eq!(left.exit, Some(1));
}
