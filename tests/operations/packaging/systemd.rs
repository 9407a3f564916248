//! The systemd unit, held against systemd's own checks where systemd is installed.

use std::process::Command;

use serde_json::json;
use testkit::Keyward;

use crate::operated::reload::settings;
use crate::packaging::{read, repository};

const UNIT: &str = "deploy/systemd/keyward.service";

/// The file that the unit reads.
const CONFIG: &str = "/etc/keyward/keyward.yaml";

/// The values of a setting of the unit, in its order.
fn values(unit: &str, setting: &str) -> Vec<String> {
    let setting = format!("{setting}=");
    let values = unit.lines().filter_map(|line| line.strip_prefix(&setting));
    values.map(str::to_owned).collect()
}

/// What `systemd-analyze` says of the unit with `arguments`; none where there is no systemd.
fn analyze(arguments: &[&str]) -> Option<(bool, String)> {
    let folder = tempfile::tempdir().unwrap();
    // The program must be there, and the manual page too.
    let unit = read(UNIT)
        .replace("=keyward ", concat!("=", env!("CARGO_BIN_EXE_keyward"), " "))
        .replace("Documentation=man:keyward(1)\n", "");
    let file = folder.path().join("keyward.service");
    std::fs::write(&file, unit).unwrap();
    let Ok(output) = Command::new("systemd-analyze").args(arguments).arg(&file).output() else {
        eprintln!("systemd-analyze isn't installed: the unit isn't checked");
        return None;
    };
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn systemd_understands_the_unit() {
    if let Some((is_valid, text)) = analyze(&["verify"]) {
        assert!(is_valid && !text.contains("keyward.service"), "{text}");
    }
}

#[test]
fn it_may_do_little() {
    if let Some((is_within, text)) = analyze(&["security", "--offline=true", "--threshold=20"]) {
        assert!(is_within, "{text}");
    }
}

#[test]
fn it_waits_longer_than_keyward_drains_by_default() {
    let example = read("config.example.yaml");
    let config = keyward::config::Config::from_text("config.example.yaml".as_ref(), &example, None).unwrap();
    let stop = &values(&read(UNIT), "TimeoutStopSec")[0];
    assert!(humantime::parse_duration(stop).unwrap() > config.drain_delay + config.drain);
}

/// A credential is a copy that keeps its content until a restart: a reload from it would report `applied` and change nothing.
#[test]
fn it_reads_the_file_itself_which_its_group_may_read() {
    let unit = read(UNIT);
    for setting in ["LoadCredential", "SetCredential", "DynamicUser", "BindReadOnlyPaths"] {
        assert!(values(&unit, setting).is_empty(), "{setting}");
    }
    let paths: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.split_once("--config "))
        .map(|(_, path)| path)
        .collect();
    assert_eq!(paths, [CONFIG; 3]);
    let [user, group] = ["User", "Group"].map(|setting| values(&unit, setting)[0].clone());
    let created = read("deploy/systemd/keyward.sysusers");
    assert!(created.lines().any(|line| line.starts_with(&format!("u {user} "))));
    let installs = unit.lines().filter_map(|line| line.strip_prefix("#   install "));
    let installs: Vec<&str> = installs.collect();
    let file = installs.iter().find(|install| install.ends_with(CONFIG)).unwrap();
    assert!(file.contains(&format!("-m 0640 -g {group} ")), "{file}");
    for install in installs {
        for word in install.split(' ').filter(|word| word.starts_with("deploy/")) {
            assert!(repository().join(word).is_file(), "{word}");
        }
    }
}

/// Does what `systemctl reload` does: runs the unit's commands for it, up to the first that fails.
fn reloads(keyward: &Keyward) -> bool {
    let file = keyward.file();
    values(&read(UNIT), "ExecReload").iter().all(|command| {
        let command = command
            .replace("keyward check", concat!(env!("CARGO_BIN_EXE_keyward"), " check"))
            .replace(CONFIG, file.to_str().unwrap())
            .replace("$MAINPID", &keyward.pid().to_string());
        Command::new("sh").args(["-c", &command]).status().unwrap().success()
    })
}

#[test]
fn a_reload_applies_the_file_and_fails_for_one_with_errors() {
    let database = "reloaded_by_systemd";
    let keyward = Keyward::of(&settings(database, &[], ""));
    let before = keyward.count_reloads();
    keyward.rewrite(&settings(database, &["email"], "nonsense: 1\n"));
    assert!(!reloads(&keyward), "the file has an unknown setting");
    assert_eq!(keyward.count_reloads(), before, "a signal was sent all the same");
    keyward.rewrite(&settings(database, &["email"], ""));
    assert!(reloads(&keyward));
    let outcome = keyward.reloaded_after(before);
    assert_eq!(outcome["outcome"], json!("applied"), "{outcome}");
    assert_eq!(
        outcome["constraintsAdded"],
        json!([format!("{database}.users.email_1")])
    );
}
