//! A deployment with users: what a client may not write it can't reserve, nor learn of; and Keyward's own user needs no
//! more than the role in `docs/security.md`.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::error::ErrorKind;
use mongodb::options::{ClientOptions, Credential, ServerAddress};
use testbed::ReplicaSet;
use testkit::Keyward;

/// A replica set with users, which all tests share; each takes databases of its own.
fn secured() -> &'static ReplicaSet {
    static SECURED: OnceLock<ReplicaSet> = OnceLock::new();
    SECURED.get_or_init(|| {
        ReplicaSet::builder("secured")
            .root_user("root", "root")
            .start()
            .unwrap()
    })
}

/// The command that makes Keyward's role, from the documentation, for `database`.
fn documented_role(database: &str) -> Document {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md")).unwrap();
    let (_, rest) = text.split_once("db.getSiblingDB(\"admin\").runCommand(").unwrap();
    let (command, _) = rest.split_once(")\n```").unwrap();
    let mut command: Document = serde_json::from_str(command).unwrap();
    command.insert("createRole", format!("keyward_{database}"));
    for privilege in command.get_array_mut("privileges").unwrap() {
        let resource = privilege
            .as_document_mut()
            .unwrap()
            .get_document_mut("resource")
            .unwrap();
        if resource.get_str("db").ok() == Some("shop") {
            resource.insert("db", database);
        }
    }
    command
}

async fn run(client: &Client, database: &str, command: Document) -> Result<Document, (i32, String)> {
    client
        .database(database)
        .run_command(command)
        .await
        .map_err(|error| match *error.kind {
            ErrorKind::Command(error) => (error.code, error.message),
            other => (0, other.to_string()),
        })
}

async fn admin(command: Document) {
    run(&secured().client(), "admin", command).await.unwrap();
}

async fn create_user(name: &str, roles: Vec<Bson>) {
    admin(doc! { "createUser": name, "pwd": name, "roles": roles }).await;
}

/// Makes Keyward's user for `database`, with just the documented role, and starts a Keyward with it.
async fn start(database: &str, constraints: &str) -> Keyward {
    admin(documented_role(database)).await;
    let name = format!("keyward_{database}");
    create_user(&name, vec![name.clone().into()]).await;
    let uri = uri_of(&name);
    let constraints = constraints.to_owned();
    tokio::task::spawn_blocking(move || Keyward::start_sweeping(&uri, &constraints))
        .await
        .unwrap()
}

fn uri_of(user: &str) -> String {
    secured().uri().replacen("root:root@", &format!("{user}:{user}@"), 1)
}

/// A client of Keyward's that logs in as `user`, or as nobody.
fn client(keyward: &Keyward, user: Option<&str>) -> Client {
    client_called(keyward, user, None)
}

/// The same, under a name by which a fail point knows it.
fn client_called(keyward: &Keyward, user: Option<&str>, name: Option<&str>) -> Client {
    let mut options = ClientOptions::builder()
        .hosts(vec![ServerAddress::parse(&keyward.address).unwrap()])
        .build();
    options.max_pool_size = Some(1);
    options.app_name = name.map(str::to_owned);
    options.credential = user.map(|user| {
        Credential::builder()
            .username(user.to_owned())
            .password(user.to_owned())
            .build()
    });
    Client::with_options(options).unwrap()
}

fn role(name: &str, database: &str) -> Bson {
    doc! { "role": name, "db": database }.into()
}

async fn reservations(database: &str) -> Vec<Document> {
    use futures_util::TryStreamExt;
    let client = secured().client();
    let reservations = client
        .database(database)
        .collection::<Document>("keyward.users.email_1");
    reservations.find(doc! {}).await.unwrap().try_collect().await.unwrap()
}

fn counted(keyward: &Keyward, name: &str) -> u64 {
    let metrics = keyward.metrics();
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")))
        .unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Every kind of write, with an email that is taken or free.
fn writes(email: &str) -> Vec<Document> {
    vec![
        doc! { "insert": "users", "documents": [{ "_id": 9, "email": email }] },
        doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "email": email } } }] },
        doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": [{ "$set": { "email": email } }] }] },
        doc! { "update": "users", "updates": [{ "q": { "_id": 8 }, "u": { "email": email }, "upsert": true }] },
        doc! { "delete": "users", "deletes": [{ "q": { "email": email }, "limit": 1 }] },
        doc! { "findAndModify": "users", "query": { "_id": 1 }, "update": { "$set": { "email": email } } },
        doc! { "findAndModify": "users", "query": { "_id": 8 }, "update": { "email": email }, "upsert": true },
        doc! { "findAndModify": "users", "query": { "email": email }, "remove": true },
    ]
}

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
    let keyward = start(database, &constraint).await;
    create_user("drop_reader", vec![role("read", database)]).await;
    create_user("drop_writer", vec![role("readWrite", database)]).await;
    let direct = secured().client();
    run(&direct, database, doc! { "profile": 2 }).await.unwrap();
    // A drop asks for the youngest; nobody else does.
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
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
