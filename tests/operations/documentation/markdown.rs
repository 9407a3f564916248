//! Documents as the tests need them: code blocks, headings as the anchors that links name, links, tables.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a document that isn't as it must be fails its test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, OffsetIter, Options, Parser, Tag, TagEnd};

/// One document, by its path in the repository: `docs/start.md`.
pub struct Page {
    pub path: String,
    pub text: String,
}

/// A fenced code block.
pub struct Block {
    /// `docs/start.md:12`, of the fence.
    pub place: String,
    /// The first word of its info string.
    pub language: String,
    pub run: Run,
    pub text: String,
}

/// What the tests do with a block of commands; written behind the block's language.
#[derive(Debug, PartialEq, Eq)]
pub enum Run {
    /// Nothing is written: it is run to its end, and succeeds.
    ToItsEnd,
    /// `exits=1`: it is run to its end, and that is its exit code.
    Failing(i32),
    /// `foreground`: a command that goes on until it is stopped, and prints a line once it is up.
    Foreground,
    /// `not-run="why"`: it can't be run where the tests are, or is by the test that the reason names.
    Not(String),
    /// `stops="why"`: not run either, but what runs in the foreground is told to stop, as the command would.
    Stop(String),
}

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// README.md, CHANGELOG.md and everything in docs/.
pub fn pages() -> Vec<Page> {
    let in_folder = |folder: &str| {
        let names = std::fs::read_dir(repository().join(folder)).unwrap();
        let names = names.map(|file| file.unwrap().file_name().into_string().unwrap());
        let names: BTreeSet<String> = names.filter(|name| name.ends_with(".md")).collect();
        names
            .into_iter()
            .map(move |name| format!("{folder}{name}"))
            .collect::<Vec<_>>()
    };
    let paths: Vec<String> = [in_folder(""), in_folder("docs/")].concat();
    assert!(paths.len() > 3, "{paths:?}");
    paths.into_iter().map(|path| Page::read(&path)).collect()
}

impl Page {
    pub fn read(path: &str) -> Page {
        Page {
            path: path.to_owned(),
            text: read(path),
        }
    }

    fn events(&self) -> OffsetIter<'_> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES).into_offset_iter()
    }

    fn place(&self, offset: usize) -> String {
        format!("{}:{}", self.path, self.text[..offset].matches('\n').count() + 1)
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut within = false;
        for (event, range) in self.events() {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let place = self.place(range.start);
                    let CodeBlockKind::Fenced(info) = kind else {
                        panic!("{place}: a block without a fence")
                    };
                    let (language, run) = info.split_once(' ').unwrap_or((&info, ""));
                    let run = Run::read(run).unwrap_or_else(|| panic!("{place}: what is {run:?}?"));
                    blocks.push(Block {
                        place,
                        language: language.to_owned(),
                        run,
                        text: String::new(),
                    });
                    within = true;
                }
                Event::End(TagEnd::CodeBlock) => within = false,
                Event::Text(text) if within => blocks.last_mut().unwrap().text += &text,
                _ => {}
            }
        }
        blocks
    }

    /// What a link can name behind its `#`.
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        let mut heading: Option<String> = None;
        for (event, _) in self.events() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().as_deref().map(anchor)),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        *heading += &text;
                    }
                }
                _ => {}
            }
        }
        anchors
    }

    /// Where its links and pictures lead, each with the place where it says so.
    pub fn links(&self) -> Vec<(String, String)> {
        let target = |(event, range): (Event<'_>, std::ops::Range<usize>)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some((self.place(range.start), dest_url.into_string()))
            }
            _ => None,
        };
        self.events().filter_map(target).collect()
    }

    /// What stands in backquotes.
    pub fn code_spans(&self) -> Vec<String> {
        let code = |(event, _): (Event<'_>, std::ops::Range<usize>)| match event {
            Event::Code(code) => Some(code.into_string()),
            _ => None,
        };
        self.events().filter_map(code).collect()
    }

    /// What stands in backquotes in the first column of tables.
    pub fn code_in_first_columns(&self) -> Vec<String> {
        let (mut codes, mut column) = (Vec::new(), None);
        for (event, _) in self.events() {
            match event {
                Event::Start(Tag::TableRow) => column = Some(0),
                Event::End(TagEnd::TableRow) => column = None,
                Event::End(TagEnd::TableCell) => column = column.map(|column| column + 1),
                Event::Code(code) if column == Some(0) => codes.push(code.into_string()),
                _ => {}
            }
        }
        codes
    }

    /// The rows of all tables, without their heads; a cell is its text, without backquotes.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut row: Option<Vec<String>> = None;
        for (event, _) in self.events() {
            match (event, &mut row) {
                (Event::Start(Tag::TableRow), _) => row = Some(Vec::new()),
                (Event::End(TagEnd::TableRow), _) => rows.extend(row.take()),
                (Event::Start(Tag::TableCell), Some(row)) => row.push(String::new()),
                (Event::Text(text) | Event::Code(text), Some(row)) => *row.last_mut().unwrap() += &text,
                _ => {}
            }
        }
        rows
    }
}

impl Run {
    fn read(info: &str) -> Option<Run> {
        let quoted = |name: &str| info.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"');
        if let Some(why) = quoted("not-run") {
            return Some(Run::Not(why.to_owned()));
        }
        if let Some(why) = quoted("stops") {
            return Some(Run::Stop(why.to_owned()));
        }
        match info {
            "" => Some(Run::ToItsEnd),
            "foreground" => Some(Run::Foreground),
            _ => Some(Run::Failing(info.strip_prefix("exits=")?.parse().ok()?)),
        }
    }
}

/// A heading's anchor, as mdBook and GitHub make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|character| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ if character.is_alphanumeric() => Some(character),
        _ => None,
    });
    kept.collect::<String>().to_lowercase()
}
