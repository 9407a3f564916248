//! A client's transaction that only seems to be one that Keyward has seen: it began again elsewhere after an error, or its session is of
//! another kind. Keyward commits nothing of it.

use bson::{Binary, Document, doc, spec::BinarySubtype};
use keyward::server::own_session::derived_session;
use testbed::ReplicaSet;
use testkit::Keyward;
use testkit::wire::send;

use crate::compensating::unfinished::{begin, commit, is_told_to_begin_anew, take, user};
use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users};

/// A command of the transaction.
fn within(transaction: &Document, mut command: Document) -> Document {
    command.extend(transaction.clone());
    command
}

/// A shard lets the number of an aborted transaction start again. The routers tell each other nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_ended_at_an_error_and_began_again_elsewhere_is_not_committed() {
    let database = "restarted_elsewhere";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let elsewhere = cluster.another_router().unwrap();
    let mut transaction = begin(&keyward.address, database);
    let of_2 = doc! { "_id": 2, "region": "a" };
    // An address is no number.
    let query = doc! { "region": "a", "$expr": { "$eq": [{ "$toInt": "$email" }, 1] } };
    let change = doc! { "q": &query, "u": { "$set": { "email": "c@x" } } };
    let [protected, other] = ["users", "others"].map(|name| doc! { "ns": format!("{database}.{name}") });
    let operations = [
        doc! { "update": 0, "filter": &of_2, "updateMods": { "$set": { "n": 1 } } },
        doc! { "insert": 1, "document": { "_id": 1 } },
    ];
    let first = doc! { "insert": "others", "documents": [{ "_id": 1 }] };
    send(&cluster.router_address(), database, first).unwrap();
    let failing = [
        // Forwarded, and carried out by Keyward, which reads the documents first.
        (database, doc! { "find": "users", "filter": &query }),
        (database, doc! { "update": "users", "updates": [change] }),
        // Its last part is forwarded.
        (
            "admin",
            doc! { "bulkWrite": 1, "ops": operations, "nsInfo": [protected, other] },
        ),
    ];
    for (number, (to, failing)) in (1_i64..).zip(failing) {
        transaction.insert("txnNumber", number);
        let first = doc! { "find": "users", "filter": &of_2, "startTransaction": true };
        let reply = send(&keyward.address, database, within(&transaction, first)).unwrap();
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        let reply = send(&keyward.address, to, within(&transaction, failing)).unwrap();
        let has_failed = reply.contains_key("code") || reply.contains_key("writeErrors");
        assert!(
            has_failed || reply.get_i32("nErrors").is_ok_and(|errors| errors > 0),
            "{reply}"
        );
        // The part of the `bulkWrite` before the one that fails.
        assert!(to == database || reply.get_i32("nModified").ok() == Some(1), "{reply}");
        // As another Keyward leaves it between a statement and its reservations.
        let reply = send(&elsewhere.address(), database, take("a@x", &transaction)).unwrap();
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
        is_told_to_begin_anew(&commit(&keyward.address, &transaction));
        assert_agreement(cluster, database, "email").await;
    }
}

/// A command in such a session is refused. Where there are no logins, a server accepts another user's session from everyone.
#[test]
fn a_session_of_another_kind_is_not_taken_for_the_clients() {
    let database = "restarted_other_session";
    let set = ReplicaSet::shared();
    let primary = set.primary().unwrap().address();
    let keyward = Keyward::start_with_lease(&set.uri(), "60s", &EMAIL.replace("DB", database));
    let transaction = begin(&keyward.address, database);
    let (bytes, id) = {
        let lsid = transaction.get_document("lsid").unwrap();
        let Some(bson::Bson::Binary(id)) = lsid.get("id") else {
            panic!("{lsid}")
        };
        (<[u8; 16]>::try_from(&id.bytes[..]).unwrap(), id.clone())
    };
    let uuid = |bytes: [u8; 16]| Binary {
        subtype: BinarySubtype::Uuid,
        bytes: bytes.to_vec(),
    };
    let uid = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![7; 32],
    };
    let of_session = |lsid: Document| {
        let mut fields = transaction.clone();
        fields.insert("lsid", lsid);
        fields
    };
    let of_another_user = of_session(doc! { "id": &id, "uid": uid });
    // As another Keyward leaves it between a statement and its reservations.
    let reply = send(&primary, database, take("a@x", &of_another_user)).unwrap();
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    // The client's own transaction of the same number.
    let first = doc! { "find": "users", "startTransaction": true };
    let reply = send(&keyward.address, database, within(&transaction, first.clone())).unwrap();
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    for other in [
        of_another_user.clone(),
        of_session(doc! { "id": &id, "txnUUID": uuid([8; 16]) }),
        of_session(doc! { "id": uuid(derived_session(&bytes)) }),
    ] {
        let mut retryable = insert(vec![user(3, "c@x")], true);
        for field in ["lsid", "txnNumber"] {
            retryable.insert(field, other.get(field).unwrap().clone());
        }
        for command in [within(&other, first.clone()), take("c@x", &other), retryable] {
            let reply = send(&keyward.address, database, command).unwrap();
            assert_eq!(reply.get_i32("code").ok(), Some(72), "{reply}");
        }
        let reply = commit(&keyward.address, &other);
        assert_eq!(reply.get_i32("code").ok(), Some(72), "{reply}");
    }
    let abort = within(&of_another_user, doc! { "abortTransaction": 1 });
    let reply = send(&primary, "admin", abort).unwrap();
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "it was committed: {reply}");
    let reply = commit(&keyward.address, &transaction);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
}
