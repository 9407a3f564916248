//! The page `/status` in a real browser: the same content as `keyward status`, legible on a narrow screen and in the dark,
//! complete by itself. Left out where there is no Chromium, which it says.
//!
//! With the environment variable KEYWARD_SCREENSHOTS (a folder) it leaves pictures there.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::path::Path;
use std::process::Command;

use keyward::admin::Admin;
use keyward::config::Config;
use keyward::metrics::Metrics;
use keyward::readiness::{Obstacle, Readiness};
use keyward::reload::LastReload;
use keyward::status::{About, StatusBoard};
use serde::Deserialize;
use testkit::scripts::output;
use tokio::net::TcpListener;

const CONFIG: &str = "
upstream: mongodb://keyward@a-router-with-a-long-name.databases.example:27017,another-router-with-a-long-name.databases.example/
constraints:
  - { collection: shop.users, key: { email: 1 } }
  - { collection: shop.users, key: { accounts.bank: 1, accounts.number: 1 } }
  - { collection: warehouse.a_collection_with_quite_a_long_name_indeed, key: { number: 1 } }
";

/// By name.
const ENFORCED: [[&str; 2]; 3] = [
    ["shop.users.accounts.bank_1_accounts.number_1", "no"],
    ["shop.users.email_1", "yes"],
    ["warehouse.a_collection_with_quite_a_long_name_indeed.number_1", "yes"],
];

/// The page as `look.mjs` saw it once.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Look {
    color_scheme: String,
    width: u32,
    complaints: Vec<String>,
    requests: Vec<String>,
    title: String,
    heading: String,
    obstacles: Vec<String>,
    facts: Vec<[String; 2]>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    is_dark: bool,
    overflow: i32,
    contrast_min: f64,
    smallest: f64,
}

/// The admin pages of a Keyward that isn't ready, with constraints in every state.
async fn pages() -> (String, Admin) {
    let config = Config::from_text(Path::new("keyward.yaml"), CONFIG, None).unwrap();
    let metrics = Metrics::new(&config.constraints);
    metrics.set_ready(&config.constraints[0], true);
    metrics.set_ready(&config.constraints[2], true);
    let readiness = Readiness::starting();
    readiness.block(Obstacle::Upstream, "no answer from <its> \"routers\" yet");
    let admin = Admin {
        metrics,
        readiness,
        about: About::new(&config.upstream),
        reloads: LastReload::default(),
        board: StatusBoard::default(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(admin.clone().serve(listener, std::future::pending()));
    (address, admin)
}

fn look(address: &str) -> Vec<Look> {
    let browser = testbed::node_project(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser")).unwrap();
    let mut command = browser.script("look.mjs");
    command.arg(format!("http://{address}/status"));
    command.args(std::env::var_os("KEYWARD_SCREENSHOTS"));
    serde_json::from_str(&output(&mut command)).unwrap()
}

fn lines(address: &str) -> String {
    let status = Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(["status", "--admin", address])
        .output()
        .unwrap();
    String::from_utf8(status.stdout).unwrap()
}

/// Blanks made one: what stands in columns in a terminal stands in cells in a page.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn assert_same(look: &Look, lines: &str) {
    let state = if lines.starts_with("ready") {
        "ready"
    } else {
        "not ready"
    };
    assert_eq!(
        (&*look.heading, &*look.title),
        (&*format!("Keyward {state}"), &*format!("Keyward: {state}"))
    );
    let mut shown = vec![state.to_owned()];
    shown.extend(look.obstacles.iter().map(|obstacle| words(obstacle)));
    // Both are longer by now.
    let but_for_time = |line: &String| !line.starts_with("up for") && !line.starts_with("reached");
    shown.extend(
        look.facts
            .iter()
            .map(|fact| words(&fact.join(" ")))
            .filter(but_for_time),
    );
    shown.push(words(&look.columns.join(" ")));
    shown.extend(look.rows.iter().map(|row| words(&row.join(" "))));
    let printed = lines.lines().map(words).filter(|line| !line.is_empty());
    assert_eq!(shown, printed.filter(but_for_time).collect::<Vec<_>>(), "{look:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_what_the_command_prints() {
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned());
    if !Path::new(&chromium).exists() {
        println!("left out: there is no {chromium} here");
        return;
    }
    let (address, admin) = pages().await;
    let (address, looks, printed) = tokio::task::spawn_blocking(move || {
        let (looks, printed) = (look(&address), lines(&address));
        (address, looks, printed)
    })
    .await
    .unwrap();
    assert_eq!(looks.len(), 4);
    for look in &looks {
        assert_same(look, &printed);
        let enforced: Vec<[&str; 2]> = look.rows.iter().map(|row| [row[0].as_str(), row[1].as_str()]).collect();
        assert_eq!(enforced, ENFORCED);
        // Its status code is that of /readyz, which a browser remarks on.
        let [complaint] = look.complaints.as_slice() else {
            panic!("{look:?}")
        };
        assert!(complaint.contains("503"), "{look:?}");
        assert_eq!(
            look.requests,
            [format!("http://{address}/status")],
            "it is complete by itself"
        );
        assert_eq!(look.overflow, 0, "{} px wide", look.width);
        assert_eq!(look.is_dark, look.color_scheme == "dark");
        assert!(look.contrast_min >= 4.5, "{look:?}");
        assert!(look.smallest >= 12.0, "{look:?}");
    }
    admin.readiness.unblock(&Obstacle::Startup);
    admin.readiness.unblock(&Obstacle::Upstream);
    let (looks, printed) = tokio::task::spawn_blocking(move || (look(&address), lines(&address)))
        .await
        .unwrap();
    for look in &looks {
        assert_same(look, &printed);
        assert_eq!(look.complaints, Vec::<String>::new());
    }
}
