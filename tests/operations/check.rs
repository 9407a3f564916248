//! `keyward check` as an operator meets it: what it prints, where, and with which exit code.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::process::{Command, Output};

fn check(file: &str, environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(["check", "--config", file])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("KEYWARD_UPSTREAM")
        .env_remove("KEYWARD_LOG")
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn a_good_file_is_summed_up_on_standard_output() {
    let output = check("config.example.yaml", &[]);
    let summary = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    assert!(summary.starts_with("config.example.yaml: no problems\n"), "{summary}");
    let constraint = "shop.users: email_1 is unique over { \"key\": { \"email\": 1 }, \"sparse\": false }; \
                      reservations in shop.keyward.users.email_1; \
                      strategy: compensating on shards, strict on a replica set\n";
    assert!(summary.contains(constraint), "{summary}");
}

fn summary_of(text: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, text).unwrap();
    let output = check(file.path().to_str().unwrap(), &[]);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_summary_shows_encryption_and_strategies() {
    let summary = summary_of(
        "upstream: mongodb://db/?tls=true\nconstraints:\n  \
         - { collection: shop.users, key: { email: 1 } }\n  \
         - { collection: shop.users, key: { name: 1 }, strategy: strict }\n  \
         - { collection: shop.orders, key: { number: 1 }, strategy: compensating }\n",
    );
    for line in [
        "listen    127.0.0.1:27117, without TLS\n",
        "upstream  mongodb://db:27017, with TLS\n",
    ] {
        assert!(summary.contains(line), "{summary}");
    }
    // One strict constraint decides for its collection.
    let strategies = [
        ("email_1", "strict"),
        ("name_1", "strict"),
        ("number_1", "compensating"),
    ];
    for (name, strategy) in strategies {
        let is_it = |line: &&str| line.contains(&format!("{name} is unique"));
        let line = summary.lines().find(is_it).unwrap();
        assert!(line.ends_with(&format!("; strategy: {strategy}")), "{line}");
    }
    let summary = summary_of("upstream: mongodb+srv://db.example.com\nconstraints: []\n");
    assert!(
        summary.contains("mongodb+srv://db.example.com, with TLS\n"),
        "{summary}"
    );
}

/// Without a name, the index would be called `owner.$id_1`, which can't be part of a collection's name.
#[test]
fn the_id_of_a_reference_can_be_unique_under_a_name() {
    let summary = summary_of(
        "upstream: mongodb://a\nconstraints:\n  - { collection: shop.users, key: { owner.$id: 1 }, name: owner }\n",
    );
    assert!(summary.contains("shop.users: owner is unique"), "{summary}");
}

#[test]
fn an_empty_variable_counts_as_absent() {
    let output = check("config.example.yaml", &[("KEYWARD_UPSTREAM", ""), ("KEYWARD_LOG", "")]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let summary = String::from_utf8(output.stdout).unwrap();
    assert!(summary.contains("\nlog       info, as text\n"), "{summary}");
}

#[test]
fn the_log_level_in_the_environment_is_checked_as_that_in_the_file() {
    let output = check("config.example.yaml", &[("KEYWARD_LOG", "keyward=debug")]);
    let summary = String::from_utf8(output.stdout).unwrap();
    assert!(summary.contains("\nlog       keyward=debug, as text\n"), "{summary}");
    let output = check(
        "config.example.yaml",
        &[("KEYWARD_LOG", "inof"), ("KEYWARD_UPSTREAM", "http://x")],
    );
    let problems = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{problems}");
    for part in [
        ": upstream: given more",
        ": log.level: the environment variable KEYWARD_LOG is neither a level",
    ] {
        assert!(problems.contains(part), "{part} in {problems}");
    }
}

#[test]
fn the_summary_never_shows_a_password() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "constraints: []\n").unwrap();
    let output = check(
        file.path().to_str().unwrap(),
        &[("KEYWARD_UPSTREAM", "mongodb://keyward:s3cret@db.example")],
    );
    let summary = String::from_utf8(output.stdout).unwrap();
    assert!(summary.contains("mongodb://keyward:***@db.example:27017"), "{summary}");
    assert!(!summary.contains("s3cret"));
}

#[test]
fn problems_go_to_standard_error_and_into_the_exit_code() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        &file,
        "upstream: mongodb://db\nconstraints:\n  - collection: shop.users\n    kez: 1\n",
    )
    .unwrap();
    let path = file.path().to_str().unwrap();
    let output = check(path, &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(output.stdout.is_empty());
    let problems = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = problems.lines().collect();
    assert_eq!(lines.len(), 2, "{problems}");
    assert!(
        lines[0].starts_with(&format!("{path}:3:5: constraints[0].key: missing")),
        "{problems}"
    );
    assert!(
        lines[1].starts_with(&format!(
            "{path}:4:5: constraints[0].kez: unknown setting `kez`; did you mean `key`?"
        )),
        "{problems}"
    );
}

#[test]
fn a_file_that_is_not_there_is_a_problem() {
    let output = check("nowhere.yaml", &[]);
    assert_eq!(output.status.code(), Some(78));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "nowhere.yaml: cannot be read: there is no such file; name the configuration file with --config\n"
    );
}
