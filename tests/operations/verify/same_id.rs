//! Two documents with one `_id` and one key, whose reservation doesn't say which of them it is for.

use bson::{Document, doc};
use testbed::Cluster;

use crate::verify::run::Config;

/// The reservation was made before the collection was sharded.
#[tokio::test]
async fn a_second_document_with_the_id_of_an_owner_is_a_duplicate_whatever_the_route_of_the_reservation() {
    let database = "verify_same_id";
    let cluster = Cluster::shared();
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    let users = cluster.client().database(database).collection::<Document>("users");
    users
        .insert_one(doc! { "_id": 1, "region": "a", "email": "x" })
        .await
        .unwrap();
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let config = Config::new(&cluster.uri(), "1s", &constraint);
    let reserved = config.run("backfill", &[]).await;
    assert_eq!(reserved.status.code(), Some(0), "{reserved:?}");
    let index = doc! { "createIndexes": "users", "indexes": [{ "key": { "region": 1 }, "name": "region_1" }] };
    cluster.run(database, index).unwrap();
    testkit::shard_on_two(
        cluster,
        &format!("{database}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let alone = config.verify(&[]).await;
    assert_eq!((alone.listed(), alone.exit), (vec![], Some(0)));
    // Past Keyward.
    users
        .insert_one(doc! { "_id": 1, "region": "z", "email": "x" })
        .await
        .unwrap();
    for options in [&[][..], &["--repair"]] {
        let found = config.verify(options).await;
        assert_eq!(
            (found.listed_unrepaired(), found.exit),
            (vec!["duplicate email_1 1,1".to_owned()], Some(1)),
            "{:#?}",
            found.findings
        );
    }
}
