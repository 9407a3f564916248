//! What the operator wants, checked: a YAML file into a [`Config`], or into every [`Problem`] found in it.
//!
//! A `Config` that exists is one that can be run: unknown, contradictory and unsafe settings are refused here, with
//! their place in the file and the reason, never warned about. Nothing is connected to and no port is bound.

mod check;
mod constraints;
mod limits;
mod positions;
mod problem;
mod raw;
mod tls;
mod traces;
mod upstream_uri;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::check::{Found, NO_LOG_FILTER};
pub use self::problem::{Position, Problem, Problems, SettingPath, Step};
pub use self::upstream_uri::{Host, UpstreamUri, UpstreamUriError};
use crate::constraint::Constraint;
use crate::limits::Limits;

/// The environment variable that may hold the connection string in place of the file.
pub const UPSTREAM_VARIABLE: &str = "KEYWARD_UPSTREAM";
/// The environment variable that goes before `log.level`.
pub const LOG_VARIABLE: &str = "KEYWARD_LOG";

/// Everything that `keyward run` needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where clients connect to.
    pub listen: SocketAddr,
    /// The deployment whose constraints are kept.
    pub upstream: UpstreamUri,
    /// How clients' connections are encrypted, if they are.
    pub tls: Option<crate::tls::Settings>,
    /// Where `/metrics`, `/livez` and `/readyz` are answered.
    pub admin: SocketAddr,
    /// How long a reservation whose owner isn't there yet is presumed in flight; 1 s to 10 min.
    pub lease: Duration,
    /// How long to leave each constraint between two sweeps; 1 s to 1 d.
    pub sweep: Duration,
    /// How long clients are served as ever after the first signal to stop, while readiness says no; up to 1 h.
    pub drain_delay: Duration,
    /// How long connections may go on after that; up to 1 h.
    pub drain: Duration,
    /// How often to look whether the file has changed; zero is never.
    pub reload_interval: Duration,
    /// What is logged, and how.
    pub log: Log,
    /// Where traces go, if they are made.
    pub traces: Option<crate::traces::Settings>,
    /// What clients can use up at most.
    pub limits: Limits,
    /// The constraints, in the order of the file.
    pub constraints: Vec<Arc<Constraint>>,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// How a line looks.
    pub format: LogFormat,
    /// A level (`info`) or directives of `tracing` (`keyward=debug,mongodb=warn`).
    pub level: String,
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads `file`, and what the environment has in place of it.
    ///
    /// # Errors
    /// [`Problems`] with everything that is wrong, also when the file can't be read.
    pub fn load(file: &Path) -> Result<Self, Problems> {
        let text = std::fs::read_to_string(file).map_err(|error| Problems {
            file: file.to_owned(),
            problems: vec![Problem {
                position: None,
                path: SettingPath::top(),
                reason: format!("cannot be read: {error}"),
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
    /// [`Problems`] with everything that is wrong.
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
        let mut found = Found::new(text);
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

/// An environment variable; an empty one is none. One that isn't UTF-8 is a mistake to be told, not one that isn't there.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}
