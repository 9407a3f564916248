//! A collection whose shard key is changed while clients write, by a real `reshardCollection`.

use std::sync::atomic::{AtomicBool, Ordering};

use bson::{Document, doc};
use rand::Rng;
use testbed::Cluster;
use testkit::Keyward;
use testkit::wire::{Connection, is_ok, send};

use crate::strategy::Strategy;
use crate::trial::{
    assert_agreement, insert, keyward, reservations, reserved_without_document, users_on, write_errors,
};

/// So many addresses are fought over.
const ADDRESSES: i32 = 40;

/// By `town`. More than one chunk needs documents that the server can draw samples from.
fn reshard(database: &str, chunks: i32) -> Document {
    doc! { "reshardCollection": format!("{database}.users"), "key": { "town": "hashed" }, "numInitialChunks": chunks }
}

fn email(number: i32) -> String {
    format!("{number}@x")
}

/// Writes until `is_over`, and gives how many documents were inserted, and how many commands have an unknown outcome. Whatever a
/// command's answer is, each document's keys are reserved afterwards. One of unknown outcome may leave reservations.
fn write_meanwhile(address: &str, database: &str, is_over: &AtomicBool) -> (u32, usize) {
    let mut random = rand::rng();
    let mut connection = Connection::open(address);
    let (mut inserted, mut unknown) = (0, 0);
    let is_unknown = |reply: &Document| !is_ok(reply) || write_errors(reply).iter().any(|(_, code)| *code != 11_000);
    while !is_over.load(Ordering::Relaxed) {
        let (id, number) = (random.random_range(0..i32::MAX), random.random_range(0..ADDRESSES));
        let region = if random.random() { "a" } else { "z" };
        let user = doc! { "_id": id, "region": region, "town": random.random_range(0..1_000), "email": email(number) };
        let reply = connection.run(database, &insert(vec![user], true));
        inserted += u32::from(reply.get_i32("n").ok() == Some(1));
        unknown += usize::from(is_unknown(&reply));
        let by_email = doc! { "email": email(random.random_range(0..ADDRESSES)) };
        let command = match random.random_range(0..3) {
            0 => doc! { "delete": "users", "deletes": [{ "q": by_email, "limit": 0 }] },
            1 => {
                let to = doc! { "$set": { "email": email(random.random_range(0..ADDRESSES)) } };
                doc! { "update": "users", "updates": [{ "q": { "_id": id }, "u": to, "multi": true }] }
            }
            _ => {
                let counted = doc! { "$inc": { "times": 1 }, "$set": { "region": region } };
                doc! { "update": "users", "updates": [{ "q": by_email, "u": counted, "multi": true }] }
            }
        };
        unknown += usize::from(is_unknown(&connection.run(database, &command)));
    }
    (inserted, unknown)
}

/// Both Keywards refuse each address that a document has, wherever the new document would be.
fn assert_all_are_taken(keywards: [&Keyward; 2], database: &str, documents: &[Document]) {
    for (position, document) in documents.iter().enumerate() {
        let keyward = keywards[position % 2];
        let other = doc! { "_id": -1, "region": "m", "town": position as i32, "email": document.get("email").cloned() };
        let reply = send(&keyward.address, database, insert(vec![other], true)).unwrap();
        assert_eq!(write_errors(&reply), [(0, 11_000)], "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_while_a_collection_is_resharded_stays_unique() {
    let database = "resharded";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let constraint = Strategy::Compensating.email();
    let [one, other] = [(); 2].map(|()| keyward(cluster, database, "60s", &[constraint]));
    let towns =
        (0..1_000).map(|town| doc! { "_id": -town, "region": "a", "town": town, "email": format!("{town}@town") });
    let reply = send(&one.address, database, insert(towns.collect(), true)).unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1_000), "{reply}");
    let is_over = AtomicBool::new(false);
    let written: Vec<(u32, usize)> = std::thread::scope(|scope| {
        let writers =
            [&one, &other].map(|keyward| scope.spawn(|| write_meanwhile(&keyward.address, database, &is_over)));
        let reply = send(&one.address, "admin", reshard(database, 4)).unwrap();
        is_over.store(true, Ordering::Relaxed);
        assert!(is_ok(&reply), "{reply}");
        writers.map(|writer| writer.join().unwrap()).into()
    });
    assert!(written.iter().all(|(inserted, _)| *inserted > 0), "{written:?}");
    let unknown = reserved_without_document(cluster, database, "email").await;
    let most = written.iter().map(|(_, unknown)| unknown).sum::<usize>();
    assert!(unknown.len() <= most, "{unknown:?}, {written:?}");
    let on_shards = testkit::on_each_shard(cluster.shards(), database, "users").await;
    assert!(on_shards.iter().all(|here| !here.is_empty()), "one shard has them all");
    let (towns, mut left): (Vec<_>, Vec<_>) = on_shards
        .concat()
        .into_iter()
        .partition(|one| one.get_i32("_id").unwrap() < 0);
    left.extend(towns.into_iter().step_by(10));
    assert_all_are_taken([&one, &other], database, &left);
    // The former shard key is a field like any other by now: its reservation's owner is elsewhere than it says.
    let elsewhere = doc! { "q": {}, "u": { "$set": { "region": "elsewhere" } }, "multi": true };
    for keyward in [&one, &other] {
        let reply = send(
            &keyward.address,
            database,
            doc! { "update": "users", "updates": [elsewhere.clone()] },
        )
        .unwrap();
        assert!(is_ok(&reply) && write_errors(&reply).is_empty(), "{reply}");
    }
    assert_all_are_taken([&one, &other], database, &left);
    // Each goes through the one Keyward and comes back through the other.
    for (position, document) in left.iter().enumerate() {
        let (from, to) = if position % 2 == 0 {
            (&one, &other)
        } else {
            (&other, &one)
        };
        let delete =
            doc! { "delete": "users", "deletes": [{ "q": { "_id": document.get("_id").cloned() }, "limit": 0 }] };
        assert!(is_ok(&send(&from.address, database, delete).unwrap()));
        let again =
            doc! { "_id": -10_000 - position as i32, "town": position as i32, "email": document.get("email").cloned() };
        let reply = send(&to.address, database, insert(vec![again], true)).unwrap();
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    }
    let left_over = reserved_without_document(cluster, database, "email").await;
    assert!(left_over.iter().all(|key| unknown.contains(key)), "{left_over:?}");
}

/// Without that, each look-up of an owner would ask all shards.
#[tokio::test(flavor = "multi_thread")]
async fn reservations_learn_the_new_shard_key() {
    let database = "resharded_and_swept";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let constraint = Strategy::Compensating.email().replace("DB", database);
    // The inserts have to come within the lease, and the sweep waits for it.
    let keyward = Keyward::start_with_lease(&cluster.uri(), "5s\nsweep: 1s", &constraint);
    for (id, region) in [(1, "a"), (2, "z")] {
        keyward
            .insert(
                database,
                doc! { "_id": id, "region": region, "town": 10 * id, "email": email(id) },
            )
            .unwrap();
    }
    let reply = send(&keyward.address, "admin", reshard(database, 1)).unwrap();
    assert!(is_ok(&reply), "{reply}");
    keyward.until("reservations by town", || {
        let find = doc! { "find": "keyward.users.email_1", "filter": { "route.town": { "$exists": true } } };
        let found = cluster.run(database, find).unwrap();
        found
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .len()
            == 2
    });
    for reservation in reservations(cluster, database, "email").await {
        let town = 10 * reservation.get_i32("owner").unwrap();
        assert_eq!(reservation.get_document("route").unwrap(), &doc! { "town": town });
    }
    assert_agreement(cluster, database, "email").await;
}

#[test]
fn a_strict_collection_is_not_resharded() {
    let database = "not_resharded";
    let cluster = users_on(Cluster::shared(), database);
    // Changing this one wouldn't help.
    let of_default = "  - { collection: DB.users, key: { name: 1 } }\n";
    let keyward = keyward(cluster, database, "60s", &[of_default, Strategy::Strict.email()]);
    let reply = send(&keyward.address, "admin", reshard(database, 1)).unwrap();
    assert_eq!(reply.get_i32("code").ok(), Some(115), "{reply}");
    let text = reply.get_str("errmsg").unwrap();
    assert!(text.contains("email_1") && !text.contains("name_1"), "{reply}");
}
