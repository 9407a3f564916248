//! What the documents say, held against what is there: links, dependencies, metrics, exit codes, configuration samples.

#![expect(clippy::unwrap_used, reason = "a document that isn't as it must be fails its test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::CommandFactory;
use keyward::config::Config;
use keyward::metrics::Metrics;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// README.md, CHANGELOG.md and everything in docs/.
fn documents() -> Vec<PathBuf> {
    let folders = [repository(), repository().join("docs")];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let markdown: Vec<PathBuf> = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    assert!(markdown.len() > 3);
    markdown
}

/// The names in the first column of the table under `heading`, without their backquotes.
fn first_column(document: &str, heading: &str) -> BTreeSet<String> {
    let text = read(document);
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.flat_map(|row| row.split('|').nth(1).unwrap().split(','))
        .map(|cell| cell.trim().trim_matches('`').to_owned())
        .collect()
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        let text = read(&document);
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let file = document.parent().unwrap().join(target);
            assert!(file.exists(), "{}: {target}", document.display());
        }
    }
}

#[test]
fn every_dependency_has_its_reason_and_every_reason_its_dependency() {
    let manifest = read("Cargo.toml");
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let dependencies = dependencies.split("\n[").next().unwrap().lines();
    let named: BTreeSet<String> = dependencies
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split(['.', ' ']).next().unwrap().to_owned())
        .collect();
    assert_eq!(first_column("docs/dependencies.md", "Keyward"), named);
}

#[test]
fn every_metric_is_documented_and_no_other() {
    let example = Config::from_text(Path::new("config.example.yaml"), &read("config.example.yaml"), None).unwrap();
    let (text, _) = Metrics::new(&[Arc::clone(&example.constraints[0])]).text().unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let there: BTreeSet<String> = types.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(first_column("docs/configuration.md", "Metrics"), there);
}

#[test]
fn the_exit_codes_are_those_of_the_help() {
    let help = keyward::cli::Cli::command().render_long_help().to_string();
    let (_, codes) = help.split_once("Exit codes:\n").unwrap();
    let in_help: BTreeSet<String> = codes
        .lines()
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect();
    assert_eq!(first_column("docs/configuration.md", "Exit codes"), in_help);
}

#[test]
fn the_readmes_configuration_is_valid() {
    let readme = read("README.md");
    let samples: Vec<&str> = readme
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(!samples.is_empty());
    for sample in samples {
        Config::from_text(Path::new("README.md"), sample, None).unwrap();
    }
}

#[test]
fn the_code_map_names_every_module() {
    let map = read("docs/architecture.md");
    for entry in std::fs::read_dir(repository().join("src")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = if name.ends_with(".rs") {
            name
        } else {
            format!("{name}/")
        };
        assert!(
            map.contains(&format!("`{name}`")),
            "docs/architecture.md doesn't name {name}"
        );
    }
}
