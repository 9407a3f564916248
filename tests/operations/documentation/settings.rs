//! docs/settings.md is made from `config.example.yaml`: a table of every setting, readable on the site and in the repository alike.
//! `KEYWARD_SETTINGS=accept` writes it.

use crate::documentation::markdown::{read, repository};

const PAGE: &str = "docs/settings.md";
const HEAD: &str = "# Every setting

A test makes this page from `config.example.yaml`, which has all settings in their places. [Configuration](configuration.md) states what
Keyward refuses, and why.
";

/// A setting with what the comment above it says.
struct Setting {
    /// How deep it stands: 0 at the top.
    indent: usize,
    name: String,
    example: String,
    meaning: String,
    default: String,
}

/// `name: example`, if the line is a setting.
fn setting(line: &str) -> Option<(&str, &str)> {
    let (name, example) = line.trim_start_matches("- ").split_once(':')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic() || c == '_') && name != "Default";
    let is_value = example.is_empty() || example.starts_with(' ');
    (is_name && is_value).then(|| (name, example.trim()))
}

/// The settings that have a comment, in their order. Some stand in a comment themselves.
fn settings() -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    let (mut meaning, mut default) = (Vec::new(), String::new());
    for line in read("config.example.yaml").lines() {
        let bare = line.trim_start();
        let comment = bare.strip_prefix("# ").map(str::trim_start);
        let indent = line.len() - bare.len();
        // Only names that start in lower case are settings: prose may have a colon, too.
        let found = setting(comment.unwrap_or(bare)).filter(|(name, _)| name.starts_with(|c: char| c.is_lowercase()));
        match (found, comment) {
            (Some((name, example)), _) => {
                // Later constraints of the example repeat settings.
                let mut section = settings.iter().rev().take_while(|known| known.indent > 0);
                let is_repeated = indent > 0 && section.any(|known| known.name == name);
                if meaning.is_empty() {
                    meaning.extend(settings.last().map(|last| format!("see `{}`", last.name)));
                }
                if !is_repeated {
                    settings.push(Setting {
                        indent,
                        name: name.to_owned(),
                        example: example.to_owned(),
                        meaning: std::mem::take(&mut meaning).join(" "),
                        default: std::mem::take(&mut default),
                    });
                }
                meaning.clear();
                default.clear();
            }
            (None, Some(text)) => match text.strip_prefix("Default: ") {
                Some(text) => default = text.to_owned(),
                None => meaning.push(text.to_owned()),
            },
            (None, None) => {
                meaning.clear();
                default.clear();
            }
        }
    }
    settings
}

/// Text of a comment in a table's cell.
fn cell(text: &str) -> String {
    let mut cell = text.replace('|', "\\|").replace('<', "&lt;");
    for page in ["configuration", "operations", "security", "strategies"] {
        cell = cell.replace(&format!("docs/{page}.md"), &format!("[{page}]({page}.md)"));
    }
    cell
}

fn page() -> String {
    let settings = settings();
    // A section is a setting at the top, with those that stand below it.
    let parts = settings.chunk_by(|_, next| next.indent > 0);
    let (sections, top): (Vec<_>, Vec<_>) = parts.partition(|part| part.len() > 1);
    let mut page = HEAD.to_owned();
    page += &table(top.into_iter().flatten());
    for section in sections {
        let (first, rest) = section.split_first().unwrap();
        let default = match first.default.as_str() {
            "" => String::new(),
            default => format!(" Default: {default}."),
        };
        page += &format!(
            "\n## `{}`\n\n{}{default}\n{}",
            first.name,
            cell(&first.meaning),
            table(rest)
        );
    }
    page
}

fn table<'s>(settings: impl IntoIterator<Item = &'s Setting>) -> String {
    let mut table = "\n| setting | meaning | default and range | example |\n| --- | --- | --- | --- |\n".to_owned();
    for setting in settings {
        let (meaning, default) = (cell(&setting.meaning), cell(&setting.default));
        table += &format!(
            "| `{}` | {meaning} | {default} | `{}` |\n",
            setting.name, setting.example
        );
    }
    table
}

#[test]
fn the_page_has_every_setting_of_the_example() {
    let made = page();
    if std::env::var("KEYWARD_SETTINGS").as_deref() == Ok("accept") {
        std::fs::write(repository().join(PAGE), &made).unwrap();
    }
    assert_eq!(read(PAGE), made, "set KEYWARD_SETTINGS=accept to write {PAGE} anew");
    for name in [
        "listen",
        "drain",
        "client_ca",
        "sampling_ratio",
        "upstream_timeout",
        "partialFilterExpression",
    ] {
        assert!(made.contains(&format!("| `{name}` | ")), "{name}");
    }
    for section in ["tls", "backfill", "log", "traces", "limits", "constraints"] {
        assert!(made.contains(&format!("\n## `{section}`\n")), "{section}");
    }
}
