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
fn each_way_passes_a_dozen_files_at_most_and_each_uses_the_next() {
    let map = read("docs/architecture.md");
    let (_, ways) = map.split_once("| way | files |").unwrap();
    let ways: Vec<&str> = ways.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(ways.len() > 5, "{ways:?}");
    for way in ways {
        let files: Vec<&str> = way.split('`').filter(|code| code.ends_with(".rs")).collect();
        assert!((2..=12).contains(&files.len()), "{} files: {way}", files.len());
        for (position, file) in files.iter().enumerate() {
            assert!(repository().join("src").join(file).is_file(), "{file} isn't there");
            let before = &files[..position];
            let is_used = before.iter().any(|user| uses(user, file));
            assert!(position == 0 || is_used, "no file before {file} uses it: {way}");
        }
    }
}

/// Whether the code of the file `user` names the module that the file `used` is, or an item that it defines.
fn uses(user: &str, used: &str) -> bool {
    let code = |file: &str| read(format!("src/{file}"));
    let (user, used_code) = (code(user), code(used));
    let module = used.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    let module = module.rsplit('/').next().unwrap_or(module);
    let names = |word: &str| {
        user.split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|own| own == word)
    };
    let defined = used_code.lines().filter_map(|line| {
        let line = line.trim_start();
        let item = [
            "pub fn ",
            "pub async fn ",
            "pub struct ",
            "pub enum ",
            "pub(super) async fn ",
        ];
        let rest = item.iter().find_map(|start| line.strip_prefix(start))?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    });
    names(module) || defined.into_iter().any(names)
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

/// A reader of the write path goes from file to file in one direction.
#[test]
fn no_two_files_of_the_write_path_import_each_other() {
    let root = repository().join("src");
    let mut files = Vec::new();
    let mut folders = vec![root.join("write")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            match path.is_dir() {
                true => folders.push(path),
                false if !matches!(name.as_str(), "mod.rs" | "tests.rs") => files.push(path),
                false => {}
            }
        }
    }
    assert!(files.len() > 30, "{files:?}");
    let imports = |user: &Path, used: &Path| {
        let code = read(user);
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        let module = used.with_extension("");
        let segments: Vec<_> = module.strip_prefix(&root).unwrap().iter().collect();
        let path: Vec<_> = segments.iter().map(|segment| segment.to_string_lossy()).collect();
        let mut paths = vec![format!("crate::documentation::{}", path.join("::"))];
        if user.parent() == used.parent() {
            paths.push(format!("super::{}", path[path.len() - 1]));
        }
        let mut uses = code.split(';').filter_map(|item| Some(item.rsplit_once("use ")?.1));
        uses.any(|item| {
            paths.iter().any(|path| {
                let rest = item.strip_prefix(path.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
        })
    };
    for one in &files {
        for other in &files {
            let is_mutual = one != other && imports(one, other) && imports(other, one);
            assert!(
                !is_mutual,
                "{} and {} import each other",
                one.display(),
                other.display()
            );
        }
    }
}
