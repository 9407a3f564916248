//! SIGTERM: readiness first, then drivers are sent away, and what real drivers do meanwhile doesn't fail.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use bson::doc;
use nix::sys::signal::Signal;
use testbed::ReplicaSet;
use testbed::process::Port;

use testkit::keyward::Keyward;
use testkit::scripts;

#[test]
fn readiness_says_no_while_clients_are_still_served() {
    let uri = ReplicaSet::shared().uri();
    let mut keyward = Keyward::of(&format!("upstream: {uri}\nconstraints: []\ndrain_delay: 30s\n"));
    assert!(keyward.get("/readyz").starts_with("HTTP/1.1 200 "));
    keyward.send(Signal::SIGTERM);
    keyward.until("no", || keyward.get("/readyz").starts_with("HTTP/1.1 503 "));
    // New clients, too.
    assert!(keyward.run("admin", doc! { "ping": 1 }).is_ok());
    let begun = Instant::now();
    keyward.send(Signal::SIGTERM);
    assert_eq!(keyward.ended(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "a second signal ends at once"
    );
}

/// One Keyward after the other is restarted under pymongo's load: nothing fails at the application.
#[test]
fn a_rolling_restart_fails_no_operation() {
    let set = ReplicaSet::shared();
    let ports = [Port::lease().unwrap(), Port::lease().unwrap()];
    let settings = |port: &Port| {
        format!(
            "listen: {}\nupstream: {}\ndrain: 50s\nconstraints:\n  - {{ collection: rolling.users, key: {{ email: 1 }} }}\n",
            port.address(),
            set.uri()
        )
    };
    let mut keywards = ports.each_ref().map(|port| Keyward::of(&settings(port)));
    let mut script = scripts::pymongo("rolling.py");
    let uri = format!("mongodb://{},{}/", keywards[0].address, keywards[1].address);
    let mut load = script
        .args([&uri, "32"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(load.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("running"));
    // Each of them every client's operations have passed through before it goes.
    let mut asks = load.stdin.take().unwrap();
    let mut go_on = || {
        writeln!(asks, "more").unwrap();
        lines.next().unwrap()
    };
    let mut stops = Vec::new();
    for (keyward, port) in keywards.iter_mut().zip(&ports) {
        assert_eq!(go_on(), "more");
        let begun = Instant::now();
        keyward.send(Signal::SIGTERM);
        assert_eq!(keyward.ended(), Some(0));
        assert!(!keyward.log().contains("cut off"), "{}", keyward.log());
        stops.push(begun.elapsed());
        *keyward = Keyward::of(&settings(port));
    }
    assert_eq!(go_on(), "more");
    drop(asks);
    let summary: serde_json::Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert!(load.wait().unwrap().success());
    println!("stopped within {stops:?}: {summary}");
    assert_eq!(summary["errors"].as_array().unwrap().len(), 0, "{summary}");
    assert!(summary["operations"].as_u64().unwrap() > 500, "{summary}");
    // What was acknowledged is there, once.
    let (code, findings) = keywards[0].verify();
    assert_eq!(code, Some(0), "{findings}");
}
