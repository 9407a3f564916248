//! Values that break what stands between Keyward and the server rather than the server itself, held against a native
//! unique index.

use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocumentBuf, Timestamp, bson, doc, rawdoc};
use keyward::namespace::Namespace;
use keyward::raw::Builder;
use testbed::{Cluster, ReplicaSet};

use crate::both::retries::retryable;
use crate::compensating::{EMAIL, PHONE, assert_agreement, insert, keyward, users, write_errors};
use crate::native_index::server::Server;
use testkit::run;
use testkit::wire::send;

/// The same documents, one after another, through Keyward and into a native unique index.
async fn same_answers(database: &str, cluster: &Cluster, address: &str, documents: Vec<Vec<u8>>) {
    let native = ReplicaSet::shared().client();
    native.database(database).drop().await.unwrap();
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    run(&native, database, doc! { "createIndexes": "users", "indexes": [index] }).await;
    let namespace = Namespace::new(database, "users");
    let (mut through_keyward, mut native) = (Server::at(address), Server::connect());
    for document in documents {
        let document = [document];
        let expected = native.insert(&namespace, &document);
        assert_eq!(
            through_keyward.insert(&namespace, &document),
            expected,
            "{}",
            cluster.uri()
        );
    }
}

fn with_email(id: i32, email: impl FnOnce(&mut Builder)) -> Vec<u8> {
    let mut document = Builder::new();
    document
        .int32("_id", id)
        .string("region", if id % 2 == 0 { b"a" } else { b"z" });
    email(&mut document);
    document.finish()
}

/// Its key was kept until the end of the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_is_too_deep_frees_its_key() {
    let database = "too_deep";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let deep = |levels: i32| (0..levels).fold(Bson::Int32(1), |inner, _| doc! { "y": inner }.into());
    let user = |id: i32, email: &str| doc! { "_id": id, "region": "a", "email": email };
    let set = |id: i32, email: &str| {
        let set = doc! { "$set": { "email": email, "y.y.y.y.y.y.y.y": deep(177) } };
        let q = doc! { "_id": id, "region": "a" };
        doc! { "update": "users", "updates": [{ "q": q, "u": set, "upsert": true }] }
    };
    let mut too_deep = user(2, "inserted@x");
    too_deep.insert("y", deep(180));
    send(&keyward.address, database, insert(vec![user(1, "a@x")], true)).unwrap();
    for (refused, email) in [
        (insert(vec![too_deep], true), "inserted@x"),
        (set(1, "updated@x"), "updated@x"),
        (set(3, "upserted@x"), "upserted@x"),
    ] {
        let reply = send(&keyward.address, database, refused).unwrap();
        assert_eq!(write_errors(&reply), [(0, 15)], "{reply}");
        let mut another = insert(vec![user(10, email)], true);
        another.insert("maxTimeMS", 10_000);
        let reply = send(&keyward.address, database, another).unwrap();
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
        let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 10, "region": "a" }, "limit": 1 }] };
        send(&keyward.address, database, delete).unwrap();
    }
    assert_agreement(cluster, database, "email").await;
}

/// The server computes the reply after it has changed the document. In place, the change stayed, and its key was given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_projection_that_fails_leaves_the_document_as_it_was() {
    let database = "failed_projection";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let user = |id: i32, email: &str| doc! { "_id": id, "region": "a", "email": email, "n": 0 };
    send(&keyward.address, database, insert(vec![user(1, "a@x")], true)).unwrap();
    let modify = doc! {
        "findAndModify": "users", "query": { "_id": 1, "region": "a" }, "update": { "$set": { "email": "b@x" } },
        "new": true, "fields": { "q": { "$divide": [1, "$n"] } },
    };
    let refused = send(&keyward.address, database, modify).unwrap();
    assert_eq!(refused.get_i32("code").ok(), Some(2), "{refused}");
    let reply = send(&keyward.address, database, insert(vec![user(2, "b@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_server_cannot_name_whole_is_a_duplicate_all_the_same() {
    let database = "illegible";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    // The server's own error cuts them in the middle of a character, or was never text: no driver reads its reply.
    let long = format!("a{}", "é".repeat(100));
    let texts: [&[u8]; 2] = [long.as_bytes(), b"\xff\xfe"];
    let documents = texts.iter().flat_map(|text| {
        let of = |id| {
            with_email(id, |document| {
                document.string("email", text);
            })
        };
        let first = 10 * text.len() as i32;
        [of(first), of(first + 1)]
    });
    same_answers(database, cluster, &keyward.address, documents.collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_has_a_name_twice_is_a_duplicate_all_the_same() {
    let database = "twice";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let documents = (1..4).map(|id| {
        with_email(id, |document| {
            document.open(bson::spec::ElementType::EmbeddedDocument, b"email");
            document.int32("a", 1).int32("a", id.min(2)).close();
        })
    });
    same_answers(database, cluster, &keyward.address, documents.collect()).await;
}

#[tokio::test]
async fn a_time_that_the_server_would_fill_in_is_refused() {
    let database = "filled_in";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    let user = |id: i32, email: Bson| doc! { "_id": id, "region": "a", "email": email };
    let zero = Bson::Timestamp(Timestamp { time: 0, increment: 0 });
    let documents = vec![user(1, "a@x".into()), user(2, zero), user(3, "b@x".into())];
    let reply = run(&client, database, insert(documents.clone(), false)).await;
    assert_eq!(write_errors(&reply), [(1, 115)], "{reply}");
    assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// The server's projection leaves out the fields behind a field that comes twice: Keyward would read other keys later.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_with_a_field_twice_is_refused() {
    let database = "field_twice";
    let cluster = users(database);
    let two = EMAIL.replace("email: 1", "first: 1, second: 1");
    let keyward = keyward(cluster, database, "60s", &[&two]);
    let namespace = Namespace::new(database, "users");
    let mut server = Server::at(&keyward.address);
    let document = |names: &[&str]| {
        let mut document = Builder::new();
        document.int32("_id", 1).string("region", b"a");
        for (value, name) in (1..).zip(names) {
            document.int32(name, value);
        }
        document.finish()
    };
    let documents = [
        document(&["first", "first", "second"]),
        document(&["region", "first", "second"]),
        document(&["other", "other", "second"]),
    ];
    let errors = server.insert(&namespace, &documents);
    let codes = errors
        .into_iter()
        .map(|error| Some(Document::from_reader(&*error?).unwrap().get_i32("code").unwrap()));
    assert_eq!(codes.collect::<Vec<_>>(), [Some(115), Some(115), None]);
    // In the place of another document, and of none. It comes last, so the server's reader would see it once.
    let mut twice = Builder::new();
    twice.string("region", b"a").int32("first", 1).int32("first", 2);
    let twice = RawDocumentBuf::from_bytes(twice.finish()).unwrap();
    let client = keyward.client_without_retries().await;
    let there = doc! { "_id": 2, "region": "a", "first": 9 };
    run(&client, database, insert(vec![there], true)).await;
    for id in [2, 3] {
        let replace = rawdoc! { "q": { "_id": id, "region": "a" }, "u": twice.clone(), "upsert": true };
        let update = rawdoc! { "update": "users", "updates": [replace] };
        let reply = client.database(database).run_raw_command(update).await.unwrap();
        assert_eq!(write_errors(&reply), [(0, 115)], "{reply}");
    }
}

/// The server's reader sees the first one, and stops. The second one would be the key once the first one is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_last_field_that_comes_twice_hides_no_key() {
    let database = "last_field_twice";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    let user = doc! { "_id": 1, "region": "a", "name": "n", "email": "old" };
    run(&client, database, insert(vec![user], true)).await;
    for twice in [
        rawdoc! { "region": "a", "name": "n", "email": "a1", "email": "b1" },
        // A client can't know which field Keyward looks for in vain.
        rawdoc! { "region": "a", "name": "n", "keyward_absent": 1, "email": "a1", "email": "b1" },
    ] {
        // The query names no shard, so a transaction replaces the document.
        let replace = rawdoc! { "q": { "name": "n" }, "u": twice };
        let update = rawdoc! { "update": "users", "updates": [replace] };
        let reply = client.database(database).run_raw_command(update).await.unwrap();
        assert_eq!(write_errors(&reply), [(0, 115)], "{reply}");
    }
    // One that was written past Keyward.
    let past = cluster.client().database(database);
    let past = past.collection::<RawDocumentBuf>("users");
    past.insert_one(rawdoc! { "_id": 2, "region": "a", "email": "c1", "email": "c2" })
        .await
        .unwrap();
    let unset = doc! { "q": { "_id": 2, "region": "a" }, "u": { "$unset": { "email": 1 } } };
    let reply = run(&client, database, doc! { "update": "users", "updates": [unset] }).await;
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    let same = doc! { "_id": 3, "region": "z", "email": "c2" };
    let reply = run(&client, database, insert(vec![same], true)).await;
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
}

/// No document is that deep. The path is in a condition of an upsert, whose document Keyward makes itself where it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_of_very_many_parts_is_the_servers_to_answer() {
    let database = "deep_path";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    for parts in [90, 150, 250, 100_000] {
        let path = vec!["x"; parts].join(".");
        let upsert = |id: i32| {
            let query = doc! { "_id": id, "region": "a", &path: 1 };
            let statement = doc! { "q": query, "u": { "$set": { "email": id } }, "upsert": true };
            doc! { "update": "users", "updates": [statement] }
        };
        let part = i32::try_from(parts).unwrap();
        let expected = run(&cluster.client(), database, upsert(-part)).await;
        let reply = run(&client, database, upsert(part)).await;
        assert_eq!(write_errors(&reply), write_errors(&expected), "{parts} parts");
        assert_eq!(reply.get_i32("n").ok(), expected.get_i32("n").ok(), "{parts} parts");
    }
}

/// They are older than the constraint, or were written past Keyward. No condition on what Keyward reads of them would hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_retryable_statement_about_a_document_with_a_field_twice_is_refused_at_once() {
    let database = "field_twice_there";
    let cluster = users(database);
    let two = EMAIL.replace("email: 1", "first: 1, second: 1");
    let keyward = keyward(cluster, database, "60s", &[&two]);
    let past = cluster
        .client()
        .database(database)
        .collection::<RawDocumentBuf>("users");
    let twice = |id: i32| rawdoc! { "_id": id, "region": "a", "first": id, "first": 0, "second": id };
    past.insert_many((1..5).map(twice)).await.unwrap();
    let began = Instant::now();
    let send = |command: Document| send(&keyward.address, database, command).unwrap();
    let place = |id: i32| doc! { "_id": id, "region": "a" };
    let update = |id: i32, change: Document| doc! { "update": "users", "updates": [{ "q": place(id), "u": change }] };
    let delete = |id: i32| doc! { "delete": "users", "deletes": [{ "q": place(id), "limit": 1 }] };
    let set = |id: i32| update(id, doc! { "$set": { "first": 7 } });
    for command in [set(1), update(1, doc! { "region": "a", "first": 7 }), delete(1)] {
        let reply = send(retryable(command, 1));
        assert_eq!(write_errors(&reply), [(0, 115)], "{reply}");
    }
    let modify = doc! { "findAndModify": "users", "query": place(1), "remove": true };
    let reply = send(retryable(modify, 1));
    assert_eq!(reply.get_i32("code").ok(), Some(115), "{reply}");
    // Without a number, the server's own result is known in the end.
    let reply = send(set(2));
    assert_eq!(write_errors(&reply), [(0, 115)], "{reply}");
    let reply = send(update(3, doc! { "region": "a", "first": 3, "second": 3 }));
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    let reply = send(delete(4));
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    // A retry of a statement that a first try has carried out.
    let first_try = retryable(update(3, doc! { "$set": { "first": 4 } }), 1);
    let reply = send(first_try.clone());
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    past.delete_one(place(3)).await.unwrap();
    past.insert_one(twice(3)).await.unwrap();
    let reply = send(first_try);
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    // Each of them would take a minute if it were tried until then.
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
}

/// The server fills such a time in where it is a field of a reservation, but not where it is a document's `_id`.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_whose_id_is_no_time_keeps_its_key() {
    let database = "zero_time_id";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "1s", &[EMAIL, PHONE]);
    let client = keyward.client_without_retries().await;
    let zero_time = Timestamp { time: 0, increment: 0 };
    let zero = Bson::Timestamp(zero_time);
    let user = |id: Bson, email: &str, phone: i32| doc! { "_id": id, "region": "a", "email": email, "phone": phone };
    let reply = run(&client, database, insert(vec![user(zero.clone(), "a@x", 1)], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    for constraint in ["email", "phone"] {
        assert_agreement(cluster, database, constraint).await;
    }
    let again = insert(vec![user(2.into(), "a@x", 2)], true);
    assert_eq!(write_errors(&run(&client, database, again).await), [(0, 11000)]);
    // In place, in a transaction of Keyward's, and in one of the client's.
    let of_zero = doc! { "_id": zero, "region": "a" };
    let in_transaction = bson!([{ "$set": { "phone": { "$add": ["$phone", 5] } } }]);
    for change in [bson!({ "$set": { "email": "b@x" } }), in_transaction] {
        let update = doc! { "update": "users", "updates": [{ "q": of_zero.clone(), "u": change }] };
        let reply = run(&client, database, update).await;
        assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    }
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let users = client.database(database).collection::<Document>("users");
    let change = doc! { "$set": { "email": "c@x" } };
    users
        .update_one(of_zero.clone(), change)
        .session(&mut session)
        .await
        .unwrap();
    session.commit_transaction().await.unwrap();
    for (id, email, phone, is_taken) in [(3, "c@x", 3, true), (4, "b@x", 1, false), (5, "d@x", 6, true)] {
        let reply = run(&client, database, insert(vec![user(id.into(), email, phone)], true)).await;
        assert_eq!(!write_errors(&reply).is_empty(), is_taken, "{reply}");
    }
    // No other `_id` is stored like this one.
    let same = doc! { "_id": { "$zeroTime": zero_time }, "region": "a", "email": "e@x" };
    let reply = run(&cluster.client(), database, insert(vec![same], true)).await;
    assert!(!write_errors(&reply).is_empty(), "{reply}");
    let delete = doc! { "delete": "users", "deletes": [{ "q": of_zero, "limit": 1 }] };
    assert_eq!(run(&client, database, delete).await.get_i32("n").unwrap(), 1);
    for constraint in ["email", "phone"] {
        assert_agreement(cluster, database, constraint).await;
    }
}

#[tokio::test]
async fn fields_of_the_command_mean_what_they_mean_to_the_server() {
    let database = "fields";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    let user = |id: i32| doc! { "_id": id, "region": "a", "email": id % 10 };
    // Null is no answer to whether the order counts: nothing after the first error is tried.
    let mut command = insert(vec![user(1), user(11), user(2)], true);
    command.insert("ordered", Bson::Null);
    let reply = run(&client, database, command).await;
    assert_eq!(
        (reply.get_i32("n").unwrap(), write_errors(&reply)),
        (1, vec![(1, 11000)])
    );
    for limit in [Bson::Int32(-1), Bson::Double(1.5), "x".into(), Bson::Int64(1 << 40)] {
        let mut command = insert(vec![user(3)], true);
        command.insert("maxTimeMS", limit);
        let reply = run(&client, database, command).await;
        assert_eq!(reply.get_i32("code").unwrap(), 2, "{reply}");
    }
    assert_agreement(cluster, database, "email").await;
}

/// What the server takes, though drivers don't send it, is carried out on shards, too, and again for a retry.
#[tokio::test(flavor = "multi_thread")]
async fn what_only_people_send_is_carried_out() {
    let database = "by_hand";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    run(
        &client,
        database,
        insert(vec![doc! { "_id": 1, "region": "a", "email": 1 }], true),
    )
    .await;
    let subtype = bson::spec::BinarySubtype::Uuid;
    let session = doc! { "id": bson::Binary { subtype, bytes: rand::random::<[u8; 16]>().to_vec() } };
    let command = doc! {
        "findAndModify": "users", "query": { "_id": 1, "region": "a" }, "update": { "$inc": { "email": 1 } }, "new": 1,
        "sort": Bson::Null, "lsid": session, "txnNumber": 1_i64,
    };
    for _ in 0..2 {
        let reply = testkit::wire::send(&keyward.address, database, command.clone()).unwrap();
        assert_eq!(
            reply.get_document("value").unwrap().get_i32("email").ok(),
            Some(2),
            "{reply}"
        );
    }
    assert_agreement(cluster, database, "email").await;
}
