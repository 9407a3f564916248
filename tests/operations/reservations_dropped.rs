//! The reservations of a constraint are dropped past a running Keyward: no duplicate gets in, and it makes them anew by itself.

use bson::{Bson, Document, doc};
use nix::sys::signal::Signal;
use testbed::{Cluster, ReplicaSet};
use testkit::relay::{Held, Relay, insert_into};
use testkit::wire::{Connection, is_ok};
use testkit::{Keyward, shard_on_two};

const HASTE: [(&str, &str); 1] = [("KEYWARD_REGISTER_HASTE", "10")];

fn settings(uri: &str, database: &str, strategy: &str) -> String {
    format!(
        "upstream: {uri}\nlease: 5s\nconstraints:\n  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: {strategy} }}\n"
    )
}

fn shard_users(cluster: &Cluster, database: &str) {
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
}

fn user(id: i32, region: &str, email: &str) -> Document {
    doc! { "_id": id, "region": region, "email": email }
}

/// Whether a statement was refused as a duplicate. The text of a reply may contain that number elsewhere, as in a timestamp.
fn is_duplicate(reply: &Document) -> bool {
    let errors = reply.get_array("writeErrors").into_iter().flatten();
    errors
        .filter_map(Bson::as_document)
        .any(|error| error.get_i32("code").ok() == Some(11_000))
}

/// Tries to give the e-mail of a document that is there to another one, until Keyward knows again that it is taken.
fn assert_refused_until_known(keyward: &Keyward, database: &str, email: &str) {
    let insert = doc! { "insert": "users", "documents": [user(100, "z", email)] };
    assert_statement_refused_until_known(keyward, database, &insert);
}

fn assert_statement_refused_until_known(keyward: &Keyward, database: &str, statement: &Document) {
    let connection = std::cell::RefCell::new(Connection::open(&keyward.address));
    keyward.until("the reservations made anew", || {
        let reply = connection.borrow_mut().run(database, statement);
        assert_ne!(reply.get_i32("n").ok(), Some(1), "a duplicate got in: {reply}");
        is_duplicate(&reply)
    });
}

/// The same for a statement in a transaction of the client's, which is committed if it can be.
fn assert_transaction_refused_until_known(keyward: &Keyward, database: &str, statement: &Document) {
    let connection = std::cell::RefCell::new(Connection::open(&keyward.address));
    keyward.until("the reservations made anew", || {
        let of_transaction = doc! { "lsid": { "id": bson::Uuid::new() }, "txnNumber": 1_i64, "autocommit": false };
        let mut first = statement.clone();
        first.insert("startTransaction", true);
        first.extend(of_transaction.clone());
        let reply = connection.borrow_mut().run(database, &first);
        if reply.get_i32("n").ok() == Some(1) {
            let mut commit = doc! { "commitTransaction": 1 };
            commit.extend(of_transaction);
            let committed = connection.borrow_mut().run("admin", &commit);
            assert!(!is_ok(&committed), "a duplicate got in: {reply} {committed}");
        }
        is_duplicate(&reply)
    });
}

fn drop_reservations(run: impl Fn(&str, Document) -> Document, database: &str) {
    let dropped = run(database, doc! { "drop": "keyward.users.email_1" });
    assert!(is_ok(&dropped), "{dropped}");
}

fn assert_made_anew(database: &str, strategy: &str) {
    let cluster = Cluster::shared();
    shard_users(cluster, database);
    let keyward = Keyward::of(&settings(&cluster.uri(), database, strategy)).leaving();
    keyward.insert(database, user(1, "a", "x")).unwrap();
    keyward.insert(database, user(2, "z", "y")).unwrap();
    drop_reservations(|database, command| cluster.run(database, command).unwrap(), database);
    assert_refused_until_known(&keyward, database, "x");
    assert_eq!(keyward.insert(database, user(3, "a", "y")), Err(11_000));
    keyward.insert(database, user(4, "z", "new")).unwrap();
    assert!(
        keyward
            .log()
            .contains("proxy collections were dropped or replaced past Keyward"),
        "{}",
        keyward.log()
    );
    keyward.until("ready", || keyward.get("/readyz").lines().last() == Some("ready"));
    let reservations = doc! { "count": "keyward.users.email_1" };
    assert_eq!(cluster.run(database, reservations).unwrap().get_i32("n").ok(), Some(3));
}

#[test]
fn of_compensating_constraints() {
    assert_made_anew("reservations_dropped", "compensating");
}

#[test]
fn of_strict_constraints() {
    assert_made_anew("reservations_dropped_strict", "transaction");
}

/// Their reservations are inserted in the same transaction as the documents.
#[test]
fn of_writes_in_transactions() {
    const DATABASE: &str = "reservations_dropped_transactions";
    let cluster = Cluster::shared();
    shard_users(cluster, DATABASE);
    let settings = settings(&cluster.uri(), DATABASE, "compensating");
    let keyward = Keyward::of_in(&settings, &[("KEYWARD_TRANSACTIONS_HASTE", "20")]).leaving();
    for (id, email) in [(1, "x"), (2, "y")] {
        keyward.insert(DATABASE, user(id, "a", email)).unwrap();
    }
    let drop = || drop_reservations(|database, command| cluster.run(database, command).unwrap(), DATABASE);
    drop();
    let by_pipeline = doc! { "q": { "_id": 2, "region": "a" }, "u": [{ "$set": { "email": "x" } }] };
    let update = doc! { "update": "users", "updates": [by_pipeline] };
    assert_statement_refused_until_known(&keyward, DATABASE, &update);
    drop();
    let insert = doc! { "insert": "users", "documents": [user(3, "z", "x")] };
    assert_transaction_refused_until_known(&keyward, DATABASE, &insert);
    // A transaction meets a reservation as soon as it is made anew: a moment before this Keyward reserves there, too.
    keyward.until("writes go on", || {
        let log = keyward.log();
        log.matches("writes that need a reservation there go on").count() == 2
    });
    let insert = doc! { "insert": "users", "documents": [user(4, "z", "new")] };
    let reply = Connection::open(&keyward.address).run(DATABASE, &insert);
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
}

/// A strict insert inserts reservations and document in one transaction there.
#[test]
fn on_a_replica_set() {
    const DATABASE: &str = "reservations_dropped_unsharded";
    let set = ReplicaSet::shared();
    let keyward = Keyward::of(&settings(&set.uri(), DATABASE, "transaction")).leaving();
    keyward.insert(DATABASE, user(1, "a", "x")).unwrap();
    drop_reservations(|database, command| set.run(database, command).unwrap(), DATABASE);
    assert_refused_until_known(&keyward, DATABASE, "x");
    keyward.insert(DATABASE, user(2, "z", "new")).unwrap();
}

/// The other Keyward has reserved a key in the collection that is dropped, and writes its document only then.
#[test]
fn with_a_write_of_another_keyward_under_way() {
    const DATABASE: &str = "reservations_dropped_amid";
    let cluster = Cluster::shared();
    shard_users(cluster, DATABASE);
    let relay = Relay::start(cluster.router_address());
    let settings = |uri: &str| settings(uri, DATABASE, "compensating");
    let quick = Keyward::of_in(&settings(&cluster.uri()), &HASTE).leaving();
    let slow = Keyward::of_in(&settings(&relay.uri()), &HASTE).leaving();
    for (keyward, id) in [(&quick, 1), (&slow, 2)] {
        keyward.insert(DATABASE, user(id, "a", &format!("{id}"))).unwrap();
    }
    std::thread::scope(|scope| {
        let held = relay.hold(b"\x02insert\0\x06\0\0\0users\0");
        let written = scope.spawn(|| slow.insert(DATABASE, user(3, "a", "late")));
        held.wait();
        drop_reservations(|database, command| cluster.run(database, command).unwrap(), DATABASE);
        // It notices the drop by this.
        assert!(quick.insert(DATABASE, user(4, "z", "1")).is_err());
        quick.until("it waits for the other one", || {
            quick.log().contains("waiting for 9s 500ms")
        });
        drop(held);
        assert_eq!(written.join().unwrap(), Ok(()));
    });
    assert_refused_until_known(&quick, DATABASE, "late");
    // It has reserved nothing since, and needs no duplicate to notice that the other one has made the reservations anew.
    assert_refused_until_known(&slow, DATABASE, "1");
    slow.until("a key is reserved", || {
        slow.insert(DATABASE, user(5, "a", "free")).is_ok()
    });
    assert_eq!(quick.insert(DATABASE, user(6, "z", "free")), Err(11_000));
}

/// The constraint can't be enforced, because a Keyward lacks it. Its documents say that the first one has waited.
#[test]
fn only_the_first_of_several_starts_waits() {
    const DATABASE: &str = "reservations_dropped_waited_for";
    let cluster = &*Cluster::alone().unwrap();
    shard_users(cluster, DATABASE);
    let with = settings(&cluster.uri(), DATABASE, "compensating");
    let keyward = Keyward::of_in(&with, &HASTE);
    keyward.insert(DATABASE, user(1, "a", "x")).unwrap();
    keyward.stop();
    let without = format!("upstream: {}\nlease: 5s\nconstraints: []\n", cluster.uri());
    let lacking = Keyward::of_in(&without, &HASTE).leaving();
    lacking.insert(DATABASE, user(2, "a", "y")).unwrap();
    drop_reservations(|database, command| cluster.run(database, command).unwrap(), DATABASE);
    let logs = [(); 2].map(|()| {
        let started = Keyward::of_in(&with, &HASTE);
        let log = started.log();
        started.stop();
        log
    });
    assert!(logs[0].contains("waiting for 9s 500ms"), "{}", logs[0]);
    assert!(!logs[1].contains("waiting for 9s 500ms"), "{}", logs[1]);
    lacking.stop();
    let keyward = Keyward::of_in(&with, &HASTE);
    for email in ["x", "y"] {
        assert_eq!(keyward.insert(DATABASE, user(3, "z", email)), Err(11_000), "{email}");
    }
}

/// The other Keyward reserves for the constraint only since its reload.
#[test]
fn with_a_write_under_way_as_another_keyward_reloads() {
    const DATABASE: &str = "reservations_dropped_reloaded";
    let cluster = Cluster::shared();
    shard_users(cluster, DATABASE);
    let relay = Relay::start(cluster.router_address());
    let slow = Keyward::of_in(&settings(&relay.uri(), DATABASE, "compensating"), &HASTE).leaving();
    slow.insert(DATABASE, user(1, "a", "1")).unwrap();
    let without = format!("upstream: {}\nlease: 5s\nconstraints: []\n", cluster.uri());
    let other = Keyward::of_in(&without, &HASTE).leaving();
    let with = settings(&cluster.uri(), DATABASE, "compensating");
    std::thread::scope(|scope| {
        let held = relay.hold(b"\x02insert\0\x06\0\0\0users\0");
        let written = scope.spawn(|| slow.insert(DATABASE, user(2, "a", "late")));
        held.wait();
        drop_reservations(|database, command| cluster.run(database, command).unwrap(), DATABASE);
        let reloaded = scope.spawn(|| other.reload(&with));
        other.until("it waits for the other one, or doesn't", || {
            other.log().contains("waiting for 9s 500ms") || reloaded.is_finished()
        });
        drop(held);
        assert_eq!(written.join().unwrap(), Ok(()));
        let outcome = reloaded.join().unwrap();
        assert_eq!(outcome["outcome"], "applied", "{outcome}");
    });
    assert_refused_until_known(&other, DATABASE, "late");
}

/// A backfill in the background may take hours. It pauses meanwhile, for a minute or more after its first batches.
#[test]
fn while_a_clients_index_is_built() {
    const DATABASE: &str = "reservations_dropped_built";
    let cluster = &*Cluster::alone().unwrap();
    shard_users(cluster, DATABASE);
    shard_on_two(
        cluster,
        &format!("{DATABASE}.large"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let large = |id: i32| doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "phone": id };
    for first in (0..40_000).step_by(8_000) {
        let insert = doc! { "insert": "large", "documents": (first..first + 8_000).map(large).collect::<Vec<_>>(), "ordered": false };
        assert!(is_ok(&cluster.run(DATABASE, insert).unwrap()));
    }
    let settings = format!(
        "{}backfill: {{ max_share: 0.01 }}\n",
        settings(&cluster.uri(), DATABASE, "compensating")
    );
    let keyward = Keyward::of(&settings).leaving();
    keyward.insert(DATABASE, user(1, "a", "x")).unwrap();
    let mut client = Connection::open(&keyward.address);
    let index = doc! { "key": { "phone": 1 }, "name": "phone_1", "unique": true };
    client
        .send(DATABASE, &doc! { "createIndexes": "large", "indexes": [index] })
        .unwrap();
    let count = doc! { "count": "keyward.large.phone_1" };
    let reserved = || cluster.run(DATABASE, count.clone()).unwrap().get_i32("n").unwrap_or(0);
    keyward.until("the first batches are reserved", || reserved() >= 8_000);
    drop_reservations(|database, command| cluster.run(database, command).unwrap(), DATABASE);
    assert_refused_until_known(&keyward, DATABASE, "x");
    assert!(reserved() < 40_000, "the build was over before");
}

/// A cluster that was just upgraded to 6.0 has the feature compatibility version 5.0 for a while: its servers take no uuid.
#[test]
fn a_server_that_takes_no_uuid_is_served() {
    const DATABASE: &str = "reservations_unnamed";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::of(&settings(&set.uri(), DATABASE, "compensating")).leaving();
    keyward.insert(DATABASE, user(1, "a", "x")).unwrap();
    let version = |version: &str| {
        let command = doc! { "setFeatureCompatibilityVersion": version };
        assert!(is_ok(&set.run("admin", command).unwrap()));
    };
    version("5.0");
    let written = keyward.insert(DATABASE, user(2, "a", "y"));
    let refused = keyward.insert(DATABASE, user(3, "a", "y"));
    version("6.0");
    assert_eq!((written, refused), (Ok(()), Err(11_000)));
}

/// The first one that starts makes the proxy collection anew, and waits. The second one finds it there, and must wait as well: it might be the
/// first one, started again. Its documents have never all been reserved.
#[test]
fn while_documents_are_first_backfilled_and_two_keywards_start() {
    const DATABASE: &str = "reservations_dropped_first";
    let cluster = &*Cluster::alone().unwrap();
    shard_users(cluster, DATABASE);
    let run = |command: Document| cluster.run(DATABASE, command).unwrap();
    assert!(is_ok(&run(
        doc! { "insert": "users", "documents": [user(7, "a", "7")] }
    )));
    let relays = [(); 3].map(|()| Relay::start(cluster.router_address()));
    let with = |relay: &Relay| settings(&relay.uri(), DATABASE, "compensating");
    let without = format!("upstream: {}\nlease: 5s\nconstraints: []\n", relays[0].uri());
    let slow = Keyward::of_in(&without, &HASTE).leaving();
    let started = std::thread::scope(|scope| {
        let reserving = relays[0].hold(&insert_into("keyward.users.email_1"));
        slow.rewrite(&with(&relays[0]));
        slow.send(Signal::SIGHUP);
        reserving.wait();
        // Otherwise it would soon know that its reload has failed, and reserve no more.
        slow.freeze();
        drop_reservations(|database, command| cluster.run(database, command).unwrap(), DATABASE);
        // Each of them notes that it has waited. Until the other one has waited, that note is held.
        let noting = [1, 2].map(|one| relays[one].hold(b"\x10awaits\0"));
        let start = |one: usize| {
            let settings = with(&relays[one]);
            scope.spawn(move || Keyward::of_in(&settings, &HASTE).leaving())
        };
        let first = start(1);
        slow.until("the proxy collection is made anew", || {
            let listed = run(doc! { "listCollections": 1, "filter": { "name": "keyward.users.email_1" } });
            let listed = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
            !listed.is_empty()
        });
        let second = start(2);
        noting.iter().for_each(Held::wait);
        drop((noting, reserving));
        [first.join().unwrap(), second.join().unwrap()]
    });
    for keyward in &started {
        let log = keyward.log();
        assert!(log.contains("waiting for 9s 500ms"), "{log}");
    }
    let awaiting = doc! { "count": "keyward.constraints", "query": { "awaits": { "$exists": true } } };
    assert_eq!(run(awaiting).get_i32("n").ok(), Some(0));
    // It writes without the constraint, because its reload is refused: its reservations are gone.
    slow.wake();
    slow.stop();
    let enforced = doc! { "count": "keyward.constraints", "query": { "state": "enforced" } };
    for keyward in &started {
        keyward.until("enforced", || run(enforced.clone()).get_i32("n").ok() == Some(1));
        assert_eq!(keyward.insert(DATABASE, user(100_000, "z", "7")), Err(11_000));
    }
}
