//! Lists in the documents, held against what they list: dependencies, metrics, exit codes, modules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use clap::CommandFactory;
use keyward::config::Config;
use keyward::metrics::Metrics;

use crate::documentation::markdown::{Page, read, repository};

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

/// Type and labels of each metric, by its name.
fn metrics() -> BTreeMap<String, (String, String)> {
    let example = Config::from_text(Path::new("config.example.yaml"), &read("config.example.yaml"), None).unwrap();
    let (text, _) = Metrics::new(&[Arc::clone(&example.constraints[0])]).text().unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let labels = |name: &str| {
        let series = text.lines().find_map(|line| line.strip_prefix(&format!("{name}{{")));
        let names = series.map(|labels| labels.split_once('=').unwrap().0.to_owned());
        names.unwrap_or_default()
    };
    types
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, kind)| (name.to_owned(), (kind.to_owned(), labels(name))))
        .collect()
}

#[test]
fn every_metric_is_documented_and_no_other() {
    let rows = Page::read("docs/metrics.md").rows();
    let documented: BTreeMap<String, (String, String)> = rows
        .into_iter()
        .filter(|row| row[0].starts_with("keyward_"))
        .map(|row| (row[0].clone(), (row[1].clone(), row[2].clone())))
        .collect();
    assert_eq!(documented, metrics());
}

#[test]
fn the_metrics_say_when_to_worry() {
    for row in Page::read("docs/metrics.md").rows() {
        assert!(row.iter().skip(3).all(|cell| !cell.is_empty()), "{row:?}");
    }
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
fn the_code_map_has_a_row_for_every_module() {
    let map = first_column("docs/architecture.md", "Code map");
    for entry in std::fs::read_dir(repository().join("src")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = if name.ends_with(".rs") {
            name
        } else {
            format!("{name}/")
        };
        assert!(map.contains(&name), "the code map has no row for {name}");
    }
}
