//! What operators look at: the status of a running Keyward, and the dashboard and alerts that come with it, held against the
//! metrics that there are.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bson::doc;
use keyward::config::Config;
use keyward::metrics::Metrics;
use testbed::ReplicaSet;
use testkit::Keyward;

const ALERTS: &str = "deploy/prometheus/alerts.yaml";
const DASHBOARD: &str = "deploy/grafana/keyward.json";

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// The series that one Keyward has, and the metrics that they belong to, by name.
fn series() -> BTreeSet<String> {
    let example = std::fs::read_to_string(path("config.example.yaml")).unwrap();
    let example = Config::from_text(Path::new("config.example.yaml"), &example, None).unwrap();
    let (text, _) = Metrics::new(&[Arc::clone(&example.constraints[0])]).text().unwrap();
    let names = text.lines().map(|line| line.strip_prefix("# TYPE ").unwrap_or(line));
    names
        .filter(|name| !name.starts_with('#'))
        .map(|name| name.split(['{', ' ']).next().unwrap().to_owned())
        .collect()
}

/// Everything in `file` that looks like the name of one of Keyward's metrics.
fn named_in(file: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path(file)).unwrap();
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words
        .filter(|word| word.starts_with("keyward_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() {
    let series = series();
    for file in [DASHBOARD, ALERTS, "deploy/prometheus/alerts.test.yaml"] {
        let named = named_in(file);
        assert!(named.len() > 3, "{file}");
        let unknown: Vec<_> = named.difference(&series).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn every_metric_is_on_the_dashboard() {
    // Of a histogram, its buckets; the version is a label of the targets.
    let is_shown_otherwise =
        |name: &str| name == "keyward_build_info" || ["_sum", "_count"].iter().any(|end| name.ends_with(end));
    let named = named_in(DASHBOARD);
    let is_named = |name: &str| named.contains(name) || named.contains(&format!("{name}_bucket"));
    let missing: Vec<_> = series()
        .into_iter()
        .filter(|name| !is_named(name) && !is_shown_otherwise(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn panels_have_numbers_and_places_of_their_own() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path(DASHBOARD)).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let of = |panel: &serde_json::Value, side: &str| panel["gridPos"][side].as_u64().unwrap();
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(taken.insert((of(panel, "x"), of(panel, "y"))), "{}", panel["title"]);
        assert!(of(panel, "x") + of(panel, "w") <= 24, "{}", panel["title"]);
    }
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
}

/// Has Prometheus' own tool check a file; it is left out where the tool isn't installed.
fn promtool(arguments: &[&str]) {
    let Ok(output) = Command::new("promtool").args(arguments).output() else {
        eprintln!("promtool isn't installed: {arguments:?} is left out");
        return;
    };
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn every_alert_describes_what_to_look_at() {
    let alerts: serde_yaml::Value = serde_yaml::from_str(&std::fs::read_to_string(path(ALERTS)).unwrap()).unwrap();
    let rules = alerts["groups"].as_sequence().unwrap().iter();
    let rules = rules.flat_map(|group| group["rules"].as_sequence().unwrap());
    let mut count = 0;
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        for annotation in ["summary", "description"] {
            let text = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {annotation}");
        }
        count += 1;
    }
    assert!(count > 10, "{count}");
}

#[test]
fn the_alerts_go_off_when_they_should() {
    promtool(&["check", "rules", path(ALERTS).to_str().unwrap()]);
    promtool(&[
        "test",
        "rules",
        path("deploy/prometheus/alerts.test.yaml").to_str().unwrap(),
    ]);
}

#[test]
fn prometheus_understands_every_query_of_the_dashboard() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path(DASHBOARD)).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let rules: Vec<String> = queries
        .enumerate()
        .map(|(number, target)| {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            format!("{{ record: \"query:{number}\", expr: {query:?} }}")
        })
        .collect();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(
        &file,
        format!("groups: [{{ name: dashboard, rules: [{}] }}]", rules.join(", ")),
    )
    .unwrap();
    promtool(&["check", "rules", file.path().to_str().unwrap()]);
}

fn status(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyward"));
    let output = command.arg("status").args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_says_what_has_happened() {
    let set = ReplicaSet::shared();
    let constraint = "  - { collection: status.users, key: { email: 1 } }\n";
    let mut keyward = Keyward::start(&set.uri(), constraint);
    let users = keyward.client().await.database("status").collection("users");
    for email in ["a", "b", "b"] {
        let _ = users.insert_one(doc! { "email": email }).await;
    }
    let (code, lines) = status(&["--admin", &keyward.admin]);
    assert_eq!(code, Some(0), "{lines}");
    assert!(lines.starts_with("ready\n"), "{lines}");
    let row = |lines: &str, name: &str| -> Vec<String> {
        let line = lines
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{lines}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(
        row(&lines, "status.users.email_1")[1..5],
        ["yes", "2", "2", "1"],
        "{lines}"
    );
    assert_eq!(row(&lines, "protected"), ["protected", "3", "writes"], "{lines}");
    let metrics = keyward.metrics();
    assert!(
        metrics.contains("\nkeyward_client_protected_write_proxy_seconds_count 3\n"),
        "{metrics}"
    );
    keyward.kill();
    assert_eq!(status(&["--admin", &keyward.admin]).0, Some(2));
}

#[test]
fn a_keyward_that_waits_for_its_deployment_says_so() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = testbed::process::Port::lease().unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:{}\nupstream: mongodb://{}/?serverSelectionTimeoutMS=500\nconstraints: []\n",
        admin.number(),
        nobody.local_addr().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    let mut keyward = Command::new(env!("CARGO_BIN_EXE_keyward"));
    let mut keyward = keyward.args(["run", "--config"]).arg(file.path()).spawn().unwrap();
    let config = ["--config", file.path().to_str().unwrap()];
    let (code, lines) = loop {
        let answer = status(&config);
        if answer.0 != Some(2) {
            break answer;
        }
    };
    keyward.kill().unwrap();
    keyward.wait().unwrap();
    assert_eq!(code, Some(1), "{lines}");
    assert!(lines.starts_with("not ready\n  startup: starting\n"), "{lines}");
}
