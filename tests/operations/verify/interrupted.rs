//! Repairs that are killed midway, or run beside each other and beside a Keyward that serves: nothing is doubled or lost.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc, oid::ObjectId};
use mongodb::Collection;
use testbed::Cluster;

use crate::verify::run::Config;
use testkit::Keyward;

/// More than one page.
const DOCUMENTS: i32 = 6_000;

fn user(id: i32) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": format!("{id}@x") }
}

/// Clients that give documents other emails, and take the emails of others, until they are told to stop.
async fn rename_on(users: Collection<Document>, writer: i32, stop: Arc<AtomicBool>) -> i32 {
    let mut renamed = 0;
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = (round * 7 + writer) % 40;
        let email = format!("{}@x", (round * 11) % 40);
        let filter = doc! { "_id": id, "region": user(id).get("region").unwrap().clone() };
        let change = doc! { "$set": { "email": email } };
        renamed += i32::from(
            users
                .update_one(filter, change)
                .await
                .is_ok_and(|done| done.modified_count == 1),
        );
        // Its own email is free again for whoever comes.
        let filter = doc! { "_id": id, "region": user(id).get("region").unwrap().clone() };
        let change = doc! { "$set": { "email": format!("{writer}.{round}@x") } };
        let _ = users.update_one(filter, change).await;
    }
    renamed
}

#[tokio::test]
async fn repairs_that_are_killed_or_run_at_once_end_in_agreement() {
    let cluster = Cluster::shared();
    testkit::shard_on_two(
        cluster,
        "verify_twice.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let past = cluster.client().database("verify_twice");
    past.collection::<Document>("users")
        .insert_many((0..DOCUMENTS).map(user))
        .ordered(false)
        .await
        .unwrap();
    let constraints = "  - { collection: verify_twice.users, key: { email: 1 } }\n";
    // It backfills the existing documents.
    let keyward = Keyward::start_with_lease(&cluster.uri(), "10s\nsweep: 1day", constraints);
    let users = keyward
        .client()
        .await
        .database("verify_twice")
        .collection::<Document>("users");
    let reservations = past.collection::<Document>("keyward.users.email_1");
    // They are repaired one after the other.
    let deleted = reservations.delete_many(doc! { "owner": { "$gte": 100, "$mod": [4, 0] } });
    let missing = deleted.await.unwrap().deleted_count;
    assert!(missing > 1_000, "{missing}");
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|writer| tokio::spawn(rename_on(users.clone(), writer, stop.clone())))
        .collect();

    let config = Config::new(&cluster.uri(), "2s", constraints);
    let mut killed = config
        .command("verify", &["--repair"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while reservations.estimated_document_count().await.unwrap() < DOCUMENTS as u64 - missing + 400 {
        assert!(Instant::now() < deadline, "nothing is repaired");
        assert!(killed.try_wait().unwrap().is_none(), "it was over before it was killed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(reservations.count_documents(doc! {}).await.unwrap() < DOCUMENTS as u64);

    let (one, other) = tokio::join!(config.verify(&["--repair"]), config.verify(&["--repair"]));
    for repaired in [one, other] {
        assert_eq!(repaired.exit, Some(0), "{:#?}", repaired.listed_unrepaired());
        let kinds = repaired.summary["findings"].as_object().unwrap();
        assert!(kinds.keys().all(|kind| kind == "missing"), "{kinds:?}");
    }
    let clean = config.verify(&[]).await;
    assert_eq!((clean.listed(), clean.exit), (vec![], Some(0)));
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap_or(&Bson::Null).clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, "verify_twice", "users", "email_1", email).await;
}

/// What may be in flight is no finding: a reservation is one only once its own lease is over.
#[tokio::test]
async fn a_reservation_is_left_alone_while_its_lease_may_run() {
    let cluster = Cluster::shared();
    let constraints = "  - { collection: verify_recent.users, key: { email: 1 } }\n";
    let config = Config::new(&cluster.uri(), "1s", constraints);
    assert_eq!(config.run("backfill", &[]).await.status.code(), Some(0));
    let past = cluster.client().database("verify_recent");
    let users = past.collection::<Document>("users");
    users.insert_one(doc! { "_id": 1, "email": "a@x" }).await.unwrap();
    assert_eq!(config.verify(&["--repair"]).await.listed(), ["missing email_1 1"]);
    // As of a Keyward with a longer lease that has just reserved it for a document to come.
    let reservations = past.collection::<Document>("keyward.users.email_1");
    let mut reservation = reservations.find_one(doc! {}).await.unwrap().unwrap();
    reservations.delete_many(doc! {}).await.unwrap();
    users.delete_one(doc! { "_id": 1 }).await.unwrap();
    let to_come = ObjectId::new();
    reservation.insert("owner", to_come);
    reservation.insert("lease", 4_000_i64);
    reservation.insert("at", bson::Timestamp { time: 0, increment: 0 });
    let began = Instant::now();
    reservations.insert_one(&reservation).await.unwrap();
    let found = config.verify(&[]).await;
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(
        (found.listed(), found.exit),
        (vec!["abandoned email_1 ".to_owned()], Some(0))
    );
    // And once its document is there, nothing of it is wrong.
    users.insert_one(doc! { "_id": to_come, "email": "a@x" }).await.unwrap();
    assert_eq!(config.verify(&[]).await.exit, Some(0));
}
