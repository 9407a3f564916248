//! A constraint comes while a transaction is prepared on a shard and undecided: nobody knows how long it stays so.

use bson::{Document, doc};
use testbed::{Cluster, Prepared, ReplicaSet};

use testkit::keyward::Keyward;

/// What it writes was decided before the constraint came, so nothing of it is reserved. A read that passes it by would miss its
/// document.
#[test]
fn a_constraint_is_not_enforced_past_a_transaction_that_is_prepared() {
    let database = "prepared_meanwhile";
    let cluster = Cluster::start().unwrap();
    let settings = |constraints: &str| {
        format!(
            "upstream: {}\nlease: 2s\nreload_interval: 0s\n{constraints}\n",
            cluster.uri()
        )
    };
    let (without, with) = (
        settings("constraints: []"),
        settings(&format!(
            "constraints:\n  - {{ collection: {database}.users, key: {{ phone: 1 }} }}"
        )),
    );
    let keyward = Keyward::of(&without);
    let user = |id: i32| doc! { "_id": id, "phone": "1" };
    keyward.insert(database, user(2)).unwrap();
    let holds_it = |shard: &&ReplicaSet| {
        let count: Document = shard.run(database, doc! { "count": "users" }).unwrap();
        count.get_i32("n").unwrap() == 1
    };
    let shard = cluster.shards().iter().find(holds_it).unwrap();
    let undecided = Prepared::insert(shard, database, "users", user(1)).unwrap();
    keyward.rewrite(&with);
    keyward.send(nix::sys::signal::Signal::SIGHUP);
    let namespace = format!("{database}.users");
    keyward.until("the wait, or a reload", || {
        keyward.count_reloads() > 0 || Prepared::is_waited_for(shard, &namespace).unwrap()
    });
    assert_eq!(keyward.count_reloads(), 0, "{}", keyward.get("/reload"));
    undecided.commit().unwrap();
    let outcome = keyward.reloaded_after(0);
    assert_eq!(outcome["outcome"], "refused", "{outcome}");
    let error = outcome["error"].as_str().unwrap();
    assert!(
        error.contains("1 document of prepared_meanwhile.users violates"),
        "{outcome}"
    );
}
