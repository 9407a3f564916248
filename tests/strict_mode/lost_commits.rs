//! A commit whose reply is lost: the driver's retry finds in the record what has taken effect.

use crate::forwarder::Forwarder;
use crate::retries::{behind, lose_this_and_retry};
use crate::{EMAIL, keyward, users};

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
