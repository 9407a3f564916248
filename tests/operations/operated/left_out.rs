//! Starts and reloads whose configuration lacks a constraint that the cluster has as enforced. The next Keyward with the constraint
//! backfills the documents written meanwhile.

use bson::{Document, doc};
use testbed::ReplicaSet;

use testkit::keyward::Keyward;

const NOTED: &str = "they are noted as not enforced";

/// Settings with these constraints, each a collection and one of its fields.
fn settings(database: &str, constraints: &[(&str, &str)]) -> String {
    let each = |(collection, field): &(&str, &str)| {
        format!("\n  - {{ collection: {database}.{collection}, key: {{ {field}: 1 }} }}")
    };
    let list = match constraints {
        [] => " []".to_owned(),
        constraints => constraints.iter().map(each).collect(),
    };
    let uri = ReplicaSet::shared().uri();
    format!("upstream: {uri}\nlease: 2s\nreload_interval: 0s\nconstraints:{list}\n")
}

const BOTH: [(&str, &str); 2] = [("users", "email"), ("users", "phone")];
const ONE: [(&str, &str); 1] = [("users", "email")];

pub(super) fn drop_database(database: &str) {
    ReplicaSet::shared().run(database, doc! { "dropDatabase": 1 }).unwrap();
}

fn user(id: i32, phone: &str) -> Document {
    doc! { "_id": id, "email": format!("{id}@x"), "phone": phone }
}

/// The state that the cluster has of the constraint on a field of `users`.
pub(super) fn state(database: &str, field: &str) -> String {
    let id = doc! { "collection": "users", "name": format!("{field}_1") };
    let find = doc! { "find": "keyward.constraints", "filter": { "_id": id } };
    let reply = ReplicaSet::shared().run(database, find).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch[0].as_document().unwrap().get_str("state").unwrap().to_owned()
}

#[test]
fn what_is_written_while_a_start_leaves_a_constraint_out_is_backfilled_by_the_next_with_it() {
    let database = "left_out";
    drop_database(database);
    Keyward::of(&settings(database, &BOTH)).stop();
    let without = Keyward::of(&settings(database, &ONE));
    let log = without.log();
    let told = log
        .lines()
        .find(|line| line.contains(NOTED))
        .unwrap_or_else(|| panic!("{log}"));
    assert!(told.contains("left_out.users") && told.contains("phone_1"), "{told}");
    assert_eq!(
        (state(database, "email"), state(database, "phone")),
        ("enforced".into(), "reserving".into())
    );
    without.insert(database, user(1, "1")).unwrap();
    without.stop();
    let again = Keyward::of(&settings(database, &BOTH));
    assert_eq!(again.insert(database, user(2, "1")), Err(11000));
    let (code, findings) = again.verify();
    assert_eq!(code, Some(0), "{findings}");
    // What a start has with it is nothing to speak of.
    assert!(!again.log().contains(NOTED), "{}", again.log());
}

/// In a rolling restart, one Keyward has the constraint still when the other one lets writes by.
#[test]
fn a_keyward_that_still_has_it_goes_on_and_takes_in_at_its_own_restart() {
    let database = "left_out_rolling";
    drop_database(database);
    let with = Keyward::of(&settings(database, &BOTH));
    with.insert(database, user(1, "1")).unwrap();
    let without = Keyward::of(&settings(database, &ONE));
    without.insert(database, user(2, "2")).unwrap();
    assert_eq!(with.insert(database, user(3, "1")), Err(11000));
    with.insert(database, user(4, "4")).unwrap();
    assert_eq!(with.reload(&settings(database, &BOTH))["outcome"], "applied");
    assert_eq!(with.insert(database, user(5, "4")), Err(11000));
    // It crashes, and the supervisor starts it as it was: the other one is still without.
    drop(with);
    let with = Keyward::of(&settings(database, &BOTH));
    assert_eq!(state(database, "phone"), "reserving");
    without.stop();
    with.until("enforced", || state(database, "phone") == "enforced");
    assert_eq!(with.insert(database, user(6, "2")), Err(11000));
    // Then it is its turn to be without.
    with.stop();
    let last = Keyward::of(&settings(database, &ONE));
    assert!(last.log().contains(NOTED), "{}", last.log());
    assert_eq!(state(database, "phone"), "reserving");
}

#[test]
fn a_reload_that_first_names_the_collection_notes_what_it_leaves_out() {
    let database = "left_out_reloaded";
    drop_database(database);
    Keyward::of(&settings(database, &BOTH)).stop();
    let without = Keyward::of(&settings(database, &[("orders", "number")]));
    assert_eq!(state(database, "phone"), "enforced");
    assert_eq!(without.reload(&settings(database, &ONE))["outcome"], "applied");
    assert_eq!(
        (state(database, "email"), state(database, "phone")),
        ("enforced".into(), "reserving".into())
    );
    let log = without.log();
    let told = log.lines().find(|line| line.contains(NOTED)).expect(&log);
    assert!(
        told.contains("left_out_reloaded.users") && told.contains("phone_1"),
        "{told}"
    );
    without.insert(database, user(1, "1")).unwrap();
    without.stop();
    let again = Keyward::of(&settings(database, &BOTH));
    assert_eq!(again.insert(database, user(2, "1")), Err(11000));
}

/// Another fleet may enforce it: as long as nobody writes to the collection here, nothing is wrong.
#[test]
fn what_is_on_collections_that_the_configuration_does_not_name_is_noted_before_the_first_write() {
    let database = "left_out_elsewhere";
    drop_database(database);
    Keyward::of(&settings(database, &ONE)).stop();
    for others in [&[("orders", "number")][..], &[]] {
        let other = Keyward::of(&settings(database, others));
        assert!(other.run(database, doc! { "find": "users" }).is_ok());
        assert!(!other.log().contains(NOTED), "{}", other.log());
        assert_eq!(state(database, "email"), "enforced");
        other.insert(database, user(1, "1")).unwrap();
        assert!(other.log().contains(NOTED), "{}", other.log());
        assert_eq!(state(database, "email"), "reserving");
        other.stop();
        let with = Keyward::of(&settings(database, &ONE));
        assert_eq!(state(database, "email"), "enforced");
        let delete = doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] };
        with.run(database, delete).unwrap();
        with.stop();
    }
}
