//! Every read that Keyward sends on its own account states a read concern, or its transaction's first command does. The
//! clients here only write, so all reads that pass are Keyward's.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use futures_util::future::join_all;
use mongodb::Collection;
use testbed::Cluster;

use crate::own_reads::STRATEGIES;
use crate::own_reads::recorder::Recorder;
use testkit::wire::send;
use testkit::{Keyward, on_each_shard, shard_on_two};

const SWEPT_WITHIN: Duration = Duration::from_secs(60);
const LEASE: &str = "3s\nsweep: 1s";

/// The commands that read and take a read concern; a `getMore` reads as its cursor's beginning said.
const READS: [&str; 4] = ["find", "aggregate", "count", "distinct"];

fn name_of(command: &Document) -> &str {
    command.keys().next().map_or("", String::as_str)
}

/// Whether it decides by itself how it reads, or its transaction does, and doesn't say so.
fn leaves_it_to_the_cluster(command: &Document) -> bool {
    let has_to = match command.contains_key("autocommit") {
        true => command.contains_key("startTransaction"),
        false => READS.contains(&name_of(command)),
    };
    let concern = command.get_document("readConcern");
    has_to && concern.and_then(|concern| concern.get_str("level")).is_err()
}

fn user(id: i32) -> Document {
    let region = if id % 2 == 0 { "a" } else { "z" };
    doc! { "_id": id, "region": region, "email": format!("{id}@x"), "name": format!("n{id}"), "n": 1 }
}

/// A retryable command, sent twice as a driver does whose first reply was lost.
fn twice(keyward: &Keyward, database: &str, command: Document) {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes,
    };
    let mut command = command;
    command.extend(doc! { "lsid": { "id": id }, "txnNumber": 1_i64 });
    for _ in 0..2 {
        let reply = send(&keyward.address, database, command.clone()).unwrap();
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{command} {reply}");
        assert!(!reply.contains_key("writeErrors"), "{command} {reply}");
    }
}

/// Each way a write takes; `past` goes by Keyward.
async fn write(keyward: &Keyward, past: &Collection<Document>, database: &str) {
    let client = keyward.client().await;
    let users = client.database(database).collection::<Document>("users");
    users.insert_many((2..20).map(user)).await.unwrap();
    // A key that is taken, under each constraint.
    users
        .insert_one(doc! { "_id": 100, "region": "a", "email": "2@x" })
        .await
        .unwrap_err();
    users
        .insert_one(doc! { "_id": 100, "region": "a", "email": "100@x", "name": "N3" })
        .await
        .unwrap_err();
    join_all((30..38).map(|id| users.insert_one(user(id)).into_future()))
        .await
        .into_iter()
        .for_each(|told| drop(told.unwrap()));
    let set = |email: &str| doc! { "$set": { "email": email } };
    let one = |q: Document, u: Bson| doc! { "update": "users", "updates": [{ "q": q, "u": u }] };
    twice(
        keyward,
        database,
        doc! { "insert": "users", "documents": [user(40), user(41)] },
    );
    twice(
        keyward,
        database,
        one(doc! { "_id": 2, "region": "a" }, set("b2@x").into()),
    );
    twice(keyward, database, one(doc! { "_id": 3 }, set("b3@x").into()));
    let computed = vec![doc! { "$set": { "email": { "$concat": ["b", "$email"] } } }];
    twice(
        keyward,
        database,
        one(doc! { "_id": 4, "region": "a" }, computed.clone().into()),
    );
    twice(
        keyward,
        database,
        doc! { "delete": "users", "deletes": [{ "q": { "_id": 5 }, "limit": 1 }] },
    );
    let change = doc! { "findAndModify": "users", "query": { "_id": 6, "region": "a" }, "update": set("b6@x") };
    twice(keyward, database, change);
    let change = doc! { "findAndModify": "users", "query": { "_id": 7 }, "update": set("b7@x") };
    twice(keyward, database, change);
    let upsert = doc! { "q": { "_id": 50, "region": "a" }, "u": set("50@x"), "upsert": true };
    twice(keyward, database, doc! { "update": "users", "updates": [upsert] });
    users
        .update_one(doc! { "_id": 8, "region": "a" }, set("b2@x"))
        .await
        .unwrap_err();
    users.update_many(doc! { "region": "z" }, computed).await.unwrap();
    users.delete_many(doc! { "_id": { "$in": [10, 11] } }).await.unwrap();
    let mut session = client.start_session().await.unwrap();
    // It states nothing and begins with a write; natively that takes no default for reads.
    session.start_transaction().await.unwrap();
    users.insert_one(user(60)).session(&mut session).await.unwrap();
    users
        .update_one(doc! { "_id": 12, "region": "a" }, set("b12@x"))
        .session(&mut session)
        .await
        .unwrap();
    session.commit_transaction().await.unwrap();
    // Reservations that nobody holds any more: one is taken over, the others are swept.
    past.delete_many(doc! { "_id": { "$in": [14, 16, 18] } }).await.unwrap();
    users
        .insert_one(doc! { "_id": 114, "region": "z", "email": "14@x" })
        .await
        .unwrap();
    let begin = Instant::now();
    while on_each_shard(Cluster::shared().shards(), database, "keyward.users.email_1")
        .await
        .concat()
        .len()
        > on_each_shard(Cluster::shared().shards(), database, "users")
            .await
            .concat()
            .len()
    {
        assert!(begin.elapsed() < SWEPT_WITHIN, "nothing is swept");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A one-time command over the same relay.
async fn run(command: &str, options: &[&str], recorder: &Recorder, constraints: &str) {
    let mut config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text = format!("upstream: {}\nlease: 3s\nconstraints:\n{constraints}", recorder.uri());
    config.write_all(text.as_bytes()).unwrap();
    let mut keyward = tokio::process::Command::new(env!("CARGO_BIN_EXE_keyward"));
    let keyward = keyward.args([command, "--config"]).arg(config.path()).args(options);
    let output = keyward.kill_on_drop(true).output().await.unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_read_of_keywards_states_how_it_reads() {
    let cluster = Cluster::shared();
    for strategy in STRATEGIES {
        let database = format!("stated_{strategy}");
        shard_on_two(
            cluster,
            &format!("{database}.users"),
            doc! { "region": 1 },
            doc! { "region": "m" },
        );
        let past = cluster.client().database(&database).collection::<Document>("users");
        past.insert_many((0..2).map(user)).await.unwrap();
        let recorder = Recorder::start(cluster.router_address());
        let constraints = format!(
            "  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: {strategy} }}\n  - {{ collection: \
             {database}.users, key: {{ name: 1 }}, sparse: true, collation: {{ locale: en, strength: 2 }} }}\n"
        );
        run("backfill", &[], &recorder, &constraints).await;
        let keyward = Keyward::start_with_lease(&recorder.uri(), LEASE, &constraints);
        write(&keyward, &past, &database).await;
        run("verify", &[], &recorder, &constraints).await;
        let drop = doc! { "drop": "users" };
        let dropped = send(&keyward.address, &database, drop).unwrap();
        assert_eq!(dropped.get_f64("ok").unwrap(), 1.0, "{dropped}");

        let commands = recorder.commands();
        let silent: BTreeSet<String> = commands
            .iter()
            .filter(|command| leaves_it_to_the_cluster(command))
            .map(|command| {
                format!(
                    "{} (begins: {})",
                    command.iter().next().unwrap().1,
                    command.contains_key("startTransaction")
                )
            })
            .collect();
        assert!(silent.is_empty(), "{strategy}: {silent:?}");
        let read: BTreeSet<&str> = commands
            .iter()
            .filter(|command| READS.contains(&name_of(command)))
            .filter_map(|command| command.get_str(name_of(command)).ok())
            .collect();
        for collection in [
            "users",
            "keyward.users.email_1",
            "keyward.users.name_1",
            "keywards",
            "keyward.results",
        ] {
            assert!(
                read.contains(collection),
                "{strategy}: {collection} isn't among {read:?}"
            );
        }
    }
}
