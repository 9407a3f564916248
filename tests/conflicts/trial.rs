//! What a trial needs: a collection of its own on two shards, a Keyward in front of it, and a look at what is left.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Bson, Document, doc};
use keyward::constraint::{Constraint, IndexSpec, Key};
use keyward::metrics::Metrics;
use keyward::namespace::Namespace;
use keyward::proxy_collection::ProxyCollection;
use keyward::raw::Doc;
use testbed::Cluster;

use testkit::{Keyward, shard_on_two};

/// `users` of a database of its own, on two shards: regions below `m` on one, the others on the other.
pub fn users(database: &str) -> &'static Cluster {
    users_on(Cluster::shared(), database)
}

/// The same on another cluster.
pub fn users_on<'c>(cluster: &'c Cluster, database: &str) -> &'c Cluster {
    static TAKEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let is_new = TAKEN.lock().unwrap().insert(database.to_owned());
    assert!(is_new, "another test has the database {database}");
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

pub fn keyward(cluster: &Cluster, database: &str, lease: &str, constraints: &[&str]) -> Keyward {
    let constraints = constraints.concat().replace("DB", database);
    Keyward::start_with_lease(&cluster.uri(), lease, &constraints)
}

pub fn insert(documents: Vec<Document>, ordered: bool) -> Document {
    doc! { "insert": "users", "documents": documents, "ordered": ordered }
}

/// Every document's key for `field`, and nothing else, is reserved; a document without the field needs none.
pub async fn assert_agreement(cluster: &Cluster, database: &str, field: &str) {
    let none: [String; 0] = [];
    assert_eq!(reserved_without_document(cluster, database, field).await, none);
}

/// The reserved keys for `field` that no document holds. Every document's key is reserved.
pub async fn reserved_without_document(cluster: &Cluster, database: &str, field: &str) -> Vec<String> {
    let keys = |document: &Document| match document.get(field) {
        Some(value) => vec![doc! { field: value.clone() }],
        None => Vec::new(),
    };
    let constraint = format!("{field}_1");
    let (held, mut reserved) = testkit::keys_held_and_reserved(cluster, database, "users", &constraint, keys).await;
    for key in held {
        let place = reserved.iter().position(|reserved| *reserved == key);
        reserved.swap_remove(place.unwrap_or_else(|| panic!("{key} isn't reserved")));
    }
    reserved
}

/// The store of the reservations of `users.email`, and the key of `a@x`.
pub fn store_of_email(cluster: &Cluster, database: &str) -> (ProxyCollection, Key) {
    store_with_lease(cluster, database, Duration::from_secs(60))
}

/// The same; what it reserves may be in flight for `lease`.
pub fn store_with_lease(cluster: &Cluster, database: &str, lease: Duration) -> (ProxyCollection, Key) {
    store_through(&cluster.client(), database, lease)
}

/// The same through this client.
pub fn store_through(client: &mongodb::Client, database: &str, lease: Duration) -> (ProxyCollection, Key) {
    let constraint = Arc::new(email(database));
    let metrics = Metrics::new(std::slice::from_ref(&constraint)).constraint(&constraint);
    let proxy = ProxyCollection::new(client, constraint, metrics, lease);
    (proxy, key_of_email("a@x", database))
}

/// The key of a document with this address.
pub fn key_of_email(address: &str, database: &str) -> Key {
    let document = doc! { "email": address }.to_vec().unwrap();
    email(database).keys(Doc::new(&document).unwrap()).unwrap().remove(0)
}

/// The constraint on `users.email`.
pub fn email(database: &str) -> Constraint {
    let spec = IndexSpec {
        key: doc! { "email": 1 },
        ..Default::default()
    };
    Constraint::new(Namespace::new(database, "users"), spec).unwrap()
}

/// What is reserved for `field`, from the shards.
pub async fn reservations(cluster: &Cluster, database: &str, field: &str) -> Vec<Document> {
    let proxy = format!("keyward.users.{field}_1");
    testkit::on_each_shard(cluster.shards(), database, &proxy)
        .await
        .concat()
}

/// The codes of a reply's write errors by their positions.
pub fn write_errors(reply: &Document) -> Vec<(i32, i32)> {
    let errors = reply.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    let number = |error: &Bson, field| error.as_document().unwrap().get_i32(field).unwrap();
    errors
        .iter()
        .map(|error| (number(error, "index"), number(error, "code")))
        .collect()
}
