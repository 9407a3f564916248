//! Builds of clients' constraints as operations: `currentOp` and `keyward status` show them, and `killOp` ends them.

use bson::Bson;
use serde_json::Value;
use testkit::altering::Altering;
use testkit::relay::{Relay, insert_into};
use testkit::wire::Connection;

use super::*;

/// The operations that match `filter`, as `currentOp` lists them.
fn current_operations(keyward: &Keyward, filter: Document) -> Vec<Document> {
    let mut command = doc! { "currentOp": 1 };
    command.extend(filter);
    let listed = keyward.run("admin", command).unwrap();
    documents(listed.get_array("inprog").unwrap())
}

/// The same by `$currentOp`, with these further stages.
fn aggregated_operations(keyward: &Keyward, stages: impl IntoIterator<Item = Document>) -> Vec<Document> {
    let mut pipeline = vec![doc! { "$currentOp": { "allUsers": true } }];
    pipeline.extend(stages);
    let listed = keyward
        .run("admin", doc! { "aggregate": 1, "pipeline": pipeline, "cursor": {} })
        .unwrap();
    documents(listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap())
}

fn documents(array: &[Bson]) -> Vec<Document> {
    array.iter().map(|one| one.as_document().unwrap().clone()).collect()
}

/// The builds on `users`, by a filter that tools use.
fn builds(keyward: &Keyward, database: &str) -> Vec<Document> {
    let ns = format!("{database}.users");
    current_operations(
        keyward,
        doc! { "ns": ns, "command.createIndexes": { "$exists": true }, "opid": { "$regex": "^keyward:" } },
    )
}

/// The only one of them, once it is there.
fn build(keyward: &Keyward, database: &str) -> Document {
    keyward.until("the build", || builds(keyward, database).len() == 1);
    builds(keyward, database).remove(0)
}

fn kill(keyward: &Keyward, build: &Document) -> Result<Document, i32> {
    keyward.run("admin", doc! { "killOp": 1, "op": build.get("opid").unwrap() })
}

#[test]
fn a_build_is_an_operation_that_any_keyward_lists_and_ends() {
    const DATABASE: &str = "created_and_killed";
    shard_users(DATABASE);
    let keywards = [start(), start(), start()];
    assert_eq!(builds(&keywards[0], DATABASE), []);
    assert!(
        !current_operations(&keywards[0], doc! {}).is_empty(),
        "the server's own"
    );
    // It may write to the collection, so the constraint waits for it.
    write_first(&keywards[1], DATABASE);
    keywards[1].freeze();
    let refused = std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            let session = bson::Binary {
                subtype: bson::spec::BinarySubtype::Uuid,
                bytes: vec![7; 16],
            };
            let mut command = create([unique_email()]);
            command.insert("lsid", doc! { "id": session });
            Connection::open(&keywards[0].address).run(DATABASE, &command)
        });
        let shown = build(&keywards[0], DATABASE);
        assert_shown_with_client(&shown, DATABASE);
        let elsewhere = build(&keywards[2], DATABASE);
        assert_eq!(elsewhere.get("opid"), shown.get("opid"));
        assert_eq!(elsewhere.get("host"), shown.get("host"));
        assert!(!elsewhere.contains_key("client"), "{elsewhere}");
        let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
        let command = doc! { "createIndexes": "users", "indexes": [index], "$db": DATABASE };
        assert_eq!(elsewhere.get_document("command").unwrap(), &command);
        // The filter and the stages are the server's to apply.
        let of_other = current_operations(&keywards[0], doc! { "ns": "other.users", "opid": shown.get("opid") });
        assert_eq!(of_other, []);
        let ns = doc! { "$match": { "ns": format!("{DATABASE}.users"), "opid": shown.get("opid") } };
        let counted = aggregated_operations(&keywards[2], [ns, doc! { "$count": "n" }]);
        assert_eq!(counted, [doc! { "n": 1 }]);
        assert!(!made.is_finished());
        let killed = kill(&keywards[2], &shown).unwrap();
        assert_eq!(killed.get_str("info").unwrap(), "attempting to kill op");
        keywards[1].wake();
        made.join().unwrap()
    });
    assert_eq!(refused.get_i32("code").ok(), Some(11_601), "{refused}");
    assert_eq!(refused.get_str("errmsg").unwrap(), "operation was interrupted");
    assert_eq!(
        indexes(&keywards[0], DATABASE).len(),
        2,
        "those on _id and on the shard key"
    );
    assert_eq!(builds(&keywards[0], DATABASE), []);
    until_no_constraint(&keywards[0], DATABASE);
    until_no_constraint(&keywards[1], DATABASE);
}

/// Asserts that a build is shown as a server shows a native one that a client waits for.
fn assert_shown_with_client(shown: &Document, database: &str) {
    for (field, text) in [
        ("type", "op"),
        ("op", "command"),
        ("ns", &format!("{database}.users")),
        ("msg", "Index Build: waiting until all writers reserve"),
    ] {
        assert_eq!(shown.get_str(field).ok(), Some(text), "{shown}");
    }
    assert!(shown.get_bool("active").unwrap(), "{shown}");
    assert!(shown.get_str("desc").unwrap().starts_with("conn"), "{shown}");
    assert!(shown.get_str("client").unwrap().starts_with("127.0.0.1:"), "{shown}");
    assert!(shown.get_i64("secs_running").unwrap() < 60, "{shown}");
    assert!(shown.get_i64("microsecs_running").unwrap() >= 0, "{shown}");
    assert!(shown.get_document("lsid").unwrap().contains_key("id"), "{shown}");
    let command = shown.get_document("command").unwrap();
    assert_eq!(command.get_str("createIndexes").ok(), Some("users"), "{shown}");
    assert_eq!(command.get_str("$db").ok(), Some(database), "{shown}");
}

#[test]
fn the_progress_of_a_build_is_shown() {
    const DATABASE: &str = "created_with_progress";
    // Changes of the list would break the held backfill off.
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let users: Vec<Document> = (0..5)
        .map(|id| doc! { "_id": id, "region": "a", "email": format!("{id}@x") })
        .collect();
    cluster
        .run(DATABASE, doc! { "insert": "users", "documents": users })
        .unwrap();
    let relay = Relay::start(cluster.router_address());
    let builder = Keyward::of(&format!("upstream: {}\nlease: 10s\nconstraints: []\n", relay.uri())).leaving();
    let other = start_at(&cluster);
    let beginning = relay.hold(b"backfill.by\0");
    std::thread::scope(|scope| {
        let made = scope.spawn(|| reply(&builder, DATABASE, &create([unique_email()])));
        beginning.wait();
        // It shows the build once it has the list.
        let has_applied = |line: &str| line.contains("clients' constraints applied") && line.contains(DATABASE);
        other.until("the list applied", || other.log().lines().any(has_applied));
        let reserving = relay.hold(&insert_into("keyward.users.email_1"));
        drop(beginning);
        reserving.wait();
        assert_progress(&other, DATABASE, 0);
        // The end of the backfill.
        let completing = relay.hold(&[b"$unset\0", &*doc! { "backfill": 1 }.to_vec().unwrap()].concat());
        drop(reserving);
        completing.wait();
        assert_progress(&other, DATABASE, 5);
        drop(completing);
        must(&made.join().unwrap());
        assert_eq!(builds(&other, DATABASE), []);
        let is_building = |line: &str| line.starts_with("building ") && line.contains(DATABASE);
        // Pages show builds as they were a moment ago.
        other.until("the end on the page", || !other.get("/status").lines().any(is_building));
    });
}

/// Asserts that `done` of five documents are shown as done, by a Keyward that doesn't build.
fn assert_progress(keyward: &Keyward, database: &str, done: i32) {
    let percent = done * 20;
    let shown = build(keyward, database);
    assert_eq!(
        shown.get_str("msg").unwrap(),
        format!("Index Build: scanning collection: {done}/5 {percent}%")
    );
    let progress = doc! { "done": i64::from(done), "total": 5_i64 };
    assert_eq!(shown.get_document("progress").unwrap(), &progress);
    let bar = if done == 0 { "-".repeat(20) } else { "#".repeat(20) };
    let line = format!(
        "building       {database}.users email_1: backfilling [{bar}] {percent} %, {done} of about 5 documents\n"
    );
    // Pages show builds as they were a moment ago.
    keyward.until(&line, || keyward.get("/status").contains(&line));
    let expected = serde_json::json!({
        "collection": format!("{database}.users"), "constraints": ["email_1"], "phase": "backfilling", "done": done, "ofAbout": 5,
    });
    keyward.until(&expected.to_string(), || {
        let page = keyward.get("/status.json");
        let (_, json) = page.split_once("\r\n\r\n").unwrap();
        let json: Value = serde_json::from_str(json).unwrap();
        let builds = json["builds"].as_array().unwrap();
        let mut here = builds
            .iter()
            .filter(|build| build["collection"] == expected["collection"]);
        here.next() == Some(&expected)
    });
}

#[test]
fn a_client_that_may_not_end_operations_ends_no_build() {
    const DATABASE: &str = "created_unkilled";
    shard_users(DATABASE);
    let unauthorized = Altering::replies(CLUSTER.router_address(), |request, reply| {
        if request.contains_key("killOp") {
            *reply = doc! { "ok": 0.0, "errmsg": "Unauthorized", "code": 13, "codeName": "Unauthorized" };
        }
    });
    let keywards = [start(), start()];
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: []\n", unauthorized.uri());
    let restricted = Keyward::of(&settings).leaving();
    write_first(&keywards[1], DATABASE);
    keywards[1].freeze();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| reply(&keywards[0], DATABASE, &create([unique_email()])));
        let shown = build(&restricted, DATABASE);
        assert_eq!(kill(&restricted, &shown), Err(13));
        keywards[1].wake();
        must(&made.join().unwrap());
    });
    assert_first_is_held(&keywards[0], DATABASE);
}
