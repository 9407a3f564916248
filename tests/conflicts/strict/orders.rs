//! The insert's transaction and the takeover's, in every order, step by step: exactly one of them takes effect.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, RawBson, doc, rawdoc};
use futures_util::TryStreamExt;
use keyward::catalog::Protected;
use keyward::claims::{Candidate, WritesUnderWay};
use keyward::constraint::{Key, Strategy};
use keyward::metrics::Metrics;
use keyward::prepare::{BackfillOutcome, backfill_documents, prepared};
use keyward::proxy_collection::{
    Owner, ProxyCollection, Reservation, ReservationVersion, Reserved, StoreError, TakenOver,
};
use keyward::raw::Doc;
use keyward::reservation::{Token, WriteId};
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection};

use crate::strict::{EMAIL, insert, keyward, users};
use crate::trial::{email, key_of_email, store_through, store_with_lease};
use testkit::relay::Relay;
use testkit::wire::send;
use testkit::{on_each_shard, shard_on_two};

/// A reservation of `a@x` for a document that isn't there.
struct Trial {
    proxy: ProxyCollection,
    key: Key,
    seen: Reservation,
    users: Collection<Document>,
    reservations: Collection<Document>,
}

fn owner(id: RawBson) -> Owner {
    Owner {
        id,
        route: Some(rawdoc! { "region": "a" }),
    }
}

fn user(email: &str) -> Document {
    doc! { "_id": 1, "region": "a", "email": email }
}

impl Trial {
    async fn new(database: &str) -> Trial {
        Trial::of(database, owner(RawBson::Int32(1))).await
    }

    async fn of(database: &str, owner: Owner) -> Trial {
        Trial::with_lease(database, owner, Duration::from_secs(60)).await
    }

    async fn with_lease(database: &str, owner: Owner, lease: Duration) -> Trial {
        let cluster = users(database);
        drop(keyward(cluster, database, "60s", &[EMAIL]));
        let (proxy, key) = store_with_lease(cluster, database, lease);
        let client = cluster.client();
        proxy.reserve(&[(&key, &owner, token(1).into())]).await.unwrap();
        let seen = proxy.read(&[&key]).await.unwrap().remove(0).unwrap();
        let database = client.database(database);
        Trial {
            proxy,
            key,
            seen,
            users: database.collection("users"),
            reservations: database.collection("keyward.users.email_1"),
        }
    }

    /// Takes the reservation over, as strict mode does.
    async fn take_over(&self) -> Result<TakenOver, StoreError> {
        self.take_over_for(&owner(RawBson::Int32(2))).await
    }

    async fn take_over_for(&self, new: &Owner) -> Result<TakenOver, StoreError> {
        let anew = Some((new, token(2).into()));
        self.proxy.settle_absent(&self.key, &self.seen, anew).await
    }

    /// Begins the insert's transaction; the snapshot is of its first command.
    async fn begin(&self) -> ClientSession {
        let mut session = self.users.client().start_session().await.unwrap();
        let begin = session.start_transaction().read_concern(ReadConcern::snapshot());
        begin.await.unwrap();
        session
    }

    /// The same, with the snapshot of now.
    async fn begin_now(&self) -> ClientSession {
        let mut session = self.begin().await;
        let own = doc! { "owner": 1 };
        let seen = self.reservations.find_one(own).session(&mut session).await.unwrap();
        assert!(seen.is_some());
        session
    }

    /// The look of an insert that is about to commit: whether the reservation is its own.
    async fn look(&self) -> bool {
        let own = self.reservations.find_one(doc! { "owner": 1 });
        own.read_concern(ReadConcern::snapshot()).await.unwrap().is_some()
    }

    async fn owner_of_reservation(&self) -> Option<i32> {
        let found = self.reservations.find_one(doc! {}).await.unwrap();
        found.map(|reservation| reservation.get_i32("owner").unwrap())
    }

    async fn documents(&self) -> Vec<Document> {
        self.users.find(doc! {}).await.unwrap().try_collect().await.unwrap()
    }
}

fn token(write: u8) -> Token {
    Token {
        write: WriteId([write; 16]),
        position: 0,
        retry_id: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_look_shows_a_takeover_before_the_snapshot() {
    let trial = Trial::new("order_takeover_unseen").await;
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
    let mut session = trial.begin().await;
    trial.users.insert_one(user("a@x")).session(&mut session).await.unwrap();
    assert!(!trial.look().await);
    session.abort_transaction().await.unwrap();
    assert_eq!(trial.owner_of_reservation().await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_before_the_insert_makes_it_fail() {
    let trial = Trial::new("order_takeover_first").await;
    let mut session = trial.begin_now().await;
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
    let inserted = trial.users.insert_one(user("a@x")).session(&mut session).await;
    let error = inserted.unwrap_err();
    assert!(error.contains_label("TransientTransactionError"), "{error}");
    assert_eq!(trial.documents().await, []);
    assert_eq!(trial.owner_of_reservation().await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_after_the_insert_fails() {
    let trial = Trial::new("order_insert_first").await;
    let mut session = trial.begin_now().await;
    trial.users.insert_one(user("a@x")).session(&mut session).await.unwrap();
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Busy);
    assert!(trial.look().await);
    session.commit_transaction().await.unwrap();
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::OwnerHolds);
    assert_eq!(trial.documents().await, [user("a@x")]);
    assert_eq!(trial.owner_of_reservation().await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_holds_another_key_loses_this_one_and_stays_as_it_was() {
    let trial = Trial::new("order_other_key").await;
    trial.users.insert_one(user("b@x")).await.unwrap();
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
    assert_eq!(trial.documents().await, [user("b@x")]);
    assert_eq!(trial.owner_of_reservation().await, Some(2));
    // Seen too long ago.
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Changed);
}

/// The server cuts the `_id` in its error by bytes: here, in the middle of a character.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_id_the_server_cuts_within_a_character_keeps_no_stale_reservation() {
    let database = "order_cut_id";
    let id = format!("x{}", "é".repeat(700));
    let long = owner(RawBson::String(id.clone()));
    let trial = Trial::of(database, long.clone()).await;
    let other = doc! { "_id": &id, "region": "a", "email": "b@x" };
    trial.users.insert_one(&other).await.unwrap();
    // As of a backfill: such a reservation has no lease to wait for.
    let stale = key_of_email("c@x", database);
    let of_backfill = ReservationVersion {
        in_flight: false,
        ..token(3).into()
    };
    let reserved = trial.proxy.reserve(&[(&stale, &long, of_backfill)]).await.unwrap();
    assert_eq!(reserved, [Reserved::Written]);
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
    let keyward = keyward(crate::strict::cluster(), database, "60s\nsweep: 1h", &[EMAIL]);
    let taking = doc! { "_id": 3, "region": "a", "email": "c@x" };
    let reply = send(&keyward.address, database, insert(vec![taking.clone()], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_eq!(trial.documents().await, [other, taking]);
    // The sweeper's way.
    let stale = key_of_email("d@x", database);
    let reserved = trial.proxy.reserve(&[(&stale, &long, of_backfill)]).await.unwrap();
    assert_eq!(reserved, [Reserved::Written]);
    let seen = trial.proxy.read(&[&stale]).await.unwrap().remove(0).unwrap();
    let swept = trial.proxy.sweep(Strategy::Strict, vec![(&stale, &seen)]).await;
    assert_eq!(swept.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_validators_nor_native_unique_indexes_keep_a_takeover_from_being_proved() {
    let trial = Trial::new("order_validator").await;
    let other = doc! { "_id": 9, "region": "a", "email": "other@x" };
    trial.users.insert_one(other.clone()).await.unwrap();
    // It has no serial number, and so would the placeholder.
    let index = doc! { "key": { "region": 1, "serial": 1 }, "name": "serial", "unique": true };
    let database = crate::strict::cluster().client().database("order_validator");
    let create = doc! { "createIndexes": "users", "indexes": [index] };
    database.run_command(create).await.unwrap();
    let validator = doc! { "email": { "$type": "string" } };
    let modify = doc! { "collMod": "users", "validator": validator };
    database.run_command(modify).await.unwrap();
    let mut session = trial.begin_now().await;
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
    assert!(trial.users.insert_one(user("a@x")).session(&mut session).await.is_err());
    assert_eq!(trial.documents().await, [other]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_no_document_can_have_needs_no_proof() {
    let regex = bson::Regex {
        pattern: bson::raw::CString::try_from("x").unwrap(),
        options: bson::raw::CString::try_from("").unwrap(),
    };
    let trial = Trial::of("order_no_id", owner(RawBson::RegularExpression(regex))).await;
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
    assert_eq!(trial.owner_of_reservation().await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_not_where_its_owner_would_be_keeps_its_reservation() {
    let unknown = Owner {
        id: RawBson::Int32(1),
        route: None,
    };
    let trial = Trial::of("order_no_route", unknown).await;
    assert!(matches!(trial.take_over().await, Err(StoreError::Unroutable)));
    assert_eq!(trial.owner_of_reservation().await, Some(1));
}

/// How a takeover looks in a change stream: documented for those who read them.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_shows_in_change_streams_as_an_insert_and_a_delete_of_the_placeholder() {
    let trial = Trial::new("order_stream").await;
    let mut events = Vec::new();
    let mut streams = Vec::new();
    for shard in crate::strict::cluster().shards() {
        let users = shard.client().database("order_stream").collection::<Document>("users");
        streams.push(users.watch().await.unwrap());
    }
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
    // What shows that nothing more is to come from a shard.
    let last = ["a", "z"].map(|region| doc! { "_id": 9, "region": region, "email": region });
    trial.users.insert_many(last).await.unwrap();
    for stream in &mut streams {
        while let Some(event) = stream.try_next().await.unwrap() {
            let id = event.document_key.unwrap().get_i32("_id").unwrap();
            if id == 9 {
                break;
            }
            events.push(format!("{:?} {id}", event.operation_type));
        }
    }
    assert_eq!(events, ["Insert 1", "Delete 1"]);
}

/// Whoever reserved, and whoever takes over, may have known another shard key: what lies by the one of today can't be told from
/// the reservation, and a placeholder by the old one would be on another shard than the insert that is still to come.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_sharded_by_another_key_meanwhile_keeps_its_reservations() {
    let database = "order_sharded_anew";
    let trial = Trial::new(database).await;
    let cluster = crate::strict::cluster();
    trial.users.drop().await.unwrap();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "place": 1 }, doc! { "place": "m" });
    let mut session = trial.begin_now().await;
    let refused = trial.take_over().await;
    assert!(matches!(refused, Err(StoreError::Unroutable)), "{refused:?}");
    let elsewhere = doc! { "_id": 1, "region": "a", "place": "z", "email": "a@x" };
    trial.users.insert_one(&elsewhere).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(trial.documents().await, [elsewhere]);
    assert_eq!(trial.owner_of_reservation().await, Some(1));
}

/// The placeholder would go to the place that the old shard key gives, and the insert to another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_in_whose_midst_the_collection_is_sharded_by_another_key_takes_nothing() {
    let database = "order_sharded_midst";
    let mut trial = Trial::new(database).await;
    let cluster = crate::strict::cluster();
    let forwarder = Relay::start(cluster.router_address());
    let client = mongodb::Client::with_uri_str(forwarder.uri()).await.unwrap();
    (trial.proxy, _) = store_through(&client, database, Duration::from_secs(60));
    // It has read the shard key, and changes the reservation next.
    let held = forwarder.hold(b"startTransaction\0");
    let sharding_anew = async {
        let held = tokio::task::spawn_blocking(move || {
            held.wait();
            held
        });
        let held = held.await.unwrap();
        trial.users.drop().await.unwrap();
        let namespace = format!("{database}.users");
        shard_on_two(cluster, &namespace, doc! { "place": 1 }, doc! { "place": "m" });
        drop(held);
    };
    let (taken, ()) = tokio::join!(trial.take_over(), sharding_anew);
    assert!(matches!(taken, Err(StoreError::Unroutable)), "{taken:?}");
    assert_eq!(trial.owner_of_reservation().await, Some(1));
}

/// A Keyward that serves knows the shard key of up to ten seconds ago. It takes nothing over by that: the insert that is still
/// to come, by the key of today, goes to another shard than a placeholder by the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_keyward_that_knows_the_old_shard_key_takes_nothing_over() {
    let database = "order_old_key";
    let cluster = users(database);
    // No sweep comes in between.
    let keyward = keyward(cluster, database, "1s\nsweep: 1h", &[EMAIL]);
    let (proxy, key) = store_with_lease(cluster, database, Duration::from_secs(1));
    let first = owner(RawBson::Int32(1));
    let reserved = proxy.reserve(&[(&key, &first, token(1).into())]).await.unwrap();
    assert_eq!(reserved, [Reserved::Written]);
    // Past the Keyward, which looks shard keys up every ten seconds.
    let client = cluster.client();
    let users = client.database(database).collection::<Document>("users");
    users.drop().await.unwrap();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "place": 1 }, doc! { "place": "m" });
    let mut session = client.start_session().await.unwrap();
    let begin = session.start_transaction().read_concern(ReadConcern::snapshot());
    begin.await.unwrap();
    let reservations = client
        .database(database)
        .collection::<Document>("keyward.users.email_1");
    let seen = reservations
        .find_one(doc! { "owner": 1 })
        .session(&mut session)
        .await
        .unwrap();
    assert!(seen.is_some());
    let taking = doc! { "_id": 2, "region": "a", "place": "a", "email": "a@x" };
    let refused = send(&keyward.address, database, insert(vec![taking], true)).unwrap();
    let elsewhere = doc! { "_id": 1, "region": "a", "place": "z", "email": "a@x" };
    users.insert_one(&elsewhere).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    let documents: Vec<Document> = users.find(doc! {}).await.unwrap().try_collect().await.unwrap();
    assert_eq!(documents, [elsewhere], "{refused}");
}

/// The document of the new owner, which has the `_id` of the absent owner, at another place.
fn moved(region: &str) -> (Document, Owner) {
    let owner = Owner {
        id: RawBson::Int32(1),
        route: Some(rawdoc! { "region": region }),
    };
    (doc! { "_id": 1, "region": region, "email": "a@x" }, owner)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_owner_that_is_in_the_others_way_itself_gets_the_reservation() {
    let trial = Trial::new("order_in_the_way").await;
    let (document, new) = moved("b");
    trial.users.insert_one(document.clone()).await.unwrap();
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::OwnerHolds);
    let mut session = trial.begin_now().await;
    assert_eq!(trial.take_over_for(&new).await.unwrap(), TakenOver::Done);
    // The absent owner can't come in its place: the insert began before the takeover.
    trial.users.delete_one(document.clone()).await.unwrap();
    let inserted = trial.users.insert_one(user("a@x")).session(&mut session).await;
    assert!(inserted.is_err());
    assert_eq!(trial.documents().await, []);
}

/// Puts a document with the absent owner's `_id` on each shard. No router shows that of the owner's shard, as after a move of a chunk.
async fn leave_behind(trial: &Trial, database: &str) -> (Document, Collection<Document>) {
    let elsewhere = doc! { "_id": 1, "region": "z", "email": "z@x" };
    trial.users.insert_one(&elsewhere).await.unwrap();
    let shards = crate::strict::cluster().shards();
    let on_shards = on_each_shard(shards, database, "users").await;
    let owners_shard = on_shards.iter().position(Vec::is_empty).unwrap();
    let owners_shard = shards[owners_shard].client();
    // The shard deletes the documents of the moved range once more, a moment after the move.
    let clean = doc! { "cleanupOrphaned": format!("{database}.users") };
    owners_shard.database("admin").run_command(clean).await.unwrap();
    let owners_shard = owners_shard.database(database);
    let left_behind = owners_shard.collection("users");
    left_behind
        .insert_one(doc! { "_id": 1, "region": "y", "email": "y@x" })
        .await
        .unwrap();
    (elsewhere, left_behind)
}

/// The document on its own shard has refused the placeholder, and is gone when the takeover looks for what was in the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_with_the_absent_owners_id_on_another_shard_leaves_it_room() {
    let database = "order_other_shard";
    let mut trial = Trial::new(database).await;
    let (elsewhere, left_behind) = leave_behind(&trial, database).await;
    let forwarder = Relay::start(crate::strict::cluster().router_address());
    let client = mongodb::Client::with_uri_str(forwarder.uri()).await.unwrap();
    (trial.proxy, _) = store_through(&client, database, Duration::from_secs(60));
    let placeholder = forwarder.hold(b"bypassDocumentValidation\0");
    let before_the_second = async {
        let second = tokio::task::spawn_blocking(move || {
            placeholder.wait();
            let second = forwarder.hold(b"startTransaction\0");
            drop(placeholder);
            second.wait();
            (second, forwarder)
        });
        let held = second.await.unwrap();
        left_behind.delete_one(doc! {}).await.unwrap();
        // So the router knows a time behind the deletion, which the snapshot will have.
        let of_owners_shard = doc! { "region": "a" };
        assert_eq!(trial.users.find_one(of_owners_shard).await.unwrap(), None);
        let session = trial.begin_now().await;
        drop(held.0);
        (session, held.1)
    };
    let (taken, (mut session, _forwarder)) = tokio::join!(trial.take_over(), before_the_second);
    assert_eq!(taken.unwrap(), TakenOver::Done);
    let inserted = trial.users.insert_one(user("a@x")).session(&mut session).await;
    let error = inserted.unwrap_err();
    assert!(error.contains_label("TransientTransactionError"), "{error}");
    assert_eq!(trial.documents().await, [elsewhere]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_stays_while_no_router_shows_the_document_in_the_placeholders_way() {
    let database = "order_left_behind";
    let trial = Trial::new(database).await;
    let (_, left_behind) = leave_behind(&trial, database).await;
    let taken = trial.take_over().await;
    assert!(matches!(taken, Err(StoreError::OrphanInTheWay)), "{taken:?}");
    assert_eq!(trial.owner_of_reservation().await, Some(1));
    left_behind.delete_one(doc! {}).await.unwrap();
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
}

/// The collection as a strict backfill elsewhere sees it.
async fn strict(database: &str, lease: Duration) -> Protected {
    let constraints = [Arc::new(email(database).strict())];
    let client = crate::strict::cluster().client();
    let protected = prepared(&client, &constraints, lease, &Metrics::new(&constraints)).await;
    protected.unwrap().into_iter().next().unwrap()
}

/// As after a constraint was taken out, the collection sharded by another key, and the constraint put in again.
#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_makes_a_reservation_name_the_present_shard_key() {
    let (database, lease) = ("order_rerouted", Duration::from_millis(1));
    let former = Owner {
        id: RawBson::Int32(1),
        route: Some(rawdoc! { "country": "x" }),
    };
    let trial = Trial::with_lease(database, former, lease).await;
    trial.users.insert_one(user("a@x")).await.unwrap();
    let protected = strict(database, lease).await;
    let guard = WritesUnderWay::default().begin();
    let bytes = user("a@x").to_vec().unwrap();
    let wanted = Candidate::one_for_each_key(&protected, 0, Token::of(guard.id()), Doc::new(&bytes).unwrap()).unwrap();
    let outcomes = backfill_documents(&protected, guard.id(), wanted).await.unwrap();
    let outcomes: Vec<_> = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, [BackfillOutcome::Reserved]);
    let renewed = trial.proxy.read(&[&trial.key]).await.unwrap().remove(0).unwrap();
    assert_eq!(renewed.owner, owner(RawBson::Int32(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_takes_no_key_from_an_insert_that_may_still_commit() {
    let (database, lease) = ("order_backfilled", Duration::from_millis(1));
    let trial = Trial::with_lease(database, owner(RawBson::Int32(1)), lease).await;
    let (older, _) = moved("z");
    trial.users.insert_one(older.clone()).await.unwrap();
    let mut session = trial.begin_now().await;
    trial.users.insert_one(user("a@x")).session(&mut session).await.unwrap();
    assert!(trial.look().await);
    let protected = strict(database, lease).await;
    let guard = WritesUnderWay::default().begin();
    let bytes = older.to_vec().unwrap();
    let token = Token::of(guard.id());
    let wanted = Candidate::one_for_each_key(&protected, 0, token, Doc::new(&bytes).unwrap()).unwrap();
    let mut backfill = pin!(backfill_documents(&protected, guard.id(), wanted));
    // The lease is over, so without a proof the backfill would take the key at once.
    let early = tokio::time::timeout(Duration::from_millis(500), &mut backfill).await;
    assert!(early.is_err(), "the backfill took the key");
    session.commit_transaction().await.unwrap();
    let outcomes = backfill.await.unwrap().into_iter().map(|(_, outcome)| outcome);
    let duplicate = BackfillOutcome::Duplicate(trial.seen.owner.clone());
    assert_eq!(outcomes.collect::<Vec<_>>(), [duplicate]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_with_the_absent_owners_unique_shard_key_keeps_it_from_coming() {
    let trial = Trial::new("order_unique_shard_key").await;
    let other = doc! { "_id": 9, "region": "a", "email": "other@x" };
    trial.users.insert_one(other.clone()).await.unwrap();
    let index = doc! { "key": { "region": 1 }, "name": "unique_region", "unique": true };
    let database = crate::strict::cluster().client().database("order_unique_shard_key");
    let create = doc! { "createIndexes": "users", "indexes": [index] };
    database.run_command(create).await.unwrap();
    let mut session = trial.begin_now().await;
    assert_eq!(trial.take_over().await.unwrap(), TakenOver::Done);
    trial.users.delete_one(other).await.unwrap();
    assert!(trial.users.insert_one(user("a@x")).session(&mut session).await.is_err());
    assert_eq!(trial.documents().await, []);
    assert_eq!(trial.owner_of_reservation().await, Some(2));
}

/// The absent owner may have no place in such an index, and so come beside the other document.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_in_a_partial_index_proves_nothing() {
    let trial = Trial::new("order_partial_index").await;
    trial
        .users
        .insert_one(doc! { "_id": 9, "region": "a", "email": "other@x" })
        .await
        .unwrap();
    let partial = doc! { "deletedAt": null };
    let index = doc! { "key": { "region": 1 }, "name": "present", "unique": true, "partialFilterExpression": partial };
    let database = crate::strict::cluster().client().database("order_partial_index");
    let create = doc! { "createIndexes": "users", "indexes": [index] };
    database.run_command(create).await.unwrap();
    assert!(matches!(trial.take_over().await, Err(StoreError::Unexpected(_))));
    assert_eq!(trial.owner_of_reservation().await, Some(1));
}
