//! Two documents with one `_id` on two shards. One of them has reserved a key that the other one holds without a reservation, as while the
//! documents are read for a new constraint. The loss of that key by the other one frees nothing.

use bson::{Document, doc};
use testkit::Keyward;
use testkit::wire::send;

use crate::strategy::Strategy;
use crate::trial::{insert, keyward, reservations};

on_both_strategies! {
    the_reservation_of_another_document_with_the_id_stays;
}

/// Statements by which the document that `query` names loses its e-mail.
fn losses(query: &Document, email: &str) -> [Document; 5] {
    let update = |u: bson::Bson| doc! { "update": "users", "updates": [{ "q": query, "u": u }] };
    let delete = |limit: i32| doc! { "delete": "users", "deletes": [{ "q": query, "limit": limit }] };
    let other = format!("other-{email}");
    [
        delete(1),
        delete(0),
        update(doc! { "$set": { "email": &other } }.into()),
        update(vec![doc! { "$set": { "email": other } }].into()),
        doc! { "findAndModify": "users", "query": query, "remove": true },
    ]
}

async fn the_reservation_of_another_document_with_the_id_stays(strategy: Strategy) {
    let database = strategy.database("beside_reserved");
    let cluster = strategy.users(database);
    // It lacks the constraint, which therefore isn't enforced.
    let lacking = Keyward::of(&format!("upstream: {}\nlease: 10s\nconstraints: []\n", cluster.uri()));
    let first = doc! { "_id": 100, "region": "a", "email": "first@x" };
    lacking.insert(database, first).unwrap();
    let keyward = keyward(cluster, database, "60s", &[strategy.email()]);
    for n in 0..5_i32 {
        let email = format!("{n}@x");
        let user = |region: &str| doc! { "_id": n, "region": region, "email": &email };
        let reply = send(&keyward.address, database, insert(vec![user("z")], true)).unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
        // As if its write were still on its way.
        let before = doc! { "q": { "_id": n, "region": "z" }, "u": { "$unset": { "email": 1 } } };
        let past = doc! { "update": "users", "updates": [before] };
        assert_eq!(cluster.run(database, past).unwrap().get_i32("nModified").unwrap(), 1);
        let reply = cluster.run(database, insert(vec![user("a")], true)).unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
        let query = doc! { "_id": n, "region": "a" };
        let loss = losses(&query, &email)
            .into_iter()
            .nth(usize::try_from(n).unwrap())
            .unwrap();
        let reply = send(&keyward.address, database, loss.clone()).unwrap();
        assert!(
            reply.get_i32("n").ok() == Some(1) || reply.get_document("lastErrorObject").is_ok(),
            "{loss}: {reply}"
        );
        let reserved = reservations(cluster, database, "email").await;
        let is_it = |reservation: &Document| {
            let key = reservation.get_document("_id").unwrap().get_document("k").unwrap();
            key.get_str("email").ok() == Some(&*email)
        };
        let routes: Vec<&Document> = reserved
            .iter()
            .filter(|one| is_it(one))
            .map(|one| one.get_document("route").unwrap())
            .collect();
        assert_eq!(routes, [&doc! { "region": "z" }], "{loss}");
    }
}
