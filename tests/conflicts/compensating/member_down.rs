//! A client's transaction that a killed Keyward left open, while a secondary of its shard is down. A router sends `killSessions` to every
//! member, so the command fails.

use testbed::Cluster;
use testkit::relay::Relay;
use testkit::wire::send;

use crate::both::retries::behind;
use crate::compensating::unfinished::{begin, commit, is_told_to_begin_anew, router_that_loses_aborts, take, user};
use crate::compensating::{assert_agreement, insert};
use crate::strategy::Strategy;

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_after_a_restart_is_decided_by_the_primaries() {
    let database = "member_down";
    let cluster = Cluster::builder().shards(1).replicas(3).start().unwrap();
    let router = router_that_loses_aborts(&cluster);
    let start = || behind(Strategy::Compensating, &Relay::start(router.address()), database);
    let first = start();
    let transaction = begin(&first.address, database);
    let reply = send(&first.address, database, take("c@x", &transaction)).unwrap();
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    let shard = &cluster.shards()[0];
    let primary = shard.wait_for_primary().unwrap().address();
    let secondary = shard.members().iter().find(|member| member.address() != primary);
    secondary.unwrap().kill().unwrap();
    drop(first);
    let next = start();
    for _ in 0..2 {
        is_told_to_begin_anew(&commit(&next.address, &transaction));
    }
    // The transaction holds it no more, and the user 2 didn't get it.
    let reply = send(&next.address, database, insert(vec![user(3, "c@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    assert_agreement(&cluster, database, "email").await;
}
