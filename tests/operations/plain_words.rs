//! The ways in which commands fail, as an operator reads them: plain sentences with the server's code and text, and no debug output.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bson::{doc, rawdoc};
use keyward::wire::Draft;
use testbed::ReplicaSet;
use testkit::Keyward;
use testkit::plain_words::assert_in_plain_words;
use testkit::relay::read_message;

/// For a command that ends by itself.
const PATIENCE: Duration = Duration::from_secs(120);
const CONSTRAINTS: &str = "constraints:\n  - { collection: plain.users, key: { email: 1 } }\n";
/// All commands that work on a deployment once, and end.
const TASKS: [&[&str]; 11] = [
    &["verify"],
    &["backfill"],
    &["backfill", "--dry-run"],
    &["doctor"],
    &["check", "--connect"],
    &["constraints", "list"],
    &["constraints", "show", "plain.users", "email_1"],
    &["constraints", "remove", "plain.users", "email_1"],
    &["constraints", "strategy", "plain.users", "email_1", "strict"],
    &["shard", "plain.users", r#"{"region": 1}"#],
    &["forget", "0123456789abcdef01234567"],
];

fn file(settings: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let own = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n";
    std::fs::write(&file, format!("{own}{settings}")).unwrap();
    file
}

/// Runs a command to its end, or `run` until it has said all of `parts`; gives all that was said, which is in plain words.
fn said(arguments: &[&str], settings: &str, parts: &[&str]) -> String {
    let file = file(settings);
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(arguments)
        .arg("--config")
        .arg(file.path())
        .env_remove("KEYWARD_UPSTREAM")
        .env_remove("KEYWARD_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, pieces) = std::sync::mpsc::channel();
    let streams: [Box<dyn Read + Send>; 2] = [
        Box::new(child.stdout.take().unwrap()),
        Box::new(child.stderr.take().unwrap()),
    ];
    for mut stream in streams {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                let _ = sender.send(buffer[..length].to_vec());
            }
        });
    }
    drop(sender);
    let deadline = Instant::now() + PATIENCE;
    let (mut bytes, mut text) = (Vec::new(), String::new());
    let said_all = |text: &str| parts.iter().all(|part| text.contains(part)) && text.ends_with('\n');
    while arguments[0] != "run" || !said_all(&text) {
        match pieces.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(piece) => bytes.extend(piece),
            Err(_) => break,
        }
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    let _ = child.kill();
    child.wait().unwrap();
    assert!(said_all(&text), "{arguments:?} never says {parts:?}:\n{text}");
    assert_in_plain_words(&text);
    text
}

/// Each task says `parts`, and a running Keyward `parts_of_run`. They run side by side: most of their time is a time-out.
fn all_say(settings: &str, parts: &[&str], parts_of_run: &[&str]) {
    std::thread::scope(|scope| {
        for task in TASKS {
            scope.spawn(move || said(task, settings, parts));
        }
        scope.spawn(move || said(&["run"], settings, parts_of_run));
    });
}

#[test]
fn a_deployment_that_is_not_there() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = format!("upstream: mongodb://{nobody}/?serverSelectionTimeoutMS=4000\n{CONSTRAINTS}");
    let refused = format!("{nobody}: Connection refused");
    let unusable = "no server of the deployment can be used";
    all_say(
        &settings,
        &[&refused, "the deployment has not answered yet", unusable],
        &[&refused, "the deployment does not answer", unusable],
    );
}

#[test]
fn a_server_that_closes_connections_or_speaks_no_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let closing = format!("mongodb://{address}/?serverSelectionTimeoutMS=1000");
    let no_tls = ReplicaSet::shared().uri() + "&tls=true&serverSelectionTimeoutMS=1000";
    for upstream in [closing, no_tls] {
        let settings = format!("upstream: {upstream}\n{CONSTRAINTS}");
        all_say(
            &settings,
            &["no server of the deployment can be used"],
            &["the deployment does not answer"],
        );
    }
}

#[test]
fn names_that_cannot_be_resolved() {
    for upstream in [
        "mongodb+srv://nowhere.invalid/",
        "mongodb://nowhere.invalid/?serverSelectionTimeoutMS=1000",
    ] {
        let settings = format!("upstream: {upstream}\n{CONSTRAINTS}");
        all_say(&settings, &["nowhere.invalid"], &["the deployment does not"]);
    }
}

#[test]
fn users_that_may_not() {
    let set = ReplicaSet::builder("mayNot").root_user("root", "root").start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let root = runtime.block_on(async { set.client() });
    let user = doc! { "createUser": "nobody", "pwd": "nobody", "roles": [] };
    runtime.block_on(async { root.database("admin").run_command(user).await.unwrap() });
    let as_user = |credentials: &str| {
        let upstream = set.uri().replacen("root:root@", credentials, 1);
        format!("upstream: {upstream}\n{CONSTRAINTS}")
    };
    let wrong = [
        "Keyward can't log in",
        "code 18, AuthenticationFailed",
        "check the user, the password and authSource",
    ];
    for task in TASKS.into_iter().chain([&["run"][..]]) {
        said(task, &as_user("root:wr0ng@"), &wrong);
    }
    let nobody = as_user("nobody:nobody@");
    // First, because it waits until a new deployment states its time.
    said(&["run"], &nobody, &["Keyward's user lacks privileges"]);
    for task in TASKS {
        if task[0] == "shard" {
            // It says first that this isn't a sharded cluster.
            continue;
        }
        let said = said(task, &nobody, &["code 13, Unauthorized"]);
        let is_examining = ["doctor", "check"].contains(&task[0]);
        assert!(is_examining || said.contains("docs/security.md"), "{said}");
        assert!(!said.contains("run this again"), "that would change nothing: {said}");
    }
}

#[test]
fn documents_that_violate_a_constraint() {
    let set = ReplicaSet::shared();
    let name = "plain_violated";
    let settings = format!(
        "upstream: {}\nconstraints:\n  - {{ collection: {name}.users, key: {{ email: 1 }} }}\n",
        set.uri()
    );
    let id = doc! { "a": "x", "n": [1, { "b": bson::oid::ObjectId::new() }] };
    let documents = vec![doc! { "_id": &id, "email": "x" }, doc! { "_id": 7_i64, "email": "x" }];
    set.run(name, doc! { "insert": "users", "documents": documents })
        .unwrap();
    let expected = [
        "2 documents have {\"email\":\"x\"}: _id ",
        r#"{"a":"x","n":[1,{"b":{"$oid":""#,
    ];
    said(&["backfill"], &settings, &expected);
    said(&["run"], &settings, &expected);
    said(&["verify"], &settings, &["isn't enforced yet"]);
    let forgotten = said(
        &["forget", "0123456789abcdef01234567"],
        &settings,
        &["no Keyward 0123456789abcdef01234567 is in the register"],
    );
    assert!(!forgotten.contains("watching"), "{forgotten}");
    said(
        &["verify", "--collection", "no.where"],
        &settings,
        &["no.where has no constraint"],
    );
}

/// Its text isn't UTF-8, so that it can't be decoded as a whole.
#[test]
fn an_id_that_cannot_be_decoded() {
    let set = ReplicaSet::shared();
    let name = "plain_odd";
    let mut odd = rawdoc! { "insert": "users", "$db": name, "documents": [
        { "_id": { "a": "xx" }, "email": "x" }, { "_id": { "a": "yy" }, "email": "x" },
    ] }
    .into_bytes();
    for text in [b"xx\0", b"yy\0"] {
        let place = odd.windows(3).position(|window| window == text).unwrap();
        odd[place] = 0xff;
    }
    let insert = Draft::of_body(&odd).frame(1, 0).unwrap().to_vec();
    let mut connection = TcpStream::connect(set.wait_for_primary().unwrap().address()).unwrap();
    connection.write_all(&insert).unwrap();
    read_message(&mut connection).unwrap();
    let settings = format!(
        "upstream: {}\nconstraints:\n  - {{ collection: {name}.users, key: {{ email: 1 }} }}\n",
        set.uri()
    );
    said(&["backfill"], &settings, &["_id {\"a\":\"\u{fffd}"]);
}

#[test]
fn configurations_that_are_wrong() {
    let upstream = "upstream: mongodb://127.0.0.1:1\n";
    for (settings, part) in [
        (format!("{upstream}constraints: [\n"), ":5:"),
        (
            format!("{upstream}constraints: 7\nlimits: {{ max_connections: -1 }}\nlease: 30\n"),
            "max_connections",
        ),
        (
            "upstream: mongodb://u:p:q@h:99999999\nconstraints: []\n".to_owned(),
            "upstream",
        ),
        (
            format!("{upstream}constraints: []\ntls: {{ certificate: nowhere.pem, key: nowhere.pem }}\n"),
            "nowhere.pem",
        ),
        ("upstream_file: nowhere\nconstraints: []\n".to_owned(), "cannot be read"),
        (
            format!("{upstream}constraints:\n  - {{ collection: a.b, key: {{ a: text, b: {{}}, c: 0 }} }}\n"),
            "key",
        ),
    ] {
        for arguments in [&["check"][..], &["run"], &["status"], &["verify"], &["doctor"]] {
            said(arguments, &settings, &[part]);
        }
    }
}

/// An operator who waits minutes for the checks must not learn only then that their file can't be written.
#[test]
fn files_that_cannot_be_written() {
    let settings = format!("upstream: mongodb://127.0.0.1:1\n{CONSTRAINTS}");
    for arguments in [
        &["doctor", "--bundle", "/no/such/folder/b"][..],
        &["backfill", "--report", "/no/such/folder/b"],
    ] {
        let said = said(arguments, &settings, &["/no/such/folder/b: No such file or directory"]);
        let expected = "keyward: the report can't be written to /no/such/folder/b: ";
        assert!(said.starts_with(expected) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn numbers_that_are_none() {
    let settings = format!("upstream: mongodb://127.0.0.1:1\n{CONSTRAINTS}");
    for (arguments, expected) in [
        (
            &["verify", "--rate", "0"][..],
            "'--rate <NUMBER>': not a whole number from 1 to 4294967295",
        ),
        (
            &["verify", "--rate", "x"],
            "'--rate <NUMBER>': not a whole number from 1 to 4294967295",
        ),
        (
            &["shard", "a.b", r#"{"a": 1}"#, "--watch", "x"],
            "'--watch <SECONDS>': not a whole number from 0 to 4294967295",
        ),
        (&["shard", "a.b", "[1]"], "'<KEY>': not a JSON object"),
        (&["shard", "a.b", "{region: 1}"], "it can't be read at its column 2"),
    ] {
        said(arguments, &settings, &[expected]);
    }
}

#[test]
fn ports_that_are_taken_or_not_keywards() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let settings = format!("upstream: mongodb://127.0.0.1:1\ntls: {{}}\n{CONSTRAINTS}");
    let mongod = ReplicaSet::shared().wait_for_primary().unwrap().address();
    drop(taken);
    for admin in [&address, &mongod] {
        let answer = said(
            &["status", "--admin", admin],
            &settings,
            &["doesn't answer as a Keyward's admin port does"],
        );
        assert!(answer.starts_with("keyward: "), "{answer}");
        let is_refused = answer.contains("port does: Connection refused (os error 111); is Keyward running there?");
        assert!(is_refused || admin == &mongod, "{answer}");
    }
    for admin in ["127.0.0.1", "localhost:", "http://127.0.0.1:9216"] {
        said(
            &["status", "--admin", admin],
            &settings,
            &["'--admin <HOST:PORT>': not a host with a port, such as 127.0.0.1:9216"],
        );
    }
}

#[test]
fn files_that_are_no_text() {
    let file = file("");
    std::fs::write(&file, b"\xff").unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(["check", "--config"])
        .arg(file.path())
        .output()
        .unwrap();
    let text = String::from_utf8(checked.stderr).unwrap();
    assert!(text.ends_with("cannot be read: it isn't text in UTF-8\n"), "{text}");
}

#[test]
fn a_reload_that_is_refused() {
    let set = ReplicaSet::shared();
    let upstream = format!("upstream: {}\n", set.uri());
    let keyward = Keyward::of(&format!("{upstream}constraints: []\n"));
    let answer = keyward.reload(&format!("{upstream}constraints: 7\nlimits: many\n"));
    assert_in_plain_words(&answer.to_string());
    let name = "plain_reloaded";
    let documents = vec![
        doc! { "_id": { "a": 1 }, "email": "x" },
        doc! { "_id": { "a": 2 }, "email": "x" },
    ];
    set.run(name, doc! { "insert": "users", "documents": documents })
        .unwrap();
    let constraint = format!("constraints:\n  - {{ collection: {name}.users, key: {{ email: 1 }} }}\n");
    let answer = keyward.reload(&format!("{upstream}{constraint}")).to_string();
    assert!(answer.contains("violates unique constraint"), "{answer}");
    assert_in_plain_words(&answer);
    let log = keyward.log();
    assert!(
        log.contains(r#"2 documents have {"email":"x"}: _id {"a":2}, {"a":1}"#),
        "{log}"
    );
    assert_in_plain_words(&log);
}
