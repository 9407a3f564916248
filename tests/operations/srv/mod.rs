//! `mongodb+srv`: a Keyward whose deployment is found by name, through a name server of the test's own.
//!
//! The resolver reads /etc/resolv.conf: the Keyward sees another one there, in a mount namespace of its own. Where the tests
//! don't run as root, this is left out, and says so.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod name_server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bson::doc;
use name_server::NameServer;
use testbed::ReplicaSet;
use testbed::process::Port;

const SERVICE: &str = "shop.keyward.example";
const HOST: &str = "db0.keyward.example";

/// A Keyward that asks only this name server; killed when dropped.
struct ResolvingKeyward(Child);

impl ResolvingKeyward {
    fn start(names: &NameServer, folder: &tempfile::TempDir, settings: &str) -> ResolvingKeyward {
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::write(&path, text).unwrap();
            path
        };
        let resolver = write("resolv.conf", &format!("nameserver {}\n", names.address));
        let config = write("keyward.yaml", settings);
        let child = Command::new("unshare")
            .args(["--mount", "sh", "-c"])
            .arg("mount --bind \"$1\" /etc/resolv.conf && exec \"$0\" run --config \"$2\"")
            .arg(env!("CARGO_BIN_EXE_keyward"))
            .args([resolver, config])
            .env_remove("KEYWARD_UPSTREAM")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        ResolvingKeyward(child)
    }

    /// Where it listens, once it does.
    fn address(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        ready["listen"].as_str().unwrap().to_owned()
    }
}

impl Drop for ResolvingKeyward {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What stands in the way of a Keyward that isn't ready, as soon as it says.
fn obstacles(admin: &str) -> String {
    loop {
        let Ok(mut socket) = TcpStream::connect(admin) else {
            std::thread::yield_now();
            continue;
        };
        write!(socket, "GET /readyz HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        if answer.contains("upstream:") {
            return answer;
        }
    }
}

fn may_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

#[test]
fn a_deployment_is_found_by_its_service_name() {
    let Some(names) = may_mount().then(NameServer::start).flatten() else {
        println!("left out: no mount namespace, or no port 53, to be had here");
        return;
    };
    let set = ReplicaSet::shared();
    set.run("found_by_name", doc! { "dropDatabase": 1 }).unwrap();
    let (folder, admin) = (tempfile::tempdir().unwrap(), Port::lease().unwrap());
    let admin = format!("127.0.0.1:{}", admin.number());
    let mut keyward = ResolvingKeyward::start(
        &names,
        &folder,
        &format!(
            "listen: 127.0.0.1:0\nadmin: {admin}\nupstream: mongodb+srv://{SERVICE}/?tls=false\nconstraints:\n  - {{ \
             collection: found_by_name.users, key: {{ email: 1 }} }}\n"
        ),
    );
    // A name that isn't there yet is waited for.
    let obstacles = obstacles(&admin);
    assert!(obstacles.contains("503") && obstacles.contains(SERVICE), "{obstacles}");
    assert!(names.asked() > 0);
    let port = set.addresses()[0].rsplit_once(':').unwrap().1.parse().unwrap();
    let published = Instant::now();
    names.publish(SERVICE, HOST, port, &format!("replicaSet={}", set.name()));
    let address = keyward.address();
    // The driver looks the name up again each minute: nothing waits for that.
    assert!(
        published.elapsed() < Duration::from_secs(30),
        "{:?}",
        published.elapsed()
    );
    let insert = |id| {
        let command = doc! { "insert": "users", "documents": [{ "_id": id, "email": "ann@x" }] };
        testbed::command::run(&address, "found_by_name", command)
    };
    assert_eq!(insert(1).unwrap().get_i32("n").ok(), Some(1));
    assert_eq!(insert(2).unwrap_err().code(), Some(11_000));
}
