//! A commit whose reply is lost: the driver's retry finds in the record what has taken effect.

use bson::{Binary, doc, spec::BinarySubtype};

use crate::forwarder::{Forwarder, send};
use crate::retries::{behind, lose_this_and_retry};
use crate::{EMAIL, insert, keyward, users, write_errors};

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_effect_once_through_the_same_keyward_or_another() {
    for (database, is_other) in [("lost_commit", false), ("lost_commit_other", true)] {
        let cluster = users(database);
        let forwarder = Forwarder::start(cluster.router_address());
        let first = behind(&forwarder, database);
        let other = keyward(cluster, database, "60s", &[EMAIL]);
        let retry = if is_other { &other } else { &first };
        let addresses = [first.address.as_str(), &retry.address];
        let commit = b"\x10commitTransaction\0".to_vec();
        lose_this_and_retry(cluster, database, addresses, &forwarder, commit).await;
    }
}

/// The record is read in the session of the command's first try: while that one is still at work, the server may call the
/// read's number too old. It is read again, and the client never hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_at_once_is_read_again() {
    const TRANSACTION_TOO_OLD: i32 = 225;
    let database = "record_again";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let user = |id: i32| doc! { "_id": id, "region": "a", "email": "a@x" };
    send(&keyward.address, database, insert(vec![user(1)], true)).unwrap();
    let refused = doc! {
        "errorCode": TRANSACTION_TOO_OLD, "failCommands": ["find"], "namespace": format!("{database}.keyward.results"),
    };
    let once = || doc! { "times": 1 };
    let _points: Vec<_> = cluster
        .shards()
        .iter()
        .map(|shard| shard.fail_point("failCommand", once(), refused.clone()).unwrap())
        .collect();
    let mut duplicate = insert(vec![user(2)], true);
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let subtype = BinarySubtype::Uuid;
    duplicate.extend(doc! { "lsid": { "id": Binary { subtype, bytes } }, "txnNumber": 1_i64 });
    let reply = send(&keyward.address, database, duplicate).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
}
