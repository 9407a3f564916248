//! A key that moves between documents on two shards while others read by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bson::{Document, doc};
use testkit::wire::Connection;

use super::{REGIONS, find, first_batch, insert, outcomes, start};
use testbed::Cluster;

const DATABASE: &str = "routed_moving";
const MOVES: usize = 60;

fn set(id: i32, change: Document) -> Document {
    let q = doc! { "_id": id, "region": REGIONS[id as usize % 2] };
    doc! { "update": "users", "updates": [{ "q": q, "u": change }] }
}

/// The client that moved the key finds it at once where it has put it. The others find a document that holds it, or none.
#[test]
fn a_client_reads_its_own_writes_and_nobody_reads_another_key() {
    let keyward = start(DATABASE, &["key: { email: 1 }"]);
    let mut client = Connection::greeted(&keyward.address);
    let users = (0..2).map(|id| doc! { "_id": id, "region": REGIONS[id as usize], "email": format!("own{id}") });
    insert(&mut client, DATABASE, users.collect());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut reader = Connection::greeted(&keyward.address);
                    let mut found = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        for document in first_batch(&reader.must(DATABASE, &find(doc! { "email": "k" }))) {
                            assert_eq!(document.get_str("email").unwrap(), "k");
                            found += 1;
                        }
                    }
                    found
                })
            })
            .collect();
        for step in 0..MOVES {
            let (from, to) = ((step % 2) as i32, ((step + 1) % 2) as i32);
            let gives_up = set(from, doc! { "$set": { "email": format!("own{from}") } });
            client.must(DATABASE, &gives_up);
            assert!(first_batch(&client.must(DATABASE, &find(doc! { "email": "k" }))).is_empty());
            let reply = client.must(DATABASE, &set(to, doc! { "$set": { "email": "k" } }));
            assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
            let found = first_batch(&client.must(DATABASE, &find(doc! { "email": "k" })));
            assert_eq!(found.len(), 1, "after {step} moves");
            assert_eq!(found[0].get_i32("_id").unwrap(), to, "after {step} moves");
        }
        is_over.store(true, Ordering::Relaxed);
        let found: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(found > 0, "the readers never found it");
    });
    assert!(outcomes(&keyward, "routed_moving.users.email_1")[0] >= MOVES as u64);
}

/// A reservation names the owner's shard key, not its shard.
#[test]
fn a_read_finds_the_document_while_its_chunk_moves() {
    let database = "routed_chunks";
    let keyward = start(database, &["key: { email: 1 }"]);
    let mut client = Connection::greeted(&keyward.address);
    let users = (0..2).map(|id| doc! { "_id": id, "region": REGIONS[id as usize], "email": format!("e{id}") });
    insert(&mut client, database, users.collect());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|id| {
                let (keyward, is_over) = (&keyward, &is_over);
                scope.spawn(move || {
                    let mut reader = Connection::greeted(&keyward.address);
                    let mut reads = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let found = first_batch(&reader.must(database, &find(doc! { "email": format!("e{id}") })));
                        assert_eq!(found.len(), 1, "after {reads} reads");
                        assert_eq!(found[0].get_i32("_id").unwrap(), id);
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        let cluster = Cluster::shared();
        let moved = (0..4).try_for_each(|step| {
            let shard = cluster.shards()[step % 2].name();
            cluster.move_chunk(&format!("{database}.users"), doc! { "region": "z" }, shard)
        });
        is_over.store(true, Ordering::Relaxed);
        let reads: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        moved.unwrap();
        let [hits, misses, fell_back] = outcomes(&keyward, "routed_chunks.users.email_1");
        assert!(
            hits > 0 && misses == 0 && hits + fell_back == reads,
            "{hits} {fell_back} {reads}"
        );
    });
}
