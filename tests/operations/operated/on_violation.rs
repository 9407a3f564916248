//! `on_violation: leave_out`: a constraint that existing documents violate keeps no other collection from being served.

use bson::{Document, doc};
use serde_json::json;
use testbed::ReplicaSet;

use super::left_out::{drop_database, state};
use testkit::keyward::Keyward;

const LEFT_OUT: &str = "a constraint is left out, because existing documents violate it";

fn settings(database: &str, on_violation: &str) -> String {
    let uri = ReplicaSet::shared().uri();
    format!(
        "upstream: {uri}\nlease: 2s\nreload_interval: 0s\nconstraints:\n  \
         - {{ collection: {database}.users, key: {{ email: 1 }} }}\n  \
         - {{ collection: {database}.users, key: {{ phone: 1 }}, on_violation: {on_violation} }}\n  \
         - {{ collection: {database}.orders, key: {{ number: 1 }} }}\n"
    )
}

fn user(id: i32, phone: &str) -> Document {
    doc! { "_id": id, "email": format!("{id}@x"), "phone": phone }
}

/// Two users with one phone.
fn plant(database: &str) {
    drop_database(database);
    let users = vec![user(1, "1"), user(2, "1")];
    ReplicaSet::shared()
        .run(database, doc! { "insert": "users", "documents": users })
        .unwrap();
}

fn ready(keyward: &Keyward, constraint: &str) -> u64 {
    keyward.metric(&format!("keyward_constraint_ready{{constraint=\"{constraint}\"}}"))
}

fn delete(keyward: &Keyward, database: &str, id: i32) {
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
    keyward.run_once_permitted(database, delete).unwrap();
}

#[test]
fn everything_else_is_served_until_the_documents_are_mended() {
    let database = "violated";
    plant(database);
    let label = format!("{database}.users.phone_1");
    let keyward = Keyward::of(&settings(database, "leave_out"));
    let readyz = keyward.get("/readyz");
    assert!(
        readyz.contains("ready") && readyz.contains(&format!("{label}: left out: 1 document violates it")),
        "{readyz}"
    );
    assert_eq!(
        (
            ready(&keyward, &label),
            ready(&keyward, &format!("{database}.users.email_1"))
        ),
        (0, 1)
    );
    let log = keyward.log();
    let line = log.lines().find(|line| line.contains(LEFT_OUT)).expect(&log);
    assert!(line.contains("WARN"), "{log}");
    assert!(log.contains("2 documents have {\"phone\":\"1\"}"), "{log}");

    // Clients write without it, and with the others.
    keyward.insert(database, user(3, "1")).unwrap();
    assert_eq!(
        keyward.insert(database, doc! { "_id": 4, "email": "3@x", "phone": "4" }),
        Err(11000)
    );
    let order = |id: i32| doc! { "insert": "orders", "documents": [{ "_id": id, "number": 1 }] };
    keyward.run(database, order(1)).unwrap();
    assert_eq!(keyward.run(database, order(2)).err(), Some(11000));
    assert_eq!(state(database, "phone"), "reserving", "no Keyward may count on it");

    // A second Keyward finds the same, although it could not enforce the constraint anyway.
    let second = Keyward::of(&settings(database, "leave_out"));
    second.insert(database, user(5, "1")).unwrap();
    assert!(second.log().contains(LEFT_OUT), "{}", second.log());

    // A reload tries again: still violated, then mended.
    let reload = keyward.reload(&settings(database, "leave_out"));
    assert_eq!(
        (&reload["outcome"], &reload["constraintsLeftOut"]),
        (&json!("applied"), &json!([label]))
    );
    assert!(
        keyward.get("/readyz").contains("left out: 3 documents"),
        "{}",
        keyward.get("/readyz")
    );
    keyward.insert(database, user(6, "1")).unwrap();
    for id in [2, 3, 5, 6] {
        delete(&keyward, database, id);
    }
    let reload = keyward.reload(&settings(database, "leave_out"));
    assert_eq!(
        (&reload["constraintsLeftOut"], &reload["constraintsWaiting"]),
        (&json!([]), &json!([label]))
    );
    assert!(
        !keyward.get("/readyz").contains("left out"),
        "{}",
        keyward.get("/readyz")
    );
    assert_eq!(
        second.reload(&settings(database, "leave_out"))["constraintsWaiting"],
        json!([])
    );
    keyward.until("enforced", || ready(&keyward, &label) == 1);
    for one in [&keyward, &second] {
        assert_eq!(one.insert(database, user(7, "1")), Err(11000));
    }
    let (code, findings) = keyward.verify();
    assert_eq!(code, Some(0), "{findings}");
}

/// An enforced constraint has no backfill at a start: it stays, whatever was written past Keyward.
#[test]
fn an_enforced_constraint_is_never_left_out() {
    let database = "violated_later";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, "leave_out"));
    keyward.insert(database, user(1, "1")).unwrap();
    let past = doc! { "insert": "users", "documents": [user(2, "1")] };
    ReplicaSet::shared().run(database, past).unwrap();
    assert_eq!(
        keyward.reload(&settings(database, "leave_out"))["constraintsLeftOut"],
        json!([])
    );
    assert_eq!(keyward.insert(database, user(3, "1")), Err(11000));
    keyward.stop();
    let again = Keyward::of(&settings(database, "leave_out"));
    assert!(!again.log().contains(LEFT_OUT), "{}", again.log());
    assert_eq!(again.insert(database, user(3, "1")), Err(11000));
    assert_eq!(state(database, "phone"), "enforced");
}

/// A reload that says `stop` is refused, and the constraint stays left out, and shown.
#[test]
fn a_refused_reload_leaves_everything_as_it_was() {
    let database = "violated_refused";
    plant(database);
    let keyward = Keyward::of(&settings(database, "leave_out"));
    assert_eq!(keyward.reload(&settings(database, "stop"))["outcome"], "refused");
    assert!(
        keyward.get("/readyz").contains("left out: 1 document "),
        "{}",
        keyward.get("/readyz")
    );
    assert_eq!(ready(&keyward, &format!("{database}.users.phone_1")), 0);
    keyward.insert(database, user(3, "1")).unwrap();
    // Taken out of the file, it is shown no more.
    let with = settings(database, "leave_out");
    let without = with.lines().filter(|line| !line.contains("phone"));
    let without: String = without.map(|line| format!("{line}\n")).collect();
    assert_eq!(keyward.reload(&without)["outcome"], "applied");
    assert!(
        !keyward.get("/readyz").contains("left out"),
        "{}",
        keyward.get("/readyz")
    );
    assert!(!keyward.get("/metrics").contains(&format!("{database}.users.phone_1")));
}

/// The cluster records one strategy for the collection, which the violated constraint chose.
#[test]
fn the_constraint_that_chose_the_strategy_may_be_left_out() {
    let database = "violated_strict";
    plant(database);
    let strict = settings(database, "leave_out, strategy: strict");
    let keyward = Keyward::of(&strict);
    keyward.insert(database, user(3, "1")).unwrap();
    assert_eq!(
        keyward.insert(database, doc! { "_id": 4, "email": "3@x", "phone": "4" }),
        Err(11000)
    );
    for id in [2, 3] {
        delete(&keyward, database, id);
    }
    assert_eq!(keyward.reload(&strict)["constraintsLeftOut"], json!([]));
    assert_eq!(keyward.insert(database, user(5, "1")), Err(11000));
}

/// Another Keyward without the constraint let duplicates in. At three in the morning, a restart mustn't make an outage of that.
#[test]
fn a_start_with_what_was_enforced_before_serves() {
    let database = "violated_since";
    drop_database(database);
    let label = format!("{database}.users.phone_1");
    let with = settings(database, "stop");
    let haste = [("KEYWARD_REGISTER_HASTE", "10")];
    let keyward = Keyward::of_in(&with, &haste);
    keyward.insert_once_permitted(database, user(1, "1")).unwrap();
    assert_eq!(state(database, "phone"), "enforced");
    keyward.stop();
    let without = with.lines().filter(|line| !line.contains("phone"));
    let without: String = without.map(|line| format!("{line}\n")).collect();
    let lacking = Keyward::of_in(&without, &haste);
    lacking.insert_once_permitted(database, user(2, "1")).unwrap();
    lacking.stop();

    let again = Keyward::of_in(&with, &haste);
    assert_eq!(ready(&again, &label), 0);
    assert!(again.log().contains("constraints aren't enforced"), "{}", again.log());
    // New duplicates are refused, of this constraint and of others.
    assert_eq!(again.insert_once_permitted(database, user(3, "1")), Err(11000));
    again.insert_once_permitted(database, user(4, "4")).unwrap();
    assert_eq!(
        again.insert_once_permitted(database, doc! { "_id": 5, "email": "4@x", "phone": "5" }),
        Err(11000)
    );
    again.until("the violation at /readyz", || {
        again.get("/readyz").contains("violates unique constraint phone_1")
    });
    // It is in no other constraint's way.
    let more = format!("{with}  - {{ collection: {database}.others, key: {{ x: 1 }} }}\n");
    assert_eq!(again.reload(&more)["outcome"], "applied");
    let other = |id: i32| doc! { "insert": "others", "documents": [{ "_id": id, "x": 1 }] };
    again.run_once_permitted(database, other(1)).unwrap();
    assert_eq!(again.run_once_permitted(database, other(2)).err(), Some(11000));
    delete(&again, database, 2);
    again.until("enforced", || ready(&again, &label) == 1);
    assert_eq!(again.insert_once_permitted(database, user(6, "1")), Err(11000));
}
