//! The systemd unit, held against systemd's own checks where systemd is installed.

use std::process::Command;

use crate::packaging::read;

const UNIT: &str = "deploy/systemd/keyward.service";

/// What `systemd-analyze` says of the unit with `arguments`; none where there is no systemd.
fn analyze(arguments: &[&str]) -> Option<(bool, String)> {
    let folder = tempfile::tempdir().unwrap();
    // The program must be there, and the manual page too.
    let unit = read(UNIT)
        .replace("/usr/local/bin/keyward", env!("CARGO_BIN_EXE_keyward"))
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
    let unit = read(UNIT);
    let stop = unit
        .lines()
        .find_map(|line| line.strip_prefix("TimeoutStopSec="))
        .unwrap();
    assert!(humantime::parse_duration(stop).unwrap() > config.drain);
}
