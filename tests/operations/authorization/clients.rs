//! Clients' rights: what a client may not write it can't reserve, nor learn of.

use bson::{Document, doc};
use testbed::ReplicaSet;
use testkit::Keyward;

use super::{admin, client, counted, create_user, reservations, role, run, secured, start, writes};

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_write_reserves_nothing_and_learns_nothing() {
    for (database, strategy) in [("nothing_c", "compensating"), ("nothing_t", "transaction")] {
        let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: {strategy} }}\n");
        let keyward = start(database, &constraint).await;
        let (reader, writer) = (format!("reader_{database}"), format!("writer_{database}"));
        create_user(&reader, vec![role("read", database)]).await;
        create_user(&writer, vec![role("readWrite", database)]).await;
        let allowed = client(&keyward, Some(&writer));
        run(
            &allowed,
            database,
            doc! { "insert": "users", "documents": [{ "_id": 1, "email": "taken" }, { "_id": 2, "email": "other" }] },
        )
        .await
        .unwrap();
        let before = reservations(database).await;
        let written = || {
            counted(
                &keyward,
                &format!("keyward_constraint_reservations_total{{constraint=\"{database}.users.email_1\"}}"),
            )
        };
        let written_before = written();
        for user in [None, Some(reader.as_str())] {
            let refused = client(&keyward, user);
            let mut said: Vec<(i32, String)> = Vec::new();
            for email in ["taken", "free"] {
                for command in writes(email) {
                    let name = command.keys().next().unwrap().clone();
                    let (code, text) = run(&refused, database, command).await.unwrap_err();
                    assert_eq!(code, 13, "{name}: {text}");
                    let expected = match user {
                        None => format!("command {name} requires authentication"),
                        Some(_) => format!("not authorized on {database} to execute command {{ {name}: \"users\", "),
                    };
                    assert!(text.starts_with(&expected), "{text}");
                    assert!(!text.contains("taken") && !text.contains("free"), "{text}");
                    said.push((code, name));
                }
            }
            let half = said.len() / 2;
            assert_eq!(said[..half], said[half..]);
        }
        assert_eq!(reservations(database).await, before);
        assert_eq!(written(), written_before);
        let refused = u64::try_from(4 * writes("x").len()).unwrap();
        assert_eq!(counted(&keyward, "keyward_client_writes_unauthorized_total"), refused);
        // And who may, may.
        for command in writes("taken").into_iter().take(1) {
            let reply = run(&allowed, database, command).await.unwrap();
            assert!(reply.to_string().contains("E11000"), "{reply}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn some_rights_are_enough_for_what_they_are_for() {
    let database = "some";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}\n");
    let keyward = start(database, &constraint).await;
    let on_users = |actions: &[&str]| {
        let actions: Vec<&str> = actions.to_vec();
        vec![doc! { "resource": { "db": database, "collection": "users" }, "actions": actions }]
    };
    admin(doc! { "createRole": "some_inserter", "privileges": on_users(&["insert"]), "roles": [] }).await;
    admin(doc! { "createRole": "some_updater", "privileges": on_users(&["find", "update"]), "roles": [] }).await;
    create_user("some_inserter", vec!["some_inserter".into()]).await;
    create_user("some_updater", vec!["some_updater".into()]).await;
    let inserter = client(&keyward, Some("some_inserter"));
    let updater = client(&keyward, Some("some_updater"));
    let insert = |id: i32, email: &str| doc! { "insert": "users", "documents": [{ "_id": id, "email": email }] };
    run(&inserter, database, insert(1, "one")).await.unwrap();
    assert_eq!(run(&updater, database, insert(2, "one")).await.unwrap_err().0, 13);
    let update = |upsert: bool| {
        doc! { "update": "users", "updates": [
            { "q": { "_id": 1 }, "u": { "$set": { "email": "two" } }, "upsert": upsert },
        ] }
    };
    // An upsert needs both rights, whether it inserts or not.
    let (code, text) = run(&updater, database, update(true)).await.unwrap_err();
    assert_eq!(code, 13, "{text}");
    assert!(text.contains("{ update: \"users\""), "{text}");
    assert_eq!(run(&inserter, database, update(false)).await.unwrap_err().0, 13);
    // What is asked for beside the write is asked for here, too.
    let mut bypassing = insert(3, "three");
    bypassing.insert("bypassDocumentValidation", true);
    assert_eq!(run(&inserter, database, bypassing).await.unwrap_err().0, 13);
    let updated = run(&updater, database, update(false)).await.unwrap();
    assert_eq!(updated.get_i32("nModified").unwrap(), 1);
    assert_eq!(reservations(database).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_needs_the_rights_of_its_modes_on_the_target() {
    let database = "merging";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}\n");
    let keyward = start(database, &constraint).await;
    let on = |collection: &str, actions: &[&str]| {
        let actions: Vec<&str> = actions.to_vec();
        doc! { "resource": { "db": database, "collection": collection }, "actions": actions }
    };
    let reads = || on("source", &["find"]);
    for (user, privileges) in [
        ("merging_reader", vec![reads()]),
        ("merging_inserter", vec![reads(), on("users", &["insert"])]),
        ("merging_blind", vec![on("users", &["find", "insert", "update"])]),
        ("merging_updater", vec![reads(), on("users", &["find", "update"])]),
    ] {
        admin(doc! { "createRole": user, "privileges": privileges, "roles": [] }).await;
        create_user(user, vec![user.into()]).await;
    }
    let source = doc! { "insert": "source", "documents": [{ "_id": 1, "email": "a" }] };
    run(&secured().client(), database, source).await.unwrap();
    let merge = |matched: &str, not_matched: &str| {
        let stage = doc! { "into": "users", "whenMatched": matched, "whenNotMatched": not_matched };
        doc! { "aggregate": "source", "pipeline": [{ "$merge": stage }], "cursor": {} }
    };
    for (user, matched, not_matched) in [
        ("merging_reader", "merge", "insert"),
        ("merging_inserter", "merge", "insert"),
        ("merging_blind", "merge", "insert"),
        ("merging_updater", "merge", "insert"),
    ] {
        let refused = run(&client(&keyward, Some(user)), database, merge(matched, not_matched)).await;
        let (code, text) = refused.unwrap_err();
        assert_eq!(code, 13, "{user}: {text}");
    }
    let (code, _) = run(&client(&keyward, None), database, merge("merge", "insert"))
        .await
        .unwrap_err();
    assert_eq!(code, 13);
    assert_eq!(reservations(database).await.len(), 0);
    let inserter = client(&keyward, Some("merging_inserter"));
    run(&inserter, database, merge("fail", "insert")).await.unwrap();
    let updater = client(&keyward, Some("merging_updater"));
    run(&updater, database, merge("replace", "fail")).await.unwrap();
    assert_eq!(reservations(database).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_given_or_taken_while_a_client_is_connected_count() {
    let database = "changing";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}\n");
    let keyward = start(database, &constraint).await;
    create_user("changing", vec![role("read", database)]).await;
    let user = client(&keyward, Some("changing"));
    let insert = |id: i32| doc! { "insert": "users", "documents": [{ "_id": id, "email": id }] };
    assert_eq!(run(&user, database, insert(1)).await.unwrap_err().0, 13);
    admin(doc! { "grantRolesToUser": "changing", "roles": [role("readWrite", database)] }).await;
    run(&user, database, insert(1)).await.unwrap();
    admin(doc! { "revokeRolesFromUser": "changing", "roles": [role("readWrite", database)] }).await;
    // Keyward may still believe in the right; the server doesn't, and nothing stays of it.
    assert_eq!(run(&user, database, insert(2)).await.unwrap_err().0, 13);
    assert_eq!(reservations(database).await.len(), 1);
}

/// The server refuses what it may not reserve, and leaves its transaction open: the statement, which it had carried out, was
/// committed without its reservation.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_reserve_in_a_transaction_commits_nothing() {
    let database = "within";
    let keyward = start(
        database,
        &format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n"),
    )
    .await;
    let users = doc! { "resource": { "db": database, "collection": "users" }, "actions": ["find", "insert", "update"] };
    let create = doc! { "createRole": "users_only", "privileges": [users], "roles": [] };
    run(&secured().client(), database, create).await.unwrap();
    create_user("users_only", vec![role("users_only", database)]).await;
    let direct = secured().client();
    let all = direct.database(database).collection::<Document>("users");
    let root = client(&keyward, Some("root"));
    let documents = vec![doc! { "_id": 1, "email": "a" }, doc! { "_id": 2, "email": "b" }];
    let insert = doc! { "insert": "users", "documents": documents };
    assert_eq!(run(&root, database, insert).await.unwrap().get_i32("n").unwrap(), 2);
    let client = client(&keyward, Some("users_only"));
    let collection = client.database(database).collection::<Document>("users");
    for is_insert in [false, true] {
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let error = match is_insert {
            false => {
                let taken = doc! { "$set": { "email": "a" } };
                let update = collection.update_one(doc! { "_id": 2 }, taken).session(&mut session);
                update.await.unwrap_err()
            }
            true => {
                let insert = collection.insert_one(doc! { "_id": 3, "email": "c" });
                insert.session(&mut session).await.unwrap_err()
            }
        };
        assert!(error.to_string().contains("not authorized"), "{error}");
        session.commit_transaction().await.unwrap_err();
        assert_eq!(all.count_documents(doc! { "email": "a" }).await.unwrap(), 1);
        assert_eq!(all.count_documents(doc! {}).await.unwrap(), 2);
    }
}

/// The question what a client may do isn't in the stable API.
#[tokio::test(flavor = "multi_thread")]
async fn who_keeps_to_the_stable_api_may_write() {
    let database = "stable";
    let keyward = start(
        database,
        &format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n"),
    )
    .await;
    create_user("stable_writer", vec![role("readWrite", database)]).await;
    let client = client(&keyward, Some("stable_writer"));
    let insert = |id: i32| doc! { "insert": "users", "documents": [{ "_id": id, "email": id }], "apiVersion": "1", "apiStrict": true };
    assert_eq!(
        run(&client, database, insert(1)).await.unwrap().get_i32("n").unwrap(),
        1
    );
    let reply = run(
        &client,
        database,
        doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }], "apiVersion": "1", "apiStrict": true },
    );
    assert_eq!(reply.await.unwrap().get_i32("n").unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_logs_out_has_no_rights_any_more() {
    let database = "leaving";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}\n");
    let keyward = start(database, &constraint).await;
    create_user("leaving", vec![role("readWrite", database)]).await;
    let user = client(&keyward, Some("leaving"));
    let insert = |id: i32| doc! { "insert": "users", "documents": [{ "_id": id, "email": id }] };
    run(&user, database, insert(1)).await.unwrap();
    run(&user, "admin", doc! { "logout": 1 }).await.unwrap();
    let (code, text) = run(&user, database, insert(2)).await.unwrap_err();
    assert_eq!((code, text.as_str()), (13, "command insert requires authentication"));
    let made = format!("keyward_constraint_reservations_total{{constraint=\"{database}.users.email_1\"}}");
    assert_eq!(counted(&keyward, &made), 1);
}

/// While an operator turns access control on, the servers accept clients that don't log in, too. The other Keywards must know where
/// those write.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_need_not_log_in_writes_only_where_the_register_says_so() {
    let set = ReplicaSet::builder("transition")
        .root_user("root", "root")
        .let_anybody_in()
        .start()
        .unwrap();
    let uri = set.uri();
    let constraint = "  - { collection: transition.others, key: { email: 1 } }\n";
    let keyward = tokio::task::spawn_blocking(move || Keyward::start(&uri, constraint))
        .await
        .unwrap();
    let stranger = client(&keyward, None);
    let insert = doc! { "insert": "users", "documents": [{ "_id": 1 }] };
    assert_eq!(
        run(&stranger, "transition", insert).await.unwrap().get_i32("n").ok(),
        Some(1)
    );
    let register = set.client().database("keyward").collection::<Document>("keywards");
    let entries = register
        .count_documents(doc! { "collections": "transition.users" })
        .await
        .unwrap();
    assert_eq!(entries, 1);
}

/// Otherwise such a client could revoke that any constraint is enforced.
#[tokio::test(flavor = "multi_thread")]
async fn the_register_knows_nothing_of_writes_that_a_client_may_not_do() {
    let database = "unregistered";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let keyward = start(database, &constraint).await;
    create_user("unregistered_reader", vec![role("read", database)]).await;
    create_user("unregistered_writer", vec![role("readWrite", database)]).await;
    let direct = secured().client();
    let epoch = bson::oid::ObjectId::new();
    let enforced = doc! {
        "_id": { "collection": "others", "name": "z_1" }, "identity": bson::oid::ObjectId::new(),
        "state": "enforced", "era": epoch, "enforcedIn": epoch,
    };
    let definitions = direct.database(database).collection::<Document>("keyward.constraints");
    definitions.insert_one(enforced).await.unwrap();
    let state = async || {
        let of_others = doc! { "_id.collection": "others" };
        let found = definitions.find_one(of_others).await.unwrap().unwrap();
        found.get_str("state").unwrap().to_owned()
    };
    let reader = client(&keyward, Some("unregistered_reader"));
    let of_others = |command: Document| {
        let name = command.keys().next().unwrap().clone();
        let mut of_others = doc! { name: "others" };
        of_others.extend(command.into_iter().skip(1));
        of_others
    };
    for command in writes("free") {
        let (code, text) = run(&reader, database, of_others(command)).await.unwrap_err();
        assert_eq!(code, 13, "{text}");
    }
    assert_eq!(state().await, "enforced");
    let insert = doc! { "insert": "others", "documents": [{}] };
    let writer = client(&keyward, Some("unregistered_writer"));
    run(&writer, database, insert).await.unwrap();
    assert_eq!(state().await, "reserving");
}
