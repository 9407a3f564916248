//! The store of reservations itself: what makes a takeover or a release miss, and what makes it fail.

use std::time::Duration;

use bson::{Binary, RawBson, doc, rawdoc, spec::BinarySubtype};
use keyward::proxy_collection::{Owner, ReservationVersion, Reserved, TakenOver};
use keyward::reservation::{Scope, Token, WriteId};

use crate::both::abandoned::{Abandoned, NOW};
use crate::both::retries::behind;
use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users, users_on, write_errors};
use crate::strategy::Strategy;
use crate::trial::store_of_email;
use testbed::Cluster;
use testkit::relay::Relay;
use testkit::relay::wait_until;
use testkit::wire::send;
use testkit::{on_each_shard, run};

fn owner(id: i32) -> Owner {
    Owner {
        id: RawBson::Int32(id),
        route: None,
    }
}

fn token() -> Token {
    Token {
        write: WriteId(rand::random()),
        position: 0,
        retry_id: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_misses_what_was_reserved_again_under_the_same_token() {
    let database = "reserved_again";
    let cluster = users(database);
    let _keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let (proxy, key) = store_of_email(cluster, database);
    let (first, other) = (token(), token());
    assert_eq!(
        proxy.reserve(&[(&key, &owner(1), first.into())]).await.unwrap(),
        [Reserved::Written]
    );
    let seen = proxy.read(&[&key]).await.unwrap().remove(0).unwrap();
    proxy.release_by_token(&[(&key, first)]).await.unwrap();
    assert_eq!(
        proxy.reserve(&[(&key, &owner(1), first.into())]).await.unwrap(),
        [Reserved::Written]
    );
    let taken = proxy.take_over(&key, &seen, &owner(2), other).await.unwrap();
    assert_eq!(taken, TakenOver::Changed);
    let now = proxy.read(&[&key]).await.unwrap().remove(0).unwrap();
    let taken = proxy.take_over(&key, &now, &owner(2), other).await.unwrap();
    assert_eq!(taken, TakenOver::Done);
    // Its reservation is somebody else's by now.
    proxy.release_by_token(&[(&key, first)]).await.unwrap();
    assert_eq!(crate::trial::reservations(cluster, database, "email").await.len(), 1);
}

/// A document with the owner's `_id` on another shard is another document. Nor is its shard asked, so a refusal there doesn't matter.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_along_the_route_reads_the_owners_shard_only() {
    let database = "along_the_route";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let _keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let (proxy, key) = store_of_email(cluster, database);
    let same_id = insert(vec![doc! { "_id": 1, "region": "z", "email": "a@x" }], true);
    cluster.run(database, same_id).unwrap();
    let owner = Owner {
        route: Some(rawdoc! { "region": "a" }),
        ..owner(1)
    };
    let pairs = [(&key, &owner)];
    assert_eq!(proxy.look_up(&pairs, Scope::Everywhere).await.unwrap(), [true]);
    assert_eq!(proxy.look_up(&pairs, Scope::Route).await.unwrap(), [false]);

    let documents = on_each_shard(cluster.shards(), database, "users").await;
    let elsewhere = documents.iter().position(|here| here.len() == 1).unwrap();
    let how = doc! {
        "failCommands": ["find"], "namespace": format!("{database}.users"), "errorCode": 202, "failInternalCommands": true,
    };
    let _refused = cluster.shards()[elsewhere]
        .fail_point("failCommand", "alwaysOn", how)
        .unwrap();
    assert_eq!(proxy.look_up(&pairs, Scope::Route).await.unwrap(), [false]);
    assert!(proxy.look_up(&pairs, Scope::Everywhere).await.is_err());
}

/// Another Keyward may not know yet that a field belongs to the shard key, and forward a change of it. The document then goes from the one
/// shard, which the read of all shards asks last, to the other, which it has asked.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_moves_while_it_is_looked_up_is_found() {
    let database = "moves_meanwhile";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let _keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let (proxy, key) = store_of_email(cluster, database);
    let user = insert(vec![doc! { "_id": 1, "region": "a", "email": "a@x" }], true);
    cluster.run(database, user).unwrap();
    let documents = on_each_shard(cluster.shards(), database, "users").await;
    let [source, target] = [1, 0].map(|count| {
        let position = documents.iter().position(|here| here.len() == count).unwrap();
        &cluster.shards()[position]
    });
    target.run(database, doc! { "profile": 2 }).unwrap();
    let held_up = doc! { "nss": format!("{database}.users"), "shouldCheckForInterrupt": true };
    let held_up = source
        .fail_point("waitInFindBeforeMakingBatch", "alwaysOn", held_up)
        .unwrap();
    let owner = owner(1);
    let looked_up = async { proxy.look_up(&[(&key, &owner)], Scope::Linearizable).await.unwrap() };
    let moves = async {
        let is_asked = || {
            let seen =
                doc! { "find": "system.profile", "filter": { "ns": format!("{database}.users"), "op": "query" } };
            let seen = target.run(database, seen).unwrap();
            !seen
                .get_document("cursor")
                .unwrap()
                .get_array("firstBatch")
                .unwrap()
                .is_empty()
        };
        let patience = std::time::Instant::now() + Duration::from_secs(60);
        while !is_asked() {
            assert!(
                std::time::Instant::now() < patience,
                "the shard without the document isn't asked"
            );
            tokio::task::yield_now().await;
        }
        let to_the_other = doc! { "q": { "_id": 1, "region": "a" }, "u": { "$set": { "region": "z" } } };
        let bytes = rand::random::<[u8; 16]>().to_vec();
        let session = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
        let update = doc! { "update": "users", "updates": [to_the_other], "lsid": session, "txnNumber": 1_i64 };
        let reply = cluster.run(database, update).unwrap();
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
        drop(held_up);
    };
    let (held, ()) = tokio::join!(looked_up, moves);
    assert_eq!(held, [true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_shard_refuses_is_an_error() {
    let database = "not_released";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let _keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let (proxy, key) = store_of_email(cluster, database);
    let token = token();
    proxy.reserve(&[(&key, &owner(1), token.into())]).await.unwrap();
    let namespace = format!("{database}.keyward.users.email_1");
    let how = doc! { "failCommands": ["delete"], "namespace": namespace, "errorCode": 202 };
    let fail = |shard: &testbed::ReplicaSet| shard.fail_point("failCommand", "alwaysOn", how.clone()).unwrap();
    let refused: Vec<_> = cluster.shards().iter().map(fail).collect();
    assert!(proxy.release_by_token(&[(&key, token)]).await.is_err());
    drop(refused);
    proxy.release_by_token(&[(&key, token)]).await.unwrap();
    assert_eq!(crate::trial::reservations(cluster, database, "email").await.len(), 0);
}

/// A deletion that comes late, say, because a router gave it up by its own clock and it was sent again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_of_one_beginning_leaves_the_next_one_alone() {
    let database = "next_beginning";
    let cluster = users(database);
    let _keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let (proxy, key) = store_of_email(cluster, database);
    let token = token();
    let mark = |generation| ReservationVersion {
        generation,
        ..token.into()
    };
    for generation in 0..3 {
        let reserved = proxy.reserve(&[(&key, &owner(1), mark(generation))]).await.unwrap();
        assert_eq!(reserved, [Reserved::Written]);
        for other in (0..4).filter(|other| *other != generation) {
            proxy.release_by_version(&[(&key, mark(other))]).await.unwrap();
        }
        assert_eq!(crate::trial::reservations(cluster, database, "email").await.len(), 1);
        proxy.release_by_version(&[(&key, mark(generation))]).await.unwrap();
        assert_eq!(crate::trial::reservations(cluster, database, "email").await.len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_claims_again_what_it_gave_back_says_so_in_the_reservation() {
    let database = "begun_again";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "4s", &[EMAIL]);
    let mut abandoned = Abandoned::of("a@x", NOW);
    abandoned.lease = Duration::from_secs(4);
    abandoned.write(cluster, database).await;
    let both = doc! { "_id": 1, "region": "a", "email": ["0@x", "a@x"] };
    let reply = run(&keyward.client().await, database, insert(vec![both], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let reservations = crate::trial::reservations(cluster, database, "email").await;
    let beginnings = reservations
        .iter()
        .map(|reservation| reservation.get_i64("beginning").unwrap_or(0));
    assert!(beginnings.max() > Some(0), "{reservations:?}");
}

/// The reply to a reservation is lost, so it is written once more, and found to be there: it is the attempt's own, of which
/// nothing was forwarded before, and no write that is on its way needs it.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_attempt_finds_to_be_its_own_is_given_back() {
    let database = "found_own";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = behind(Strategy::Compensating, &forwarder, database);
    let validator = doc! { "collMod": "users", "validator": { "email": { "$ne": "refused@x" } } };
    cluster.run(database, validator).unwrap();
    let is_lost = forwarder.lose_reply_to_insert("keyward.users.email_1");
    let user = doc! { "_id": 1, "region": "a", "email": "refused@x" };
    let reply = send(&keyward.address, database, insert(vec![user], true)).unwrap();
    assert_eq!(write_errors(&reply), [(0, 121)], "{reply}");
    wait_until(&is_lost);
    assert_agreement(cluster, database, "email").await;
}
