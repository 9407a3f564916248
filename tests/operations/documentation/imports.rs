//! The imports between files of `src/`: a reader of the write path goes from file to file in one direction.

use std::collections::{BTreeMap, BTreeSet};

use crate::documentation::markdown::{read, repository};
use crate::documentation::ways::{definition, files_below, module_of, words};

/// The folders that a protected write passes from its plan on, but for those that other work uses as much: its tools.
const FOLDERS: [&str; 9] = [
    "claims",
    "command",
    "merge",
    "proxy_collection",
    "reply",
    "reservation",
    "route",
    "server",
    "write",
];

/// The paths of a file, from `crate` on.
struct Paths {
    /// Those of its `use` items, by the names that they bring in. Other files may go through this one by such a name.
    brought_in: BTreeMap<String, String>,
    /// Those that its own code uses. A `pub use` alone isn't a use.
    used: Vec<String>,
    /// The names of its own items.
    defined: BTreeSet<String>,
}

impl Paths {
    fn of(file: &str) -> Paths {
        let path = repository().join("src").join(file);
        let text = read(&path);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let code: String = code.lines().filter(is_code).flat_map(|line| [line, "\n"]).collect();
        let module = module_of(&path);
        let submodules: BTreeSet<&str> = code.lines().filter_map(submodule).collect();
        let (mut brought_in, mut shown, mut body) = (BTreeMap::new(), BTreeMap::new(), String::new());
        for statement in code.split_inclusive(';') {
            match statement.rsplit_once("use ") {
                Some((before, tree)) if before.is_empty() || before.ends_with([' ', '\n']) => {
                    body.push_str(before);
                    let is_shown = before.lines().last().is_some_and(|line| line.starts_with("pub"));
                    let paths = if is_shown { &mut shown } else { &mut brought_in };
                    expand(tree.trim_end_matches(';'), String::new(), paths);
                }
                _ => body.push_str(statement),
            }
        }
        let named: BTreeSet<&str> = words(&body).map(|(_, _, word, _)| word).collect();
        for path in brought_in.values_mut().chain(shown.values_mut()) {
            *path = absolute(path, &module, &submodules);
        }
        let shown_and_used = shown.iter().filter(|(name, _)| named.contains(name.as_str()));
        let mut used: Vec<String> = shown_and_used.map(|(_, path)| path.clone()).collect();
        used.extend(brought_in.values().cloned());
        brought_in.extend(shown);
        for (at, before, word, rest) in words(&body) {
            let is_start = before != Some(':') && rest.starts_with("::");
            if is_start && (["crate", "super", "self"].contains(&word) || submodules.contains(word)) {
                let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
                let path = body[at..].split(|c| !is_of_path(c)).next().unwrap_or_default();
                used.push(absolute(path, &module, &submodules));
            }
        }
        let items = body
            .lines()
            .filter(|line| !line.starts_with(' '))
            .filter_map(definition);
        Paths {
            brought_in,
            used,
            defined: items.map(|(_, _, name)| name.to_owned()).collect(),
        }
    }
}

/// The submodule that a line declares.
fn submodule(line: &str) -> Option<&str> {
    let (visibility, name) = line.strip_suffix(';')?.split_once("mod ")?;
    (visibility.is_empty() || visibility.starts_with("pub")).then_some(name)
}

/// Adds the paths of a `use` tree, each behind `prefix`, by the names that they bring in.
fn expand(tree: &str, prefix: String, paths: &mut BTreeMap<String, String>) {
    let tree = tree.trim();
    let Some((own, list)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = prefix + path;
        let path = path.strip_suffix("::self").unwrap_or(&path);
        let last = path.rsplit("::").next().unwrap_or_default();
        let name = if alias.is_empty() { last } else { alias };
        paths.insert(name.to_owned(), path.to_owned());
        return;
    };
    let list = list.rsplit_once('}').map_or(list, |(list, _)| list);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let item = list[start..at].trim();
                if !item.is_empty() {
                    expand(item, format!("{prefix}{own}"), paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The path from `crate` on that `path` means in `module`, which has these submodules.
fn absolute(path: &str, module: &[String], submodules: &BTreeSet<&str>) -> String {
    let path = path.strip_prefix("self::").unwrap_or(path);
    let (mut rest, mut above) = (path, module.len());
    while let Some(up) = rest.strip_prefix("super::") {
        (rest, above) = (up, above - 1);
    }
    let is_below = submodules.contains(rest.split("::").next().unwrap_or_default());
    match rest == path && !is_below {
        true => path.to_owned(),
        false => format!("{}::{rest}", module[..above].join("::")),
    }
}

/// Some files of `src/`, by their path from there.
struct Files {
    paths: BTreeMap<String, Paths>,
    modules: BTreeMap<String, String>,
}

impl Files {
    /// Those below these folders.
    fn below(folders: &[&str]) -> Files {
        let files = folders.iter().flat_map(|folder| files_below(folder));
        let files: Vec<String> = files.filter(|file| !file.ends_with("/tests.rs")).collect();
        let module = |file: &str| module_of(&repository().join("src").join(file)).join("::");
        Files {
            paths: files.iter().map(|file| (file.clone(), Paths::of(file))).collect(),
            modules: files.into_iter().map(|file| (module(&file), file)).collect(),
        }
    }

    /// The file in which a path ends. It goes from module to module, also by the names that those bring in.
    fn of(&self, path: &str) -> Option<&str> {
        let segments: Vec<&str> = path.split("::").collect();
        let module = |length: &usize| self.modules.get(&segments[..*length].join("::"));
        let length = (1..=segments.len()).rev().find(|length| module(length).is_some())?;
        let file = module(&length)?;
        let [name, rest @ ..] = &segments[length..] else {
            return Some(file);
        };
        let paths = &self.paths[file];
        // A function of its own may have the name of a module that it uses.
        match paths.brought_in.get(*name).filter(|_| !paths.defined.contains(*name)) {
            Some(path) => self.of(&[&[path.as_str()], rest].concat().join("::")),
            None => Some(file),
        }
    }

    /// For each file, the others that it uses.
    fn imports(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let of_file = |(file, paths): (&'_ String, &'_ Paths)| {
            let used = paths.used.iter().filter_map(|path| self.of(path));
            used.filter(|used| used != file).collect()
        };
        let files = self.paths.iter();
        files.map(|file| (file.0.as_str(), of_file(file))).collect()
    }
}

/// The files on a circle of imports, or between two circles.
fn circle<'f>(mut imports: BTreeMap<&'f str, BTreeSet<&'f str>>) -> Vec<&'f str> {
    loop {
        let before = imports.len();
        let left: BTreeSet<&str> = imports.keys().copied().collect();
        imports.retain(|_, used| !used.is_disjoint(&left));
        let used: BTreeSet<&str> = imports.values().flatten().copied().collect();
        imports.retain(|file, _| used.contains(file));
        if imports.len() == before {
            return imports.into_keys().collect();
        }
    }
}

#[test]
fn no_files_of_the_write_path_import_each_other_in_a_circle() {
    let files = Files::below(&FOLDERS);
    let imports = files.imports();
    let found: usize = imports.values().map(BTreeSet::len).sum();
    // The test sees imports at all.
    let files = imports.len();
    assert!(files > 130 && found > 700, "{found} imports of {files} files");
    let circle = circle(imports);
    assert!(circle.is_empty(), "on a circle of imports, or between two: {circle:?}");
}

#[test]
fn a_circle_of_imports_is_found_without_the_files_before_and_behind_it() {
    let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (user, used) in [("a", "b"), ("b", "c"), ("c", "a"), ("c", "behind"), ("before", "a")] {
        imports.entry(user).or_default().insert(used);
    }
    assert_eq!(circle(imports), ["a", "b", "c"]);
}

/// `crate::reservation::Event`, for example, is defined in a file of its own.
#[test]
fn an_import_leads_to_the_file_that_defines_the_item() {
    let files = Files::below(&FOLDERS);
    let imports = files.imports();
    let uses = |user: &str, used: &str| imports[user].contains(used);
    assert!(uses("claims/effects.rs", "reservation/event.rs"));
    assert!(!uses("claims/effects.rs", "reservation/mod.rs"));
    assert!(uses("proxy_collection/walk.rs", "proxy_collection/mod.rs"));
    assert!(uses("write/mod.rs", "write/plan.rs"));
    assert!(uses("write/insert/strict/mod.rs", "server/reply.rs"));
}
