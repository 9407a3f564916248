//! What `deny.toml` allows of dependencies, checked without a network: licences, second versions of a crate, sources. Advisories need
//! their database: `cargo deny check advisories`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// The packages that Keyward and its tests are built from on this platform.
fn packages() -> Vec<Value> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version", "1", "--locked"]);
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The texts of the list `name` in `deny.toml`.
fn listed(name: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(format!("{}/deny.toml", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (_, after) = text.split_once(&format!("\n{name} = [")).unwrap();
    let (list, _) = after.split_once(']').unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an SPDX expression can be met by `allowed` licences: with `OR` one of them is enough, with `AND` each is needed.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // Before SPDX, a slash meant `OR`.
    let expression = expression.replace(" / ", " OR ").replace('/', " OR ");
    expression.split(" AND ").all(|part| {
        let part = part.trim_matches(['(', ')']);
        part.split(" OR ").any(|licence| allowed.contains(licence.trim()))
    })
}

#[test]
fn every_licence_is_allowed() {
    let allowed = listed("allow");
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(is_allowed(licence, &allowed), "{}: {licence}", package["name"]);
    }
}

#[test]
fn licence_expressions_are_read() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "Unicode-3.0".to_owned()]);
    for (expression, is) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("GPL-3.0-only OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0-only", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), is, "{expression}");
    }
}

#[test]
fn a_crate_has_one_version_but_for_those_that_are_named() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let text = |field: &str| package[field].as_str().unwrap().to_owned();
        versions.entry(text("name")).or_default().insert(text("version"));
    }
    let several = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    let several: BTreeSet<String> = several.map(|(name, _)| name).collect();
    assert_eq!(several, listed("skip"));
}

#[test]
fn everything_comes_from_the_registry() {
    for package in packages() {
        let source = package["source"].as_str();
        let is_registry = source.is_none_or(|source| source.starts_with("registry+"));
        assert!(is_registry, "{}: {source:?}", package["name"]);
    }
}
