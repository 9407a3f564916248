//! A client's transaction in which a statement was broken off: it has taken effect, and its reservations haven't. Whatever the
//! client does, it isn't committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Binary, Document, doc, spec::BinarySubtype};
use testbed::{Cluster, ReplicaSet, StandIn};

use crate::both::retries::behind;
use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users, write_errors};
use crate::strategy::Strategy;
use testkit::Keyward;
use testkit::altering::Altering;
use testkit::relay::{Relay, insert_into, wait_until};
use testkit::wire::send;

/// The client's time limit for a `bulkWrite`.
const LIMIT: Duration = Duration::from_millis(500);

pub fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

/// Inserts the users 1, a@x, and 2, b@x; the fields of a new transaction's commands.
pub fn begin(address: &str, database: &str) -> Document {
    let reply = send(address, database, insert(vec![user(1, "a@x"), user(2, "b@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    doc! { "lsid": lsid, "txnNumber": 1_i64, "autocommit": false }
}

/// The first command of the transaction: the user 2 takes the address.
pub fn take(email: &str, transaction: &Document) -> Document {
    let statement = doc! { "q": { "_id": 2, "region": "a" }, "u": { "$set": { "email": email } } };
    let mut command = doc! { "update": "users", "updates": [statement], "startTransaction": true };
    command.extend(transaction.clone());
    command
}

pub fn commit(address: &str, transaction: &Document) -> Document {
    let mut command = doc! { "commitTransaction": 1, "writeConcern": { "w": "majority" } };
    command.extend(transaction.clone());
    send(address, "admin", command).unwrap()
}

pub fn is_told_to_begin_anew(reply: &Document) {
    assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
    let labels = reply.get_array("errorLabels").unwrap();
    assert_eq!(labels, &["TransientTransactionError".into()], "{reply}");
}

/// The `update` of the client's collection, as a router sees it.
fn statement() -> Vec<u8> {
    b"\x02update\0\x06\0\0\0users\0".to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_breaks_between_a_statement_and_its_reservations() {
    let database = "unfinished";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = behind(Strategy::Compensating, &forwarder, database);
    let transaction = begin(&keyward.address, database);
    let is_lost = forwarder.lose_reply_to(statement());
    assert!(send(&keyward.address, database, take("a@x", &transaction)).is_err());
    wait_until(&is_lost);
    is_told_to_begin_anew(&commit(&keyward.address, &transaction));
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyward_is_killed_between_a_statement_and_its_reservations() {
    let database = "unfinished_killed";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let (first, next) = (
        behind(Strategy::Compensating, &forwarder, database),
        keyward(cluster, database, "60s", &[EMAIL]),
    );
    let transaction = begin(&next.address, database);
    let held = forwarder.hold(b"keyward.users.email_1");
    let (address, command) = (first.address.clone(), take("a@x", &transaction));
    let taking = std::thread::spawn(move || send(&address, database, command));
    held.wait();
    drop(first);
    assert!(taking.join().unwrap().is_err());
    is_told_to_begin_anew(&commit(&next.address, &transaction));
    assert_agreement(cluster, database, "email").await;
}

/// A commit whose reply was lost is known wherever it is sent again; a transaction that has been left open isn't taken over.
#[tokio::test(flavor = "multi_thread")]
async fn another_keyward_commits_nothing_that_it_has_not_seen() {
    let database = "unfinished_elsewhere";
    let cluster = users(database);
    let keywards = [(); 2].map(|()| keyward(cluster, database, "60s", &[EMAIL]));
    let [first, other] = keywards.each_ref().map(|keyward| keyward.address.as_str());
    let transaction = begin(first, database);
    let reply = send(first, database, take("c@x", &transaction)).unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    let mut known = transaction.clone();
    known.insert("recoveryToken", reply.get_document("recoveryToken").unwrap());
    for address in [first, other, first] {
        let reply = commit(address, &known);
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    }
    let mut next = transaction;
    next.insert("txnNumber", 2_i64);
    let reply = send(first, database, take("d@x", &next)).unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    is_told_to_begin_anew(&commit(other, &next));
    is_told_to_begin_anew(&commit(first, &next));
    assert_agreement(cluster, database, "email").await;
}

/// A statement may reach one Keyward after the client's commit has reached another one.
#[tokio::test(flavor = "multi_thread")]
async fn what_begins_behind_a_commit_is_not_committed_by_it() {
    let database = "unfinished_late";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let transaction = begin(&keyward.address, database);
    let is_refused = || commit(&keyward.address, &transaction).get_f64("ok").ok() == Some(0.0);
    assert!(is_refused());
    is_told_to_begin_anew(&send(&keyward.address, database, take("c@x", &transaction)).unwrap());
    assert!(is_refused());
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_nothing_ends_nobodys_transaction() {
    let database = "unfinished_nothing";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let transaction = begin(&keyward.address, database);
    let reply = send(&keyward.address, database, take("c@x", &transaction)).unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    for nothing in [
        doc! { "commitTransaction": 1 },
        doc! { "commitTransaction": 1, "lsid": transaction.get_document("lsid").unwrap() },
    ] {
        let reply = send(&keyward.address, "admin", nothing).unwrap();
        assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{reply}");
    }
    let reply = commit(&keyward.address, &transaction);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// A router as it is where the network fails: its aborts never reach the shards, which it doesn't notice.
pub fn router_that_loses_aborts(cluster: &Cluster) -> StandIn {
    let router = cluster.another_router().unwrap();
    router.lose_aborts(true);
    router
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_statement_is_never_committed_though_nobody_has_aborted_it() {
    let database = "unfinished_refused";
    let cluster = users(database);
    let router = router_that_loses_aborts(cluster);
    let keyward = behind(Strategy::Compensating, &Relay::start(router.address()), database);
    let transaction = begin(&keyward.address, database);
    let reply = send(&keyward.address, database, take("a@x", &transaction)).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    for _ in 0..2 {
        is_told_to_begin_anew(&commit(&keyward.address, &transaction));
    }
    // Nor does anything else take effect in it.
    let mut again = take("c@x", &transaction);
    again.remove("startTransaction");
    is_told_to_begin_anew(&send(&keyward.address, database, again).unwrap());
    end_on_shards(cluster, &transaction);
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_was_broken_off_is_never_committed_though_nobody_has_aborted_it() {
    let database = "unfinished_unaborted";
    let cluster = users(database);
    let router = router_that_loses_aborts(cluster);
    let forwarder = Relay::start(router.address());
    let keyward = behind(Strategy::Compensating, &forwarder, database);
    let transaction = begin(&keyward.address, database);
    let is_lost = forwarder.lose_reply_to(statement());
    assert!(send(&keyward.address, database, take("a@x", &transaction)).is_err());
    wait_until(&is_lost);
    is_told_to_begin_anew(&commit(&keyward.address, &transaction));
    end_on_shards(cluster, &transaction);
    assert_agreement(cluster, database, "email").await;
}

/// What another Keyward has begun is ended on every shard before its commit goes on: that a router says so doesn't prove it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_keyward_left_is_ended_on_the_shards() {
    let database = "unfinished_killed_unaborted";
    let cluster = users(database);
    let router = router_that_loses_aborts(cluster);
    let forwarder = Relay::start(router.address());
    let (first, next) = (
        behind(Strategy::Compensating, &forwarder, database),
        behind(Strategy::Compensating, &Relay::start(router.address()), database),
    );
    let transaction = begin(&next.address, database);
    let held = forwarder.hold(b"keyward.users.email_1");
    let (address, command) = (first.address.clone(), take("a@x", &transaction));
    let taking = std::thread::spawn(move || send(&address, database, command));
    held.wait();
    drop(first);
    assert!(taking.join().unwrap().is_err());
    is_told_to_begin_anew(&commit(&next.address, &transaction));
    end_on_shards(cluster, &transaction);
    assert_agreement(cluster, database, "email").await;
}

/// A transaction belongs to the Keyward that has seen its beginning, as it belongs to one `mongos`: what another one wrote in it
/// would be unknown to the one that commits.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_in_a_transaction_that_began_elsewhere() {
    let database = "unfinished_begun_elsewhere";
    let cluster = users(database);
    let keywards = [(); 2].map(|()| keyward(cluster, database, "60s", &[EMAIL]));
    let [first, other] = keywards.each_ref().map(|keyward| keyward.address.as_str());
    let transaction = begin(first, database);
    let reply = send(first, database, take("c@x", &transaction)).unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    let mut elsewhere = take("d@x", &transaction);
    elsewhere.remove("startTransaction");
    is_told_to_begin_anew(&send(other, database, elsewhere).unwrap());
    // Nor what changes no key, which goes on at once outside a transaction.
    let named = doc! { "q": { "_id": 1, "region": "a" }, "u": { "$set": { "name": "ann" } } };
    let mut keyless = doc! { "update": "users", "updates": [named] };
    keyless.extend(transaction.clone());
    is_told_to_begin_anew(&send(other, database, keyless).unwrap());
    let reply = commit(first, &transaction);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// Ends on the shards what is left of a transaction, for those who look at the documents then.
fn end_on_shards(cluster: &Cluster, transaction: &Document) {
    let sessions = vec![transaction.get_document("lsid").unwrap().clone()];
    for shard in cluster.shards() {
        shard.run("admin", doc! { "killSessions": &sessions }).unwrap();
    }
}

/// What the server refuses before anything of a statement is written leaves the transaction as the server does.
#[tokio::test(flavor = "multi_thread")]
async fn an_insert_refused_before_it_wrote_leaves_the_transaction_to_the_server() {
    let database = "unfinished_interrupted";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::start_with_lease(&set.uri(), "60s", &EMAIL.replace("DB", database));
    let transaction = begin(&keyward.address, database);
    let within = |mut command: Document| {
        command.extend(transaction.clone());
        command
    };
    let mut first = within(insert(vec![user(3, "c@x")], true));
    first.insert("startTransaction", true);
    let reply = send(&keyward.address, database, first).unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    // As the drivers' tests have it: the next insert, which is Keyward's.
    let data = doc! { "failCommands": ["insert"], "errorCode": 11601, "namespace": format!("{database}.keyward.users.email_1") };
    let interrupted = set.fail_point("failCommand", doc! { "times": 1 }, data).unwrap();
    let reply = send(&keyward.address, database, within(insert(vec![user(4, "d@x")], true))).unwrap();
    assert_eq!(reply.get_i32("code").ok(), Some(11601), "{reply}");
    assert!(!reply.contains_key("errorLabels"), "{reply}");
    drop(interrupted);
    let reply = commit(&keyward.address, &transaction);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    let reply = send(
        &keyward.address,
        database,
        insert(vec![user(5, "c@x"), user(6, "d@x")], false),
    )
    .unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
}

/// As the drivers' tests have it for inserts: the error is none that ends the transaction, and the client goes on in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_refused_before_it_wrote_leaves_the_transaction_to_the_server() {
    let set = ReplicaSet::alone().unwrap();
    let user_2 = doc! { "_id": 2, "region": "a" };
    let change = doc! { "$set": { "email": "d@x" } };
    let statements = [
        doc! { "update": "users", "updates": [{ "q": &user_2, "u": &change }] },
        doc! { "delete": "users", "deletes": [{ "q": &user_2, "limit": 1 }] },
        doc! { "findAndModify": "users", "query": &user_2, "update": &change },
    ];
    for (position, statement) in statements.into_iter().enumerate() {
        let (database, native) = (
            format!("unfinished_refused_{position}"),
            format!("unfinished_plain_{position}"),
        );
        let keyward = Keyward::start_with_lease(&set.uri(), "60s", &EMAIL.replace("DB", &database));
        for (address, database) in [(&keyward.address, &database), (&set.addresses()[0], &native)] {
            let transaction = begin(address, database);
            let within = |mut command: Document| {
                command.extend(transaction.clone());
                command
            };
            let reply = send(address, database, take("c@x", &transaction)).unwrap();
            assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{database}: {reply}");
            let (name, _) = statement.iter().next().unwrap();
            let data = doc! { "failCommands": [name], "errorCode": 11601, "namespace": format!("{database}.users") };
            let interrupted = set.fail_point("failCommand", doc! { "times": 1 }, data).unwrap();
            let reply = send(address, database, within(statement.clone())).unwrap();
            assert_eq!(reply.get_i32("code").ok(), Some(11601), "{database}: {reply}");
            assert!(!reply.contains_key("errorLabels"), "{database}: {reply}");
            drop(interrupted);
            let another = doc! { "q": { "_id": 1, "region": "a" }, "u": { "$set": { "email": "e@x" } } };
            let reply = send(
                address,
                database,
                within(doc! { "update": "users", "updates": [another] }),
            )
            .unwrap();
            assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{database}: {reply}");
            let reply = commit(address, &transaction);
            assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{database}: {reply}");
        }
        let taken = ["c@x", "e@x", "a@x", "b@x", "d@x"];
        let users = (5..).zip(taken).map(|(id, email)| user(id, email)).collect();
        let reply = send(&keyward.address, &database, insert(users, false)).unwrap();
        assert_eq!(write_errors(&reply), [(0, 11000), (1, 11000)], "{database}: {reply}");
    }
}

/// What has been done of the command isn't committed without the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_refused_in_its_midst_is_never_committed() {
    let database = "unfinished_in_part";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::start_with_lease(&set.uri(), "60s", &EMAIL.replace("DB", database));
    let nothing_of_keys = doc! { "$set": { "name": "x" } };
    for (number, second) in (1_i64..).zip([doc! { "$set": { "email": "d@x" } }, nothing_of_keys]) {
        let mut transaction = begin(&keyward.address, database);
        transaction.insert("txnNumber", number);
        let of = |id: i32, change: &Document| doc! { "q": { "_id": id, "region": "a" }, "u": change };
        let first = doc! { "$set": { "email": "c@x" } };
        let mut both = doc! { "update": "users", "updates": [of(1, &first), of(2, &second)], "startTransaction": true };
        both.extend(transaction.clone());
        let data = doc! { "failCommands": ["update"], "errorCode": 11601, "namespace": format!("{database}.users") };
        let interrupted = set.fail_point("failCommand", doc! { "skip": 1 }, data).unwrap();
        let reply = send(&keyward.address, database, both).unwrap();
        assert_eq!(reply.get_i32("code").ok(), Some(11601), "{reply}");
        drop(interrupted);
        is_told_to_begin_anew(&commit(&keyward.address, &transaction));
        let emptied = doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] };
        let reply = send(&keyward.address, database, emptied).unwrap();
        assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
    }
}

/// Keyward's own commands would have taken its place, without the concern.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_concern_within_a_transaction_is_refused() {
    let database = "unfinished_concern";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let transaction = begin(&keyward.address, database);
    let mut taking = take("c@x", &transaction);
    taking.insert("writeConcern", doc! { "w": 1 });
    let native = send(&cluster.router_address(), "unfinished_concern_native", taking.clone()).unwrap();
    let reply = send(&keyward.address, database, taking).unwrap();
    for field in ["ok", "code", "codeName", "errmsg"] {
        assert_eq!(reply.get(field), native.get(field), "{reply}");
    }
    assert_agreement(cluster, database, "email").await;
}

/// Keyward carries a `bulkWrite` out in parts. The server doesn't see that its time ends between two of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_write_whose_time_ends_in_its_midst_is_never_committed() {
    let database = "unfinished_bulk";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = behind(Strategy::Compensating, &forwarder, database);
    let transaction = begin(&keyward.address, database);
    let change =
        doc! { "update": 0, "filter": { "_id": 1, "region": "a" }, "updateMods": { "$set": { "email": "d@x" } } };
    let mut bulk = doc! {
        "bulkWrite": 1, "ops": [{ "insert": 0, "document": user(3, "c@x") }, change],
        "nsInfo": [{ "ns": format!("{database}.users") }], "maxTimeMS": LIMIT.as_millis() as i32,
        "startTransaction": true,
    };
    bulk.extend(transaction.clone());
    let held = forwarder.hold(&insert_into("users"));
    let address = keyward.address.clone();
    let writing = std::thread::spawn(move || send(&address, "admin", bulk).unwrap());
    held.wait();
    // Keyward has counted since it got the command; the server does so only from when it gets its part.
    std::thread::sleep(LIMIT + Duration::from_millis(1));
    drop(held);
    let reply = writing.join().unwrap();
    assert_eq!(reply.get_i32("code").ok(), Some(50), "{reply}");
    is_told_to_begin_anew(&commit(&keyward.address, &transaction));
    let found = send(
        &keyward.address,
        database,
        doc! { "find": "users", "filter": { "_id": 3 } },
    )
    .unwrap();
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert!(found.is_empty(), "{found:?}");
    assert_agreement(cluster, database, "email").await;
}

/// The transaction is over, and a driver runs it again only with this label.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_can_not_be_decided_ends_it_in_a_way_that_is_repeated() {
    let database = "undecided_within";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::start_with_lease(&set.uri(), "60s", &EMAIL.replace("DB", database));
    let mut transaction = begin(&keyward.address, database);
    let reply = send(&keyward.address, database, insert(vec![user(9, "z@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    // Past Keyward, so that its reservation stays.
    let past = set
        .client()
        .database(database)
        .collection::<Document>("users")
        .delete_one(doc! { "_id": 9 })
        .await;
    assert_eq!(past.unwrap().deleted_count, 1);
    let data = doc! {
        "failCommands": ["find"], "errorCode": 6, "appName": "keyward",
        "namespace": format!("{database}.keyward.users.email_1"),
    };
    let _failing = set.fail_point("failCommand", "alwaysOn", data).unwrap();
    let change = doc! { "q": { "_id": 2 }, "u": [{ "$set": { "email": { "$concat": ["z", "@x"] } } }] };
    let update = doc! { "update": "users", "updates": [change] };
    for (number, mut command) in (1_i64..).zip([update, insert(vec![user(3, "z@x")], true)]) {
        transaction.insert("txnNumber", number);
        command.extend(transaction.clone());
        command.insert("startTransaction", true);
        let reply = send(&keyward.address, database, command).unwrap();
        let labels = reply.get_array("errorLabels");
        let labels = labels.unwrap_or_else(|_| panic!("{reply}"));
        assert_eq!(labels, &["TransientTransactionError".into()], "{reply}");
    }
}

/// A primary that was deposed meanwhile doesn't know of the commit: a majority must confirm that there was none.
#[tokio::test(flavor = "multi_thread")]
async fn that_one_was_not_committed_counts_only_if_a_majority_says_so() {
    let database = "unfinished_elsewhere";
    let set = ReplicaSet::shared();
    let is_deposed = Arc::new(AtomicBool::new(false));
    let altering = Altering::replies(set.primary().unwrap().address(), {
        let is_deposed = is_deposed.clone();
        move |request, reply| {
            if request.contains_key("abortTransaction") && is_deposed.load(Ordering::SeqCst) {
                let concern = request.get_document("writeConcern").unwrap();
                assert_eq!(concern.get_str("w").unwrap(), "majority", "{request}");
                let error = doc! { "code": 11602, "codeName": "InterruptedDueToReplStateChange", "errmsg": "deposed" };
                reply.insert("writeConcernError", error);
            }
        }
    });
    let keyward = Keyward::start_with_lease(
        &format!("{}?directConnection=true", altering.uri()),
        "60s",
        &EMAIL.replace("DB", database),
    );
    let mut transaction = begin(&keyward.address, database);
    // No Keyward has seen it begin.
    is_told_to_begin_anew(&commit(&keyward.address, &transaction));
    is_deposed.store(true, Ordering::SeqCst);
    transaction.insert("txnNumber", 2_i64);
    let reply = commit(&keyward.address, &transaction);
    assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{reply}");
    assert_eq!(
        reply.get_array("errorLabels").unwrap(),
        &["RetryableWriteError".into()],
        "{reply}"
    );
}

/// Another Keyward was killed between a statement and its reservations, and left its transaction open. The server refuses a second start,
/// and the transaction stays open. So the next Keyward hasn't seen it begin.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_the_server_refuses_shows_no_beginning() {
    let set = ReplicaSet::shared();
    let primary = set.primary().unwrap().address();
    let (mine, others) = ("unfinished_twice", "unfinished_twice_elsewhere");
    let keyward = Keyward::start_with_lease(&set.uri(), "60s", &EMAIL.replace("DB", mine));
    let mut transaction = begin(&keyward.address, mine);
    let starts = [
        // Forwarded, and carried out by Keyward.
        doc! { "find": "users", "startTransaction": true },
        take("c@x", &doc! {}),
        doc! { "insert": "users", "documents": [user(3, "c@x")], "startTransaction": true },
        // Refused for its shape, so that its transaction doesn't even begin.
        doc! { "find": "users", "startTransaction": true, "unheardOf": 1 },
    ];
    for (number, mut second) in (1_i64..).zip(starts) {
        transaction.insert("txnNumber", number);
        // The left transaction: what the killed Keyward wrote in it has no reservation.
        let reply = send(&primary, mine, take("a@x", &transaction)).unwrap();
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
        second.extend(transaction.clone());
        let reply = send(&keyward.address, mine, second.clone()).unwrap();
        let code = reply.get_i32("code").ok();
        assert!(matches!(code, Some(117 | 40415)), "{second}: {reply}");
        let mut more = take("d@x", &transaction);
        more.remove("startTransaction");
        is_told_to_begin_anew(&send(&keyward.address, mine, more).unwrap());
        is_told_to_begin_anew(&commit(&keyward.address, &transaction));
        let found = send(
            &keyward.address,
            mine,
            doc! { "find": "users", "filter": { "email": "a@x" } },
        )
        .unwrap();
        let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        assert_eq!(found.len(), 1, "{second}: {found:?}");
    }
    // One that Keyward has seen begin goes on, as without Keyward.
    transaction.insert("txnNumber", 9_i64);
    let native = begin(&primary, others);
    let change = |address: &str, database: &str, transaction: &Document| {
        let mut find = doc! { "find": "users", "startTransaction": true };
        find.extend(transaction.clone());
        let reply = send(address, database, take("e@x", transaction)).unwrap();
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
        for second in [take("f@x", transaction), find] {
            let reply = send(address, database, second).unwrap();
            assert_eq!(reply.get_i32("code").ok(), Some(117), "{reply}");
        }
        let reply = commit(address, transaction);
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    };
    change(&primary, others, &native);
    change(&keyward.address, mine, &transaction);
    let taken = insert(vec![user(7, "e@x"), user(8, "f@x"), user(9, "b@x")], false);
    let reply = send(&keyward.address, mine, taken).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
}
