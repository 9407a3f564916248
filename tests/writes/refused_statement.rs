//! A statement that Keyward refuses among others of its command: the others' results count.

use bson::{Bson, Document, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, comparable, run};

/// One document's key, three documents' keys, another one's key.
fn statements() -> Vec<Document> {
    let computed = vec![doc! { "$set": { "email": { "$concat": ["$email", "x"] } } }];
    vec![
        doc! { "q": { "_id": 0 }, "u": { "$set": { "email": "first" } } },
        doc! { "q": {}, "u": computed, "multi": true },
        doc! { "q": { "_id": 1 }, "u": { "$set": { "email": "third" } } },
    ]
}

async fn the_others_results_count(upstream: &str, database: &str) {
    let limited = "10s\nlimits: { max_documents_per_statement: 2 }";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let keyward = Keyward::start_with_lease(upstream, limited, &constraint);
    let client = keyward.client().await;
    let users = client.database(database).collection::<Document>("users");
    for (ordered, expected) in [(true, vec!["1", "2", "first"]), (false, vec!["2", "first", "third"])] {
        run(
            &client,
            database,
            doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] },
        )
        .await;
        let documents = (0..3).map(|id| doc! { "_id": id, "email": id.to_string() });
        users.insert_many(documents).await.unwrap();
        let command = doc! { "update": "users", "updates": statements(), "ordered": ordered };
        let reply = comparable(run(&client, database, command).await);
        let changed = if ordered { 1 } else { 2 };
        assert_eq!(reply.get_i32("n").ok(), Some(changed), "{reply}");
        assert_eq!(reply.get_i32("nModified").ok(), Some(changed), "{reply}");
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
        let errors = reply.get_array("writeErrors").unwrap();
        assert_eq!(errors.len(), 1, "{reply}");
        let error = errors[0].as_document().unwrap();
        assert_eq!(
            (error.get_i32("index").ok(), error.get_i32("code").ok()),
            (Some(1), Some(146)),
            "{reply}"
        );
        assert!(
            error.get_str("errmsg").unwrap().contains("at most 2 documents"),
            "{reply}"
        );
        for (collection, path) in [("users", "email"), ("keyward.users.email_1", "_id.k.email")] {
            let collection = client.database(database).collection::<Document>(collection);
            let values = collection.distinct(path, doc! {}).await.unwrap();
            let mut values: Vec<&str> = values.iter().filter_map(Bson::as_str).collect();
            values.sort_unstable();
            assert_eq!(values, expected);
        }
    }
}

#[tokio::test]
async fn the_others_results_count_on_shards() {
    the_others_results_count(&Cluster::shared().uri(), "refused_statement").await;
}

#[tokio::test]
async fn the_others_results_count_in_strict_mode() {
    the_others_results_count(&ReplicaSet::shared().uri(), "refused_statement").await;
}
