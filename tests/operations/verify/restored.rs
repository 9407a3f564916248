//! Documents are restored to an earlier time past Keyward, under the reservations of now (docs/restore.md): what is then found is
//! what that page says, `--repair` makes both agree, and after it no key can be had twice.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::{Client, Collection};
use testbed::Cluster;

use crate::verify::planted::{LEASE, user};
use crate::verify::run::Config;
use testkit::Keyward;

const CONSTRAINTS: &str = "  - { collection: DB.users, key: { email: 1 } }\n";

fn users(client: &Client, database: &str) -> Collection<Document> {
    client.database(database).collection("users")
}

/// Puts the users back as they were before 2 gave its key to 6, 3 changed its own, and 7 came.
async fn restored(database: &str) -> Config {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    testkit::shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let constraints = CONSTRAINTS.replace("DB", database);
    let mut keyward = Keyward::start_with_lease(&cluster.uri(), &format!("{LEASE}\nsweep: 1day"), &constraints);
    let through = users(&keyward.client().await, database);
    through.insert_many((1..=5).map(user)).await.unwrap();
    let past = users(&cluster.client(), database);
    let backup: Vec<Document> = past.find(doc! {}).await.unwrap().try_collect().await.unwrap();

    through.delete_one(doc! { "_id": 2_i64, "region": "a" }).await.unwrap();
    let mut sixth = user(6);
    sixth.insert("email", "2@x");
    through.insert_many([sixth, user(7)]).await.unwrap();
    let third = doc! { "_id": 3_i64, "region": "z" };
    through
        .update_one(third, doc! { "$set": { "email": "new@x" } })
        .await
        .unwrap();
    assert_eq!(keyward.terminate(), Some(0));

    past.delete_many(doc! {}).await.unwrap();
    past.insert_many(backup).await.unwrap();
    Config::new(&cluster.uri(), LEASE, &constraints)
}

/// Every restored document's key is taken, those of documents that are gone are free.
async fn assert_whole(database: &str) {
    let cluster = Cluster::shared();
    let keyward = Keyward::start_with_lease(&cluster.uri(), LEASE, &CONSTRAINTS.replace("DB", database));
    let through = users(&keyward.client().await, database);
    for (id, email, is_free) in [
        (11, "1@x", false),
        (12, "2@x", false),
        (13, "3@x", false),
        (14, "new@x", true),
        (15, "7@x", true),
    ] {
        let mut document = user(id);
        document.insert("email", email);
        assert_eq!(through.insert_one(document).await.is_ok(), is_free, "{email}");
    }
}

#[tokio::test]
async fn documents_of_an_earlier_time_and_reservations_of_now_are_made_to_agree() {
    let config = restored("verify_restored").await;
    let expected = [
        "abandoned email_1 ",
        "abandoned email_1 ",
        "foreign email_1 2",
        "missing email_1 3",
    ];
    let found = config.verify(&["--repair"]).await;
    assert_eq!(found.listed(), expected, "{:#?}", found.findings);
    assert_eq!((found.listed_unrepaired(), found.exit), (vec![], Some(0)));
    let left = config.verify(&[]).await;
    assert_eq!((left.listed(), left.exit), (vec![], Some(0)));
    assert_whole("verify_restored").await;
}

/// The other way of that page: the reservations go, and the cluster's claim that all is reserved doesn't count any more.
/// Neither does it if somebody has begun to write reservations there again.
#[tokio::test]
async fn reservations_are_made_anew_from_restored_documents() {
    let config = restored("verify_made_anew").await;
    let database = Cluster::shared().client().database("verify_made_anew");
    let proxy = database.collection::<Document>("keyward.users.email_1");
    for is_there_again in [false, true] {
        proxy.drop().await.unwrap();
        if is_there_again {
            database.create_collection("keyward.users.email_1").await.unwrap();
        }
        let backfilled = config.run("backfill", &[]).await;
        assert_eq!(backfilled.status.code(), Some(0), "{backfilled:?}");
        let left = config.verify(&[]).await;
        assert_eq!((left.listed(), left.exit), (vec![], Some(0)));
    }
    assert_whole("verify_made_anew").await;
}
