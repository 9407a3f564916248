//! Checks the rules of prose in `STYLE.md`: short sentences, no banned words, one glossary.
//!
//! The rules hold in every rewritten document and in the comments of the source. Messages in the source are held to the banned words, too.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::documentation::markdown::{Page, pages, read, repository};
use crate::documentation::messages;

/// The documents that follow the rules. A document joins the list when it has been rewritten. `docs/settings.md` isn't on it, because it
/// is made from `config.example.yaml`.
const REWRITTEN: [&str; 21] = [
    "README.md",
    "CHANGELOG.md",
    "STYLE.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/correctness.md",
    "docs/start.md",
    "docs/guarantees.md",
    "docs/operations.md",
    "docs/strategies.md",
    "docs/troubleshooting.md",
    "docs/configuration.md",
    "docs/differences.md",
    "docs/metrics.md",
    "docs/dependencies.md",
    "docs/restore.md",
    "docs/security.md",
    "docs/performance.md",
    "docs/doctor.md",
    "docs/SUMMARY.md",
    "tests/README.md",
];

/// The longest sentence that the rules allow, in words.
const WORDS_MAX: usize = 25;

/// Stands for code, which the rules do not apply to: one word of a sentence, and none that is banned.
const CODE: &str = "\u{2022}";

/// Abbreviations whose full stop does not end a sentence.
const ABBREVIATIONS: [&str; 4] = ["e.g.", "i.e.", "vs.", "etc."];

/// One paragraph, list item, heading or table cell, as plain text on one line.
struct Passage {
    /// `docs/start.md:12`, of the first line.
    place: String,
    text: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Running,
    /// Of a section, or of a table's column.
    Heading,
    Cell,
    Code,
}

impl Kind {
    /// The kind of the passages that `tag` begins, if it begins one.
    fn begun_by(tag: &Tag<'_>) -> Option<Kind> {
        match tag {
            Tag::Paragraph | Tag::Item | Tag::List(_) => Some(Kind::Running),
            Tag::Heading { .. } | Tag::TableHead => Some(Kind::Heading),
            Tag::TableRow => Some(Kind::Cell),
            Tag::CodeBlock(_) => Some(Kind::Code),
            _ => None,
        }
    }
}

impl Passage {
    /// The passages of `page`, in order. Code blocks and HTML are left out; a code span becomes [`CODE`].
    fn of(page: &Page) -> Vec<Passage> {
        let mut passages: Vec<Passage> = Vec::new();
        let (mut kind, mut is_open) = (Kind::Running, false);
        for (event, range) in Parser::new_ext(&page.text, Options::ENABLE_TABLES).into_offset_iter() {
            let text = match event {
                Event::Text(text) => text.into_string(),
                Event::Code(_) => CODE.to_owned(),
                Event::SoftBreak | Event::HardBreak => " ".to_owned(),
                Event::Start(tag) => {
                    if let Some(begun) = Kind::begun_by(&tag) {
                        (kind, is_open) = (begun, false);
                    }
                    continue;
                }
                Event::End(TagEnd::Strong | TagEnd::Emphasis | TagEnd::Link | TagEnd::Image) => continue,
                Event::End(TagEnd::TableCell) => {
                    is_open = false;
                    continue;
                }
                Event::End(_) => {
                    (kind, is_open) = (Kind::Running, false);
                    continue;
                }
                _ => continue,
            };
            if is_open {
                passages.last_mut().unwrap().text += &text;
            } else {
                let line = page.text[..range.start].matches('\n').count() + 1;
                let place = format!("{}:{line}", page.path);
                passages.push(Passage { place, text, kind });
                is_open = true;
            }
        }
        passages.retain(|passage| passage.kind != Kind::Code);
        passages
    }

    /// The sentences: a full stop, question mark, exclamation mark or colon before a space, or the end, ends each of them.
    ///
    /// A colon counts because it stands between two statements, or before a list. A full stop does not count before a
    /// lower-case letter, nor after an abbreviation or a numeral alone.
    fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![String::new()];
        let mut words = self.text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let sentence = sentences.last_mut().unwrap();
            if !sentence.is_empty() {
                sentence.push(' ');
            }
            sentence.push_str(word);
            let bare = word.trim_end_matches([')', '"', '\'', '”', '*']);
            let before_lower_case = words.peek().is_some_and(|next| next.starts_with(char::is_lowercase));
            let ends = match bare.chars().next_back() {
                Some('.') => !before_lower_case && !ABBREVIATIONS.contains(&bare.trim_start_matches('(')),
                Some('?' | '!' | ':') => true,
                _ => false,
            };
            if ends {
                sentences.push(String::new());
            }
        }
        sentences.retain(|sentence| !sentence.is_empty());
        sentences
    }
}

/// How many words `sentence` has; a run of dashes or signs is none.
fn count_words(sentence: &str) -> usize {
    let is_word = |word: &&str| word.contains(CODE) || word.contains(char::is_alphanumeric);
    sentence.split_whitespace().filter(is_word).count()
}

/// Whether `sentence` is a list of names: most of its words are code, or every comma-separated part has three words at most.
fn is_list_of_names(sentence: &str) -> bool {
    let codes = sentence.split_whitespace().filter(|word| word.contains(CODE)).count();
    let parts: Vec<&str> = sentence.split(',').collect();
    let are_short = parts.iter().all(|part| count_words(part) <= 3);
    codes * 2 > count_words(sentence) || parts.len() > 3 && are_short
}

/// The words and phrases that `STYLE.md` bans.
#[derive(Debug, Default)]
struct Banned {
    /// Anywhere.
    phrases: Vec<String>,
    /// At the start of a statement.
    openings: Vec<String>,
}

impl Banned {
    fn read() -> Banned {
        let mut banned = Banned::default();
        for entry in first_column("STYLE.md", "### Banned words").concat() {
            match entry.strip_suffix(" …") {
                Some(opening) => banned.openings.push(opening.to_lowercase()),
                None => banned.phrases.push(entry.to_lowercase()),
            }
        }
        assert!(banned.phrases.len() > 20 && banned.openings.len() > 2, "{banned:?}");
        banned
    }

    /// Those that `sentence` contains. An opening is accepted in a heading, which is no statement.
    fn within(&self, sentence: &str, kind: Kind) -> Vec<&str> {
        let words = |text: &str| {
            let apart = |character: char| !character.is_alphanumeric() && !"'-•".contains(character);
            let words: Vec<String> = text.to_lowercase().split(apart).map(str::to_owned).collect();
            format!(
                " {} ",
                words
                    .into_iter()
                    .filter(|word| !word.is_empty())
                    .collect::<Vec<_>>()
                    .join(" ")
            )
        };
        let text = words(sentence);
        let is_statement = kind != Kind::Heading && !sentence.trim_end_matches(['*', '"', ')']).ends_with('?');
        let phrases = self.phrases.iter().filter(|phrase| text.contains(&words(phrase)));
        let openings = self
            .openings
            .iter()
            .filter(|opening| is_statement && text.starts_with(&words(opening)));
        phrases.chain(openings).map(String::as_str).collect()
    }
}

/// The code spans in the first column of the table under `heading`, row by row.
fn first_column(document: &str, heading: &str) -> Vec<Vec<String>> {
    let text = read(document);
    let (_, section) = text.split_once(&format!("\n{heading}\n")).unwrap();
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|row| {
        let cell = row.split('|').nth(1).unwrap();
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    })
    .collect()
}

/// The passages of the rewritten documents, and of the source's comments.
fn checked() -> impl Iterator<Item = Passage> {
    let documents = REWRITTEN.into_iter().map(Page::read);
    let sources = messages::source_files().into_iter().map(|path| {
        let path = path.strip_prefix(repository()).unwrap().display().to_string();
        let text = comments(&read(&path));
        Page { path, text }
    });
    documents.chain(sources).flat_map(|page| Passage::of(&page))
}

/// The text of the whole-line comments in `source`, each on its line. All other lines are empty, and the tests at the end are left out.
fn comments(source: &str) -> String {
    let tests = source.find("\n#[cfg(test)]\nmod tests {").unwrap_or(source.len());
    let text = |line: &str| {
        let comment = line.trim_start().strip_prefix("//")?;
        let comment = comment.strip_prefix(['/', '!']).unwrap_or(comment);
        Some(comment.strip_prefix(' ').unwrap_or(comment).to_owned())
    };
    let lines = source[..tests].lines().map(|line| text(line).unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn sentences_are_short() {
    let mut too_long = Vec::new();
    for passage in checked().filter(|passage| passage.kind == Kind::Running) {
        for sentence in passage.sentences() {
            let words = count_words(&sentence);
            if words > WORDS_MAX && !is_list_of_names(&sentence) {
                too_long.push(format!("{}: {words} words: {sentence}", passage.place));
            }
        }
    }
    assert!(
        too_long.is_empty(),
        "{} sentences:\n{}",
        too_long.len(),
        too_long.join("\n")
    );
}

#[test]
fn no_banned_word_is_used() {
    let banned = Banned::read();
    let mut used = Vec::new();
    for passage in checked() {
        for sentence in passage.sentences() {
            for phrase in banned.within(&sentence, passage.kind) {
                used.push(format!("{}: {phrase:?}: {sentence}", passage.place));
            }
        }
    }
    assert!(used.is_empty(), "{} banned words:\n{}", used.len(), used.join("\n"));
}

#[test]
fn no_message_of_the_source_uses_a_banned_word() {
    let used = banned_in(messages::texts());
    assert!(used.is_empty(), "{} banned words:\n{}", used.len(), used.join("\n"));
}

/// The banned words in texts of the source. Shorter ones than three words are names.
fn banned_in(texts: impl IntoIterator<Item = String>) -> Vec<String> {
    let banned = Banned::read();
    let mut used = Vec::new();
    for text in texts.into_iter().filter(|text| count_words(text) >= 3) {
        let passage = Passage {
            place: String::new(),
            text,
            kind: Kind::Running,
        };
        for sentence in passage.sentences() {
            for phrase in banned.within(&sentence, passage.kind) {
                used.push(format!("{phrase:?}: {}", passage.text));
            }
        }
    }
    used
}

/// Each file of the source begins with its job, in short sentences without a banned word.
#[test]
fn every_source_file_states_its_job_first() {
    let banned = Banned::read();
    let mut faults = Vec::new();
    for path in messages::source_files() {
        let text = read(&path);
        let comment = text.lines().map_while(|line| line.strip_prefix("//!"));
        let comment: Vec<&str> = comment.map(str::trim_start).collect();
        let page = Page {
            path: path.display().to_string(),
            text: comment.join("\n"),
        };
        let Some(first) = Passage::of(&page).into_iter().next() else {
            faults.push(format!("{}: no comment", page.path));
            continue;
        };
        for sentence in first.sentences() {
            if count_words(&sentence) > WORDS_MAX || !banned.within(&sentence, first.kind).is_empty() {
                faults.push(format!("{}: {sentence}", page.path));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The glossary is the one table whose first column is headed `term`.
#[test]
fn each_term_is_defined_once() {
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for page in pages() {
        for table in page.text.split("\n| term |").skip(1) {
            for row in table.lines().skip(2).take_while(|line| line.starts_with("| ")) {
                let term = row.split('|').nth(1).unwrap().trim().to_lowercase();
                definitions.entry(term).or_default().push(page.path.clone());
            }
        }
    }
    assert!(definitions.len() > 20, "{definitions:?}");
    for (term, places) in &definitions {
        assert_eq!(places, &["docs/architecture.md"], "{term}");
    }
    let nouns = [
        "catalog epoch",
        "backfill epoch",
        "generation",
        "reservation version",
        "backfill",
        "group commit",
        "pending reply",
        "filter rewriting",
        "affected keys",
        "in-place update",
        "key update",
        "document as read",
        "document keys",
        "reservation diff",
        "reservation conflict",
        "conflicting reservation",
        "recent owners",
        "conflict predictor",
        "command shape",
        "server probe",
    ];
    for term in nouns {
        assert!(definitions.contains_key(term), "the glossary doesn't define {term:?}");
    }
}

#[test]
fn the_list_names_documents_once() {
    let documents: BTreeSet<&str> = REWRITTEN.into_iter().collect();
    assert_eq!(documents.len(), REWRITTEN.len());
    assert!(
        documents.iter().all(|path| repository().join(path).is_file()),
        "{documents:?}"
    );
}

fn passages(text: &str) -> Vec<Passage> {
    Passage::of(&Page {
        path: "a.md".to_owned(),
        text: text.to_owned(),
    })
}

#[test]
fn a_passage_is_split_into_sentences() {
    let text = "One `a. B` here. Two (e.g. 0.5 s)\nends now! Is it? Yes: it is.\n\n```sh\nWho. Knows.\n```\n\n- Item\n- Other item";
    let passages = passages(text);
    let sentences: Vec<String> = passages.iter().flat_map(Passage::sentences).collect();
    let expected = [
        "One • here.",
        "Two (e.g. 0.5 s) ends now!",
        "Is it?",
        "Yes:",
        "it is.",
        "Item",
        "Other item",
    ];
    assert_eq!(sentences, expected);
    assert_eq!(passages[1].place, "a.md:8");
}

#[test]
fn a_banned_word_is_found_across_lines_but_not_in_code() {
    let banned = Banned {
        phrases: vec!["taken in".to_owned(), "era".to_owned()],
        openings: vec!["who".to_owned()],
    };
    let found = |text: &str| -> Vec<String> {
        let mut found = Vec::new();
        for passage in passages(text) {
            for sentence in passage.sentences() {
                found.extend(banned.within(&sentence, passage.kind).into_iter().map(str::to_owned));
            }
        }
        found
    };
    assert_eq!(
        found("Documents are Taken\nin, later. Who waits, waits."),
        ["taken in", "who"]
    );
    assert_eq!(found("| a |\n| --- |\n| one era |\n"), ["era"]);
    assert!(found("# Who waits\n\nThe field `era`, several operators. Who waits?").is_empty());
}

#[test]
fn comments_keep_their_lines() {
    let source = "//! One `a`\n//! two.\n\nuse a; // not this\n    /// - Three\n    // four //\n\n#[cfg(test)]\nmod tests {\n// Five\n}\n";
    assert_eq!(comments(source), "One `a`\ntwo.\n\n\n- Three\nfour //");
    let places: Vec<String> = passages(&comments(source))
        .into_iter()
        .map(|passage| passage.place)
        .collect();
    assert_eq!(places, ["a.md:1", "a.md:5"]);
}

#[test]
fn a_banned_word_is_found_in_a_message() {
    let found = |text: &str| banned_in([text.to_owned()]).len();
    assert_eq!(found("ended before it was told to"), 1);
    assert_eq!(found("a limit holds: what is read is old"), 1);
    assert_eq!(found("… in … is not supported"), 0);
    assert_eq!(found("given back"), 0);
}

#[test]
fn names_in_a_row_are_no_sentence() {
    assert!(is_list_of_names("Types: •, •, • and •"));
    assert!(is_list_of_names("de, en, fr, it, pt"));
    assert!(!is_list_of_names(
        "Keyward reserves the keys, forwards the write, and releases the keys."
    ));
}
