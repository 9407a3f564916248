//! Documents that are backfilled, and change between being read and being reserved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, RawBson, doc, rawdoc};
use keyward::catalog::Protected;
use keyward::claims::{Candidate, WritesUnderWay};
use keyward::constraint::{Constraint, IndexSpec, Key};
use keyward::metrics::Metrics;
use keyward::namespace::Namespace;
use keyward::prepare::{BackfillOutcome, backfill_documents, prepared};
use keyward::proxy_collection::{Owner, ProxyCollection, Reservation, ReservationVersion, Reserved, TakenOver};
use keyward::raw::Doc;
use keyward::reservation::Token;
use testbed::Cluster;

use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users, users_on, write_errors};
use crate::trial::{email, key_of_email, store_of_email, store_with_lease};
use testkit::{Keyward, run};

/// So long a reservation is in flight: longer than the tests wait for anything.
const LEASE: Duration = Duration::from_secs(60);

/// A Keyward, and the collection as a backfill elsewhere sees it.
async fn beside(database: &str) -> (&'static Cluster, Keyward, Protected) {
    beside_with_lease(database, LEASE).await
}

async fn beside_with_lease(database: &str, lease: Duration) -> (&'static Cluster, Keyward, Protected) {
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let constraints = [Arc::new(email(database))];
    let metrics = Metrics::new(&constraints);
    let protected = prepared(&cluster.client(), &constraints, lease, &metrics)
        .await
        .unwrap();
    (cluster, keyward, protected.into_iter().next().unwrap())
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

/// What becomes of the document's keys, as it was read.
async fn backfilled(protected: &Protected, document: &Document) -> Vec<BackfillOutcome> {
    let under_way = WritesUnderWay::default().begin();
    let write = under_way.id();
    let token = Token {
        write,
        position: 0,
        retry_id: None,
    };
    let bytes = document.to_vec().unwrap();
    let wanted = Candidate::one_for_each_key(protected, 0, token, Doc::new(&bytes).unwrap()).unwrap();
    let outcomes = backfill_documents(protected, write, wanted).await.unwrap();
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

async fn changes(keyward: &Keyward, database: &str, id: i32, to: Document) {
    let update = doc! { "q": { "_id": id, "region": "a" }, "u": { "$set": to } };
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
    changes(&keyward, database, 1, doc! { "email": "b@x" }).await;
    assert_eq!(backfilled(&protected, &read).await, [BackfillOutcome::Reserved]);
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
    changes(&keyward, database, 1, doc! { "email": "b@x" }).await;
    run(&client, database, insert(vec![user(2, "a@x")], true)).await;
    assert_eq!(backfilled(&protected, &read).await, [BackfillOutcome::Gone]);
    assert_agreement(cluster, database, "email").await;
    // One that does hold it is one.
    let third = user(3, "a@x");
    run(&cluster.client(), database, insert(vec![third.clone()], true)).await;
    let outcomes = backfilled(&protected, &third).await;
    assert!(matches!(&outcomes[..], [BackfillOutcome::Duplicate(_)]), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_was_moved_since_it_was_read_is_no_duplicate_of_itself() {
    let database = "moved_since";
    let (cluster, keyward, protected) = beside(database).await;
    let read = user(1, "a@x");
    run(&keyward.client().await, database, insert(vec![read.clone()], true)).await;
    changes(&keyward, database, 1, doc! { "region": "z" }).await;
    assert_eq!(backfilled(&protected, &read).await, [BackfillOutcome::Gone]);
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_itself_makes_its_key_a_duplicate() {
    let database = "of_its_owner";
    let (cluster, _keyward, protected) = beside(database).await;
    let past = cluster.client();
    let first = user(1, "a@x");
    let second = doc! { "_id": 2, "region": "a", "email": ["a@x", "b@x"] };
    run(&past, database, insert(vec![first.clone(), second.clone()], true)).await;
    assert_eq!(backfilled(&protected, &first).await, [BackfillOutcome::Reserved]);
    let outcomes = backfilled(&protected, &second).await;
    assert!(
        matches!(
            &outcomes[..],
            [BackfillOutcome::Reserved, BackfillOutcome::Duplicate(_)]
        ),
        "{outcomes:?}"
    );
    let gone = doc! { "q": { "_id": 1, "region": "a" }, "limit": 1 };
    run(&past, database, doc! { "delete": "users", "deletes": [gone] }).await;
    // Both keys are looked for together now, each with another owner.
    assert_eq!(
        backfilled(&protected, &second).await,
        [BackfillOutcome::Reserved, BackfillOutcome::Reserved]
    );
}

/// A backfill may have found the reservation of the second try, and have counted on it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_inserted_once_more_keeps_the_reservation_that_it_lacked() {
    let database = "inserted_once_more";
    let (cluster, keyward, _) = beside(database).await;
    let there = user(1, "a@x");
    run(&cluster.client(), database, insert(vec![there.clone()], true)).await;
    let client = keyward.client().await;
    let again = run(&client, database, insert(vec![there], true)).await;
    assert_eq!(write_errors(&again), [(0, 11_000)], "{again}");
    let other = run(&client, database, insert(vec![user(2, "a@x")], true)).await;
    assert_eq!(write_errors(&other), [(0, 11_000)], "{other}");
    assert_agreement(cluster, database, "email").await;
}

/// An insert with the `_id` of a document on its shard, and another shard key, is refused late. It has reserved the key that the
/// document lacked, and the backfill has waited for the insert's lease. Then the insert releases the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_backfilled_document_keeps_its_key_when_an_insert_gives_it_up_late() {
    let database = "given_up_late";
    let lease = Duration::from_millis(500);
    let (cluster, keyward, protected) = beside_with_lease(database, lease).await;
    let there = user(1, "a@x");
    run(&cluster.client(), database, insert(vec![there.clone()], true)).await;
    let (store, key) = store_with_lease(cluster, database, lease);
    let elsewhere = Owner {
        id: RawBson::Int32(1),
        route: Some(rawdoc! { "region": "b" }),
    };
    let version = ReservationVersion::from(Token::of(WritesUnderWay::default().begin().id()));
    let reserved = store.reserve(&[(&key, &elsewhere, version)]).await.unwrap();
    assert_eq!(reserved, [Reserved::Written]);
    assert_eq!(backfilled(&protected, &there).await, [BackfillOutcome::Reserved]);
    store.release_by_version(&[(&key, version)]).await.unwrap();
    let other = run(&keyward.client().await, database, insert(vec![user(2, "a@x")], true)).await;
    assert_eq!(write_errors(&other), [(0, 11_000)], "{other}");
    assert_agreement(cluster, database, "email").await;
}

/// The insert of `_id` 1.0 where 1 is: its reservation is the document's.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_another_type_is_no_other_document() {
    let database = "backfilled_types";
    let (cluster, keyward, protected) = beside(database).await;
    let there = user(1, "a@x");
    run(&cluster.client(), database, insert(vec![there.clone()], true)).await;
    let again = doc! { "_id": 1.0, "region": "a", "email": "a@x" };
    let again = run(&keyward.client().await, database, insert(vec![again], true)).await;
    assert_eq!(write_errors(&again), [(0, 11_000)], "{again}");
    assert_eq!(backfilled(&protected, &there).await, [BackfillOutcome::Reserved]);
}

async fn reservation(store: &ProxyCollection, key: &Key) -> Reservation {
    store.read(&[key]).await.unwrap().remove(0).unwrap()
}

/// Somebody judged the reservation that the document has had before, and was held up since. Each time it is found, it gets another token.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_backfill_relies_on_is_not_hit_by_an_earlier_judgement() {
    let database = "judged_earlier";
    let (cluster, keyward, protected) = beside(database).await;
    let client = keyward.client().await;
    let read = user(1, "a@x");
    run(&client, database, insert(vec![read.clone()], true)).await;
    let (store, key) = store_of_email(cluster, database);
    let first = reservation(&store, &key).await;
    let mut seen = first.clone();
    for _ in 0..2 {
        assert_eq!(backfilled(&protected, &read).await, [BackfillOutcome::Reserved]);
        let other = Owner {
            id: RawBson::Int32(2),
            route: None,
        };
        let token = Token::of(WritesUnderWay::default().begin().id());
        let taken = store.take_over(&key, &seen, &other, token).await.unwrap();
        assert_eq!(taken, TakenOver::Changed);
        store.release_seen(&[(&key, &seen)]).await.unwrap();
        store.release_by_token(&[(&key, seen.token)]).await.unwrap();
        let version = ReservationVersion::from(seen.token);
        store.release_by_version(&[(&key, version)]).await.unwrap();
        let now = reservation(&store, &key).await;
        assert_ne!(now.token, seen.token);
        // The attempt that wrote it may be under way.
        assert_eq!((&now.owner, now.at, now.lease), (&first.owner, first.at, LEASE));
        assert_eq!(now.token.retry_id, first.token.retry_id);
        seen = now;
    }
    let other = run(&client, database, insert(vec![user(2, "a@x")], true)).await;
    assert_eq!(write_errors(&other), [(0, 11_000)], "{other}");
    assert_agreement(cluster, database, "email").await;
}

/// A process that stood still amid a backfill, or that audits, may have another definition, by which the owner doesn't hold the key.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_over_by_a_definition_that_was_replaced() {
    let database = "former_definition";
    let (cluster, keyward, protected) = beside(database).await;
    let past = cluster.client();
    run(&past, database, insert(vec![user(1, "a@x")], true)).await;
    // No write of it is on its way, so nobody waits for its lease.
    assert_eq!(
        backfilled(&protected, &user(1, "a@x")).await,
        [BackfillOutcome::Reserved]
    );
    let spec = IndexSpec {
        key: doc! { "email": 1 },
        partial_filter_expression: Some(doc! { "active": true }),
        ..IndexSpec::default()
    };
    let former = [Arc::new(
        Constraint::new(Namespace::new(database, "users"), spec).unwrap(),
    )];
    let former = prepared(&past, &former, LEASE, &Metrics::new(&former)).await.unwrap();
    let second = doc! { "_id": 2, "region": "z", "email": "a@x", "active": true };
    run(&past, database, insert(vec![second.clone()], true)).await;
    let (write, bytes) = (WritesUnderWay::default().begin().id(), second.to_vec().unwrap());
    let wanted = Candidate::one_for_each_key(&former[0], 0, Token::of(write), Doc::new(&bytes).unwrap()).unwrap();
    assert!(backfill_documents(&former[0], write, wanted).await.is_err());
    let (store, key) = store_of_email(cluster, database);
    assert_eq!(reservation(&store, &key).await.owner.id, RawBson::Int32(1));
    let other = run(&keyward.client().await, database, insert(vec![user(3, "a@x")], true)).await;
    assert_eq!(write_errors(&other), [(0, 11_000)], "{other}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_reservations_are_renewed_together_and_the_changed_ones_are_named() {
    let database = "renewed_together";
    let (cluster, keyward, protected) = beside(database).await;
    let emails: Vec<String> = (0..1_100).map(|number| format!("{number}@x")).collect();
    let read = doc! { "_id": 1, "region": "a", "email": &emails };
    run(&keyward.client().await, database, insert(vec![read.clone()], true)).await;
    let (store, _) = store_of_email(cluster, database);
    let keys: Vec<Key> = emails.iter().map(|email| key_of_email(email, database)).collect();
    let keys: Vec<&Key> = keys.iter().collect();
    let read_all = async || -> Vec<Reservation> { store.read(&keys).await.unwrap().into_iter().flatten().collect() };
    let before = read_all().await;
    let outcomes = backfilled(&protected, &read).await;
    assert_eq!(outcomes, vec![BackfillOutcome::Reserved; emails.len()]);
    let mut seen = read_all().await;
    for (before, now) in before.iter().zip(&seen) {
        assert_ne!(before.token, now.token);
    }
    // One has changed since it was seen.
    seen[7] = before[7].clone();
    let pairs: Vec<_> = keys.iter().copied().zip(&seen).collect();
    let renewed = store.renew(&pairs).await.unwrap();
    let missed: Vec<usize> = (0..renewed.len()).filter(|index| !renewed[*index]).collect();
    assert_eq!(missed, [7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_an_open_transaction_has_changed_is_renewed_after_it() {
    let database = "renewed_after";
    // An open transaction would hold up others' tests.
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    for (id, email) in [(1, "a@x"), (2, "b@x")] {
        keyward.insert(database, user(id, email)).unwrap();
    }
    let (store, first) = store_of_email(cluster, database);
    let second = key_of_email("b@x", database);
    let seen = [reservation(&store, &first).await, reservation(&store, &second).await];
    let client = cluster.client();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let reservations = client
        .database(database)
        .collection::<Document>("keyward.users.email_1");
    let id = Document::try_from(first.reservation_id()).unwrap();
    let touched = reservations.update_one(doc! { "_id": id }, doc! { "$set": { "touched": true } });
    touched.session(&mut session).await.unwrap();
    let pairs = [(&first, &seen[0]), (&second, &seen[1])];
    assert_eq!(store.renew(&pairs).await.unwrap(), [false, true]);
    session.abort_transaction().await.unwrap();
    assert_eq!(store.renew(&pairs).await.unwrap(), [true, false]);
}
