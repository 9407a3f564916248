//! A driver's retry while no server says whether the first try took effect: it is neither refused nor counted as done.

use bson::{Bson, Document, doc};
use testbed::Cluster;
use testbed::fail_point::FailPoint;

use crate::both::retries::retryable;
use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users_on};
use testkit::comparable;
use testkit::wire::send;

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email }
}

/// Makes every shard answer `command` on the protected collection in this way.
fn failing(cluster: &Cluster, database: &str, command: &str, how: &Document) -> Vec<FailPoint> {
    let mut data = doc! { "failCommands": [command], "namespace": format!("{database}.users") };
    data.extend(how.clone());
    let fail = |shard: &testbed::ReplicaSet| shard.fail_point("failCommand", "alwaysOn", data.clone()).unwrap();
    cluster.shards().iter().map(fail).collect()
}

/// The answers that leave everything open: there is no primary, it is about to go, or no majority has the write.
fn unsure() -> [Document; 3] {
    let no_majority = doc! { "code": 64, "errmsg": "no majority", "codeName": "WriteConcernFailed" };
    [
        doc! { "errorCode": 10_107 },
        doc! { "errorCode": 91 },
        doc! { "writeConcernError": no_majority },
    ]
}

fn assert_in_doubt(reply: &Document, how: &Document) {
    assert_eq!(reply.get_f64("ok").ok(), Some(0.0), "{how}: {reply}");
    assert_ne!(reply.get_i32("code").ok(), Some(11_000), "{how}: {reply}");
    let label = Bson::from("RetryableWriteError");
    let labels = reply.get_array("errorLabels").cloned().unwrap_or_default();
    assert!(labels.contains(&label), "{how}: {reply}");
}

/// Since the first try, the document has got another address, and a new document has its former one.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_insert_is_no_duplicate_as_long_as_its_first_try_is_unknown() {
    let database = "unanswered_insert";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let run = |command: &Document| send(&keyward.address, database, command.clone()).unwrap();
    for (number, how) in (0..).zip(unsure()) {
        let (id, email) = (10 * number, format!("{number}@x"));
        let first = retryable(insert(vec![user(id, &email)], true), 1);
        assert_eq!(run(&first).get_i32("n").ok(), Some(1));
        let renamed = doc! { "q": { "_id": id }, "u": { "$set": { "email": format!("was {email}") } } };
        run(&doc! { "update": "users", "updates": [renamed] });
        assert_eq!(
            run(&insert(vec![user(id + 1, &email)], true)).get_i32("n").ok(),
            Some(1)
        );
        let unsure = failing(cluster, database, "delete", &how);
        assert_in_doubt(&run(&first), &how);
        drop(unsure);
        let known = doc! { "n": 1, "retriedStmtIds": [0], "ok": 1.0 };
        assert_eq!(comparable(run(&first)), known, "{how}");
    }
    assert_agreement(cluster, database, "email").await;
}

/// The same for a statement in place.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_update_is_no_duplicate_as_long_as_its_first_try_is_unknown() {
    let database = "unanswered_update";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let run = |command: &Document| send(&keyward.address, database, command.clone()).unwrap();
    let rename = |id: i32, email: &str| {
        let query = user(id, "");
        let query = doc! { "_id": id, "region": query.get_str("region").unwrap() };
        doc! { "update": "users", "updates": [{ "q": query, "u": { "$set": { "email": email } } }] }
    };
    for (number, how) in (0..).zip(&unsure()[..2]) {
        let (id, email) = (10 * number, format!("{number}@x"));
        run(&insert(vec![user(id, &format!("first {email}"))], true));
        let first = retryable(rename(id, &email), 1);
        assert_eq!(run(&first).get_i32("nModified").ok(), Some(1));
        assert_eq!(
            run(&rename(id, &format!("was {email}"))).get_i32("nModified").ok(),
            Some(1)
        );
        assert_eq!(
            run(&insert(vec![user(id + 1, &email)], true)).get_i32("n").ok(),
            Some(1)
        );
        let unsure = failing(cluster, database, "update", how);
        assert_in_doubt(&run(&first), how);
        drop(unsure);
        let known = run(&first);
        assert_eq!(known.get_i32("nModified").ok(), Some(1), "{known}");
        assert!(known.contains_key("retriedStmtIds"), "{known}");
    }
    assert_agreement(cluster, database, "email").await;
}
