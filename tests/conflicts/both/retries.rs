//! A driver's retry: the same operation again, because the first try's reply never came. Whatever the first try did, the
//! retry is answered as the server itself answers one, and everything is there once.

use bson::{Binary, Document, doc, spec::BinarySubtype};
use testbed::{Cluster, ReplicaSet};

use crate::strategy::Strategy;
use crate::trial::{assert_agreement, insert, keyward, write_errors};
use testkit::relay::Relay;
use testkit::relay::insert_into;
use testkit::relay::wait_until;
use testkit::wire::{Connection, send};
use testkit::{Keyward, comparable, natively_unique, on_each_shard};

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email }
}

/// A command as a driver sends it that may send it again.
pub fn retryable(mut command: Document, txn_number: i64) -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    command.insert("lsid", doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } });
    command.insert("txnNumber", txn_number);
    command
}

/// What drivers may have to send again: one document, batches of which a part fails, numbers of their own.
fn commands() -> Vec<Document> {
    let in_body = |documents, ordered| retryable(insert(documents, ordered), 1);
    let mut numbered = in_body(vec![user(30, "30"), user(31, "31")], true);
    numbered.insert("stmtIds", vec![3, 7]);
    vec![
        in_body(vec![user(1, "1")], true),
        in_body(vec![user(2, "2"), user(3, "3"), user(4, "4")], true),
        // Unordered, with a duplicate of what is there, and of what comes with it.
        in_body(
            vec![user(5, "5"), user(6, "taken"), user(7, "7"), user(8, "7"), user(9, "9")],
            false,
        ),
        // Ordered, the duplicate in the middle: nothing after it is tried, by the retry neither.
        in_body(
            vec![user(10, "10"), user(11, "11"), user(12, "taken"), user(13, "13")],
            true,
        ),
        in_body(
            vec![user(14, "14"), user(15, "15"), user(16, "14"), user(17, "17")],
            true,
        ),
        // The first statement fails: what goes on isn't numbered from zero.
        in_body(vec![user(18, "taken"), user(19, "19"), user(20, "20")], false),
        numbered,
    ]
}

/// Sends every command twice, the reply to the first one lost; compares what the second says with a native retry.
async fn lose_and_retry(
    strategy: Strategy,
    cluster: &Cluster,
    database: &str,
    first: &str,
    retry: &str,
    forwarder: &Relay,
) {
    lose_this_and_retry(
        strategy,
        cluster,
        database,
        [first, retry],
        forwarder,
        insert_into("users"),
    )
    .await;
}

/// The same for the reply to what holds `bytes`.
pub async fn lose_this_and_retry(
    strategy: Strategy,
    cluster: &Cluster,
    database: &str,
    [first, retry]: [&str; 2],
    forwarder: &Relay,
    bytes: Vec<u8>,
) {
    // Midway in a transaction the first try may have done a part only, or nothing: the retry does the rest.
    let is_midway = strategy.is_strict() && first != forwarder.address;
    let comparable = |reply| {
        let mut reply = comparable(reply);
        if is_midway {
            reply.remove("retriedStmtIds");
        }
        reply
    };
    let native = &natively_unique(database).await;
    let seed = insert(vec![user(0, "taken")], true);
    for address in [native, retry] {
        assert_eq!(send(address, database, seed.clone()).unwrap().get_i32("n").unwrap(), 1);
    }
    for command in commands() {
        send(native, database, command.clone()).unwrap();
        let expected = comparable(send(native, database, command.clone()).unwrap());
        let is_lost = forwarder.lose_reply_to(bytes.clone());
        let reply = send(first, database, command.clone());
        assert!(reply.is_err(), "{reply:?}");
        wait_until(&is_lost);
        let got = comparable(send(retry, database, command.clone()).unwrap());
        assert_eq!(got, expected, "{command}");
    }
    let ids = |documents: &[Document]| {
        let mut ids: Vec<i32> = documents
            .iter()
            .map(|document| document.get_i32("_id").unwrap())
            .collect();
        ids.sort();
        ids
    };
    let documents = on_each_shard(cluster.shards(), database, "users").await.concat();
    let native: Vec<Document> = {
        use futures_util::TryStreamExt;
        let users = ReplicaSet::shared().client().database(database).collection("users");
        users.find(doc! {}).await.unwrap().try_collect().await.unwrap()
    };
    assert_eq!(ids(&documents), ids(&native));
    assert_agreement(cluster, database, "email").await;
}

/// The documents that a first try inserted have been renamed since; one of their addresses has another document by now. No
/// retry is a duplicate, and none reserves an address anew for a document that doesn't hold it any more.
async fn a_retry_of_what_has_changed_since_is_answered_from_memory(strategy: Strategy) {
    let database = strategy.database("changed_since");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "60s", &[strategy.email()]);
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    for (number, ordered) in [(1, true), (2, false)] {
        let id = |offset: i32| number * 10 + offset;
        let email = |offset: i32| format!("{}@x", id(offset));
        let documents = (0..3).map(|offset| user(id(offset), &email(offset))).collect();
        let first = retryable(insert(documents, ordered), 1);
        assert_eq!(run(first.clone()).get_i32("n").unwrap(), 3);
        let rename = |offset: i32| {
            let renamed = doc! { "$set": { "email": format!("was {}", email(offset)) } };
            doc! { "q": { "_id": id(offset) }, "u": renamed }
        };
        let renamed = run(doc! { "update": "users", "updates": [rename(0), rename(1)] });
        assert_eq!(renamed.get_i32("nModified").unwrap(), 2);
        let heir = run(insert(vec![user(id(5), &email(1))], true));
        assert_eq!(heir.get_i32("n").unwrap(), 1);
        let mut got = comparable(run(first));
        if let Ok(numbers) = got.get_array_mut("retriedStmtIds") {
            numbers.sort_by_key(bson::Bson::as_i32);
        }
        assert_eq!(got, doc! { "n": 3, "retriedStmtIds": [0, 1, 2], "ok": 1.0 });
        assert_agreement(cluster, database, "email").await;
    }
}

/// Too large to be pinned to what it replaces: it took a transaction, of which a retry that needed none knew nothing.
async fn a_retryable_statement_goes_one_way_or_none(strategy: Strategy) {
    let database = strategy.database("one_way");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "60s", &[strategy.email()]);
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    let long = |letter: &str| letter.repeat(8_500_000);
    assert_eq!(run(insert(vec![user(1, &long("a"))], true)).get_i32("n").unwrap(), 1);
    let set = |email: String| {
        let change = doc! { "$set": { "email": email }, "$inc": { "times": 1 } };
        doc! { "update": "users", "updates": [{ "q": { "_id": 1, "region": "z" }, "u": change }] }
    };
    let first = retryable(set(long("b")), 1);
    let times = || {
        let found = run(doc! { "find": "users", "filter": {}, "projection": { "times": 1 } });
        let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0].clone();
        found.as_document().unwrap().get_i32("times").ok()
    };
    if strategy.is_strict() {
        assert_eq!(run(first.clone()).get_i32("nModified").unwrap(), 1);
    } else {
        let refused = run(first.clone());
        assert_eq!(write_errors(&refused), [(0, 10334)], "{refused}");
        assert_eq!(times(), None);
        assert_eq!(run(set(long("c"))).get_i32("nModified").unwrap(), 1);
    }
    assert_eq!(times(), Some(1));
    assert_eq!(run(set("short".to_owned())).get_i32("nModified").unwrap(), 1);
    run(first);
    // By now it could be pinned; strictly the first try is known.
    assert_eq!(times(), Some(if strategy.is_strict() { 2 } else { 3 }));
    run(set("short again".to_owned()));
    assert_agreement(cluster, database, "email").await;
}

pub fn behind(strategy: Strategy, forwarder: &Relay, database: &str) -> Keyward {
    let uri = format!("mongodb://{}/", forwarder.address);
    Keyward::start_with_lease(&uri, "60s", &strategy.email().replace("DB", database))
}

async fn lost_on_the_way_to_the_client_and_sent_again_to_the_same_keyward(strategy: Strategy) {
    let database = strategy.database("lost_in_front");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "60s", &[strategy.email()]);
    let forwarder = Relay::start(keyward.address.clone());
    lose_and_retry(
        strategy,
        cluster,
        database,
        &forwarder.address,
        &keyward.address,
        &forwarder,
    )
    .await;
}

async fn lost_on_the_way_to_the_client_and_sent_again_to_another_keyward(strategy: Strategy) {
    let database = strategy.database("lost_in_front_other");
    let cluster = strategy.users(database);
    let first = keyward(cluster, database, "60s", &[strategy.email()]);
    let other = keyward(cluster, database, "60s", &[strategy.email()]);
    let forwarder = Relay::start(first.address.clone());
    lose_and_retry(
        strategy,
        cluster,
        database,
        &forwarder.address,
        &other.address,
        &forwarder,
    )
    .await;
}

async fn lost_on_the_way_to_keyward_and_sent_again_to_the_same_keyward(strategy: Strategy) {
    let database = strategy.database("lost_behind");
    let cluster = strategy.users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = behind(strategy, &forwarder, database);
    lose_and_retry(
        strategy,
        cluster,
        database,
        &keyward.address,
        &keyward.address,
        &forwarder,
    )
    .await;
}

async fn lost_on_the_way_to_keyward_and_sent_again_to_another_keyward(strategy: Strategy) {
    let database = strategy.database("lost_behind_other");
    let cluster = strategy.users(database);
    let forwarder = Relay::start(cluster.router_address());
    let first = behind(strategy, &forwarder, database);
    let other = keyward(cluster, database, "60s", &[strategy.email()]);
    lose_and_retry(strategy, cluster, database, &first.address, &other.address, &forwarder).await;
}

/// A Keyward stands still with an unread insert. Its client leaves, and sends the insert again through another Keyward, which refuses it.
/// After that the key becomes free. A late first try would bring a document that its client counts as refused.
async fn a_first_try_is_not_begun_after_its_client_has_left(strategy: Strategy) {
    let database = strategy.database("left_unread");
    let cluster = strategy.users(database);
    let still = keyward(cluster, database, "60s", &[strategy.email()]);
    let other = keyward(cluster, database, "60s", &[strategy.email()]);
    let run = |command: Document| send(&other.address, database, command).unwrap();
    assert_eq!(run(insert(vec![user(1, "a@x")], true)).get_i32("n").unwrap(), 1);
    let first = retryable(insert(vec![user(2, "a@x")], true), 1);
    let mut client = Connection::greeted(&still.address);
    let ended = still.metric("keyward_client_connections_closed_total");
    still.freeze();
    client.send(database, &first).unwrap();
    drop(client);
    assert_eq!(write_errors(&run(first)), [(0, 11000)]);
    let freeing = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "z" }, "limit": 1 }] };
    assert_eq!(run(freeing).get_i32("n").unwrap(), 1);
    still.wake();
    still.until("the client's connection has ended", || {
        still.metric("keyward_client_connections_closed_total") > ended
    });
    let none: [Document; 0] = [];
    assert_eq!(on_each_shard(cluster.shards(), database, "users").await.concat(), none);
    assert_agreement(cluster, database, "email").await;
}

on_both_strategies! {
    a_first_try_is_not_begun_after_its_client_has_left;
    a_retry_of_what_has_changed_since_is_answered_from_memory;
    a_retryable_statement_goes_one_way_or_none;
    lost_on_the_way_to_the_client_and_sent_again_to_the_same_keyward;
    lost_on_the_way_to_the_client_and_sent_again_to_another_keyward;
    lost_on_the_way_to_keyward_and_sent_again_to_the_same_keyward;
    lost_on_the_way_to_keyward_and_sent_again_to_another_keyward;
}

/// No driver gives two documents of a command one number. The second one waits for its keys while the server answers for the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_two_documents_share_breaks_no_connection() {
    let database = "shared_number";
    let cluster = crate::trial::users(database);
    let sparse = "  - { collection: DB.users, key: { k: 1 }, sparse: true }\n";
    let keyward = keyward(cluster, database, "10s", &[sparse]);
    let mut connection = testbed::command::Connection::open(&keyward.address).unwrap();
    let with = |id: i32, k: Option<i32>| {
        let mut document = doc! { "_id": id, "region": "a" };
        document.extend(k.map(|k| ("k".to_owned(), k.into())));
        document
    };
    let mut first = retryable(insert(vec![with(1, None)], true), 1);
    first.insert("stmtIds", vec![5]);
    let session = first.get_document("lsid").unwrap().clone();
    assert_eq!(connection.run(database, first).unwrap().get_i32("n").ok(), Some(1));
    let mut again = insert(vec![with(1, None), with(2, Some(1)), with(3, Some(1))], false);
    again.extend(doc! { "lsid": session, "txnNumber": 1_i64, "stmtIds": [5, 6, 5] });
    let reply = connection.run(database, again).unwrap();
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    assert!(
        !keyward.log().contains("an invariant does not hold"),
        "{}",
        keyward.log()
    );
}
