//! What there is to verify, and what there isn't: exit codes, and documents of every kind.

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use testbed::{Cluster, ReplicaSet};
use testkit::Keyward;
use testkit::wire::send;

use crate::verify::run::Config;

#[tokio::test]
async fn what_cannot_be_told_is_neither_clean_nor_a_finding() {
    let constraints = "  - { collection: verify_untold.users, key: { email: 1 } }\n";
    let config = Config::new(&ReplicaSet::shared().uri(), "10s", constraints);
    let verified = config.verify(&[]).await;
    assert_eq!(
        (verified.exit, &verified.summary["constraintsNotVerified"]),
        (Some(2), &1.into())
    );

    let nowhere = Config::new(
        "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200",
        "10s",
        constraints,
    );
    assert_eq!(nowhere.run("verify", &[]).await.status.code(), Some(2));
    assert_eq!(nowhere.run("backfill", &[]).await.status.code(), Some(69));
    for command in ["verify", "backfill"] {
        let other = config.run(command, &["--collection", "verify_untold.others"]).await;
        assert_eq!(other.status.code(), Some(2));
        assert!(
            String::from_utf8(other.stderr)
                .unwrap()
                .contains("verify_untold.others has no constraint")
        );
    }
    assert_eq!(config.run("backfill", &[]).await.status.code(), Some(0));
    let verified = config.verify(&["--collection", "verify_untold.users"]).await;
    assert_eq!((verified.exit, verified.findings.len()), (Some(0), 0));
}

/// An `_id` of every type is walked past, also those that no `$gt` would find, or that are the same on two shards; in the
/// strategy for one replica set, too.
#[tokio::test]
async fn documents_with_ids_of_every_type_are_walked() {
    let cluster = Cluster::shared();
    testkit::shard_on_two(cluster, "verify_ids.all", doc! { "region": 1 }, doc! { "region": "m" });
    for (uri, client) in [
        (cluster.uri(), cluster.client()),
        (ReplicaSet::shared().uri(), ReplicaSet::shared().client()),
    ] {
        let constraints = "  - { collection: verify_ids.all, key: { v: 1 } }\n";
        let past = client.database("verify_ids").collection::<Document>("all");
        let ids = [
            Bson::MinKey,
            Bson::Double(f64::NAN),
            Bson::Int32(1),
            Bson::String("text".into()),
            doc! { "a": 1 }.into(),
            doc! { "$ref": "all", "$id": 1 }.into(),
            Bson::Boolean(true),
            Bson::Null,
            Bson::MaxKey,
        ];
        let mut documents: Vec<Document> = ids
            .iter()
            .enumerate()
            .map(|(v, id)| doc! { "_id": id.clone(), "region": "a", "v": v as i32 })
            .collect();
        // More than one page, so that a page ends at a type's end, too.
        documents.extend((0..1_991).map(|v| doc! { "region": "z", "v": v + 100 }));
        past.insert_many(&documents).ordered(false).await.unwrap();
        let config = Config::new(&uri, "1s", constraints);
        assert_eq!(config.run("backfill", &[]).await.status.code(), Some(0));
        let reservations = client.database("verify_ids").collection::<Document>("keyward.all.v_1");
        assert_eq!(reservations.count_documents(doc! {}).await.unwrap(), 2_000);
        let verified = config.verify(&[]).await;
        assert_eq!((verified.listed(), verified.exit), (vec![], Some(0)));
        let read = (&verified.summary["documents"], &verified.summary["reservations"]);
        assert_eq!(read, (&2_000.into(), &2_000.into()));
        // A second time nothing is new, not even for a document whose `_id` isn't equal to itself.
        let constraint = doc! { "_id": { "collection": "all", "name": "v_1" } };
        let definitions = client
            .database("verify_ids")
            .collection::<Document>("keyward.constraints");
        let again = doc! { "$set": { "state": "backfilling" } };
        definitions.update_one(constraint, again).await.unwrap();
        let output = config.run("backfill", &[]).await;
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(reservations.count_documents(doc! {}).await.unwrap(), 2_000);
        // Those of all the types, and some of the others on every page.
        let some = doc! { "$or": [{ "_id.k.v": { "$lt": 100 } }, { "_id.k.v": { "$mod": [10, 0] } }] };
        let deleted = reservations.delete_many(some).await.unwrap().deleted_count;
        assert_eq!(deleted, 9 + 200);
        let repaired = config.verify(&["--repair"]).await;
        assert_eq!(
            (repaired.exit, &repaired.summary["findings"]["missing"]["repaired"]),
            (Some(0), &deleted.into())
        );
        assert_eq!(config.verify(&[]).await.exit, Some(0));
    }
}

/// A replacement may give the shard key another type and an equal value. The document stays, and its reservation names the old type.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_key_of_another_type_and_an_equal_value_is_the_same_place() {
    let (cluster, database) = (Cluster::shared(), "verify_types");
    testkit::shard_on_two(
        cluster,
        "verify_types.users",
        doc! { "region": 1 },
        doc! { "region": 5 },
    );
    let constraints = "  - { collection: verify_types.users, key: { email: 1 } }\n";
    let keyward = Keyward::start(&cluster.uri(), constraints);
    let there = doc! { "_id": 1, "region": 9, "email": "a@x" };
    send(
        &keyward.address,
        database,
        doc! { "insert": "users", "documents": [there] },
    )
    .unwrap();
    let one = doc! { "q": { "_id": 1, "region": 9.0 }, "u": { "region": 9.0, "email": "a@x", "n": 1 } };
    let session = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes: rand::random::<[u8; 16]>().to_vec() } };
    let replace = doc! { "update": "users", "updates": [one], "lsid": session, "txnNumber": 1_i64 };
    let reply = send(&keyward.address, database, replace).unwrap();
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    let verified = Config::new(&cluster.uri(), "1s", constraints).verify(&[]).await;
    assert_eq!((verified.exit, verified.findings.len()), (Some(0), 0));
}
