//! Chunks move back and forth while many clients write and read: nothing is lost, nothing is done twice, no read misses
//! or repeats a document. Counted on the shards themselves at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use mongodb::{Client, ClientSession, Collection};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testbed::Cluster;

use super::{numbers, on_shards};

const CLIENTS: u64 = 32;
const ROUNDS: usize = 40;
const KEYS: i32 = 100;
const MOVES_MIN: usize = 10;
/// So many moves in a row aren't given up by chance.
const GIVEN_UP_MAX: usize = 200;
const CLEAN_UP_MAX: Duration = Duration::from_secs(120);

/// What one client was told has happened.
#[derive(Default)]
struct Told {
    inserted: Vec<String>,
    increments: BTreeMap<i32, i32>,
}

impl Told {
    fn incremented(&mut self, key: i32) {
        *self.increments.entry(key).or_default() += 1;
    }
}

fn prepare(cluster: &Cluster) {
    for collection in ["inserts", "counters"] {
        let namespace = format!("moving.{collection}");
        cluster.shard_collection(&namespace, doc! { "k": 1 }, false).unwrap();
        for middle in [25, 50, 75] {
            cluster.split(&namespace, doc! { "k": middle }).unwrap();
        }
    }
}

/// One client, its choices replayed by its number.
struct Worker {
    number: u64,
    random: StdRng,
    client: Client,
    inserts: Collection<Document>,
    counters: Collection<Document>,
    told: Told,
}

impl Worker {
    fn new(number: u64, client: Client) -> Self {
        let database = client.database("moving");
        Worker {
            number,
            random: StdRng::seed_from_u64(number),
            inserts: database.collection("inserts"),
            counters: database.collection("counters"),
            client,
            told: Told::default(),
        }
    }

    async fn work(mut self) -> Told {
        for round in 0..ROUNDS {
            let key = self.random.random_range(0..KEYS);
            match self.random.random_range(0..6) {
                0 | 1 => self.insert(round).await,
                2 => self.update(key).await,
                3 => self.find_and_modify(key).await,
                4 => self.transact(key).await,
                _ => self.read().await,
            }
        }
        self.told
    }

    async fn insert(&mut self, round: usize) {
        let count = self.random.random_range(1..30);
        let ids: Vec<_> = (0..count).map(|at| format!("{}-{round}-{at}", self.number)).collect();
        let documents = ids
            .iter()
            .map(|id| doc! { "_id": id, "k": self.random.random_range(0..KEYS) });
        let documents: Vec<_> = documents.collect();
        self.inserts
            .insert_many(documents)
            .ordered(self.random.random())
            .await
            .unwrap();
        self.told.inserted.extend(ids);
    }

    /// By the shard key, or by `_id` alone, which goes to all shards.
    async fn update(&mut self, key: i32) {
        let filter = if self.random.random() {
            by_key(key)
        } else {
            doc! { "_id": key }
        };
        let updated = self.counters.update_one(filter, increment()).await.unwrap();
        assert_eq!(updated.modified_count, 1, "client {}, key {key}", self.number);
        self.told.incremented(key);
    }

    async fn find_and_modify(&mut self, key: i32) {
        let found = self
            .counters
            .find_one_and_update(by_key(key), increment())
            .await
            .unwrap();
        assert!(found.is_some(), "client {}, key {key}", self.number);
        self.told.incremented(key);
    }

    async fn transact(&mut self, key: i32) {
        let keys = [key, self.random.random_range(0..KEYS)];
        let counters = self.counters.clone();
        let mut session = self.client.start_session().await.unwrap();
        let both = async |session: &mut ClientSession| {
            for key in keys {
                counters
                    .update_one(by_key(key), increment())
                    .session(&mut *session)
                    .await?;
            }
            Ok(())
        };
        session.start_transaction().and_run2(both).await.unwrap();
        keys.into_iter().for_each(|key| self.told.incremented(key));
    }

    /// All counters: as they are, or as they were at one moment.
    async fn read(&mut self) {
        if self.random.random() {
            return self.read_snapshot().await;
        }
        let cursor = self
            .counters
            .find(doc! {})
            .sort(doc! { "_id": 1 })
            .batch_size(30)
            .await
            .unwrap();
        let found: Vec<Document> = cursor.try_collect().await.unwrap();
        assert_eq!(
            numbers(&found, "_id"),
            (0..KEYS).collect::<Vec<_>>(),
            "client {}",
            self.number
        );
    }

    async fn read_snapshot(&self) {
        let mut session = self.client.start_session().snapshot(true).await.unwrap();
        let mut cursor = self
            .counters
            .find(doc! {})
            .batch_size(30)
            .session(&mut session)
            .await
            .unwrap();
        let found: Vec<Document> = cursor.stream(&mut session).try_collect().await.unwrap();
        let mut ids = numbers(&found, "_id");
        ids.sort_unstable();
        assert_eq!(ids, (0..KEYS).collect::<Vec<_>>(), "client {}", self.number);
    }
}

fn by_key(key: i32) -> Document {
    doc! { "_id": key, "k": key }
}

fn increment() -> Document {
    doc! { "$inc": { "n": 1 } }
}

/// Waits until no shard has copies left of what has moved away.
async fn cleaned_up(cluster: &Cluster) {
    let deadline = Instant::now() + CLEAN_UP_MAX;
    for shard in cluster.shards() {
        let waiting = shard
            .direct_client()
            .unwrap()
            .database("config")
            .collection::<Document>("rangeDeletions");
        while let Some(range) = waiting.find_one(doc! {}).await.unwrap() {
            assert!(Instant::now() < deadline, "{} still has {range}", shard.name());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Moves chunks as long as clients are at work, but a few times at least.
fn move_chunks(cluster: &Cluster, at_work: &Weak<()>) {
    let mut random = StdRng::seed_from_u64(CLIENTS);
    let (mut moved, mut given_up) = (0, 0);
    while at_work.strong_count() > 0 || moved < MOVES_MIN {
        let collection = if random.random() {
            "moving.inserts"
        } else {
            "moving.counters"
        };
        let to = if random.random() { "shard0" } else { "shard1" };
        // Under load a move may be given up, which must do no harm either.
        let made = cluster.move_chunk(collection, doc! { "k": random.random_range(0..KEYS) }, to);
        match made {
            Ok(()) => (moved, given_up) = (moved + 1, 0),
            Err(_) if given_up < GIVEN_UP_MAX => given_up += 1,
            Err(error) => panic!("after {moved} moves: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled() {
    let cluster = Arc::new(Cluster::start().unwrap());
    prepare(&cluster);
    // A connection for each client: an open transaction that waits for one would hold up the moves.
    let client = Client::with_uri_str(format!("{}?maxPoolSize={CLIENTS}", cluster.uri()))
        .await
        .unwrap();
    let counters = client.database("moving").collection::<Document>("counters");
    counters
        .insert_many((0..KEYS).map(|key| doc! { "_id": key, "k": key, "n": 0 }))
        .await
        .unwrap();

    // Dropped by a test that fails, too, which waits for the mover.
    let at_work = Arc::new(());
    let mover = {
        let (cluster, at_work) = (Arc::clone(&cluster), Arc::downgrade(&at_work));
        tokio::task::spawn_blocking(move || move_chunks(&cluster, &at_work))
    };
    let workers = (0..CLIENTS).map(|number| Worker::new(number, client.clone()).work());
    let mut told = Told::default();
    for one in join_all(workers).await {
        told.inserted.extend(one.inserted);
        for (key, increments) in one.increments {
            *told.increments.entry(key).or_default() += increments;
        }
    }
    drop(at_work);
    mover.await.unwrap();
    cleaned_up(&cluster).await;

    let inserts = on_shards(&cluster, "moving", "inserts").await.concat();
    let mut found: Vec<_> = inserts
        .iter()
        .map(|document| document.get_str("_id").unwrap().to_owned())
        .collect();
    found.sort_unstable();
    told.inserted.sort_unstable();
    assert_eq!(found, told.inserted);
    let counters = on_shards(&cluster, "moving", "counters").await.concat();
    assert_eq!(counters.len(), KEYS as usize);
    for counter in counters {
        let key = counter.get_i32("_id").unwrap();
        assert_eq!(
            counter.get_i32("n").unwrap(),
            told.increments.get(&key).copied().unwrap_or(0),
            "key {key}"
        );
    }
}
