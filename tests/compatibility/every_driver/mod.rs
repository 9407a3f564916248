//! Drivers of many languages, each with a password and with compressed messages, on a protected collection: all say the
//! same, through Keyward as on a native unique index. Those of Debian's packages are left out where they aren't installed.

#![allow(clippy::unwrap_used)]

mod rust;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bson::doc;
use testbed::ReplicaSet;
use testkit::relay::Fate;
use testkit::relay::Relay;
use testkit::scripts::{node, output, pymongo};
use testkit::{Keyward, run};

/// The op code of a compressed message.
const COMPRESSED: [u8; 4] = 2012_i32.to_le_bytes();

/// What every script prints.
const EXPECTED: &str = "\
refused 11000 True
refused 11000 at 1 inserted 2
refused 11000 True
updated 1
before d@x
deleted 1
e@x c@x f@x a@x
";

/// A replica set with users, which all tests share.
fn secured() -> &'static ReplicaSet {
    static SECURED: OnceLock<ReplicaSet> = OnceLock::new();
    SECURED.get_or_init(|| {
        ReplicaSet::builder("drivers")
            .root_user("root", "root")
            .start()
            .unwrap()
    })
}

/// Runs the script on both sides: given a connection string and a database, it prints [`EXPECTED`] at both, and has
/// compressed what it sent.
fn says_the_same(language: &str, compressor: &str, script: impl Fn(&str, &str) -> Command) {
    does_the_same(language, compressor, |uri, database| output(&mut script(uri, database)));
}

/// The same for what needs no process of its own: `said` is what it says.
fn does_the_same(language: &str, compressor: &str, said: impl Fn(&str, &str) -> String) {
    let set = secured();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |database: &str, command| runtime.block_on(async { run(&set.client(), database, command).await });
    let (native, protected) = (format!("native_{language}"), format!("protected_{language}"));
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    ask(&native, doc! { "createIndexes": "users", "indexes": [index] });
    let user = format!("user_of_{language}");
    let roles = [&native, &protected].map(|database| doc! { "role": "readWrite", "db": database });
    ask(
        "admin",
        doc! { "createUser": &user, "pwd": "secret", "roles": roles.to_vec() },
    );
    let constraint = format!("  - {{ collection: {protected}.users, key: {{ email: 1 }} }}\n");
    let keyward = Keyward::start(&set.uri(), &constraint);
    for (address, database) in [
        (set.addresses().remove(0), &native),
        (keyward.address.clone(), &protected),
    ] {
        let wire = Wire::start(address);
        let uri = format!(
            "mongodb://{user}:secret@{}/?authSource=admin&directConnection=true&compressors={compressor}",
            wire.relay.address
        );
        assert_eq!(said(&uri, database), EXPECTED, "{language} on {database}");
        let compressed = wire.compressed.load(Ordering::Relaxed);
        assert!(
            compressed > 5,
            "{compressed} compressed messages of {language} on {database}"
        );
    }
    let reservations = doc! { "count": "keyward.users.email_1" };
    assert_eq!(ask(&protected, reservations).get_i32("n").ok(), Some(4));
}

fn script(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers").join(file)
}

/// Whether the command succeeds: what the script needs is installed.
fn is_there(command: &str, arguments: &[&str]) -> bool {
    let tried = Command::new(command).args(arguments).output();
    let is_there = tried.is_ok_and(|tried| tried.status.success());
    if !is_there {
        println!("left out: {command} {} doesn't work here", arguments.join(" "));
    }
    is_there
}

fn interpreted(program: &'static str, file: &'static str) -> impl Fn(&str, &str) -> Command {
    move |uri, database| {
        let mut command = Command::new(program);
        command.arg(script(file)).args([uri, database]);
        command
    }
}

#[test]
fn python() {
    says_the_same("python", "zlib", |uri, database| {
        let mut command = pymongo("everyday.py");
        command.args([uri, database]);
        command
    });
}

#[test]
fn javascript() {
    let node = node();
    says_the_same("javascript", "zlib", |uri, database| {
        let mut command = node.script("everyday.mjs");
        command.args([uri, database]);
        command
    });
}

// mongosh and mongoose speak no more than zlib as npm installs them: snappy and zstd are packages of their own.

#[test]
fn mongoose() {
    let node = node();
    says_the_same("mongoose", "zlib", |uri, database| {
        let mut command = node.script("everyday-mongoose.mjs");
        command.args([uri, database]);
        command
    });
}

#[test]
fn mongosh() {
    let node = node();
    says_the_same("mongosh", "zlib", |uri, database| {
        let mut command = node.program("mongosh");
        let script = node.folder().join("everyday.js");
        let uri = uri.replacen("/?", &format!("/{database}?"), 1);
        command.args(["--quiet", "--norc", &uri, "--file"]).arg(script);
        command
    });
}

#[test]
fn rust() {
    for compressor in ["snappy", "zlib", "zstd"] {
        does_the_same(&format!("rust_{compressor}"), compressor, |uri, database| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(rust::everyday(uri, database))
        });
    }
}

#[test]
fn c() {
    if !is_there("pkg-config", &["--exists", "libmongoc-1.0"]) {
        return;
    }
    let flags = output(Command::new("pkg-config").args(["--cflags", "--libs", "libmongoc-1.0"]));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("everyday");
    let mut compile = Command::new("cc");
    compile
        .arg("-o")
        .arg(&program)
        .arg(script("c/everyday.c"))
        .args(flags.split_whitespace());
    output(&mut compile);
    says_the_same("c", "snappy", |uri, database| {
        let mut command = Command::new(&program);
        command.args([uri, database]);
        command
    });
}

#[test]
fn php() {
    if is_there("php", &["-r", "exit(extension_loaded('mongodb') ? 0 : 1);"]) {
        says_the_same("php", "zstd", interpreted("php", "php/everyday.php"));
    }
}

#[test]
fn perl() {
    if is_there("perl", &["-MMongoDB", "-e", "1"]) {
        says_the_same("perl", "zlib", interpreted("perl", "perl/everyday.pl"));
    }
}

#[test]
fn java() {
    const JAR: &str = "/usr/share/java/mongo-java-driver.jar";
    if !is_there("javac", &["--version"]) || !is_there("test", &["-e", JAR]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut compile = Command::new("javac");
    compile
        .args(["-cp", JAR, "-d"])
        .arg(folder.path())
        .arg(script("java/Everyday.java"));
    output(&mut compile);
    says_the_same("java", "zlib", |uri, database| {
        let mut command = Command::new("java");
        let classes = format!("{JAR}:{}", folder.path().display());
        command.args(["-cp", &classes, "Everyday", uri, database]);
        command
    });
}

/// Stands between a driver and what it is connected to, and counts what is compressed.
struct Wire {
    relay: Relay,
    compressed: Arc<AtomicUsize>,
}

impl Wire {
    fn start(target: String) -> Wire {
        let compressed = Arc::<AtomicUsize>::default();
        let counted = compressed.clone();
        let count = move |message: &[u8]| {
            let is_compressed = message[12..16] == COMPRESSED;
            counted.fetch_add(usize::from(is_compressed), Ordering::Relaxed);
            Fate::Passed
        };
        Wire {
            relay: Relay::judged(target, count, |_| Fate::Passed),
            compressed,
        }
    }
}
