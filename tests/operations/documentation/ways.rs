//! The ways of messages through `src/`: the table of files in `docs/architecture.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::documentation::markdown::{read, repository};

/// The most files of a way.
const FILES_MAX: usize = 12;

/// One file of `src/`, as far as other files use it.
struct Source {
    /// The code, without comments and tests.
    code: String,
    module: String,
    /// The public items.
    items: BTreeSet<String>,
    /// All functions, private ones included.
    functions: BTreeSet<String>,
}

impl Source {
    fn read(path: &Path) -> Source {
        let text = read(path);
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let code: String = code.lines().filter(is_code).flat_map(|line| [line, "\n"]).collect();
        let defined = code.lines().filter_map(definition);
        let (mut items, mut functions) = (BTreeSet::new(), BTreeSet::new());
        for (is_public, keyword, name) in defined {
            if is_public {
                items.insert(name.to_owned());
            }
            if keyword == "fn" {
                functions.insert(name.to_owned());
            }
        }
        let module = module_of(path);
        Source {
            code,
            module: module.last().cloned().unwrap_or_default(),
            items,
            functions,
        }
    }
}

/// The item that a line defines: whether it is public, its keyword and its name.
pub fn definition(line: &str) -> Option<(bool, &str, &str)> {
    let line = line.trim_start();
    let rest = match line.strip_prefix("pub(") {
        Some(scoped) => scoped.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let is_public = rest.len() < line.len();
    let (keyword, rest) = rest.strip_prefix("async ").unwrap_or(rest).split_once(' ')?;
    let is_item = ["fn", "struct", "enum", "trait", "const", "static", "type"].contains(&keyword);
    is_item.then(|| (is_public, keyword, &rest[..length_of_word(rest)]))
}

fn length_of_word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len())
}

/// The path of the module that a file is, from `crate` on; the file lies below `src/`.
pub fn module_of(path: &Path) -> Vec<String> {
    let below = path.strip_prefix(repository().join("src")).unwrap().with_extension("");
    let mut segments = vec!["crate".to_owned()];
    segments.extend(below.iter().map(|segment| segment.to_string_lossy().into_owned()));
    segments.pop_if(|last| last == "mod");
    segments
}

/// All files below `src/` and this folder of it, by their path from `src/`.
pub fn files_below(folder: &str) -> Vec<String> {
    let source = repository().join("src");
    let (mut files, mut folders) = (Vec::new(), vec![source.join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&source).unwrap();
                files.push(below.to_string_lossy().into_owned());
            }
        }
    }
    files.sort();
    files
}

/// The files of `src/`. A file is recognised in another one by the names that it alone defines.
struct Sources {
    files: BTreeMap<String, Source>,
    /// The file of each public item, and of each module, that has its name alone; `None` if several have it.
    items: BTreeMap<String, Option<String>>,
    modules: BTreeMap<String, Option<String>>,
}

impl Sources {
    fn read() -> Sources {
        let source = repository().join("src");
        let files = files_below("").into_iter().map(|file| {
            let read = Source::read(&source.join(&file));
            (file, read)
        });
        let files: BTreeMap<String, Source> = files.collect();
        let (mut items, mut modules) = (BTreeMap::new(), BTreeMap::new());
        for (file, source) in &files {
            let note = |names: &mut BTreeMap<String, Option<String>>, name: &String| {
                let entry = names.entry(name.clone());
                entry.and_modify(|of| *of = None).or_insert(Some(file.clone()));
            };
            source.items.iter().for_each(|item| note(&mut items, item));
            note(&mut modules, &source.module);
        }
        Sources { files, items, modules }
    }

    fn of_item(&self, word: &str) -> Option<&str> {
        self.items.get(word)?.as_deref()
    }

    fn of_module(&self, word: &str) -> Option<&str> {
        self.modules.get(word)?.as_deref()
    }

    /// The files whose module, or an item that they alone define, `user` names.
    fn used(&self, user: &str) -> BTreeSet<&str> {
        let mut used = BTreeSet::new();
        for (_, _, word, rest) in words(&self.files[user].code) {
            used.extend(self.of_item(word));
            if rest.starts_with("::") || rest.starts_with(';') {
                used.extend(self.of_module(word));
            }
        }
        used
    }

    /// For each function of `user`, where it first calls into each other file.
    fn calls(&self, user: &str) -> Vec<BTreeMap<&str, usize>> {
        let own = &self.files[user];
        let called = |before: Option<char>, word: &str, rest: &str| {
            let is_plain_call = rest.starts_with('(') && before != Some('.') && !own.functions.contains(word);
            match self.of_item(word) {
                Some(file) if word.starts_with(char::is_lowercase) => is_plain_call.then_some(file),
                Some(file) => leads_to_function(rest).then_some(file),
                None => self.of_module(word).filter(|_| leads_to_function(rest)),
            }
        };
        let first_calls = |function| {
            let mut first = BTreeMap::new();
            for (at, before, word, rest) in words(function) {
                if let Some(file) = called(before, word, rest) {
                    first.entry(file).or_insert(at);
                }
            }
            first
        };
        functions(&own.code).map(first_calls).collect()
    }

    /// The faults in the order of these files: each is used by an earlier one; and of two files that an earlier file calls in
    /// one function, the first called stands first.
    fn faults(&self, files: &[&str]) -> Vec<String> {
        let used: Vec<_> = files.iter().map(|file| self.used(file)).collect();
        let calls: Vec<_> = files.iter().map(|file| self.calls(file)).collect();
        let mut faults = Vec::new();
        for (position, file) in files.iter().enumerate() {
            if position > 0 && !used[..position].iter().any(|used| used.contains(file)) {
                faults.push(format!("no file before {file} uses it"));
            }
            for later in &files[position + 1..] {
                let functions = calls[..position].iter().flatten();
                let orders = functions.filter_map(|first| Some(first.get(file)? < first.get(later)?));
                let orders: Vec<bool> = orders.collect();
                if orders.contains(&false) && !orders.contains(&true) {
                    faults.push(format!("a file before {file} calls {later} first"));
                }
            }
        }
        faults
    }
}

/// The bodies of the functions in `code`, one after the other.
fn functions(code: &str) -> impl Iterator<Item = &str> {
    let starts = code.match_indices("fn ").map(|(at, _)| at);
    let starts = starts.filter(|at| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
    let starts: Vec<usize> = starts.chain([code.len()]).collect();
    (1..starts.len()).map(move |end| &code[starts[end - 1]..starts[end]])
}

/// The words of `code`, each with its position, the character before it and the text behind it.
pub fn words(code: &str) -> impl Iterator<Item = (usize, Option<char>, &str, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += code[at..].find(|c: char| c.is_alphanumeric() || c == '_')?;
        let start = at;
        at += length_of_word(&code[start..]);
        let before = code[..start].chars().next_back();
        Some((start, before, &code[start..at], &code[at..]))
    })
}

/// Whether a path goes on to a function: `::new`, or `::Type::new`.
fn leads_to_function(mut rest: &str) -> bool {
    let mut last = "";
    while let Some(path) = rest.strip_prefix("::") {
        let length = length_of_word(path);
        (last, rest) = path.split_at(length);
        if length == 0 {
            break;
        }
    }
    last.starts_with(char::is_lowercase)
}

/// The table of ways: the name of each and its files. The rows that don't begin at the session continue the first row.
fn ways(architecture: &str) -> Vec<(&str, Vec<&str>)> {
    let (_, ways) = architecture.split_once("| way | files |").unwrap();
    let rows = ways.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let files = row.split('`').filter(|code| code.ends_with(".rs"));
        (row.split('|').nth(1).unwrap().trim(), files.collect())
    })
    .collect()
}

#[test]
fn each_way_passes_a_dozen_files_at_most_in_the_order_of_the_calls() {
    let architecture = read("docs/architecture.md");
    let ways = ways(&architecture);
    assert!(ways.len() > 5, "{ways:?}");
    let sources = Sources::read();
    let (_, common) = &ways[0];
    let mut faults = Vec::new();
    for (name, files) in &ways {
        let count = files.len();
        assert!((2..=FILES_MAX).contains(&count), "{name}: {count} files");
        for file in files {
            assert!(sources.files.contains_key(*file), "{name}: {file} isn't there");
        }
        let whole = match files[0] == common[0] {
            true => files.clone(),
            false => [common.as_slice(), files].concat(),
        };
        faults.extend(
            sources
                .faults(&whole)
                .into_iter()
                .map(|fault| format!("{name}: {fault}")),
        );
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_way_in_another_order_is_found() {
    let sources = Sources::read();
    let has_faults = |files: &[&str]| !sources.faults(files).is_empty();
    assert!(!has_faults(&["session/serve.rs", "write/plan.rs", "write/mod.rs"]));
    assert!(has_faults(&["session/serve.rs", "write/mod.rs", "write/plan.rs"]));
    assert!(has_faults(&["write/plan.rs", "session/serve.rs", "write/mod.rs"]));
    assert!(has_faults(&[
        "write/insert/mod.rs",
        "claims/effects.rs",
        "write/insert/way.rs"
    ]));
}
