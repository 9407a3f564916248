//! Documents that are there and taken in, and change between being read and being reserved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use keyward::catalog::Protected;
use keyward::claims::{Candidate, InFlight};
use keyward::metrics::Metrics;
use keyward::prepare::{Outcome, prepared, take_in};
use keyward::raw::Doc;
use keyward::reservation::Token;
use testbed::Cluster;

use crate::support::{Keyward, run};
use crate::trial::email;
use crate::{EMAIL, assert_agreement, insert, keyward, users};

/// So long a reservation is in flight: longer than the tests wait for anything.
const LEASE: Duration = Duration::from_secs(60);

/// A Keyward, and the collection as somebody else sees it who takes in what is there.
async fn beside(database: &str) -> (&'static Cluster, Keyward, Protected) {
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let constraints = [Arc::new(email(database))];
    let metrics = Metrics::new(&constraints);
    let protected = prepared(&cluster.client(), &constraints, LEASE, &metrics)
        .await
        .unwrap();
    (cluster, keyward, protected.into_iter().next().unwrap())
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

/// What becomes of the document's keys, as it was read.
async fn taken_in(protected: &Protected, document: &Document) -> Vec<Outcome> {
    let under_way = InFlight::default().begin();
    let attempt = under_way.attempt();
    let token = Token {
        attempt,
        position: 0,
        operation: None,
    };
    let bytes = document.to_vec().unwrap();
    let wanted = Candidate::one_for_each_key(protected, 0, token, Doc::new(&bytes).unwrap()).unwrap();
    let outcomes = take_in(protected, LEASE, attempt, wanted).await.unwrap();
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

async fn changes_its_address(keyward: &Keyward, database: &str, id: i32, to: &str) {
    let update = doc! { "q": { "_id": id, "region": "a" }, "u": { "$set": { "email": to } } };
    let reply = run(
        &keyward.client().await,
        database,
        doc! { "update": "users", "updates": [update] },
    )
    .await;
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_key_that_its_document_had_given_up_when_it_was_reserved() {
    let database = "given_up_reserved";
    let (cluster, keyward, protected) = beside(database).await;
    let client = keyward.client().await;
    let read = user(1, "a@x");
    run(&client, database, insert(vec![read.clone()], true)).await;
    changes_its_address(&keyward, database, 1, "b@x").await;
    assert_eq!(taken_in(&protected, &read).await, [Outcome::Reserved]);
    let began = Instant::now();
    let reply = run(&client, database, insert(vec![user(2, "a@x")], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_its_document_has_given_up_is_no_duplicate() {
    let database = "given_up_wanted";
    let (cluster, keyward, protected) = beside(database).await;
    let client = keyward.client().await;
    let read = user(1, "a@x");
    run(&client, database, insert(vec![read.clone()], true)).await;
    changes_its_address(&keyward, database, 1, "b@x").await;
    run(&client, database, insert(vec![user(2, "a@x")], true)).await;
    assert_eq!(taken_in(&protected, &read).await, [Outcome::Gone]);
    assert_agreement(cluster, database, "email").await;
    // One that does hold it is one.
    let third = user(3, "a@x");
    run(&cluster.client(), database, insert(vec![third.clone()], true)).await;
    let outcomes = taken_in(&protected, &third).await;
    assert!(matches!(&outcomes[..], [Outcome::Duplicate(_)]), "{outcomes:?}");
}
