//! Traces for OpenTelemetry: what a collector gets to see of a client's commands, and that nobody suffers from a collector
//! that is away.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod collector;
#[allow(dead_code, reason = "its other tests use the rest")]
use std::net::TcpListener;

use bson::{Document, doc};
use collector::{Collector, attribute};
use mongodb::{Client, Collection};
use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use testbed::ReplicaSet;
use testkit::Keyward;

/// Values that stand in documents, queries and credentials, and may stand in no trace.
const SECRETS: [&str; 5] = ["ann@example", "bob@example", "id-of-ann", "id-of-bob", "wonderland"];

/// What an insert takes: may the client do this, are its keys free, and the insert itself.
const STEPS: [&str; 3] = ["upstream connectionStatus", "reserve", "upstream insert"];

fn start(upstream: &str, database: &str, settings: &str) -> Keyward {
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}\n");
    let lease_and_more = format!("10s\n{settings}");
    Keyward::try_start(upstream, &lease_and_more, &constraint).unwrap_or_else(|refused| panic!("{}", refused.errors))
}

/// One span of each, in the order in which they began.
fn shape<'a>(spans: impl IntoIterator<Item = &'a Span>) -> Vec<&'a str> {
    spans.into_iter().map(|span| span.name.as_str()).collect()
}

/// The command's span of this name that ended so, and the spans below it.
fn command<'a>(spans: &'a [Span], name: &str, code: Option<&str>) -> (&'a Span, Vec<&'a Span>) {
    let ended_so =
        |span: &&Span| span.name == name && attribute(&span.attributes, "db.response.status_code").as_deref() == code;
    let span = spans.iter().find(ended_so);
    let span = span.unwrap_or_else(|| panic!("{name} that ends with {code:?} in {:?}", shape(spans)));
    let below = spans.iter().filter(|other| other.parent_span_id == span.span_id);
    (span, below.collect())
}

/// Inserts, is refused a duplicate, changes a key, reads.
async fn work(keyward: &Keyward, user: &str, database: &str) {
    let uri = format!("mongodb://{user}@{}/?authSource=admin", keyward.address);
    let client = Client::with_uri_str(&uri).await.unwrap();
    let users: Collection<Document> = client.database(database).collection("users");
    users
        .insert_one(doc! { "_id": "id-of-ann", "email": "ann@example" })
        .await
        .unwrap();
    let refused = users
        .insert_one(doc! { "_id": "id-of-bob", "email": "ann@example" })
        .await;
    assert!(refused.unwrap_err().to_string().contains("11000"));
    let (ann, renamed) = (doc! { "_id": "id-of-ann" }, doc! { "$set": { "email": "bob@example" } });
    users.update_one(ann, renamed).await.unwrap();
    let found = users.find_one(doc! { "email": "bob@example" }).await.unwrap();
    assert!(found.is_some());
    let strange = client
        .database(database)
        .run_command(doc! { "id-of-bob": "bob@example" })
        .await;
    assert!(strange.is_err());
    drop(users);
    client.shutdown().await;
}

fn secured() -> ReplicaSet {
    ReplicaSet::builder("traces")
        .root_user("root", "wonderland")
        .start()
        .unwrap()
}

#[test]
fn a_collector_gets_each_command_with_what_it_needed_and_no_value() {
    let (set, collector) = (secured(), Collector::start());
    let traces = format!("traces: {{ endpoint: '{}' }}", collector.endpoint);
    let mut keyward = start(&set.uri(), "traced", &traces);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(work(&keyward, "root:wonderland", "traced"));
    assert_eq!(keyward.terminate(), Some(0));
    let spans = collector.spans();

    let (insert, below) = command(&spans, "insert traced.users", None);
    assert_eq!(shape(below.iter().copied()), STEPS);
    for step in &below {
        assert_eq!(step.trace_id, insert.trace_id);
        assert_eq!(step.kind(), SpanKind::Client);
        assert!(step.start_time_unix_nano >= insert.start_time_unix_nano);
        assert!(step.end_time_unix_nano <= insert.end_time_unix_nano);
    }
    let of = |name| attribute(&insert.attributes, name);
    assert_eq!(of("db.system").as_deref(), Some("mongodb"));
    assert_eq!(of("db.operation.name").as_deref(), Some("insert"));
    assert_eq!(of("db.namespace").as_deref(), Some("traced"));
    assert_eq!(of("db.collection.name").as_deref(), Some("users"));
    assert_eq!(
        (insert.kind(), insert.parent_span_id.as_slice()),
        (SpanKind::Server, &[][..])
    );
    assert!(
        insert
            .status
            .as_ref()
            .is_none_or(|status| status.code() == StatusCode::Unset)
    );
    assert_eq!(
        attribute(&below[1].attributes, "keyward.constraint").as_deref(),
        Some("email_1")
    );
    assert_eq!(attribute(&below[1].attributes, "keyward.keys").as_deref(), Some("1"));

    let (refused, below) = command(&spans, "insert traced.users", Some("11000"));
    assert_eq!(refused.status.as_ref().unwrap().code(), StatusCode::Error);
    let below = shape(below);
    assert!(
        below.contains(&"look up owner") && !below.contains(&"upstream insert"),
        "{below:?}"
    );

    let (_, below) = command(&spans, "update traced.users", None);
    let below = shape(below);
    for step in ["reserve", "upstream update", "release"] {
        assert!(below.contains(&step), "{step} in {below:?}");
    }
    let (_, below) = command(&spans, "find traced.users", None);
    assert!(below.is_empty(), "it goes on as it came: {below:?}");
    assert!(spans.iter().any(|span| span.name == "unknown"), "{:?}", shape(&spans));
    assert!(
        !spans.iter().any(|span| span.name.starts_with("hello")),
        "{:?}",
        shape(&spans)
    );

    let by = collector.resource();
    assert_eq!(attribute(&by.attributes, "service.name").as_deref(), Some("keyward"));
    let bytes = collector.bytes();
    assert!(bytes.windows(7).any(|window| window == b"email_1"));
    for secret in SECRETS {
        let is_there = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!is_there, "{secret} is in a trace");
    }
}

/// What an HTTP client says at `trace` is all that it sends, sixteen bytes a line: the token is in each of them that it fills.
#[test]
fn the_token_for_the_collector_is_not_logged() {
    let collector = Collector::start();
    let token = "s3cret".repeat(10);
    let upstream = ReplicaSet::shared().uri();
    let settings = format!(
        "upstream: {upstream}\nconstraints: []\nlog: {{ level: trace }}\ntraces: {{ endpoint: '{}' }}\n",
        collector.endpoint
    );
    let headers = format!("authorization=Bearer {token}");
    let mut keyward = testkit::Keyward::of_in(&settings, &[("OTEL_EXPORTER_OTLP_HEADERS", &headers)]);
    keyward.run("token", doc! { "count": "things" }).unwrap();
    keyward.send(Signal::SIGTERM);
    assert_eq!(keyward.ended(), Some(0));
    assert_eq!(shape(&collector.spans()), ["count token.things"]);
    let log = keyward.log();
    assert!(log.contains("TRACE") && log.contains(" ureq::run: "), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
}

#[test]
fn a_collector_that_is_away_or_hangs_holds_up_nobody() {
    let (set, hanging) = (secured(), TcpListener::bind("127.0.0.1:0").unwrap());
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (address, database) in [(nobody, "away"), (hanging.local_addr().unwrap(), "hangs")] {
        let settings = format!("drain: 2s\ntraces: {{ endpoint: 'http://{address}/v1/traces' }}");
        let mut keyward = start(&set.uri(), database, &settings);
        runtime.block_on(work(&keyward, "root:wonderland", database));
        assert_eq!(keyward.terminate(), Some(0));
        let said = match database {
            "away" => "the collector doesn't take traces",
            // A delivery may take longer than what is left of the drain.
            _ => "the last traces may not have reached the collector",
        };
        let log = keyward.log();
        assert!(log.contains(said), "{database}: {log}");
    }
}

#[test]
fn who_is_taken_along_by_another_waits_and_asks_nothing() {
    let (set, collector) = (ReplicaSet::start(1).unwrap(), Collector::start());
    let constraint = "  - { collection: together.users, key: { email: 1 }, strategy: transaction }\n";
    let traces = format!("10s\ntraces: {{ endpoint: '{}' }}", collector.endpoint);
    let patience = [("KEYWARD_GROUPS_PATIENCE", "10")];
    let started = Keyward::try_start_with(&set.uri(), &traces, constraint, &patience);
    let mut keyward = started.unwrap_or_else(|_| panic!("it doesn't start"));
    // As many as may be under way; others come meanwhile.
    let held_up = doc! { "failCommands": ["commitTransaction"], "blockConnection": true, "blockTimeMS": 1_500 };
    let _held_up = set.fail_point("failCommand", doc! { "times": 4 }, held_up).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::with_uri_str(keyward.uri()).await.unwrap();
        let users: Collection<Document> = client.database("together").collection("users");
        let insert = |id: i32| {
            let users = users.clone();
            tokio::spawn(async move { users.insert_one(doc! { "_id": id, "email": id }).await.unwrap() })
        };
        for one in (0..30).map(insert).collect::<Vec<_>>() {
            one.await.unwrap();
        }
        drop(users);
        client.shutdown().await;
    });
    assert_eq!(keyward.terminate(), Some(0));
    let spans = collector.spans();
    let inserts = spans.iter().filter(|span| span.name == "insert together.users");
    let below = inserts.map(|insert| shape(spans.iter().filter(|span| span.parent_span_id == insert.span_id)));
    let below: Vec<Vec<&str>> = below.collect();
    assert!(below.iter().any(|below| *below == ["group commit wait"]), "{below:?}");
    assert!(
        below.iter().any(|below| below.contains(&"upstream insert")),
        "{below:?}"
    );
}

#[test]
fn a_reload_changes_how_many_are_traced_but_not_where_they_go() {
    let (collector, other) = (Collector::start(), Collector::start());
    let upstream = format!("upstream: {}\nconstraints: []\n", ReplicaSet::shared().uri());
    let settings = |endpoint: &str, ratio: &str| {
        format!("{upstream}traces: {{ endpoint: '{endpoint}', sampling_ratio: {ratio} }}\n")
    };
    let mut keyward = testkit::Keyward::of(&settings(&collector.endpoint, "0"));
    keyward.run("unseen", doc! { "count": "things" }).unwrap();
    let reloaded = keyward.reload(&settings(&other.endpoint, "1"));
    assert_eq!(reloaded["outcome"], "applied", "{reloaded}");
    assert_eq!(
        reloaded["needsRestart"],
        serde_json::json!(["traces.endpoint"]),
        "{reloaded}"
    );
    keyward.run("seen", doc! { "count": "things" }).unwrap();
    keyward.send(Signal::SIGTERM);
    assert_eq!(keyward.ended(), Some(0));
    assert_eq!(shape(&collector.spans()), ["count seen.things"]);
    assert!(other.bytes().is_empty());
}
