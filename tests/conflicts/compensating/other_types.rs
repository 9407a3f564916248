//! Between a plain statement's look at its document and its write somebody gives a field another type and an equal value, and
//! the document comes into a filter, or goes out of it.

use bson::{Bson, Document, bson, doc};

use crate::compensating::{keyward, users, write_errors};
use testkit::Keyward;
use testkit::relay::Relay;
use testkit::wire::send;

/// A field that is unique under a filter that `set` changes, where `before` stands.
struct Case {
    field: &'static str,
    filter: Document,
    before: Document,
    set: Document,
}

/// A test of types tells apart what is equal: at the path, in an array, in documents of an array, and in both directions.
fn cases() -> Vec<Case> {
    let symbol = Bson::Symbol("x".to_owned());
    let case = |field, filter, before, set| Case {
        field,
        filter,
        before,
        set,
    };
    vec![
        case(
            "a",
            doc! { "n": { "$type": "int" } },
            doc! { "n": 1.0 },
            doc! { "n": 1 },
        ),
        case(
            "b",
            doc! { "t": { "$type": "int" } },
            doc! { "t": [1_i64] },
            doc! { "t": [1] },
        ),
        case(
            "c",
            doc! { "i.x": { "$type": "symbol" } },
            doc! { "i": [{ "x": "x" }] },
            doc! { "i": [{ "x": symbol }] },
        ),
        case(
            "d",
            doc! { "o.p": { "$type": ["string", "double"] }, "s": "on" },
            doc! { "o": { "p": bson!(0) }, "s": "on" },
            doc! { "o.p": -0.0 },
        ),
    ]
}

/// The one statement gave a document a key that another one held, for Keyward had seen it outside the filter.
#[tokio::test(flavor = "multi_thread")]
async fn an_equal_value_of_another_type_is_another_value_to_a_filter() {
    let database = "other_types";
    let cluster = users(database);
    let constraints: String = cases()
        .iter()
        .map(|Case { field, filter, .. }| {
            format!("  - {{collection: DB.users, key: {{{field}: 1}}, partialFilterExpression: {filter}}}\n")
        })
        .collect();
    let forwarder = Relay::start(cluster.router_address());
    let upstream = format!("mongodb://{}/", forwarder.address);
    let first = Keyward::start_with_lease(&upstream, "60s", &constraints.replace("DB", database));
    let second = keyward(cluster, database, "60s", &[&constraints]);
    for (number, case) in cases().into_iter().enumerate() {
        let (id, field) = (i32::try_from(number).unwrap() * 2, case.field);
        let mut inside = doc! { "_id": id, "region": "a", field: "taken" };
        inside.extend(case.before.clone());
        let mut outside = inside.clone();
        outside.extend(doc! { "_id": id + 1, field: "free" });
        let insert = doc! { "insert": "users", "documents": [inside, outside] };
        assert_eq!(
            send(&second.address, database, insert).unwrap().get_i32("n").unwrap(),
            2
        );
        let update = |id: i32, set: Document| {
            doc! { "update": "users", "updates": [{ "q": { "_id": id, "region": "a" }, "u": { "$set": set } }] }
        };
        let enter = |id: i32| {
            let reply = send(&second.address, database, update(id, case.set.clone())).unwrap();
            assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{field}: {reply}");
        };
        enter(id);
        let held = forwarder.hold(b"$literal");
        let address = first.address.clone();
        let statement = update(id + 1, doc! { field: "taken" });
        let taking = std::thread::spawn(move || send(&address, database, statement).unwrap());
        held.wait();
        enter(id + 1);
        drop(held);
        let reply = taking.join().unwrap();
        assert_eq!(write_errors(&reply), [(0, 11000)], "{field}: {reply}");
        // And out again, before the key is set: nothing is to be left reserved.
        let held = forwarder.hold(b"$literal");
        let address = first.address.clone();
        let statement = update(id + 1, doc! { field: "other" });
        let taking = std::thread::spawn(move || send(&address, database, statement).unwrap());
        held.wait();
        let reply = send(&second.address, database, update(id + 1, case.before.clone())).unwrap();
        assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{field}: {reply}");
        drop(held);
        let reply = taking.join().unwrap();
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{field}: {reply}");
        let reserved = format!("{field}_1");
        let keys = |document: &Document| match document.get_i32("_id").unwrap() == id {
            true => vec![doc! { field: "taken" }],
            false => Vec::new(),
        };
        testkit::assert_documents_and_reservations_agree(cluster, database, "users", &reserved, keys).await;
    }
}
