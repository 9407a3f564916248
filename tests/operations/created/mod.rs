//! Constraints that clients make with `createIndexes`, through one Keyward and through several.

mod agreed;
mod audited;
mod broken_off;
mod builders;
mod clustered;
mod collated;
mod converted;
mod crossed;
mod drivers;
mod gone;
mod live;
mod refused;
mod reloaded;
mod resharded;
mod shown;
mod stale;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use bson::{Bson, Document, doc};
use testbed::Cluster;
use testkit::altering::Altering;
use testkit::{Keyward, shard_collated_on_two, shard_on_two};

/// Not the cluster of other tests: their Keywards would follow these constraints, too.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start().unwrap());

/// One on which nobody waits for the Keywards that tests freeze for long or kill on the other.
static QUIET: LazyLock<Cluster> = LazyLock::new(|| Cluster::start().unwrap());

/// A Keyward without any constraint of its own.
fn start() -> Keyward {
    start_at(&CLUSTER)
}

/// The same at another cluster.
fn start_at(cluster: &Cluster) -> Keyward {
    Keyward::of(&format!("upstream: {}\nlease: 10s\nconstraints: []\n", cluster.uri())).leaving()
}

/// A relay to `cluster` that shows the list of clients' constraints as it was before, if `is_old` says so of the documents that are found.
fn with_old_list(cluster: &Cluster, is_old: impl Fn(&[Bson]) -> bool + Send + Sync + 'static) -> Altering {
    // What was read before: a list, or a version.
    let before: Mutex<[Option<Bson>; 2]> = Mutex::default();
    Altering::replies(cluster.router_address(), move |request, reply| {
        if request.get_str("find").ok() != Some("clientConstraints") {
            return;
        }
        let of_version = usize::from(request.contains_key("projection"));
        let cursor = reply.get_document_mut("cursor").unwrap();
        let found = cursor.get_array("firstBatch").unwrap().clone();
        let before = &mut before.lock().unwrap()[of_version];
        match before.clone().filter(|_| is_old(&found)) {
            Some(before) => drop(cursor.insert("firstBatch", before)),
            None => *before = Some(Bson::Array(found)),
        }
    })
}

/// The same for as long as the switch is on.
fn with_switched_list(cluster: &Cluster) -> (Arc<AtomicBool>, Altering) {
    let is_old = Arc::new(AtomicBool::new(false));
    let shows_old = is_old.clone();
    let relay = with_old_list(cluster, move |_| shows_old.load(Ordering::SeqCst));
    (is_old, relay)
}

/// Shards `database.users` by `region` over two shards.
fn shard_users(database: &str) {
    shard_users_of(&CLUSTER, database);
}

/// The same at another cluster.
fn shard_users_of(cluster: &Cluster, database: &str) {
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
}

/// A `createIndexes` of these indexes on `users`.
fn create(indexes: impl IntoIterator<Item = Document>) -> Document {
    doc! { "createIndexes": "users", "indexes": indexes.into_iter().collect::<Vec<_>>() }
}

/// The unique index on `email`.
fn unique_email() -> Document {
    doc! { "key": { "email": 1 }, "name": "email_1", "unique": true }
}

/// The reply, whatever it says.
fn reply(keyward: &Keyward, database: &str, command: &Document) -> Document {
    testkit::wire::Connection::open(&keyward.address).run(database, command)
}

/// Asserts that a reply says `ok`.
fn must(reply: &Document) {
    assert!(testkit::wire::is_ok(reply), "{reply}");
}

/// The indexes of `users`, as a client sees them.
fn indexes(keyward: &Keyward, database: &str) -> Vec<Document> {
    let listed = keyward.run(database, doc! { "listIndexes": "users" }).unwrap();
    let cursor = listed.get_document("cursor").unwrap();
    let batch = cursor.get_array("firstBatch").unwrap();
    batch.iter().map(|index| index.as_document().unwrap().clone()).collect()
}

/// The names of the indexes of `users` that a client sees as unique.
fn unique_indexes(keyward: &Keyward, database: &str) -> Vec<String> {
    let unique = indexes(keyward, database).into_iter();
    let unique = unique.filter(|index| index.get_bool("unique").unwrap_or(false));
    unique.map(|index| index.get_str("name").unwrap().to_owned()).collect()
}

/// Writes a first user, so that the Keyward is one that may write there.
fn write_first(keyward: &Keyward, database: &str) {
    let user = doc! { "_id": 1, "region": "a", "email": "x" };
    keyward.insert(database, user).unwrap();
}

/// Asserts that the first user's e-mail is taken on the other shard.
fn assert_first_is_held(keyward: &Keyward, database: &str) {
    let second = doc! { "_id": 2, "region": "z", "email": "x" };
    assert_eq!(keyward.insert(database, second), Err(11_000));
}

/// Removes this Keyward from the register.
fn forget(cluster: &Cluster, keyward: &Keyward) {
    let of_keyward = doc! { "q": { "pid": i64::from(keyward.pid().as_raw()) }, "limit": 1 };
    let delete = doc! { "delete": "keywards", "deletes": [of_keyward] };
    must(&cluster.run("keyward", delete).unwrap());
}

/// Waits until `keyward` has noticed that it is out of the register, and writes again.
fn until_back(keyward: &Keyward, database: &str) {
    keyward.until("its entry is gone", || {
        keyward.log().contains("the entry in the register of Keywards is gone")
    });
    let user = doc! { "_id": 999, "region": "z", "email": "back" };
    keyward.until("its next entry", || keyward.insert(database, user.clone()) == Ok(()));
}

/// Waits until nothing refuses equal e-mails any more.
fn until_no_constraint(keyward: &Keyward, database: &str) {
    let id = std::cell::Cell::new(1_000);
    keyward.until("no constraint", || {
        id.set(id.get() + 2);
        let email = id.get().to_string();
        insert_pair(keyward, database, id.get(), &email)
            .iter()
            .all(Result::is_ok)
    });
}

/// The first document of a collection.
fn first_of(cluster: &Cluster, database: &str, find: Document) -> Document {
    let found = cluster.run(database, find).unwrap();
    let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch[0].as_document().unwrap().clone()
}

/// A user in each of the two regions, with this e-mail.
fn insert_pair(keyward: &Keyward, database: &str, first: i32, email: &str) -> [Result<(), i32>; 2] {
    [(first, "a"), (first + 1, "z")]
        .map(|(id, region)| keyward.insert(database, doc! { "_id": id, "region": region, "email": email }))
}
