//! The cluster's default read and write concern are for commands that state none. Shards don't know them: that they apply is
//! the router's doing. What holds in a transaction is compared with a replica set, whose members know their own.

use bson::{Document, doc};
use testbed::Cluster;
use testbed::ReplicaSet;
use testbed::command::{CommandError, Connection};

/// More members than there are: the write is done, and reported as not waited for.
const UNSATISFIABLE: Option<i32> = Some(100);

fn set(connection: &mut Connection, concerns: Document) {
    let mut command = doc! { "setDefaultRWConcern": 1 };
    command.extend(concerns);
    connection.run("admin", command).unwrap();
}

fn documents(reply: &Document) -> usize {
    let cursor = reply.get_document("cursor").unwrap();
    cursor.get_array("firstBatch").unwrap().len()
}

/// A transaction's first command in a session of its own.
fn first(command: Document) -> Document {
    let id = bson::Binary {
        subtype: bson::spec::BinarySubtype::Uuid,
        bytes: rand::random::<[u8; 16]>().to_vec(),
    };
    let mut command = command;
    command.extend(doc! { "lsid": { "id": id }, "txnNumber": 1_i64, "autocommit": false, "startTransaction": true });
    command
}

/// How a commit follows on it.
fn commit(first: &Document) -> Document {
    let mut commit = doc! { "commitTransaction": 1 };
    for field in ["lsid", "txnNumber", "autocommit"] {
        commit.insert(field, first.get(field).unwrap().clone());
    }
    commit
}

#[test]
fn reads_that_state_nothing_are_of_the_default_level() {
    let cluster = Cluster::start().unwrap();
    cluster.shard_by_ranges("levels.c", "k", &[50]).unwrap();
    // 60 is the other shard's: an orphan, as a chunk leaves it behind that has moved.
    let orphan = doc! { "insert": "c", "documents": [{ "_id": 1, "k": 60 }] };
    cluster.shards()[0].run("levels", orphan).unwrap();
    let mut router = Connection::open(&cluster.router_address()).unwrap();
    let find = doc! { "find": "c", "filter": { "_id": 1 } };
    let with = |level: Option<&str>| {
        let mut find = find.clone();
        let concern = level.map(|level| doc! { "level": level }).unwrap_or_default();
        find.insert("readConcern", concern);
        find
    };
    assert_eq!(documents(&router.run("levels", find.clone()).unwrap()), 0);

    set(&mut router, doc! { "defaultReadConcern": { "level": "available" } });
    assert_eq!(documents(&router.run("levels", find.clone()).unwrap()), 1);
    assert_eq!(documents(&router.run("levels", with(None)).unwrap()), 1);
    for stated in ["local", "majority"] {
        assert_eq!(
            documents(&router.run("levels", with(Some(stated))).unwrap()),
            0,
            "{stated}"
        );
    }
    let aggregate = doc! { "aggregate": "c", "pipeline": [{ "$match": { "_id": 1 } }], "cursor": {} };
    assert_eq!(documents(&router.run("levels", aggregate).unwrap()), 1);
    let count = doc! { "count": "c", "query": { "_id": 1 } };
    assert_eq!(router.run("levels", count).unwrap().get_i32("n").unwrap(), 1);
    let distinct = doc! { "distinct": "c", "key": "k", "query": { "_id": 1 } };
    let distinct = router.run("levels", distinct).unwrap();
    assert_eq!(distinct.get_array("values").unwrap().len(), 1);
    let update = doc! { "update": "c", "updates": [{ "q": { "k": 60 }, "u": { "$set": { "seen": true } } }] };
    assert_eq!(router.run("levels", update).unwrap().get_i32("n").unwrap(), 0);

    set(&mut router, doc! { "defaultReadConcern": { "level": "majority" } });
    assert_eq!(documents(&router.run("levels", find).unwrap()), 0);
}

#[test]
fn a_transaction_takes_the_default_as_a_server_does() {
    let cluster = Cluster::start().unwrap();
    cluster.shard_by_ranges("within.c", "k", &[50]).unwrap();
    let native = ReplicaSet::start(1).unwrap();
    let primary = native.addresses().remove(0);
    let mut both = [cluster.router_address(), primary].map(|address| Connection::open(&address).unwrap());
    for level in ["available", "majority", "local"] {
        let mut answers = Vec::new();
        for connection in &mut both {
            set(connection, doc! { "defaultReadConcern": { "level": level } });
            for command in [doc! { "find": "c" }, doc! { "insert": "c", "documents": [{ "k": 1 }] }] {
                let first = first(command);
                let answer = connection.run("within", first.clone());
                let answer = answer.and_then(|_| connection.run("admin", commit(&first)));
                answers.push(format!(
                    "{level}: {:?}",
                    answer.map(|_| ()).map_err(|error| error.code())
                ));
            }
        }
        let (router, native) = answers.split_at(2);
        assert_eq!(router, native);
        // As a read it takes the default, and with that one nothing begins; an insert takes none.
        assert_eq!(answers[0].contains("72"), level == "available", "{answers:?}");
    }
}

#[test]
fn writes_that_state_nothing_wait_as_the_default_says() {
    let cluster = Cluster::start().unwrap();
    cluster.shard_by_ranges("waits.c", "k", &[50]).unwrap();
    let mut router = Connection::open(&cluster.router_address()).unwrap();
    let insert = |k: i32| doc! { "insert": "c", "documents": [{ "k": k }] };
    router.run("waits", insert(1)).unwrap();
    set(
        &mut router,
        doc! { "defaultWriteConcern": { "w": 2, "wtimeout": 5_000 } },
    );
    let reported = |reply: Result<Document, CommandError>| reply.err().and_then(|error| error.code());
    assert_eq!(reported(router.run("waits", insert(2))), UNSATISFIABLE);
    let mut stated = insert(3);
    stated.insert("writeConcern", doc! { "w": "majority" });
    router.run("waits", stated).unwrap();
    let mut without_w = insert(4);
    without_w.insert("writeConcern", doc! { "wtimeout": 5_000 });
    assert_eq!(reported(router.run("waits", without_w)), UNSATISFIABLE);
    // Of a transaction only the commit waits.
    let first = first(insert(5));
    router.run("waits", first.clone()).unwrap();
    assert_eq!(reported(router.run("admin", commit(&first))), UNSATISFIABLE);
    let read = doc! { "aggregate": "c", "pipeline": [{ "$match": {} }], "cursor": {} };
    router.run("waits", read).unwrap();
    assert_eq!(on_each_shard(&cluster), [1, 2, 3, 4, 5]);
}

/// The keys that are there, whoever waited for them.
fn on_each_shard(cluster: &Cluster) -> Vec<i32> {
    let find = || doc! { "find": "c", "sort": { "k": 1 } };
    let shards = cluster.shards().iter();
    let replies = shards.map(|shard| shard.run("waits", find()).unwrap());
    let found = replies.flat_map(|reply| {
        let cursor = reply.get_document("cursor").unwrap();
        cursor.get_array("firstBatch").unwrap().clone()
    });
    found
        .map(|document| document.as_document().unwrap().get_i32("k").unwrap())
        .collect()
}
