//! What a start does about existing data: it backfills documents, and refuses what constraints can't hold beside.

use bson::{Document, doc};
use testbed::Cluster;

use crate::protected_insert::{EMAIL, insert, keyward, run, users};
use testkit::Keyward;

#[tokio::test]
async fn existing_documents_are_backfilled_and_their_duplicates_reported() {
    let database = "backfill";
    let cluster = users(database);
    let direct = cluster.client().database(database).collection::<Document>("users");
    let user = |id: i32, email: i32| doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email };
    direct
        .insert_many((0..2_500).map(|id| user(id, id)))
        .ordered(false)
        .await
        .unwrap();
    direct.insert_many([user(3_001, 7), user(3_002, 7)]).await.unwrap();
    let constraints = EMAIL.replace("DB", database);
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", &constraints) else {
        panic!("it started over duplicates");
    };
    assert_eq!(refused.exit, Some(65), "{}", refused.errors);
    assert!(
        refused
            .errors
            .contains("2 documents of backfill.users violate unique constraint email_1"),
        "{}",
        refused.errors
    );
    let grouped = refused
        .errors
        .contains("\n  3 documents have {\"email\":7}: _id 3002, 3001, 7");
    assert!(grouped, "{}", refused.errors);
    // The file of this start: a command without it reads another one.
    let (_, way_out) = refused.errors.split_once("\n`keyward backfill --config ").unwrap();
    let (file, options) = way_out.split_once(' ').unwrap();
    assert!(
        file.starts_with('/') && options.starts_with("--dry-run --report FILE`"),
        "{way_out}"
    );
    direct.delete_many(doc! { "_id": { "$gt": 3_000 } }).await.unwrap();
    // Several start at once.
    let starting: Vec<_> = (0..3)
        .map(|_| {
            let (uri, constraints) = (cluster.uri(), constraints.clone());
            std::thread::spawn(move || Keyward::start(&uri, &constraints))
        })
        .collect();
    let keywards: Vec<Keyward> = starting.into_iter().map(|start| start.join().unwrap()).collect();
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", email).await;
    for keyward in &keywards {
        let client = keyward.client_without_retries().await;
        let reply = run(&client, database, insert(vec![user(4_000, 42)], true)).await;
        assert_eq!(reply.get_array("writeErrors").unwrap().len(), 1, "{reply}");
    }
}

/// In a proxy collection that Keyward hasn't made, equal keys could be two: 1.5 as a double and as a decimal have different
/// hashes, and a collation would make different keys one.
#[tokio::test]
async fn a_proxy_collection_of_another_make_refuses_to_start() {
    let cluster = Cluster::shared();
    let refused = |database: &str, sharding: &str| {
        let sharding = format!(", sharding: {sharding} }}\n");
        let constraints = EMAIL.replace("DB", database).replace(" }\n", &sharding);
        let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", &constraints) else {
            panic!("it started");
        };
        assert_eq!(refused.exit, Some(69), "{}", refused.errors);
        assert!(
            refused.errors.contains("isn't as Keyward makes one"),
            "{}",
            refused.errors
        );
    };
    let hashed = |path: &str| doc! { path: "hashed" };
    for (number, key, sharding) in [
        (1, hashed("_id"), "hashed"),
        (2, hashed("_id"), "ranged"),
        (3, hashed("_id.k"), "hashed"),
        (4, doc! { "_id.h": 1 }, "hashed"),
        (5, hashed("_id.h"), "ranged"),
    ] {
        let database = format!("made_sharded_{number}");
        users(&database);
        let namespace = format!("{database}.keyward.users.email_1");
        cluster
            .run("admin", doc! { "shardCollection": namespace, "key": key })
            .unwrap();
        refused(&database, sharding);
    }
    users("made_collated");
    let collation = doc! { "locale": "en", "strength": 2 };
    let create = doc! { "create": "keyward.users.email_1", "collation": collation };
    cluster.run("made_collated", create).unwrap();
    refused("made_collated", "hashed");
    users("made_results");
    let results = doc! { "shardCollection": "made_results.keyward.results", "key": { "at": 1 } };
    cluster.run("admin", results).unwrap();
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", &EMAIL.replace("DB", "made_results")) else {
        panic!("it started");
    };
    assert_eq!(refused.exit, Some(69), "{}", refused.errors);
    assert!(refused.errors.contains("and not by its _id"), "{}", refused.errors);
    users("made_view");
    let create = doc! { "create": "keyward.users.email_1", "viewOn": "users", "pipeline": [] };
    cluster.run("made_view", create).unwrap();
    let constraints = EMAIL.replace("DB", "made_view");
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", &constraints) else {
        panic!("it started");
    };
    assert!(
        refused.errors.contains("is a view or a time series"),
        "{}",
        refused.errors
    );
}

/// Equal values of an encrypted field look different, a document of a time series is a part of another one, and a view has none. In a
/// clustered collection with a default collation, look-ups miss documents.
#[tokio::test]
async fn what_can_have_no_unique_constraint_refuses_to_start() {
    let cluster = Cluster::shared();
    let encrypting = |path: &str| {
        let field = doc! { "keyId": bson::Uuid::new(), "path": path, "bsonType": "string" };
        doc! { "create": "users", "encryptedFields": { "fields": [field] } }
    };
    let by_id = || doc! { "key": { "_id": 1 }, "unique": true };
    let email = "unique constraint email_1 on DB.users reads field email, which Queryable Encryption encrypts";
    for (database, create, refusal) in [
        (
            "start_view",
            doc! { "create": "users", "viewOn": "others", "pipeline": [] },
            Some("is a view or a time series"),
        ),
        (
            "start_time_series",
            doc! { "create": "users", "timeseries": { "timeField": "at" } },
            Some("is a view or a time series"),
        ),
        (
            "start_capped",
            doc! { "create": "users", "capped": true, "size": 4096 },
            Some("is capped"),
        ),
        (
            "start_clustered",
            doc! { "create": "users", "clusteredIndex": by_id(), "collation": { "locale": "en", "strength": 2 } },
            Some("start_clustered.users is clustered and has a default collation"),
        ),
        (
            "start_clustered_only",
            doc! { "create": "users", "clusteredIndex": by_id() },
            None,
        ),
        ("start_encrypted", encrypting("email"), Some(email)),
        ("start_encrypted_other", encrypting("phone"), None),
    ] {
        cluster.run(database, create).unwrap();
        let constraints = EMAIL.replace("DB", database);
        match (Keyward::try_start(&cluster.uri(), "10s", &constraints), refusal) {
            (Err(refused), Some(refusal)) => {
                assert_eq!(refused.exit, Some(69), "{database}: {}", refused.errors);
                let refusal = refusal.replace("DB", database);
                assert!(refused.errors.contains(&refusal), "{database}: {}", refused.errors);
                let kept = cluster
                    .client()
                    .database(database)
                    .list_collection_names()
                    .await
                    .unwrap();
                assert!(kept.iter().all(|name| !name.starts_with("keyward.")), "{kept:?}");
            }
            (Err(refused), None) => panic!("{database}: {}", refused.errors),
            (Ok(_), Some(_)) => panic!("{database}: it started"),
            (Ok(_), None) => {}
        }
    }
}

/// What it would have written down would have refused the corrected configuration.
#[tokio::test]
async fn a_start_that_is_refused_for_a_strategy_writes_nothing_down() {
    let database = "strategies";
    let cluster = users(database);
    let email = EMAIL.replace("DB", database);
    let phone = email.replace("email", "phone");
    drop(Keyward::start(&cluster.uri(), &email));
    let strict = phone.replace(" }\n", ", strategy: transaction }\n");
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", &format!("{strict}{email}")) else {
        panic!("it started");
    };
    assert!(
        refused.errors.contains("has strategy compensating in the cluster"),
        "{}",
        refused.errors
    );
    Keyward::start(&cluster.uri(), &format!("{phone}{email}"));
}

#[tokio::test]
async fn another_definition_of_the_same_constraint_refuses_to_start() {
    let database = "definitions";
    let cluster = users(database);
    let _first = keyward(cluster, database, EMAIL);
    let other = "  - { collection: definitions.users, key: { email: 1 }, sparse: true }\n";
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", other) else {
        panic!("it started with another definition");
    };
    assert!(
        refused
            .errors
            .contains("unique constraint email_1 on definitions.users is defined otherwise"),
        "{}",
        refused.errors
    );
}

/// They had their reservations in one collection, each taking the other's for abandoned ones.
#[tokio::test]
async fn no_constraint_has_its_reservations_where_another_ones_lie() {
    let database = "same_place";
    let cluster = users(database);
    let _first = Keyward::start(
        &cluster.uri(),
        &format!("  - {{ collection: {database}.users, key: {{ eu.email: 1 }} }}\n"),
    );
    let other = |name: &str| format!("  - {{ collection: {database}.users.eu, key: {{ email: 1 }}{name} }}\n");
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", &other("")) else {
        panic!("it started with the other's proxy collection");
    };
    assert_eq!(refused.exit, Some(78), "{}", refused.errors);
    assert!(
        refused
            .errors
            .contains("those of unique constraint eu.email_1 on same_place.users lie"),
        "{}",
        refused.errors
    );
    drop(Keyward::start(&cluster.uri(), &other(", name: another")));
}

/// The reservations of one order of a key's fields are others than those of another order.
#[tokio::test]
async fn another_order_of_a_keys_fields_refuses_to_start() {
    let database = "field_order";
    let cluster = users(database);
    let ordered = |key: &str| format!("  - {{ collection: {database}.users, key: {key}, name: both }}\n");
    let _keyward = Keyward::start(&cluster.uri(), &ordered("{ email: 1, phone: 1 }"));
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", &ordered("{ phone: 1, email: 1 }")) else {
        panic!("it started with another order");
    };
    assert_eq!(refused.exit, Some(78), "{}", refused.errors);
}
