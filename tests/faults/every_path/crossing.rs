//! Many clients at once, through two Keywards, that rename, swap, replace, delete and insert again, all among the same few
//! documents, addresses and tags. At no moment two documents hold the same one; once it is quiet, what is held is reserved, and
//! after a sweep nothing else is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR, WriteFailure};
use mongodb::{ClientSession, Collection};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::every_path::{EMAIL, FEW, STRICT, settles, users};
use testkit::Keyward;
use testkit::agreement::held_and_reserved;
use testkit::index_values as values;

const CLIENTS: u64 = 12;
const WRITES_EACH: usize = 60;
const DOCUMENTS: i32 = 8;
const VALUES: i32 = 6;
/// Each document holds up to two of them.
const TAGS: i32 = 12;
const TAGGED: &str = "  - { collection: DB.users, key: { tags: 1 }, sparse: true }\n";

/// Nobody waits so long but for a lease in strict mode.
const WAIT_MAX: Duration = Duration::from_secs(40);

/// So many reservations may be left of documents that were put back.
const PUT_BACK_MAX: usize = 2;

/// What came of a client's writes.
#[derive(Debug, Default)]
struct Seen {
    applied: usize,
    duplicates: usize,
}

struct Client {
    users: Collection<Document>,
    random: StdRng,
    seen: Seen,
}

fn region(id: i32) -> &'static str {
    if id % 2 == 0 { "a" } else { "z" }
}

fn named(id: i32) -> Document {
    doc! { "_id": id, "region": region(id) }
}

impl Client {
    fn id(&mut self) -> i32 {
        self.random.random_range(0..DOCUMENTS)
    }

    fn value(&mut self) -> String {
        format!("{}@x", self.random.random_range(0..VALUES))
    }

    fn tag(&mut self) -> i32 {
        self.random.random_range(0..TAGS)
    }

    async fn write(&mut self, kind: u32) -> Result<(), Error> {
        let (id, value) = (self.id(), self.value());
        let tags = [self.tag(), self.tag()];
        let mut document = named(id);
        document.extend(doc! { "email": &value, "tags": tags.to_vec() });
        let users = self.users.clone();
        match kind {
            0 => {
                users.insert_one(document).await?;
            }
            1 => {
                users.delete_one(named(id)).await?;
            }
            2 | 3 => {
                users.update_one(named(id), doc! { "$set": { "email": value } }).await?;
            }
            4 => {
                users.replace_one(named(id), document).await?;
            }
            5 => {
                let pipeline = vec![doc! { "$set": { "email": { "$concat": [value, ""] } } }];
                users.update_one(named(id), pipeline).await?;
            }
            6 => {
                let set = doc! { "$set": { "email": value } };
                users.update_one(named(id), set).upsert(true).await?;
            }
            7 => drop(
                users
                    .find_one_and_update(named(id), doc! { "$set": { "email": value } })
                    .await?,
            ),
            8 => {
                users.find_one_and_delete(named(id)).await?;
            }
            9 => {
                // A value is free at once for whoever has just deleted its document.
                let Some(deleted) = users.find_one_and_delete(named(id)).await? else {
                    return Ok(());
                };
                users.insert_one(deleted).await?;
            }
            10 => {
                users.delete_many(doc! { "email": value }).await?;
            }
            11 => {
                let set = doc! { "$set": { "tags": tags.to_vec() } };
                users.update_one(named(id), set).await?;
            }
            12 => {
                // Keys of two constraints at once: one may be free and the other taken.
                let set = doc! { "$set": { "email": value, "tags": tags.to_vec() } };
                users.update_one(named(id), set).await?;
            }
            13 => {
                users
                    .update_one(named(id), doc! { "$addToSet": { "tags": tags[0] } })
                    .await?;
            }
            14 => {
                users
                    .update_one(named(id), doc! { "$pull": { "tags": tags[0] } })
                    .await?;
            }
            15 => {
                users.update_one(named(id), doc! { "$unset": { "tags": 1 } }).await?;
            }
            16..20 => self.write_by_key(kind, id, value, tags).await?,
            _ => self.swap(id).await?,
        }
        Ok(())
    }

    /// Writes that name their document by its key, so that several clients may want to insert it.
    async fn write_by_key(&self, kind: u32, id: i32, value: String, tags: [i32; 2]) -> Result<(), Error> {
        let users = &self.users;
        let by_key = doc! { "region": region(id), "email": &value };
        match kind {
            16 => {
                let count = doc! { "$inc": { "n": 1 } };
                users.update_one(by_key, count).upsert(true).await?;
            }
            17 => {
                let set = doc! { "$set": { "tags": tags.to_vec() } };
                users.find_one_and_update(by_key, set).upsert(true).await?;
            }
            18 => {
                let replacement = doc! { "region": region(id), "email": &value, "tags": [tags[0]] };
                users.replace_one(by_key, replacement).upsert(true).await?;
            }
            _ => {
                users.delete_one(by_key).await?;
            }
        }
        Ok(())
    }

    /// Two documents exchange their values in a transaction.
    async fn swap(&mut self, one: i32) -> Result<(), Error> {
        let other = (one + 1 + self.random.random_range(0..DOCUMENTS - 1)) % DOCUMENTS;
        let mut session = self.users.client().start_session().await?;
        loop {
            session.start_transaction().await?;
            match swap(&self.users, &mut session, one, other).await {
                Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {
                    session.abort_transaction().await?;
                }
                Err(error) => {
                    session.abort_transaction().await?;
                    return Err(error);
                }
                Ok(()) => match session.commit_transaction().await {
                    Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {}
                    committed => return committed,
                },
            }
        }
    }
}

async fn swap(users: &Collection<Document>, session: &mut ClientSession, one: i32, other: i32) -> Result<(), Error> {
    let mut emails = Vec::new();
    for id in [one, other] {
        let Some(found) = users.find_one(named(id)).session(&mut *session).await? else {
            return Ok(());
        };
        emails.push(found.get("email").cloned());
    }
    let unset = doc! { "$set": { "email": format!("between {one} and {other}") } };
    users.update_one(named(one), unset).session(&mut *session).await?;
    for (id, email) in [other, one].into_iter().zip(emails) {
        let set = doc! { "$set": { "email": email } };
        users.update_one(named(id), set).session(&mut *session).await?;
    }
    Ok(())
}

fn is_duplicate(error: &Error) -> bool {
    match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteError(error)) => error.code == 11000,
        ErrorKind::Command(error) => error.code == 11000,
        _ => false,
    }
}

/// Writes that get in each other's way.
async fn contend(mut client: Client) -> Seen {
    for _ in 0..WRITES_EACH {
        let kind = client.random.random_range(0..22);
        let began = Instant::now();
        let written = client.write(kind).await;
        assert!(began.elapsed() < WAIT_MAX, "kind {kind} took {:?}", began.elapsed());
        match written {
            Ok(()) => client.seen.applied += 1,
            Err(error) if is_duplicate(&error) => client.seen.duplicates += 1,
            Err(error) => panic!("kind {kind}: {error}"),
        }
    }
    client.seen
}

/// Reads all documents as of one moment, again and again: no two hold the same value.
async fn watch(users: Collection<Document>, is_over: Arc<AtomicBool>) -> usize {
    let mut looks = 0;
    while !is_over.load(Ordering::Relaxed) {
        let at_one_moment = mongodb::options::ReadConcern::snapshot();
        let mut session = users.client().start_session().await.unwrap();
        session.start_transaction().read_concern(at_one_moment).await.unwrap();
        let mut cursor = users.find(doc! {}).session(&mut session).await.unwrap();
        let documents: Vec<Document> = cursor.stream(&mut session).try_collect().await.unwrap();
        session.commit_transaction().await.unwrap();
        for field in ["email", "tags"] {
            let all = documents.iter().flat_map(|document| values(document, field));
            let mut all: Vec<String> = all.collect();
            all.sort();
            let count = all.len();
            all.dedup();
            assert_eq!(all.len(), count, "{documents:?}");
        }
        looks += 1;
    }
    looks
}

#[tokio::test(flavor = "multi_thread")]
async fn among_few_values_documents_and_reservations_agree_in_the_end() {
    cross("crossing", EMAIL, "10s", PUT_BACK_MAX).await;
}

/// Nothing is left for the lease: whoever met such a reservation would wait for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn so_they_do_in_strict_mode() {
    cross("crossing_strictly", STRICT, "60s", 0).await;
}

async fn cross(database: &str, constraint: &str, lease: &str, left_max: usize) {
    let _few = FEW.acquire().await.unwrap();
    let cluster = users(database);
    let constraints = [constraint, TAGGED].concat().replace("DB", database);
    let keywards = [(); 2].map(|()| Keyward::start_with_lease(&cluster.uri(), lease, &constraints));
    let seed = testkit::given::seed();
    let is_over = Arc::new(AtomicBool::new(false));
    let past = cluster.client().database(database).collection("users");
    let watching = tokio::spawn(watch(past, is_over.clone()));
    let mut contending = Vec::new();
    for number in 0..CLIENTS {
        let client = keywards[number as usize % 2].client().await;
        contending.push(tokio::spawn(contend(Client {
            users: client.database(database).collection("users"),
            random: StdRng::seed_from_u64(seed ^ number),
            seen: Seen::default(),
        })));
    }
    let mut all = Seen::default();
    for client in contending {
        let seen = client.await.unwrap();
        all.applied += seen.applied;
        all.duplicates += seen.duplicates;
    }
    is_over.store(true, Ordering::Relaxed);
    let looks = watching.await.unwrap();
    println!("{all:?}, looked at {looks} times");
    assert!(
        all.duplicates * 20 > all.applied && looks > 10,
        "{all:?}, {looks} looks"
    );
    let mut left = 0;
    for field in ["email", "tags"] {
        let [held, reserved] = held_and_reserved(cluster.shards(), database, field).await;
        assert!(
            held.is_subset(&reserved),
            "{field} unprotected: {held:?} of {reserved:?}"
        );
        let only_reserved: Vec<&String> = reserved.difference(&held).collect();
        if !only_reserved.is_empty() {
            println!("{field} reserved and not held: {only_reserved:?}");
            for keyward in &keywards {
                let log = keyward.log();
                let warnings: Vec<&str> = log.lines().filter(|line| line.contains(" WARN ")).collect();
                println!("{warnings:#?}");
            }
        }
        left += only_reserved.len();
    }
    // A document that is deleted and put back, as it was, under a statement about it leaves a reservation that only time tells from
    // that of a write on its way. That takes a moment of bad luck: more of them have another cause.
    assert!(left <= left_max, "{left} reservations that nobody holds");
    if left > 0 {
        drop(keywards);
        for field in ["email", "tags"] {
            settles(&cluster.uri(), cluster.shards(), database, &constraints, field).await;
        }
    }
}
