//! `docs/troubleshooting.md` has every message that the source has, and no other: errors (`#[error(…)]`), warnings and errors in
//! the log, lines on standard error, and whatever else speaks of Keyward.

use std::collections::BTreeSet;
use std::path::PathBuf;

use keyward::readiness::Obstacle;
use proc_macro2::{TokenStream, TokenTree};

use crate::documentation::markdown::{Page, read, repository};

/// Texts that speak of Keyward and are no messages: each with what it is.
const NO_MESSAGES: [(&str, &str); 5] = [
    ("Exit codes:", "stand in docs/configuration.md"),
    ("Commands answered with", "the help of a metric"),
    ("The part of a protected write's time", "the help of a metric"),
    ("Keywards in the register, this one", "the help of a metric"),
    ("Keywards that may write without", "the help of a metric"),
];

/// What is said in the source, `…` in the place of what is filled in.
#[derive(Default)]
struct Said {
    messages: BTreeSet<String>,
    /// Every text, messages or not.
    texts: BTreeSet<String>,
}

impl Said {
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            let before = |steps: usize| index.checked_sub(steps).map(|index| tokens[index].to_string());
            let is_before = |steps: usize, mark: &str| before(steps).as_deref() == Some(mark);
            let is_attribute = is_before(1, "#") || is_before(1, "!") && is_before(2, "#");
            match token {
                TokenTree::Group(group) if is_attribute => {
                    if is_test_only(group.stream()) {
                        // `#[cfg(test)] mod tests { … }` is the end of a file.
                        return;
                    }
                    let mut attribute = group.stream().into_iter();
                    if attribute.next().is_some_and(|name| name.to_string() == "error")
                        && let Some(TokenTree::Group(arguments)) = attribute.next()
                    {
                        self.messages.extend(literals(arguments.stream()).into_iter().next());
                    }
                }
                TokenTree::Group(group) => {
                    if is_before(1, "!") && (is_before(2, "warn") || is_before(2, "error")) {
                        self.messages.extend(literals(group.stream()).into_iter().next_back());
                    }
                    if is_before(1, "!") && is_before(2, "eprintln") {
                        let printed = literals(group.stream()).into_iter().next();
                        self.messages.extend(printed.filter(|line| line != "keyward: …"));
                    }
                    self.read(group.stream());
                }
                TokenTree::Literal(literal) => {
                    let text = unquoted(&literal.to_string());
                    let speaks_of_keyward = |text: &&String| text.contains("Keyward") && text.split(' ').count() > 3;
                    self.messages.extend(text.iter().find(speaks_of_keyward).cloned());
                    self.texts.extend(text);
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

fn is_test_only(attribute: TokenStream) -> bool {
    attribute.to_string().replace(' ', "") == "cfg(test)"
}

/// The string literals that stand in `tokens` themselves.
fn literals(tokens: TokenStream) -> Vec<String> {
    let literal = |token: TokenTree| match token {
        TokenTree::Literal(literal) => unquoted(&literal.to_string()),
        _ => None,
    };
    tokens.into_iter().filter_map(literal).collect()
}

/// What a string literal says, `…` in the place of what is filled in.
fn unquoted(literal: &str) -> Option<String> {
    let text = literal.trim_start_matches('b').strip_prefix('"')?.strip_suffix('"')?;
    let mut lines = text.split("\\\n");
    let first = lines.next()?.to_owned();
    let whole = lines.fold(first, |whole, line| whole + line.trim_start());
    let whole = whole.replace("\\\"", "\"").replace("\\n", "\n");
    let (mut said, mut rest) = (String::new(), whole.as_str());
    while let Some(brace) = rest.find(['{', '}']) {
        said += &rest[..brace];
        let doubled = rest[brace..].starts_with("{{") || rest[brace..].starts_with("}}");
        rest = match doubled {
            true => {
                said += &rest[brace..=brace];
                &rest[brace + 2..]
            }
            false => {
                said.push('…');
                rest[brace..].split_once('}').map_or("", |(_, rest)| rest)
            }
        };
    }
    Some(said + rest)
}

/// The files of the source, without those of tests.
pub fn source_files() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![repository().join("src")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_test = path.file_stem().is_some_and(|name| name == "tests");
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                files.push(path);
            }
        }
    }
    files
}

fn in_the_source() -> Said {
    let mut said = Said::default();
    for path in source_files() {
        said.read(read(&path).parse().unwrap());
    }
    let is_message = |message: &String| {
        let is_something_else = NO_MESSAGES.iter().any(|(start, _)| message.starts_with(start));
        message.contains(char::is_alphabetic) && !is_something_else
    };
    said.messages.retain(is_message);
    said.messages.extend(obstacles());
    said
}

impl Said {
    /// Whether an entry is a message, or put together from texts that there are.
    fn has(&self, entry: &str) -> bool {
        let mut parts = entry.split('…').filter(|part| part.len() > 9).peekable();
        let is_put_together = parts.peek().is_some();
        let is_said = |part: &str| self.texts.iter().any(|text| text.contains(part));
        self.messages.contains(entry) || is_put_together && parts.all(is_said)
    }
}

/// The texts of messages, of metrics' help and of failed assertions, `…` in the place of what is filled in.
pub fn texts() -> BTreeSet<String> {
    let Said { messages, mut texts } = in_the_source();
    texts.extend(messages);
    texts
}

/// What `/readyz` names.
fn obstacles() -> [String; 6] {
    let all = [
        Obstacle::Startup,
        Obstacle::Upstream,
        Obstacle::Deployment,
        Obstacle::Privileges,
        Obstacle::Register,
        Obstacle::Draining,
    ];
    all.map(|obstacle| {
        match obstacle {
            // Whoever adds one finds the list above.
            Obstacle::Startup
            | Obstacle::Upstream
            | Obstacle::Deployment
            | Obstacle::Privileges
            | Obstacle::Register
            | Obstacle::Draining => {}
        }
        format!("{obstacle}: …")
    })
}

#[test]
fn every_message_has_its_way_out_and_every_entry_its_message() {
    let source = in_the_source();
    assert!(source.messages.len() > 100, "{}", source.messages.len());
    let listed: BTreeSet<String> = Page::read("docs/troubleshooting.md")
        .code_in_first_columns()
        .into_iter()
        .collect();
    let missing: Vec<_> = source.messages.difference(&listed).collect();
    let unknown: Vec<_> = listed.iter().filter(|entry| !source.has(entry)).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not in docs/troubleshooting.md: {missing:#?}\nnot in the source: {unknown:#?}"
    );
}

#[test]
fn what_is_filled_in_is_left_out() {
    assert_eq!(
        unquoted(r#""a {b} {{c}} {:04X} \"d\"""#).as_deref(),
        Some(r#"a … {c} … "d""#)
    );
    assert_eq!(unquoted("\"one \\\n      line\"").as_deref(), Some("one line"));
    assert_eq!(unquoted("17"), None);
}
