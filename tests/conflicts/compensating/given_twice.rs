//! Documents with one `_id` on several shards, under a shard key that Keyward doesn't know yet: a router sends a statement by `_id` to
//! all of them.

use bson::{Document, doc};
use testbed::Cluster;
use testkit::relay::Relay;
use testkit::wire::send;
use testkit::{Keyward, on_each_shard, shard_on_two};

const SPARSE: &str = "  - { collection: DB.users, key: { email: 1 }, sparse: true }\n";

/// A Keyward at `address` that believes in the shard key `region`, and `users` sharded by `zone` since.
fn sharded_anew(cluster: &Cluster, database: &str, address: &str) -> Keyward {
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let keyward = Keyward::start_with_lease(&format!("mongodb://{address}/"), "60s", &SPARSE.replace("DB", database));
    cluster.run(database, doc! { "drop": "users" }).unwrap();
    shard_on_two(cluster, &namespace, doc! { "zone": 1 }, doc! { "zone": "m" });
    keyward
}

fn insert(zone: &str, more: Document) -> Document {
    let mut document = doc! { "_id": 1, "zone": zone };
    document.extend(more);
    doc! { "insert": "users", "documents": [document] }
}

fn set_email() -> Document {
    doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "email": "a@x" } } }] }
}

fn holders(cluster: &Cluster, database: &str) -> usize {
    let find = doc! { "find": "users", "filter": { "email": "a@x" } };
    let reply = cluster.run(database, find).unwrap();
    let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    found.len()
}

/// Nothing can prevent it: the second document comes between the look and the statement. The operator learns of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_two_documents_get_by_one_statement_is_counted_and_logged() {
    let database = "given_twice";
    let cluster = Cluster::shared();
    let relay = Relay::start(cluster.router_address());
    let keyward = sharded_anew(cluster, database, &relay.address);
    send(&keyward.address, database, insert("a", Document::new())).unwrap();
    let held = relay.hold(b"updates\0");
    let address = keyward.address.clone();
    let statement = std::thread::spawn(move || send(&address, database, set_email()).unwrap());
    held.wait();
    cluster.run(database, insert("z", Document::new())).unwrap();
    drop(held);
    let reply = statement.join().unwrap();
    assert_eq!(holders(cluster, database), 2, "{reply}");
    let metric = format!("keyward_constraint_given_twice_total{{constraint=\"{database}.users.email_1\"}}");
    assert_eq!(keyward.metric(&metric), 1);
    let log = keyward.log();
    assert!(log.contains("two documents with one _id hold one key"), "{log}");
}

/// The first two that a look finds may lie at different places as far as Keyward knows, and the third one at the place of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_third_document_with_the_id_is_seen_as_well() {
    let cluster = Cluster::builder().shards(3).start().unwrap();
    // Every pair of the three may be the one at one place.
    for (which, at_one_place) in [[0, 1], [0, 2], [1, 2]].into_iter().enumerate() {
        let database: &str = &format!("given_thrice_{which}");
        let keyward = sharded_anew(&cluster, database, &cluster.router_address());
        let zones = ["a", "p", "z"];
        spread(&cluster, database, zones);
        for (number, zone) in zones.into_iter().enumerate() {
            let region = match at_one_place.contains(&number) {
                true => "both",
                false => zone,
            };
            let reply = send(&keyward.address, database, insert(zone, doc! { "region": region })).unwrap();
            assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
        }
        let on_shards = on_each_shard(cluster.shards(), database, "users").await;
        assert!(on_shards.iter().all(|documents| documents.len() == 1), "{on_shards:?}");
        let reply = send(&keyward.address, database, set_email()).unwrap();
        assert!(holders(&cluster, database) <= 1, "{at_one_place:?} {reply}");
    }
}

/// Has each zone on a shard of its own.
fn spread(cluster: &Cluster, database: &str, zones: [&str; 3]) {
    let namespace = format!("{database}.users");
    let split = doc! { "split": &namespace, "middle": { "zone": "t" } };
    cluster.run("admin", split).unwrap();
    for (zone, shard) in zones.into_iter().zip(cluster.shards()) {
        let to = doc! { "moveChunk": &namespace, "find": { "zone": zone }, "to": shard.name() };
        // It may be there.
        let _ = cluster.run("admin", to);
    }
}
