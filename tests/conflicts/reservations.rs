//! The store of reservations itself: what makes a takeover or a release miss, and what makes it fail.

use bson::{RawBson, doc};
use keyward::proxy_collection::{Owner, Reserved, TakenOver};
use keyward::reservation::{AttemptId, Token};

use crate::trial::store_of_email;
use crate::{EMAIL, failing, keyward, users};

fn owner(id: i32) -> Owner {
    Owner {
        id: RawBson::Int32(id),
        route: None,
    }
}

fn token() -> Token {
    Token {
        attempt: AttemptId(rand::random()),
        position: 0,
        operation: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_misses_what_was_reserved_again_under_the_same_token() {
    let database = "reserved_again";
    let cluster = users(database);
    let _keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let (proxy, key) = store_of_email(database);
    let (first, other) = (token(), token());
    assert_eq!(
        proxy.reserve(&[(&key, &owner(1), first)]).await.unwrap(),
        [Reserved::Written]
    );
    let seen = proxy.read(&[&key]).await.unwrap().remove(0).unwrap().reservation;
    proxy.release(&[(&key, first)]).await.unwrap();
    assert_eq!(
        proxy.reserve(&[(&key, &owner(1), first)]).await.unwrap(),
        [Reserved::Written]
    );
    let taken = proxy.take_over(&key, &seen, &owner(2), other).await.unwrap();
    assert_eq!(taken, TakenOver::Changed);
    let now = proxy.read(&[&key]).await.unwrap().remove(0).unwrap().reservation;
    let taken = proxy.take_over(&key, &now, &owner(2), other).await.unwrap();
    assert_eq!(taken, TakenOver::Done);
    // Its reservation is somebody else's by now.
    proxy.release(&[(&key, first)]).await.unwrap();
    assert_eq!(crate::reservations(cluster, database, "email").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_shard_refuses_is_an_error() {
    let _alone = failing::ALONE.lock().await;
    let database = "not_released";
    let cluster = users(database);
    let _keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let (proxy, key) = store_of_email(database);
    let token = token();
    proxy.reserve(&[(&key, &owner(1), token)]).await.unwrap();
    let namespace = format!("{database}.keyward.users.email_1");
    let how = doc! { "failCommands": ["delete"], "namespace": namespace, "errorCode": 202 };
    let fail = |shard: &testbed::ReplicaSet| shard.fail_point("failCommand", "alwaysOn", how.clone()).unwrap();
    let refused: Vec<_> = cluster.shards().iter().map(fail).collect();
    assert!(proxy.release(&[(&key, token)]).await.is_err());
    drop(refused);
    proxy.release(&[(&key, token)]).await.unwrap();
    assert_eq!(crate::reservations(cluster, database, "email").await.len(), 0);
}
