//! Reads and checks a YAML file: it gives a [`Config`], or every [`Problem`] found in the file.
//!
//! Keyward can run with every `Config` that this module gives. It refuses unknown, contradictory and unsafe settings,
//! with their position in the file and the reason; it never only warns. It opens no connections and binds no ports.

mod check;
mod constraints;
mod limits;
mod positions;
mod problem;
mod raw;
mod tls;
mod traces;
mod upstream_uri;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use self::check::{FoundProblems, NO_LOG_FILTER};
pub use self::problem::{FilePosition, PathStep, Problem, Problems, SettingPath};
pub use self::upstream_uri::{Host, UpstreamUri, UpstreamUriError};
use crate::backfill_share::BackfillShare;
use crate::constraint::Constraint;
use crate::limits::Limits;

/// The environment variable that may hold the connection string in place of the file.
pub const UPSTREAM_VARIABLE: &str = "KEYWARD_UPSTREAM";
/// The environment variable that overrides `log.level`.
pub const LOG_VARIABLE: &str = "KEYWARD_LOG";

/// The checked settings of `keyward run`.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where clients connect to.
    pub listen: SocketAddr,
    /// The deployment whose constraints Keyward enforces.
    pub upstream: UpstreamUri,
    /// How clients' connections are encrypted; `None` if they aren't.
    pub tls: Option<crate::tls::TlsSettings>,
    /// Where `/metrics`, `/livez` and `/readyz` are answered.
    pub admin: SocketAddr,
    /// How long a reservation is presumed in flight while its owner doesn't exist; 1 s to 10 min.
    pub lease: Duration,
    /// How fast a backfill may be; 0.01 to 1.
    pub backfill_share: BackfillShare,
    /// The time between two sweeps of each constraint; 1 s to 1 d.
    pub sweep: Duration,
    /// Whether to follow the change streams of protected collections.
    pub audit: bool,
    /// How long clients are served as before after the first signal to stop, while `/readyz` fails; up to 1 h.
    pub drain_delay: Duration,
    /// How long connections may continue after that; up to 1 h.
    pub drain: Duration,
    /// How often to check whether the file has changed; zero means never.
    pub reload_interval: Duration,
    /// The log's level and format.
    pub log: Log,
    /// Where traces are sent; `None` if there are no traces.
    pub traces: Option<crate::traces::TraceSettings>,
    /// The most that clients can use.
    pub limits: Limits,
    /// The constraints, in the order of the file.
    pub constraints: Vec<Arc<Constraint>>,
}

/// The log's level and format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The format of a line.
    pub format: LogFormat,
    /// A level (`info`) or directives of `tracing` (`keyward=debug,mongodb=warn`).
    pub level: String,
}

/// The format of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads `file`, and the environment variables that replace its settings.
    ///
    /// # Errors
    /// [`Problems`] with every problem, also if the file can't be read.
    pub fn load(file: &Path) -> Result<Self, Problems> {
        let text = std::fs::read_to_string(file).map_err(|error| Problems {
            file: file.to_owned(),
            problems: vec![Problem {
                position: None,
                path: SettingPath::top(),
                reason: unreadable(&error),
            }],
        })?;
        let read = Self::from_text(file, &text, variable(UPSTREAM_VARIABLE).as_deref());
        let Some(level) = variable(LOG_VARIABLE) else {
            return read;
        };
        if check::is_log_filter(&level) {
            return read.map(|mut config| {
                config.log.level = level;
                config
            });
        }
        let mut problems = read.err().map_or_else(Vec::new, |refused| refused.problems);
        problems.push(Problem {
            position: None,
            path: SettingPath::top().field("log").field("level"),
            reason: format!("the environment variable {LOG_VARIABLE} is {NO_LOG_FILTER}"),
        });
        Err(Problems {
            file: file.to_owned(),
            problems,
        })
    }

    /// Checks `text`, the content of `file`; `upstream_variable` is the value of [`UPSTREAM_VARIABLE`], if it is set.
    ///
    /// # Errors
    /// [`Problems`] with every problem.
    pub fn from_text(file: &Path, text: &str, upstream_variable: Option<&str>) -> Result<Self, Problems> {
        // Some editors put a byte order mark at the beginning.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let refused = |problems| Problems {
            file: file.to_owned(),
            problems,
        };
        let (raw, unread) = raw::read(text).map_err(|error| {
            refused(vec![Problem {
                position: error.position,
                path: SettingPath::top(),
                reason: error.reason,
            }])
        })?;
        let mut found = FoundProblems::new(text);
        for (path, reason) in unread {
            found.refuse(path, reason);
        }
        let directory = file.parent().unwrap_or(Path::new(""));
        let config = check::config(raw, directory, upstream_variable, &mut found);
        match (config, found.into_problems()) {
            (Some(config), problems) if problems.is_empty() => Ok(config),
            (_, problems) => Err(refused(problems)),
        }
    }
}

/// Why the configuration file can't be read.
fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "cannot be read: there is no such file; name the configuration file with --config".to_owned()
        }
        io::ErrorKind::InvalidData => "cannot be read: it isn't text in UTF-8".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

/// An environment variable; an empty one counts as absent. Invalid UTF-8 is replaced, so that it is reported as a
/// problem and isn't ignored as absent.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}
