//! A batch takes longer than Keyward lets one statement take: each statement has its own time.

use std::time::{Duration, Instant};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use testbed::ReplicaSet;
use testkit::Keyward;
use testkit::wire::send;

/// Makes the minute of a statement this time.
const HASTE: [(&str, &str); 1] = [("KEYWARD_STATEMENTS_HASTE", "4")];
const LIMIT: Duration = Duration::from_secs(15);
/// How long each of two statements waits: together longer than the limit.
const WAIT: Duration = Duration::from_secs(9);

/// A client's transaction that holds a key.
struct Holder<'k> {
    keyward: &'k Keyward,
    transaction: Document,
}

impl<'k> Holder<'k> {
    fn of(keyward: &'k Keyward, database: &str, id: i32, email: &str) -> Holder<'k> {
        let bytes = rand::random::<[u8; 16]>().to_vec();
        let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
        let transaction = doc! { "lsid": lsid, "txnNumber": 1_i64, "autocommit": false };
        let document = doc! { "_id": id, "email": email };
        let mut insert = doc! { "insert": "users", "documents": [document], "startTransaction": true };
        insert.extend(transaction.clone());
        keyward.run(database, insert).unwrap();
        Holder { keyward, transaction }
    }

    fn abort(self) {
        let mut abort = doc! { "abortTransaction": 1 };
        abort.extend(self.transaction);
        self.keyward.run("admin", abort).unwrap();
    }
}

#[test]
fn each_statement_of_a_batch_has_its_own_time() {
    let (set, database) = (ReplicaSet::shared(), "long_batch");
    let constraint = format!("{{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}");
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: [{constraint}]\n", set.uri());
    let keyward = Keyward::of_in(&settings, &HASTE);
    for id in 1..3 {
        keyward
            .run(
                database,
                doc! { "insert": "users", "documents": [{ "_id": id, "email": id.to_string() }] },
            )
            .unwrap();
    }
    let [first, second] = [(11, "first"), (12, "second")].map(|(id, email)| Holder::of(&keyward, database, id, email));
    let set_email = |id: i32, email: &str| doc! { "q": { "_id": id }, "u": { "$set": { "email": email } } };
    let batch = doc! { "update": "users", "updates": [set_email(1, "first"), set_email(2, "second")] };
    let begun = Instant::now();
    let reply = std::thread::scope(|scope| {
        let sent = scope.spawn(|| send(&keyward.address, database, batch).unwrap());
        for holder in [first, second] {
            // The time itself is tested.
            std::thread::sleep(WAIT);
            holder.abort();
        }
        sent.join().unwrap()
    });
    assert!(begun.elapsed() > LIMIT);
    assert_eq!(reply.get_i32("nModified").ok(), Some(2), "{reply}");
}
