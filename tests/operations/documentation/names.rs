//! Names in `src/`: each type has its own. And the calls that must stay alone: a message is judged once.

use std::collections::{BTreeMap, BTreeSet};

use crate::documentation::markdown::{read, repository};
use crate::documentation::messages::source_files;
use crate::documentation::ways::definition;

/// The code of each file below `src/`, by its path from there, without comments and tests.
pub fn source() -> BTreeMap<String, String> {
    let code = |text: &str| -> String {
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.flat_map(|line| [line, "\n"]).collect()
    };
    let files = source_files().into_iter().map(|path| {
        let below = path.strip_prefix(repository().join("src")).unwrap();
        (below.to_string_lossy().into_owned(), code(&read(&path)))
    });
    files.collect()
}

/// A reader who meets a name, or searches for it, finds one meaning.
#[test]
fn no_two_types_have_the_same_name() {
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, code) in source() {
        // Indented ones belong to a trait or a function.
        for line in code.lines().filter(|line| !line.starts_with(' ')) {
            if let Some((_, "struct" | "enum" | "trait" | "type", name)) = definition(line) {
                files.entry(name.to_owned()).or_default().insert(file.clone());
            }
        }
    }
    assert!(files.len() > 200, "only {} types", files.len());
    files.retain(|_, files| files.len() > 1);
    assert!(files.is_empty(), "several files have a type of this name: {files:#?}");
}

/// Where the code calls `function`, and how often.
fn calls<'s>(source: &'s BTreeMap<String, String>, function: &str) -> Vec<(&'s str, usize)> {
    let call = format!("{function}(");
    let count = |code: &str| {
        let calls = code.match_indices(&call).map(|(at, _)| &code[..at]);
        let is_call = |before: &&str| {
            let is_within_word = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            !is_within_word && !before.ends_with("fn ")
        };
        calls.filter(is_call).count()
    };
    let counts = source.iter().map(|(file, code)| (file.as_str(), count(code)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// A second judgement costs each message as much as the first. It may also be by other constraints than the first.
#[test]
fn a_message_is_judged_in_one_place() {
    let source = source();
    // A write of a `$merge` is a message of its own.
    let by_session = [("session/merging.rs", 1), ("session/serve.rs", 1)];
    assert_eq!(calls(&source, "Judged::of"), by_session);
    // A part of a `bulkWrite` is a command of its own.
    let by_constraints = [("session/judgement.rs", 1), ("write/bulk.rs", 1)];
    assert_eq!(calls(&source, "classify"), by_constraints);
    assert_eq!(calls(&source, "key_change"), by_constraints);
    assert_eq!(
        calls(&source, "Plan::of"),
        [("session/serve.rs", 1), ("write/bulk.rs", 1)]
    );
}
