//! Reads YAML text into `RawConfig`, which mirrors the configuration file field by field.
//!
//! It refuses unknown settings and values of the wrong type, all of them in one run. [`super`] checks the values
//! together. Every field is optional here, so that a wrong one can be set aside and the rest can still be read. Only
//! this folder uses `serde_yaml`.

mod document;
mod foreign;
mod levels;
mod reason;

pub(super) use reason::unknown;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bson::Document;
use serde::de::{DeserializeOwned, Error as _, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use serde_yaml::Value;

use super::LogFormat;
use super::problem::{FilePosition, PathStep, SettingPath};
use crate::constraint::{OnViolation, Sharding, Strategy};
use crate::tls::ClientCertificate;

/// The top of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    #[serde(default, deserialize_with = "address")]
    pub listen: Option<SocketAddr>,
    pub upstream: Option<String>,
    pub upstream_file: Option<PathBuf>,
    pub upstream_username_file: Option<PathBuf>,
    pub upstream_password_file: Option<PathBuf>,
    pub tls: Option<RawTls>,
    #[serde(default, deserialize_with = "address")]
    pub admin: Option<SocketAddr>,
    #[serde(default, deserialize_with = "duration")]
    pub lease: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub drain_delay: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub drain: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub reload_interval: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub sweep: Option<Duration>,
    pub audit: Option<bool>,
    pub backfill: Option<RawBackfill>,
    pub log: Option<RawLog>,
    pub traces: Option<RawTraces>,
    pub limits: Option<RawLimits>,
    pub constraints: Option<Vec<Option<RawConstraint>>>,
}

/// `tls`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTls {
    #[serde(default, deserialize_with = "word")]
    pub mode: Option<RawTlsMode>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub client_ca: Option<PathBuf>,
    #[serde(default, deserialize_with = "word")]
    pub client_certificate: Option<ClientCertificate>,
}

/// `tls.mode`
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RawTlsMode {
    Required,
    Preferred,
    Off,
}

/// `log`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLog {
    #[serde(default, deserialize_with = "word")]
    pub format: Option<LogFormat>,
    pub level: Option<String>,
}

/// `backfill`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawBackfill {
    pub max_share: Option<f64>,
}

/// `traces`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTraces {
    pub endpoint: Option<String>,
    pub sampling_ratio: Option<f64>,
}

/// `limits`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLimits {
    pub max_connections: Option<usize>,
    pub max_unauthenticated_message_bytes: Option<usize>,
    pub max_buffered_bytes: Option<usize>,
    pub max_documents_per_statement: Option<usize>,
    #[serde(default, deserialize_with = "duration")]
    pub handshake_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub message_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub idle_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub upstream_timeout: Option<Duration>,
}

/// One item of `constraints`. Fields that `createIndex` also has are named as in `createIndex`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RawConstraint {
    pub collection: Option<String>,
    #[serde(default, deserialize_with = "document::deserialize")]
    pub key: Option<Document>,
    pub name: Option<String>,
    pub sparse: Option<bool>,
    #[serde(default, deserialize_with = "document::deserialize")]
    pub partial_filter_expression: Option<Document>,
    #[serde(default, deserialize_with = "document::deserialize")]
    pub collation: Option<Document>,
    #[serde(default, deserialize_with = "word")]
    pub sharding: Option<Sharding>,
    #[serde(default, deserialize_with = "word")]
    pub strategy: Option<Strategy>,
    pub route: Option<bool>,
    #[serde(rename = "on_violation", default, deserialize_with = "word")]
    pub on_violation: Option<OnViolation>,
}

/// Text that isn't a YAML document.
#[derive(Debug, PartialEq, Eq)]
pub struct SyntaxError {
    pub position: Option<FilePosition>,
    pub reason: String,
}

/// Reads `text`; returns the settings that could be read, and the problems of the others.
///
/// # Errors
/// [`SyntaxError`] if `text` is not one YAML document without duplicate fields.
pub fn read(text: &str) -> Result<(RawConfig, Vec<(SettingPath, String)>), SyntaxError> {
    let mut value: Value = serde_yaml::from_str(text).map_err(syntax_error)?;
    let mut problems = Vec::new();
    let empty = empty_settings(&value);
    for (path, reason) in foreign::set_aside_foreign(&mut value) {
        add_once(&mut problems, path, reason);
    }
    let raw = loop {
        match serde_path_to_error::deserialize::<_, Option<RawConfig>>(value.clone()) {
            Ok(raw) => break raw,
            Err(error) => {
                let path = setting_path(error.path());
                let set_aside = set_aside(&mut value, path.steps());
                let reason = reason::in_words(&without_secrets(&error.into_inner().to_string()));
                add_once(&mut problems, path, reason);
                if !set_aside {
                    break None;
                }
            }
        }
    };
    for path in empty {
        add_once(
            &mut problems,
            path,
            "has no value: give one, or leave the setting out".to_owned(),
        );
    }
    Ok((raw.unwrap_or_default(), problems))
}

/// `reason` without the value that it quotes, if that may be a connection string in the wrong place.
pub(super) fn without_secrets(reason: &str) -> String {
    match (reason.find('"'), reason.rfind('"')) {
        (Some(first), Some(last)) if first < last && reason.contains("://") => {
            format!("{}\"…\"{}", &reason[..first], &reason[last + 1..])
        }
        _ => reason.to_owned(),
    }
}

/// Adds a problem, unless its setting already has one: a consequence of the first problem would only confuse.
fn add_once(problems: &mut Vec<(SettingPath, String)>, path: SettingPath, reason: String) {
    if !problems.iter().any(|(known, _)| *known == path) {
        problems.push((path, reason));
    }
}

/// Removes the value at `steps` for the next try: empties it, or removes it with its name if it is empty already (then
/// the name was refused). Each call makes the document smaller, so the tries come to an end.
fn set_aside(value: &mut Value, steps: &[PathStep]) -> bool {
    match (steps, value) {
        ([], value) if !value.is_null() => {
            *value = Value::Null;
            true
        }
        ([PathStep::Field(name)], Value::Mapping(fields)) if fields.get(name).is_some_and(Value::is_null) => {
            fields.shift_remove(name).is_some()
        }
        ([PathStep::Field(name), rest @ ..], Value::Mapping(fields)) => {
            fields.get_mut(name).is_some_and(|field| set_aside(field, rest))
        }
        ([PathStep::Item(index), rest @ ..], Value::Sequence(items)) => {
            items.get_mut(*index).is_some_and(|item| set_aside(item, rest))
        }
        _ => false,
    }
}

/// The settings with a name and no value. They would be read as absent, but the operator meant to set them.
fn empty_settings(top: &Value) -> Vec<SettingPath> {
    let mut empty = Vec::new();
    let mut unread = match top {
        Value::Null => vec![],
        value => vec![(SettingPath::top(), value)],
    };
    while let Some((path, value)) = unread.pop() {
        match value {
            Value::Null => empty.push(path),
            Value::Mapping(fields) => unread.extend(fields.iter().filter_map(|(name, field)| {
                let name = name.as_str()?;
                let path = path.field(name);
                // Inside a MongoDB document, null is a value like any other.
                let holds_nulls = is_document(&path) && !field.is_null();
                (!holds_nulls).then_some((path, field))
            })),
            Value::Sequence(items) => {
                unread.extend(items.iter().enumerate().map(|(index, item)| (path.item(index), item)));
            }
            _ => {}
        }
    }
    empty
}

/// Whether the setting at `path` is a MongoDB document.
fn is_document(path: &SettingPath) -> bool {
    match path.steps() {
        [PathStep::Field(list), PathStep::Item(_), PathStep::Field(name)] => {
            list == "constraints" && ["key", "partialFilterExpression", "collation"].contains(&name.as_str())
        }
        _ => false,
    }
}

fn setting_path(path: &serde_path_to_error::Path) -> SettingPath {
    use serde_path_to_error::Segment;
    path.iter()
        .map_while(|segment| match segment {
            Segment::Seq { index } => Some(PathStep::Item(*index)),
            Segment::Map { key } => Some(PathStep::Field(key.clone())),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect()
}

fn syntax_error(error: serde_yaml::Error) -> SyntaxError {
    SyntaxError {
        position: error.location().map(|location| FilePosition {
            line: location.line(),
            column: location.column(),
        }),
        reason: reason::of_syntax(&without_secrets(&error.to_string())),
    }
}

// The two readers below don't quote the refused text: a connection string on the wrong line may hold a password.

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    match Option::<String>::deserialize(deserializer)? {
        None => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| D::Error::custom("not an IP address with a port, such as 127.0.0.1:27117 or [::1]:27117")),
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::String(text) => humantime::parse_duration(&text)
            .map(Some)
            .map_err(|_| D::Error::custom("not a duration such as 30s or 2m; its units are ms, s, m, h and d")),
        _ => Err(D::Error::custom("not a duration with its unit, such as 30s or 2m")),
    }
}

/// Reads one of the words of `T`.
fn word<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let read = |word: &str| T::deserialize(word.into_deserializer());
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::String(text) => read(&text)
            .map(Some)
            .map_err(|error: serde::de::value::Error| D::Error::custom(error)),
        other => Err(D::Error::custom(match read("") {
            Ok(_) => "must be text".to_owned(),
            Err(error) => reason::not_a_word(&error.to_string(), &other),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::levels::field_names;
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let (_, problems) = read(text).unwrap();
        problems
            .into_iter()
            .map(|(path, reason)| format!("{path}: {reason}"))
            .collect()
    }

    #[test]
    fn every_unknown_setting_and_wrong_type_is_found_in_one_go() {
        let found = problems(
            "listen: nowhere\nlisteb: 1\nlease: 30\nlog: { format: xml, colour: red }\nlimits: many\nconstraints:\n  - 7\n  - { key: 1, unique: true, sparse: maybe }\n",
        );
        assert_eq!(found.len(), 10, "{found:#?}");
        for (path, reason) in [
            ("listen", "not an IP address with a port"),
            ("listeb", "unknown setting `listeb`; did you mean `listen`?"),
            ("lease", "not a duration with its unit"),
            ("log.format", "unknown value `xml`"),
            ("log.colour", "unknown setting `colour`"),
            ("limits", "must be a mapping of settings, not the text"),
            ("constraints[0]", "must be a mapping of settings, not the number 7"),
            ("constraints[1].key", "must be a mapping"),
            ("constraints[1].unique", "unknown setting `unique`"),
            ("constraints[1].sparse", "must be true or false, not the text"),
        ] {
            let start = format!("{path}: {reason}");
            assert!(
                found.iter().any(|problem| problem.starts_with(&start)),
                "{start} in {found:#?}"
            );
        }
    }

    #[test]
    fn a_readable_setting_is_read_beside_an_unreadable_one() {
        let (raw, _) = read("lease: 1m 30s\nadmin: x\n").unwrap();
        assert_eq!(raw.lease, Some(Duration::from_secs(90)));
        assert_eq!(raw.admin, None);
    }

    #[test]
    fn a_setting_without_a_value_is_no_default() {
        assert_eq!(
            problems("lease:\nconstraints:\n  - key:\n    partialFilterExpression: { gone: null }\n").len(),
            2
        );
    }

    #[test]
    fn text_that_is_not_one_yaml_document_has_a_place() {
        for text in ["a: [", "a: 1\na: 2\n", "a: 1\n---\nb: 2\n"] {
            assert!(read(text).is_err(), "{text}");
        }
        let error = read("lease: 30s\nlog: {\n").unwrap_err();
        assert!(error.position.is_some_and(|position| position.line >= 2), "{error:?}");
    }

    #[test]
    fn an_empty_file_is_an_empty_configuration() {
        assert!(problems("").is_empty());
        assert!(problems("# only a comment\n").is_empty());
    }

    #[test]
    fn a_misplaced_connection_string_is_not_quoted() {
        for field in ["listen", "lease", "admin", "limits", "constraints", "log", "tls"] {
            let found = problems(&format!("{field}: mongodb://root:s3cret@db:27017\n"));
            assert!(!found.concat().contains("s3cret"), "{found:?}");
        }
        let found = problems("upstream mongodb://root:s3cret@db:27017\n");
        assert!(!found.is_empty() && !found.concat().contains("s3cret"), "{found:?}");
    }

    /// Parts of what `serde` and its readers say about their own types.
    const WORDS_OF_RUST: [&str; 16] = [
        "invalid",
        "expected",
        "Value::",
        "Tagged",
        "enum",
        "struct",
        "usize",
        "u128",
        "i128",
        "u64",
        "f64",
        "variant",
        "identifier",
        "sequence",
        "unit value",
        "map,",
    ];
    /// A value of each type that YAML has, and some that only look like one.
    const VALUES: [&str; 22] = [
        "1",
        "-1",
        "0",
        "1.5",
        ".nan",
        "-.inf",
        "1e999",
        "9223372036854775808",
        "99999999999999999999999999",
        "-99999999999999999999999999",
        "true",
        "x",
        "5parsecs",
        "''",
        "2001-01-01",
        "[1]",
        "[x, { a: 1 }]",
        "{ a: 1 }",
        "{ 1: 2 }",
        "!tag x",
        "!tag { a: 1 }",
        "{ $oid: 1 }",
    ];

    #[test]
    fn a_value_of_any_type_is_refused_in_plain_words() {
        let in_sections = [
            ("", field_names::<RawConfig>()),
            ("tls", field_names::<RawTls>()),
            ("log", field_names::<RawLog>()),
            ("traces", field_names::<RawTraces>()),
            ("limits", field_names::<RawLimits>()),
            ("constraints", field_names::<RawConstraint>()),
        ];
        for (section, names) in in_sections {
            for (name, value) in names.iter().flat_map(|name| VALUES.map(|value| (name, value))) {
                let setting = match section {
                    "" => format!("{name}: {value}\n"),
                    "constraints" => format!("constraints: [{{ {name}: {value} }}]\n"),
                    section => format!("{section}: {{ {name}: {value} }}\n"),
                };
                let problems = crate::config::Config::from_text("f".as_ref(), &setting, None).unwrap_err();
                for problem in problems.problems {
                    let reason = problem.reason;
                    let word = WORDS_OF_RUST.iter().find(|word| reason.contains(**word));
                    assert!(word.is_none(), "{setting}gives {}: {reason}", problem.path);
                }
            }
        }
    }

    #[test]
    fn a_word_of_another_type_is_refused_with_the_known_words() {
        let mut found = problems("tls: { mode: true }\nlog: { format: [json] }\n");
        found.sort();
        assert_eq!(
            found,
            [
                "log.format: must be text or json, not a list",
                "tls.mode: must be required, preferred or off, not true",
            ]
        );
    }

    #[test]
    fn the_example_shows_every_setting() {
        let example = include_str!("../../../config.example.yaml");
        let names = [
            field_names::<RawConfig>(),
            field_names::<RawTls>(),
            field_names::<RawLog>(),
            field_names::<RawTraces>(),
            field_names::<RawLimits>(),
            field_names::<RawConstraint>(),
        ];
        for name in names.concat() {
            let shown = example.lines().any(|line| {
                line.trim_start_matches(['#', ' ', '-'])
                    .starts_with(&format!("{name}:"))
            });
            assert!(shown, "config.example.yaml doesn't show {name}");
        }
    }
}
