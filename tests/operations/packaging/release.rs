//! What `deploy/release` makes: the parts that need no release build are run here. The whole is tried by hand.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::packaging::{read, repository};

fn bill() -> Value {
    let mut python = Command::new("python3");
    let output = python.arg("deploy/sbom.py").current_dir(repository()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_bill_of_materials_lists_what_is_linked_with_its_checksum_and_licence() {
    let bill = bill();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for component in bill["components"].as_array().unwrap() {
        let (name, version) = (
            component["name"].as_str().unwrap(),
            component["version"].as_str().unwrap(),
        );
        assert_eq!(component["purl"], format!("pkg:cargo/{name}@{version}"));
        let checksum = component["hashes"][0]["content"].as_str().unwrap();
        assert!(checksum.len() == 64 && read("Cargo.lock").contains(checksum), "{name}");
        assert!(component["licenses"][0]["expression"].is_string(), "{name}");
        *names.entry(name.to_owned()).or_default() += 1;
    }
    let manifest = read("Cargo.toml");
    let (_, direct) = manifest.split_once("\n[dependencies]\n").unwrap();
    let direct = direct
        .split("\n[")
        .next()
        .unwrap()
        .lines()
        .filter(|line| !line.is_empty());
    // async-trait is a macro.
    for name in direct.map(|line| line.split(['.', ' ']).next().unwrap()) {
        assert_eq!(names.contains_key(name), name != "async-trait", "{name}");
    }
    for name in ["proptest", "tempfile", "testbed", "serde_derive"] {
        assert!(!names.contains_key(name), "{name} isn't in the program");
    }
}

#[test]
fn the_package_holds_what_the_script_makes_and_what_the_repository_has() {
    let manifest: String = read("Cargo.toml");
    let (_, package) = manifest.split_once("\n[package.metadata.deb]\n").unwrap();
    let (_, assets) = package.split_once("assets = [\n").unwrap();
    let assets = assets.split("\n]").next().unwrap().lines();
    let assets: Vec<Vec<&str>> = assets
        .map(|line| line.split('"').skip(1).step_by(2).collect())
        .collect();
    let script = read("deploy/release");
    for asset in &assets {
        let (source, place) = (asset[0], asset[1]);
        match source.strip_prefix("target/dist/share/") {
            // The script makes a file for each shell.
            Some(made) if made.starts_with("keyward.") && !made.ends_with(".gz") => {
                let shell = made.trim_start_matches("keyward.");
                assert!(script.contains(&format!(" {shell}")), "{made}");
            }
            Some(made) => assert!(script.contains(&format!("\"$dist/share/{made}\"")), "{made}"),
            None => assert!(repository().join(source).is_file(), "{source}"),
        }
        assert!(place.starts_with("usr/"), "{place}");
    }
    let places: Vec<&str> = assets.iter().map(|asset| asset[1]).collect();
    for needed in ["usr/bin/", "usr/share/man/man1/"] {
        assert!(places.contains(&needed), "{needed}");
    }
    // cargo-deb finds these by their names.
    assert!(package.contains("unit-name = \"keyward\"") && package.contains("unit-scripts = \"deploy/systemd/\""));
    for found in ["keyward.service", "keyward.sysusers"] {
        assert!(repository().join("deploy/systemd").join(found).is_file(), "{found}");
    }
    let unit = read("deploy/systemd/keyward.service");
    assert!(!unit.contains("=/usr/local/bin/"), "the package installs into /usr/bin");
}

/// `deploy/image` takes the second stage of the Dockerfile, with the program from another place.
#[test]
fn the_images_second_stage_needs_the_program_alone() {
    let dockerfile = read("Dockerfile");
    let (_, stage) = dockerfile.split_once("\nFROM scratch\n").unwrap();
    let copied: Vec<&str> = stage.lines().filter(|line| line.starts_with("COPY ")).collect();
    assert_eq!(copied, ["COPY --from=build /out/keyward /usr/local/bin/keyward"]);
    assert!(!stage.contains("\nRUN "), "an empty image can run only Keyward");
    let script = read("deploy/image");
    assert!(script.contains("'/^FROM scratch/,$ {") && script.contains("COPY keyward /usr/local/bin/keyward"));
}

#[test]
fn the_scripts_are_shell() {
    let scripts = [
        ("bash", "deploy/release"),
        ("bash", "deploy/image"),
        ("sh", "deploy/debian/postinst"),
    ];
    for (shell, script) in scripts {
        let mut check = Command::new(shell);
        let output = check.arg("-n").arg(repository().join(script)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
