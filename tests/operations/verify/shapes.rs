//! Collections and constraints of every shape are backfilled, verified and repaired alike.

use bson::{Bson, Document, doc};
use mongodb::options::Collation;
use testbed::Cluster;

use crate::verify::run::Config;

const CONSTRAINTS: &str = "  - { collection: verify_shapes.hashed, key: { v: 1 } }
  - { collection: verify_shapes.on_id, key: { v: 1 } }
  - { collection: verify_shapes.clustered, key: { v: 1 } }
  - { collection: verify_shapes.nested, key: { v: 1 } }
  - { collection: verify_shapes.partly, key: { v: 1 } }
  - { collection: verify_shapes.unsharded, key: { v: 1 }, strategy: transaction }
  - { collection: verify_shapes.collated, key: { v: 1 } }
  - { collection: verify_shapes.manifold, key: { v: 1, 'list.x': 1 }, sparse: true }
  - { collection: verify_shapes.manifold, key: { v: 1 }, name: late, partialFilterExpression: { v: { $gt: 2 } } }
  - { collection: verify_shapes.manifold, key: { _id: 1 } }
";
/// How many documents each collection has.
const COUNT: i32 = 8;

fn shard(cluster: &Cluster, collection: &str, key: Document) {
    let namespace = format!("verify_shapes.{collection}");
    let command = doc! { "shardCollection": namespace, "key": key, "collation": { "locale": "simple" } };
    cluster.run("admin", command).unwrap();
}

async fn fill(cluster: &Cluster) {
    let two = |collection: &str, key: &str| {
        let namespace = format!("verify_shapes.{collection}");
        testkit::shard_on_two(cluster, &namespace, doc! { key: 1 }, doc! { key: "m" });
    };
    let clustered = doc! { "create": "clustered", "clusteredIndex": { "key": { "_id": 1 }, "unique": true } };
    cluster.run("verify_shapes", clustered).unwrap();
    two("clustered", "region");
    two("nested", "place.region");
    two("partly", "region");
    two("manifold", "region");
    shard(cluster, "hashed", doc! { "n": "hashed" });
    shard(cluster, "on_id", doc! { "_id": "hashed" });
    let database = cluster.client().database("verify_shapes");
    let loose = Collation::builder()
        .locale("en")
        .strength(mongodb::options::CollationStrength::Secondary)
        .build();
    database.create_collection("collated").collation(loose).await.unwrap();
    database
        .collection::<Document>("collated")
        .create_index(
            mongodb::IndexModel::builder()
                .keys(doc! { "region": 1 })
                .options(
                    mongodb::options::IndexOptions::builder()
                        .collation(Collation::builder().locale("simple").build())
                        .build(),
                )
                .build(),
        )
        .await
        .unwrap();
    shard(cluster, "collated", doc! { "region": 1 });
    testkit::spread_on_two(cluster, "verify_shapes.collated", doc! { "region": "m" });
    for collection in [
        "hashed",
        "on_id",
        "clustered",
        "nested",
        "partly",
        "unsharded",
        "collated",
        "manifold",
    ] {
        let documents = (0..COUNT).map(|v| {
            let region = if v % 2 == 0 { "a" } else { "z" };
            let mut document = match collection {
                // Under the collection's collation, each two of them are the same, on two shards.
                "collated" => doc! { "_id": if v % 2 == 0 { format!("id{v}") } else { format!("ID{}", v - 1) } },
                _ => doc! { "_id": v },
            };
            document.extend(match collection {
                "hashed" => doc! { "n": if v < 4 { v.into() } else { Bson::Null } },
                "nested" if v > 2 => doc! { "place": { "region": region } },
                "partly" if v == 3 => doc! { "region": Bson::Null },
                // A shard key that is missing is null.
                "partly" | "nested" if v < 3 => doc! {},
                "collated" => doc! { "region": region, "text": "t" },
                "manifold" => doc! { "region": region, "list": [{ "x": v }, { "x": v + 1 }, { "x": v }] },
                _ => doc! { "region": region },
            });
            document.insert("v", v);
            document
        });
        database
            .collection::<Document>(collection)
            .insert_many(documents)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn collections_and_constraints_of_every_shape_are_verified() {
    let cluster = Cluster::shared();
    cluster
        .run("admin", doc! { "enableSharding": "verify_shapes" })
        .unwrap();
    fill(cluster).await;
    let config = Config::new(&cluster.uri(), "1s", CONSTRAINTS);
    let output = config.run("backfill", &[]).await;
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let clean = config.verify(&[]).await;
    assert_eq!((clean.listed(), clean.exit), (vec![], Some(0)));
    let count = i64::from(COUNT);
    // Of `manifold` three constraints: two keys a document, those above 2, and all.
    let reserved = 7 * count + 2 * count + (count - 3) + count;
    assert_eq!(
        (&clean.summary["documents"], &clean.summary["reservations"]),
        (&(10 * count).into(), &reserved.into())
    );

    let database = cluster.client().database("verify_shapes");
    let mut planted = Vec::new();
    for (collection, constraint) in [
        ("hashed", "v_1"),
        ("on_id", "v_1"),
        ("clustered", "v_1"),
        ("nested", "v_1"),
        ("partly", "v_1"),
        ("unsharded", "v_1"),
        ("collated", "v_1"),
        ("manifold", "v_1_list.x_1"),
        ("manifold", "late"),
        ("manifold", "_id_"),
    ] {
        let name = format!("keyward.{collection}.{constraint}");
        let reservations = database.collection::<Document>(&name);
        let owner = |v: i32| match collection {
            "collated" => Bson::String(format!("id{}", v - v % 2)),
            _ => v.into(),
        };
        // One is lost, one is for nobody.
        for (v, kind) in [(4, "missing"), (6, "foreign")] {
            let reservation = reservations
                .find_one(doc! { "owner": owner(v) })
                .await
                .unwrap()
                .unwrap();
            let route = doc! { "_id": reservation.get("_id").unwrap().clone() };
            if kind == "missing" {
                assert_eq!(reservations.delete_one(route).await.unwrap().deleted_count, 1);
            } else {
                let to_nobody = doc! { "$set": { "owner": 1_000 } };
                assert_eq!(
                    reservations.update_one(route, to_nobody).await.unwrap().modified_count,
                    1
                );
            }
            planted.push(format!("{kind} {constraint} {}", owner(v)));
        }
    }
    planted.sort();
    let repaired = config.verify(&["--repair"]).await;
    assert_eq!(repaired.listed(), planted, "{:#?}", repaired.findings);
    assert_eq!(repaired.exit, Some(0), "{:#?}", repaired.findings);
    let clean = config.verify(&[]).await;
    assert_eq!((clean.listed(), clean.exit), (vec![], Some(0)));
    assert_eq!(clean.summary["reservations"], reserved);
}
