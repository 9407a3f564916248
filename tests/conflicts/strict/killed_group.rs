//! A group whose documents are on one shard, and whose records are spread over all: the retries of its members need not wait for
//! the server to end what a killed Keyward has left open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use nix::sys::signal::Signal;
use testkit::relay::{Fate, Relay};

use crate::strict::group_commit::{
    CLIENTS, LEFT_OPEN_FOR, assert_all_inserted, patient_behind, send_all, send_behind_the_first,
};
use crate::strict::one_replica_set::retryable;
use crate::strict::{EMAIL, cluster, insert, keyward};

fn until(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_on_other_shards_hold_no_retry_up() {
    let (database, cluster) = ("group_commit_records", cluster());
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    let shard = doc! { "shardCollection": format!("{database}.users"), "key": { "region": 1 } };
    cluster.run("admin", shard).unwrap();
    let [has_come, is_free] = [0, 1].map(|_| Arc::new(AtomicBool::new(false)));
    let judge = {
        let (has_come, is_free) = (Arc::clone(&has_come), Arc::clone(&is_free));
        let last = format!("sign {}\0", CLIENTS - 1).into_bytes();
        move |message: &[u8]| {
            if message.windows(last.len()).any(|bytes| bytes == last) {
                has_come.store(true, SeqCst);
                until(&is_free);
            }
            Fate::Passed
        }
    };
    let forwarder = Relay::judged(cluster.router_address(), judge, |_| Fate::Passed);
    let mut first = patient_behind(&forwarder, "60s", database);
    let second = keyward(cluster, database, "60s", &[EMAIL]);
    let user = |id: i32| {
        let email = format!("{id}@x");
        retryable(insert(
            vec![doc! { "_id": id, "region": "a", "email": email, "sign": format!("sign {id}") }],
            true,
        ))
    };
    let all: Vec<Document> = (0..CLIENTS).map(user).collect();
    thread::scope(|scope| {
        let sent = scope.spawn(|| send_behind_the_first(cluster, &forwarder, &first, database, &all));
        until(&has_come);
        first.send(Signal::SIGKILL);
        sent.join().unwrap();
    });
    first.kill();
    is_free.store(true, SeqCst);
    let again = Instant::now();
    assert_all_inserted(&all, &send_all(&second, database, &all));
    assert!(again.elapsed() < LEFT_OPEN_FOR, "{:?}", again.elapsed());
    crate::trial::assert_agreement(cluster, database, "email").await;
}
