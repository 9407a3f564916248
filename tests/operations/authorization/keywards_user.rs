//! Keyward's own user needs no more than the role in `docs/security.md`, and does nothing that its client may not do.

use bson::{Document, doc};
use std::time::{Duration, Instant};

use super::{
    admin, client, client_called, create_user, reservations, role, run, secured, start, start_with_lease, uri_of,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_role_is_enough_for_all_that_keyward_does() {
    let database = "enough";
    let users = secured().client().database(database).collection::<Document>("users");
    // Taken in at the start.
    users
        .insert_one(doc! { "_id": 1, "email": "one", "name": "a" })
        .await
        .unwrap();
    let constraints = format!(
        "  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n  - {{ collection: {database}.users, key: {{ name: 1 }}, \
         collation: {{ locale: en, strength: 2 }} }}\n  - {{ collection: {database}.events, key: {{ number: 1 }} }}\n"
    );
    let keyward = start(database, &constraints).await;
    create_user("enough", vec![role("readWrite", database)]).await;
    let user = client(&keyward, Some("enough"));
    let through = user.database(database).collection::<Document>("users");
    for (id, email, name) in [(2, "one", "x"), (2, "x", "A")] {
        let duplicate = through
            .insert_one(doc! { "_id": id, "email": email, "name": name })
            .await
            .unwrap_err();
        assert!(duplicate.to_string().contains("E11000"), "{duplicate}");
    }
    through
        .insert_one(doc! { "_id": 3, "email": "three", "name": "c" })
        .await
        .unwrap();
    through
        .update_one(doc! { "_id": 3 }, doc! { "$set": { "email": "four" } })
        .await
        .unwrap();
    // A key whose document has gone past Keyward: taken over, or swept away before it comes to that.
    users.delete_one(doc! { "_id": 3 }).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = through
        .insert_one(doc! { "_id": 5, "email": "four", "name": "c" })
        .await
    {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    users.delete_one(doc! { "_id": 1 }).await.unwrap();
    while reservations(database).await.len() > 1 {
        assert!(Instant::now() < deadline, "{:?}", reservations(database).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // `verify` and `backfill`, as the same user.
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("keyward.yaml");
    let text = format!("upstream: {}\nconstraints:\n{constraints}", uri_of("keyward_enough"));
    std::fs::write(&config, text).unwrap();
    for command in ["verify", "backfill"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_keyward"))
            .args([command, "--config"])
            .arg(&config)
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
    user.database(database)
        .collection::<Document>("events")
        .drop()
        .await
        .unwrap();
    through.drop().await.unwrap();
    assert!(reservations(database).await.is_empty());
}

/// Strict inserts that come at the same time go in by one transaction, which is one user's: so are its inserts.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_in_together_is_one_users() {
    const CLIENTS: usize = 24;
    const INSERTS: i32 = 10;
    const USERS: [&str; 2] = ["together_ann", "together_bob"];
    let database = "together";
    for user in USERS {
        create_user(user, vec![role("readWrite", database)]).await;
    }
    let keyward = start(
        database,
        &format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n"),
    )
    .await;
    let mut running = Vec::new();
    for number in 0..CLIENTS {
        let client = client(&keyward, Some(USERS[number % 2]));
        running.push(tokio::spawn(async move {
            let users = client.database(database).collection("users");
            for insert in 0..INSERTS {
                users
                    .insert_one(doc! { "email": format!("{number} {insert}") })
                    .await
                    .unwrap();
            }
        }));
    }
    for one in running {
        one.await.unwrap();
    }
    let transactions: Vec<Document> = {
        use futures_util::TryStreamExt;
        let oplog = secured().client().database("local").collection("oplog.rs");
        let filter = doc! { "op": "c", "o.applyOps.ns": format!("{database}.users") };
        oplog.find(filter).await.unwrap().try_collect().await.unwrap()
    };
    let mut users = [const { Vec::new() }; 2];
    let mut together = 0;
    for transaction in &transactions {
        let operations = transaction.get_document("o").unwrap().get_array("applyOps").unwrap();
        let inserted = operations.iter().filter_map(|operation| {
            let document = operation.as_document()?.get_document("o").ok()?;
            document.get_str("email").ok()?.split(' ').next()?.parse::<usize>().ok()
        });
        let inserted: Vec<usize> = inserted.collect();
        // A digest of the name.
        let user = transaction.get_document("lsid").unwrap().get("uid").unwrap();
        inserted.iter().for_each(|number| users[number % 2].push(user));
        together += usize::from(inserted.len() > 1);
    }
    assert!(together > 0);
    for user in &mut users {
        assert_eq!(user.len(), CLIENTS / 2 * INSERTS as usize);
        user.dedup();
    }
    let [ann, bob] = users;
    assert_eq!(
        (ann.len(), bob.len()),
        (1, 1),
        "somebody's inserts went in as somebody else's"
    );
    assert_ne!(ann, bob);
}

/// What a drop looks up before it, so that keys are free at once, may be much, and is done with Keyward's rights.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_drop_makes_keyward_look_nothing_up() {
    let database = "dropping";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}\n");
    // Long enough for a busy machine to write within it; nothing here waits until it is over.
    let keyward = start_with_lease(database, "10s", &constraint).await;
    create_user("drop_reader", vec![role("read", database)]).await;
    create_user("drop_writer", vec![role("readWrite", database)]).await;
    let direct = secured().client();
    run(&direct, database, doc! { "profile": 2 }).await.unwrap();
    // A drop reads the recent reservations; no other command does.
    let looks = doc! { "command.find": "keyward.users.email_1", "command.filter.at": { "$exists": true } };
    let count_looks = async || {
        let profile = direct.database(database).collection::<Document>("system.profile");
        profile.count_documents(looks.clone()).await.unwrap()
    };
    let writer = client(&keyward, Some("drop_writer"));
    let insert = doc! { "insert": "users", "documents": [{ "_id": 1, "email": "a" }] };
    for drop in [doc! { "drop": "users" }, doc! { "dropDatabase": 1 }] {
        run(&writer, database, insert.clone()).await.unwrap();
        let before = count_looks().await;
        for user in [None, Some("drop_reader")] {
            let (code, text) = run(&client(&keyward, user), database, drop.clone()).await.unwrap_err();
            assert_eq!(code, 13, "{text}");
        }
        assert_eq!(count_looks().await, before, "{drop}");
        assert_eq!(reservations(database).await.len(), 1);
        // Who may, has the keys free at once.
        run(&writer, database, drop.clone()).await.unwrap();
        assert!(count_looks().await > before, "{drop}");
        assert!(reservations(database).await.is_empty());
    }
}

/// The session is the client's user's, whom only the server's own name for it tells; ending it takes Keyward's rights.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_connection_left_open_is_ended() {
    let database = "left_open";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let keyward = start(database, &constraint).await;
    create_user("left_open_writer", vec![role("readWrite", database)]).await;
    let writer = |name| client_called(&keyward, Some("left_open_writer"), name);
    let set = |email: &str| {
        let set = doc! { "$set": { "email": email } };
        doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": set }] }
    };
    let (cut, other) = (writer(Some("cut")), writer(None));
    let document = doc! { "insert": "users", "documents": [{ "_id": 1, "email": "a" }] };
    run(&cut, database, document).await.unwrap();
    let close = doc! { "failCommands": ["commitTransaction"], "closeConnection": true, "appName": "cut" };
    admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": close }).await;
    let lost = run(&cut, database, set("b")).await.unwrap_err();
    assert_eq!(lost.0, 0, "{lost:?}");
    let begun = Instant::now();
    run(&other, database, set("c")).await.unwrap();
    // Left open, the transaction would be in the way for a minute.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
