//! `cargo demo --once` tells what it is there to tell.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::process::Command;

/// Where cargo puts the example beside this test.
fn demo() -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    let demo = test.ancestors().nth(2).unwrap().join("examples/demo");
    assert!(
        demo.exists(),
        "`cargo test` builds it; `cargo test --test operations demo` wants --examples, too"
    );
    demo
}

#[test]
fn the_scene_is_played_to_its_end() {
    let output = Command::new(demo())
        .arg("--once")
        .env_remove("KEYWARD_UPSTREAM")
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{told}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (alone, through_keyward) = told.split_once("The same through Keyward").unwrap();
    assert!(alone.contains("2 users have that address now."), "{told}");
    assert!(
        alone.contains("cannot create index with 'unique' or 'prepareUnique' option"),
        "{told}"
    );
    let refusal = "error 11000: E11000 duplicate key error collection: shop.users index: email_1 dup key: { email: \
                   \"ann@example.com\" }";
    assert!(through_keyward.contains(refusal), "{told}");
    let (_, shards) = told.split_once("read on each shard directly").unwrap();
    let (shards, by_application) = shards.split_once("An application makes a unique index").unwrap();
    let refusal = "index: phone_1 dup key: { phone: \"555\" }";
    assert!(by_application.contains(refusal), "{told}");
    for (shard, document, reservation) in [("shard0", "ann", "bob"), ("shard1", "bob", "ann")] {
        let (_, lies) = shards.split_once(shard).unwrap();
        let lies: Vec<&str> = lies.lines().skip(1).take(2).collect();
        assert!(lies[0].contains("document     { \"_id\": ObjectId("), "{told}");
        assert!(lies[0].contains(&format!("\"{document}@example.com\"")), "{told}");
        assert!(lies[1].contains("reservation  { \"_id\": { \"h\": "), "{told}");
        assert!(
            lies[1].contains(&format!("{{ \"email\": \"{reservation}@example.com\" }}")),
            "{told}"
        );
    }
}

#[test]
fn words_it_does_not_know_are_refused() {
    let output = Command::new(demo()).arg("--twice").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "usage: cargo demo [--once]\n"
    );
}
