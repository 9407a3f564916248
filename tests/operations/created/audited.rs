//! A Keyward audits a collection while it has yet to apply a client's constraint there.

use bson::Bson;

use super::*;

/// One that audits, and follows the list.
fn auditing_at(uri: &str) -> Keyward {
    let settings = format!("upstream: {uri}\nlease: 10s\naudit: true\nconstraints: []\n");
    Keyward::of_in(&settings, &[("KEYWARD_REGISTER_HASTE", "10")]).leaving()
}

/// Whether a key is reserved for the constraint. The audit doesn't count it if the Keyward has yet to see that the constraint is enforced.
fn is_reserved(cluster: &Cluster, database: &str, constraint: &str) -> bool {
    let count = doc! { "count": format!("keyward.users.{constraint}") };
    cluster.run(database, count).unwrap().get_i32("n").ok() == Some(1)
}

/// A record of an audit in `database`.
fn record(cluster: &Cluster, database: &str) -> Option<Bson> {
    let found = cluster.run(database, doc! { "find": "keyward.audits" }).unwrap();
    let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.first()?.as_document()?.get("record").cloned()
}

/// A client makes a constraint that the auditor has yet to apply, and then a document is written past Keyward. `applies` gives the Keyward
/// that audits the collection with the constraint.
fn assert_audited_for_both(database: &str, applies: impl FnOnce(Keyward, &Cluster, &AtomicBool) -> Keyward) {
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, database);
    let builder = start_at(&cluster);
    let name = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true };
    must(&reply(&builder, database, &create([name])));
    let (is_old, relay) = with_switched_list(&cluster);
    // It writes nothing there, so constraints are enforced without it.
    let late = auditing_at(&relay.uri());
    late.until("a record", || record(&cluster, database).is_some());
    is_old.store(true, Ordering::SeqCst);
    must(&reply(&builder, database, &create([unique_email()])));
    let past = doc! { "_id": 1, "region": "a", "name": "n", "email": "x" };
    must(
        &cluster
            .run(database, doc! { "insert": "users", "documents": [past] })
            .unwrap(),
    );
    late.until("the audit for the first constraint", || {
        is_reserved(&cluster, database, "name_1")
    });
    let before = record(&cluster, database);
    late.until("a record behind the document", || record(&cluster, database) != before);
    assert!(!late.log().contains("users.email_1"), "{}", late.log());

    let auditor = applies(late, &cluster, &is_old);
    auditor.until("the audit for the second constraint", || {
        is_reserved(&cluster, database, "email_1")
    });
    assert_first_is_held(&builder, database);
}

#[test]
fn an_auditor_that_applies_a_constraint_late_audits_what_it_has_passed() {
    assert_audited_for_both("created_and_audited_late", |late, _, is_old| {
        is_old.store(false, Ordering::SeqCst);
        late
    });
}

#[test]
fn an_auditor_trusts_no_record_for_constraints_that_it_lacks() {
    assert_audited_for_both("created_and_audited_by_two", |late, cluster, _| {
        late.stop();
        auditing_at(&cluster.uri())
    });
}
