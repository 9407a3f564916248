//! Batches of updates and deletes by `_id`, whose statements Keyward prepares together: the client sees them carried out one after the
//! other, as by a native unique index.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use testbed::Cluster;
use testkit::altering::Altering;
use testkit::relay::Relay;
use testkit::wire::send;
use testkit::{Keyward, comparable, in_one_order, natively_unique, on_each_shard, shard_on_two};

fn users(database: &str) -> &'static Cluster {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

fn keyward(uri: &str, database: &str) -> Keyward {
    let email = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, sparse: true }}\n");
    Keyward::start_with_lease(uri, "60s", &email)
}

fn region(id: i32) -> &'static str {
    if id % 2 == 0 { "a" } else { "z" }
}

fn email(name: impl ToString) -> String {
    format!("{}@x", name.to_string())
}

fn user(id: i32) -> Document {
    doc! { "_id": id, "region": region(id), "email": email(id), "n": 0 }
}

fn insert(ids: impl IntoIterator<Item = i32>) -> Document {
    doc! { "insert": "users", "documents": ids.into_iter().map(user).collect::<Vec<_>>() }
}

fn statement(id: impl Into<Bson>, change: Document) -> Document {
    doc! { "q": { "_id": id }, "u": change }
}

/// Gives the user the e-mail address of this name.
fn set(id: i32, name: impl ToString) -> Document {
    let change = doc! { "$set": { "email": email(name) }, "$inc": { "n": 1 } };
    doc! { "q": { "_id": id, "region": region(id) }, "u": change }
}

fn removal(id: i32) -> Document {
    doc! { "q": { "_id": id, "region": region(id) }, "limit": 1 }
}

fn update(statements: Vec<Document>) -> Document {
    doc! { "update": "users", "updates": statements }
}

fn delete(statements: Vec<Document>) -> Document {
    doc! { "delete": "users", "deletes": statements }
}

fn retryable(mut command: Document) -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    command.insert("lsid", doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } });
    command.insert("txnNumber", 1_i64);
    command
}

async fn assert_agreement(cluster: &Cluster, database: &str) {
    let keys = |document: &Document| match document.get("email") {
        Some(email) => vec![doc! { "email": email.clone() }],
        None => Vec::new(),
    };
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", keys).await;
}

/// Batches about users 1 to 9.
fn batches() -> Vec<(&'static str, Vec<Document>)> {
    let unset = |id: i32| statement(id, doc! { "$unset": { "email": 1 } });
    let replacement = |id: i32, name: &str| {
        doc! { "q": { "_id": id, "region": region(id) }, "u": { "region": region(id), "email": email(name), "n": 7 } }
    };
    let with = |id: i32, n: i32, name: &str| {
        doc! { "q": { "_id": id, "region": region(id), "n": n }, "u": { "$set": { "email": email(name) } } }
    };
    vec![
        ("all new", (1..9).map(|id| set(id, format!("new{id}"))).collect()),
        (
            "a duplicate in the middle",
            vec![set(1, "one"), set(2, "two"), set(3, 9), set(4, "four"), set(5, "five")],
        ),
        (
            "one key for two",
            vec![set(1, "same"), set(2, "same"), set(3, "three"), set(4, "four")],
        ),
        ("two that swap", vec![set(1, 2), set(2, 1), set(3, "three")]),
        ("a key goes on", vec![set(1, "away"), set(2, 1), set(3, 2), set(1, 3)]),
        (
            "one document twice",
            vec![
                set(1, "one"),
                set(1, "again"),
                set(2, "one"),
                statement(2.0, doc! { "$set": { "email": email("two") } }),
            ],
        ),
        (
            "a key is freed",
            vec![unset(1), set(2, 1), replacement(3, "2@x"), set(4, 2)],
        ),
        (
            "no such document",
            vec![set(1, "one"), set(55, "none"), set(2, "two"), set(3, "three")],
        ),
        (
            "other conditions",
            vec![
                with(1, 0, "one"),
                with(2, 5, "two"),
                with(3, 0, "three"),
                with(4, 0, "four"),
            ],
        ),
        ("no change", vec![set(1, 1), set(2, 2), set(3, 3)]),
        (
            "a wrong place",
            vec![
                set(1, "one"),
                doc! { "q": { "_id": 2, "region": "z" }, "u": { "$set": { "email": "wrong" } } },
                set(3, "three"),
            ],
        ),
        (
            "an update that is refused",
            vec![
                set(1, "one"),
                statement(2, doc! { "$set": { "email": email("two"), "n.x": 1 } }),
                set(3, "three"),
            ],
        ),
        (
            "an unknown operator",
            vec![
                set(1, "one"),
                doc! { "q": { "_id": 2, "region": "a", "n": { "$foo": 1 } }, "u": { "$set": { "email": "two" } } },
                set(3, "three"),
            ],
        ),
        (
            "other keys between",
            vec![
                set(1, "one"),
                statement(2, doc! { "$set": { "n": 5 } }),
                set(3, "three"),
                set(4, "four"),
            ],
        ),
    ]
}

/// All of them in one cluster: what a batch leaves is what the next one meets.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_what_it_does_natively() {
    let database = "prepared_batches";
    let cluster = users(database);
    let keyward = keyward(&cluster.uri(), database);
    let native = natively_unique(database).await;
    let recreate = [delete(vec![doc! { "q": {}, "limit": 0 }]), insert(1..10)];
    for (name, statements) in batches() {
        for ordered in [true, false] {
            for is_retryable in [true, false] {
                for command in &recreate {
                    for address in [&native, &keyward.address] {
                        send(address, database, command.clone()).unwrap();
                    }
                }
                let mut command = update(statements.clone());
                command.insert("ordered", ordered);
                if is_retryable {
                    command = retryable(command);
                }
                let tries = if is_retryable { 2 } else { 1 };
                for number in 0..tries {
                    let both = [&native, &keyward.address];
                    let [expected, got] = both.map(|address| send(address, database, command.clone()).unwrap());
                    let context = format!("{name}, try {number}: {command}\n{got}\n{expected}");
                    // A retry says which statements the server remembers; Keyward doesn't send those again that it knows to fail.
                    assert_eq!(as_first(got), as_first(expected), "{context}");
                    let natively = all(&native, database);
                    assert_eq!(all(&keyward.address, database), natively, "{context}");
                    assert_agreement(cluster, database).await;
                }
            }
        }
    }
}

fn as_first(reply: Document) -> Vec<u8> {
    let mut reply = comparable(reply);
    reply.remove("retriedStmtIds");
    in_one_order(reply)
}

fn all(address: &str, database: &str) -> Vec<Document> {
    testkit::wire::Connection::open(address).all(database, "users")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_deletes_what_it_deletes_natively() {
    let database = "prepared_deletes";
    let cluster = users(database);
    let keyward = keyward(&cluster.uri(), database);
    let native = natively_unique(database).await;
    let by_id = |id: i32| doc! { "q": { "_id": id }, "limit": 1 };
    let batches = [
        vec![removal(1), removal(2), removal(55), removal(3)],
        vec![removal(4), removal(4), removal(5)],
        vec![by_id(6), by_id(7), by_id(1), by_id(8)],
        vec![removal(9), by_id(9), removal(10)],
    ];
    for is_retryable in [false, true] {
        for address in [&native, &keyward.address] {
            assert_eq!(
                send(address, database, insert(1..12)).unwrap().get_i32("n").ok(),
                Some(11)
            );
        }
        for statements in &batches {
            let mut command = delete(statements.clone());
            if is_retryable {
                command = retryable(command);
            }
            for _ in 0..if is_retryable { 2 } else { 1 } {
                let both = [&native, &keyward.address];
                let [expected, got] = both.map(|address| send(address, database, command.clone()).unwrap());
                assert_eq!(as_first(got), as_first(expected), "{command}");
                assert_agreement(cluster, database).await;
            }
        }
        let rest = delete(vec![doc! { "q": {}, "limit": 0 }]);
        for address in [&native, &keyward.address] {
            send(address, database, rest.clone()).unwrap();
        }
    }
}

/// The second statement's document gets another key, and the third one's goes, after Keyward has prepared them.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_changes_after_its_statement_is_prepared_is_read_again() {
    let database = "prepared_early";
    let cluster = users(database);
    let relay = Relay::start(cluster.router_address());
    let first = keyward(&relay.uri(), database);
    let second = keyward(&cluster.uri(), database);
    assert_eq!(
        send(&second.address, database, insert(1..6)).unwrap().get_i32("n").ok(),
        Some(5)
    );
    let marked = |id: i32| {
        let mut marked = set(id, format!("new{id}"));
        let change = marked.get_document_mut("u").unwrap();
        change.insert(
            "$set",
            doc! { "email": email(format!("new{id}")), "mark": format!("mark{id}") },
        );
        marked
    };
    let held = relay.hold(b"mark2");
    let (address, batch) = (first.address.clone(), update((1..6).map(marked).collect()));
    let batch = std::thread::spawn(move || send(&address, database, batch).unwrap());
    held.wait();
    let others = [update(vec![set(2, "between")]), delete(vec![removal(3)])];
    for command in others {
        assert_eq!(
            send(&second.address, database, command).unwrap().get_i32("n").ok(),
            Some(1)
        );
    }
    drop(held);
    let reply = batch.join().unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(4), "{reply}");
    assert!(!reply.contains_key("writeErrors"), "{reply}");
    let mut emails: Vec<String> = on_each_shard(cluster.shards(), database, "users")
        .await
        .concat()
        .iter()
        .map(|user| user.get_str("email").unwrap().to_owned())
        .collect();
    emails.sort();
    assert_eq!(emails, [1, 2, 4, 5].map(|id| email(format!("new{id}"))));
    assert_agreement(cluster, database).await;
}

/// The documents have moved to the other shard since the first try. That shard doesn't remember the statements.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_batch_about_documents_that_have_moved_changes_nothing() {
    let database = "prepared_moved";
    let cluster = users(database);
    let keyward = keyward(&cluster.uri(), database);
    assert_eq!(
        send(&keyward.address, database, insert([2, 4, 6]))
            .unwrap()
            .get_i32("n")
            .ok(),
        Some(3)
    );
    let change = |id: i32| {
        statement(
            id,
            doc! { "$set": { "email": email(format!("new{id}")) }, "$inc": { "n": 1 } },
        )
    };
    let batch = retryable(update([2, 4, 6].map(change).to_vec()));
    let first = send(&keyward.address, database, batch.clone()).unwrap();
    assert_eq!(first.get_i32("n").ok(), Some(3), "{first}");
    for id in [2, 4] {
        let query = doc! { "_id": id, "region": "a" };
        let moved = doc! { "q": query, "u": { "$set": { "region": "z", "email": email(format!("later{id}")) } } };
        let mut moved = retryable(update(vec![moved]));
        moved.insert("txnNumber", 2_i64);
        let reply = send(&keyward.address, database, moved).unwrap();
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    }
    let again = send(&keyward.address, database, batch).unwrap();
    assert_eq!(as_first(again), as_first(first));
    for user in on_each_shard(cluster.shards(), database, "users").await.concat() {
        assert_eq!(user.get_i32("n").ok(), Some(1), "{user}");
    }
    assert_agreement(cluster, database).await;
}

/// The first statement fails after the others were prepared: their keys are free again, and their documents as they were.
#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_batch_that_fails_gives_up_the_keys_of_the_rest() {
    let database = "prepared_in_vain";
    let cluster = users(database);
    let keyward = keyward(&cluster.uri(), database);
    assert_eq!(
        send(&keyward.address, database, insert(1..6))
            .unwrap()
            .get_i32("n")
            .ok(),
        Some(5)
    );
    let fails = statement(1, doc! { "$set": { "email": email("one"), "n.x": 1 } });
    let batch = [vec![fails], (2..6).map(|id| set(id, format!("new{id}"))).collect()].concat();
    let reply = send(&keyward.address, database, update(batch)).unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(0), "{reply}");
    assert_eq!(reply.get_array("writeErrors").unwrap().len(), 1, "{reply}");
    assert_agreement(cluster, database).await;
    let all = on_each_shard(cluster.shards(), database, "users").await.concat();
    assert!(
        all.iter().all(|user| *user == self::user(user.get_i32("_id").unwrap())),
        "{all:?}"
    );
}

/// Counts the commands that change `users`, and those that read it or are about its reservations.
type Counts = Arc<[AtomicUsize; 2]>;

/// An upstream that counts the commands about this database.
fn counting(database: &'static str, counts: &Counts) -> Altering {
    let counts = counts.clone();
    let count = move |request: &mut Document| {
        let is_of_database = request.get_str("$db").is_ok_and(|name| name == database);
        let place = match request.iter().next() {
            Some((name, Bson::String(collection))) if is_of_database && collection == "users" => {
                usize::from(name == "find")
            }
            Some((_, Bson::String(collection))) if is_of_database && collection == "keyward.users.email_1" => 1,
            _ => return,
        };
        counts[place].fetch_add(1, Ordering::Relaxed);
    };
    Altering::start(Cluster::shared().router_address(), count, |_, _| {})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_statements_take_little_more_than_a_hundred_commands() {
    let database = "prepared_counted";
    let cluster = users(database);
    let counts = Counts::default();
    let upstream = counting(database, &counts);
    let keyward = keyward(&upstream.uri(), database);
    let by_id = |id: i32, round: i32| statement(id, doc! { "$set": { "email": format!("third{round}-{id}") } });
    let named = |name: &str, round: i32| update((1..101).map(|id| set(id, format!("{name}{round}-{id}"))).collect());
    let kinds: [(&dyn Fn(i32) -> Document, usize); 4] = [
        (&|round| named("first", round), 100),
        (&|round| retryable(named("second", round)), 100),
        // Without the shard key, Keyward asks whether another shard remembers the statements.
        (
            &|round| retryable(update((1..101).map(|id| by_id(id, round)).collect())),
            101,
        ),
        (&|_| delete((1..101).map(removal).collect()), 100),
    ];
    let run = |command: Document| {
        let before = [0, 1].map(|place: usize| counts[place].load(Ordering::Relaxed));
        let reply = send(&keyward.address, database, command).unwrap();
        assert_eq!(reply.get_i32("n").ok(), Some(100), "{reply}");
        [0, 1].map(|place: usize| counts[place].load(Ordering::Relaxed) - before[place])
    };
    run(insert(1..101));
    for (kind, forwarded) in kinds {
        // On a busy machine the cluster may take so long that Keyward reserves the keys one by one.
        let mut least = [usize::MAX; 2];
        for round in 0..3 {
            let [of_users, others] = run(kind(round));
            assert_agreement(cluster, database).await;
            least = least.min([others, of_users]);
            if least[0] < 20 && least[1] < forwarded + 10 {
                break;
            }
            if on_each_shard(cluster.shards(), database, "users")
                .await
                .concat()
                .is_empty()
            {
                run(insert(1..101));
            }
        }
        let [others, of_users] = least;
        assert!(of_users < forwarded + 10, "{of_users} statements");
        assert!(others < 20, "{others} commands beside the statements");
    }
}

/// Another client needn't wait for the keys of the statements behind one that waits for a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_waits_gives_up_the_keys_of_the_later_ones() {
    let database = "prepared_waiting";
    let cluster = users(database);
    let keyward = keyward(&cluster.uri(), database);
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    assert_eq!(run(insert(1..4)).get_i32("n").ok(), Some(3));
    let client = cluster.client();
    let past = client.database(database).collection::<Document>("users");
    let reservations = client
        .database(database)
        .collection::<Document>("keyward.users.email_1");
    for round in 0..10 {
        let name = |id: i32| format!("new{round}-{id}");
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let touched = doc! { "$set": { "touched": round } };
        let touch = past.update_one(doc! { "_id": 1, "region": "z" }, touched);
        touch.session(&mut session).await.unwrap();
        let address = keyward.address.clone();
        let batch = update((1..4).map(|id| set(id, name(id))).collect());
        let batch = tokio::task::spawn_blocking(move || send(&address, database, batch).unwrap());
        // The key is reserved for a second at most: on a busy machine that may pass unseen.
        let begin = Instant::now();
        let mut is_seen = false;
        while !is_seen && begin.elapsed() < Duration::from_secs(5) {
            is_seen = reservations.count_documents(doc! { "owner": 3 }).await.unwrap() == 2;
        }
        if !is_seen {
            session.abort_transaction().await.unwrap();
            batch.await.unwrap();
            continue;
        }
        let taken = doc! { "_id": 9, "region": "a", "email": email(name(3)) };
        let reply = run(doc! { "insert": "users", "documents": [taken], "maxTimeMS": 20_000 });
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
        session.abort_transaction().await.unwrap();
        let reply = batch.await.unwrap();
        assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
        let errors = reply.get_array("writeErrors").unwrap();
        let error = errors[0].as_document().unwrap();
        let places = (error.get_i32("index").ok(), error.get_i32("code").ok());
        assert_eq!((errors.len(), places), (1, (Some(2), Some(11_000))));
        assert_agreement(cluster, database).await;
        return;
    }
    panic!("the key of the last statement was never seen reserved");
}
