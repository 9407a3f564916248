//! Checks the settings of a `RawConfig` together and turns them into a [`Config`] with all defaults.
//!
//! It checks every setting even after a problem, so that all problems are found. It reads only the files that settings
//! name.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::positions::Positions;
use super::problem::{Problem, SettingPath};
use super::raw::{RawBackfill, RawConfig, RawLog};
use super::{Config, Host, Log, UPSTREAM_VARIABLE, UpstreamUri, constraints, limits, tls, traces, upstream_uri};
use crate::backfill_share::BackfillShare;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 27117);
const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9216);
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
const DEFAULT_SWEEP: Duration = Duration::from_secs(60);
const DEFAULT_LEVEL: &str = "info";
const DEFAULT_RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// With a shorter lease, a slow majority write could outlive it. With a longer one, a crash would block a key too long.
const LEASE_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);
const DRAIN_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
const SWEEP_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
/// So a pause is at most a hundred times as long as the batch before it.
const SHARE_RANGE: RangeInclusive<f64> = 0.01..=1.0;
const RELOAD_INTERVAL_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);

/// Why a log level is refused.
pub const NO_LOG_FILTER: &str = "neither a level such as info nor directives such as keyward=debug,mongodb=warn";

/// The problems found so far in one file.
pub struct FoundProblems<'a> {
    positions: Positions<'a>,
    problems: Vec<Problem>,
}

impl<'a> FoundProblems<'a> {
    /// No problems yet, in the file with this `text`.
    pub fn new(text: &'a str) -> Self {
        FoundProblems {
            positions: Positions::new(text),
            problems: Vec::new(),
        }
    }

    /// Records that the setting at `path` is refused. If a setting has several problems, the first is kept.
    pub fn refuse(&mut self, path: SettingPath, reason: impl ToString) {
        // A setting that couldn't be read must not be reported as missing, too.
        if !self.problems.iter().any(|known| known.path == path) {
            self.problems.push(Problem {
                position: self.positions.find(&path),
                path,
                reason: reason.to_string(),
            });
        }
    }

    /// All of them, in the file's order.
    pub fn into_problems(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| problem.position);
        self.problems
    }
}

/// Checks all settings even after a problem. Returns `None` only if a `Config` can't be made.
pub fn config(
    raw: RawConfig,
    directory: &Path,
    upstream_variable: Option<&str>,
    found: &mut FoundProblems<'_>,
) -> Option<Config> {
    let top = SettingPath::top();
    let listen = raw.listen.unwrap_or(DEFAULT_LISTEN);
    let admin = raw.admin.unwrap_or(DEFAULT_ADMIN);
    if overlap(listen, admin) {
        found.refuse(
            top.field("admin"),
            format!("clients connect to {listen} already (listen)"),
        );
    }
    let uri = written_uri(&raw, directory, upstream_variable, found);
    let uri = uri.and_then(|(path, uri)| Some((path, with_credentials(uri, &raw, directory, found)?)));
    let own = [(listen, "listen"), (admin, "admin")];
    let upstream = uri.and_then(|(path, uri)| checked_upstream(&uri, path, &own, found));
    let constraints = match raw.constraints {
        Some(raw) => constraints::check(raw, found),
        None => {
            found.refuse(
                top.field("constraints"),
                "missing; `constraints: []` protects nothing, only forwards",
            );
            vec![]
        }
    };
    Some(Config {
        listen,
        admin,
        lease: duration_in("lease", raw.lease.unwrap_or(DEFAULT_LEASE), LEASE_RANGE, found),
        sweep: duration_in("sweep", raw.sweep.unwrap_or(DEFAULT_SWEEP), SWEEP_RANGE, found),
        audit: raw.audit.unwrap_or_default(),
        backfill_share: checked_share(&raw.backfill.unwrap_or_default(), found),
        drain_delay: duration_in("drain_delay", raw.drain_delay.unwrap_or_default(), DRAIN_RANGE, found),
        drain: duration_in("drain", raw.drain.unwrap_or(DEFAULT_DRAIN), DRAIN_RANGE, found),
        reload_interval: duration_in(
            "reload_interval",
            raw.reload_interval.unwrap_or(DEFAULT_RELOAD_INTERVAL),
            RELOAD_INTERVAL_RANGE,
            found,
        ),
        log: checked_log(raw.log.unwrap_or_default(), found),
        traces: raw.traces.and_then(|raw| traces::check(raw, found)),
        limits: limits::check(&raw.limits.unwrap_or_default(), found),
        constraints,
        tls: raw.tls.and_then(|raw| tls::check(raw, directory, found)),
        upstream: upstream?,
    })
}

fn checked_share(raw: &RawBackfill, found: &mut FoundProblems<'_>) -> BackfillShare {
    let share = raw.max_share.map_or(BackfillShare::ALL, BackfillShare);
    if !SHARE_RANGE.contains(&share.0) {
        let path = SettingPath::top().field("backfill").field("max_share");
        found.refuse(
            path,
            format!("must be {} to {}", SHARE_RANGE.start(), SHARE_RANGE.end()),
        );
    }
    share
}

/// The connection string, which must be in exactly one of the three places, and the setting to blame if it is wrong.
fn written_uri(
    raw: &RawConfig,
    directory: &Path,
    variable: Option<&str>,
    found: &mut FoundProblems<'_>,
) -> Option<(SettingPath, String)> {
    let setting = SettingPath::top().field("upstream");
    let file_setting = SettingPath::top().field("upstream_file");
    match (&raw.upstream, &raw.upstream_file, variable) {
        (Some(uri), None, None) => Some((setting, uri.clone())),
        (None, Some(file), None) => {
            let content = content(file, &file_setting, directory, found)?;
            Some((file_setting, content.trim().to_owned()))
        }
        (None, None, Some(uri)) => Some((setting, uri.to_owned())),
        (None, None, None) => {
            let reason =
                format!("missing; give upstream, upstream_file or the environment variable {UPSTREAM_VARIABLE}");
            found.refuse(setting, reason);
            None
        }
        (written, file, variable) => {
            let places = [
                written.as_ref().map(|_| "upstream"),
                file.as_ref().map(|_| "upstream_file"),
                variable.map(|_| "the environment variable KEYWARD_UPSTREAM"),
            ];
            let places: Vec<&str> = places.into_iter().flatten().collect();
            let path = if written.is_some() { setting } else { file_setting };
            found.refuse(path, format!("given more than once: by {}", places.join(" and ")));
            None
        }
    }
}

/// The connection string with the user and the password from their own files, if these are given.
fn with_credentials(uri: String, raw: &RawConfig, directory: &Path, found: &mut FoundProblems<'_>) -> Option<String> {
    let mut read = |file: &Option<PathBuf>, setting| match file {
        None => Some(None),
        Some(file) => {
            let path = SettingPath::top().field(setting);
            let content = content(file, &path, directory, found)?;
            // A final newline comes from an editor or `echo`, and is dropped. A final blank may belong to the secret.
            Some(Some(content.trim_end_matches(['\n', '\r']).to_owned()))
        }
    };
    let username = read(&raw.upstream_username_file, "upstream_username_file")?;
    let password = read(&raw.upstream_password_file, "upstream_password_file")?;
    match upstream_uri::with_credentials(&uri, username.as_deref(), password.as_deref()) {
        Ok(uri) => Some(uri),
        Err(error) => {
            let setting = match username {
                Some(_) => "upstream_username_file",
                None => "upstream_password_file",
            };
            found.refuse(SettingPath::top().field(setting), error);
            None
        }
    }
}

fn content(file: &Path, setting: &SettingPath, directory: &Path, found: &mut FoundProblems<'_>) -> Option<String> {
    match std::fs::read_to_string(directory.join(file)) {
        Ok(content) => Some(content),
        Err(error) => {
            // The message omits the file's name. If the operator wrote the secret itself in its place, the log would
            // show it.
            found.refuse(setting.clone(), format!("the file cannot be read: {error}"));
            None
        }
    }
}

fn checked_upstream(
    uri: &str,
    path: SettingPath,
    own: &[(SocketAddr, &str)],
    found: &mut FoundProblems<'_>,
) -> Option<UpstreamUri> {
    match UpstreamUri::new(uri) {
        Ok(upstream) => {
            let is_met =
                |(address, _): &&(SocketAddr, &str)| upstream.hosts().iter().any(|host| is_same(host, *address));
            match own.iter().find(is_met) {
                Some((address, setting)) => {
                    found.refuse(
                        path,
                        format!("names {address}, where Keyward itself listens ({setting})"),
                    );
                    None
                }
                None => Some(upstream),
            }
        }
        Err(error) => {
            found.refuse(path, error);
            None
        }
    }
}

fn is_same(host: &Host, listen: SocketAddr) -> bool {
    let address = match host.name.as_str() {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        name => name.parse::<IpAddr>(),
    };
    let is_it = |address: IpAddr| address == listen.ip() || listen.ip().is_unspecified() && address.is_loopback();
    address.is_ok_and(is_it) && host.port == listen.port()
}

/// Whether the two addresses can't both be bound; port 0 means any free port.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let shares_ip = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && shares_ip
}

fn duration_in(
    setting: &str,
    duration: Duration,
    range: RangeInclusive<Duration>,
    found: &mut FoundProblems<'_>,
) -> Duration {
    if !range.contains(&duration) {
        found.refuse(
            SettingPath::top().field(setting),
            format!("must be {}", in_words(range)),
        );
    }
    duration
}

/// `1s to 10m`
pub fn in_words(range: RangeInclusive<Duration>) -> String {
    let (least, most) = range.into_inner();
    format!(
        "{} to {}",
        humantime::format_duration(least),
        humantime::format_duration(most)
    )
}

fn checked_log(raw: RawLog, found: &mut FoundProblems<'_>) -> Log {
    let level = raw.level.unwrap_or_else(|| DEFAULT_LEVEL.to_owned());
    if !is_log_filter(&level) {
        found.refuse(SettingPath::top().field("log").field("level"), NO_LOG_FILTER);
    }
    Log {
        format: raw.format.unwrap_or_default(),
        level,
    }
}

/// Whether `level` is a log level or a list of directives.
///
/// A single word that isn't a level is refused. `tracing` would accept it as a module's name, but more likely it is a
/// misspelt level.
pub fn is_log_filter(level: &str) -> bool {
    let words_are_levels = level
        .split(',')
        .filter(|directive| !directive.contains('='))
        .all(|directive| directive.parse::<LevelFilter>().is_ok());
    !level.trim().is_empty() && words_are_levels && EnvFilter::builder().parse(level).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Problems;

    const EXAMPLE: &str = include_str!("../../config.example.yaml");

    fn read(text: &str) -> Result<Config, Problems> {
        Config::from_text(Path::new("keyward.yaml"), text, None)
    }

    /// `text` with the two required settings.
    fn with_required(text: &str) -> String {
        format!("upstream: mongodb://db.example:27017\nconstraints: []\n{text}")
    }

    /// The only problem of `text`, without its position.
    fn refusal(text: &str) -> String {
        let problems = read(text).unwrap_err().problems;
        let [problem] = problems.as_slice() else {
            panic!("{problems:?} in {text}")
        };
        format!("{}: {}", problem.path, problem.reason)
    }

    #[test]
    fn the_example_is_valid_and_says_what_the_defaults_are() {
        let example = read(EXAMPLE).unwrap();
        let defaults = read(&with_required("")).unwrap();
        assert_eq!(example.constraints.len(), 3);
        assert_eq!(
            (
                example.listen,
                example.admin,
                example.lease,
                (example.drain_delay, example.drain, example.reload_interval),
                (example.sweep, example.audit, example.backfill_share),
                example.log,
                example.limits
            ),
            (
                defaults.listen,
                defaults.admin,
                defaults.lease,
                (defaults.drain_delay, defaults.drain, defaults.reload_interval),
                (defaults.sweep, defaults.audit, defaults.backfill_share),
                defaults.log,
                defaults.limits
            )
        );
        assert_eq!(example.constraints[0].name(), "email_1");
    }

    #[test]
    fn the_examples_ranges_are_those_that_are_checked() {
        for range in [
            format!("# Default: 30s; {}", in_words(LEASE_RANGE)),
            format!("# Default: 30s; {}", in_words(DRAIN_RANGE)),
            format!("# Default: 1m; {}", in_words(SWEEP_RANGE)),
            format!("# Default: 0s; {}", in_words(DRAIN_RANGE)),
            format!("# Default: 5s; {}", in_words(RELOAD_INTERVAL_RANGE)),
            format!("# Default: 1; {} to {}", SHARE_RANGE.start(), SHARE_RANGE.end()),
        ]
        .into_iter()
        .chain(limits::defaults_and_ranges())
        {
            assert!(EXAMPLE.contains(&range), "{range}");
        }
    }

    #[test]
    fn missing_required_settings_are_reported() {
        let problems = read("").unwrap_err().problems;
        let paths: Vec<String> = problems.iter().map(|problem| problem.path.to_string()).collect();
        assert_eq!(paths, ["upstream", "constraints"]);
    }

    #[test]
    fn bounds_are_kept_on_both_sides() {
        for (setting, fits) in [
            ("lease: 999ms", false),
            ("lease: 1s", true),
            ("lease: 10m", true),
            ("lease: 601s", false),
            ("drain: 0s", true),
            ("drain: 61m", false),
            ("limits: { max_buffered_bytes: 1000 }", false),
            ("limits: { handshake_timeout: 0s }", false),
            ("limits: { idle_timeout: 0s }", true),
            ("drain_delay: 61m", false),
            ("limits: { max_connections: 0 }", false),
            ("limits: { max_connections: 1 }", true),
            ("limits: { max_connections: 1000001 }", false),
        ] {
            assert_eq!(read(&with_required(setting)).is_ok(), fits, "{setting}");
        }
        assert_eq!(refusal(&with_required("lease: 20m")), "lease: must be 1s to 10m");
    }

    #[test]
    fn addresses_must_not_meet() {
        for (listen, admin, fits) in [
            ("127.0.0.1:1000", "127.0.0.1:1000", false),
            ("127.0.0.1:1000", "0.0.0.0:1000", false),
            ("127.0.0.1:1000", "127.0.0.2:1000", true),
            ("127.0.0.1:0", "127.0.0.1:0", true),
        ] {
            let text = with_required(&format!("listen: {listen}\nadmin: {admin}"));
            assert_eq!(read(&text).is_ok(), fits, "{listen} and {admin}");
        }
        assert_eq!(
            refusal("listen: 127.0.0.1:27017\nupstream: mongodb://other,localhost\nconstraints: []"),
            "upstream: names 127.0.0.1:27017, where Keyward itself listens (listen)"
        );
        assert_eq!(
            refusal("admin: 0.0.0.0:27017\nupstream: mongodb://127.0.0.1\nconstraints: []"),
            "upstream: names 0.0.0.0:27017, where Keyward itself listens (admin)"
        );
        let elsewhere = "listen: 0.0.0.0:27017\nupstream: mongodb://10.0.0.1\nconstraints: []";
        assert!(read(elsewhere).is_ok());
        assert!(read(&format!("\u{feff}{elsewhere}")).is_ok());
    }

    #[test]
    fn the_connection_string_stands_in_one_place_only() {
        let file = Path::new("keyward.yaml");
        let from_variable = Config::from_text(file, "constraints: []", Some("mongodb://elsewhere")).unwrap();
        assert_eq!(from_variable.upstream.to_string(), "mongodb://elsewhere:27017");
        let twice = Config::from_text(file, &with_required(""), Some("mongodb://elsewhere")).unwrap_err();
        let reason = "given more than once: by upstream and the environment variable KEYWARD_UPSTREAM";
        assert_eq!(twice.problems[0].reason, reason);
    }

    #[test]
    fn the_connection_string_may_stand_in_a_file_beside_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "mongodb://u:p@db\n").unwrap();
        let text = "upstream_file: secret\nconstraints: []\n";
        let config = Config::from_text(&folder.path().join("keyward.yaml"), text, None).unwrap();
        assert_eq!(config.upstream.uri(), "mongodb://u:p@db");
        assert!(refusal(&text.replace("secret", "missing")).starts_with("upstream_file: the file cannot be read: "));
    }

    #[test]
    fn user_and_password_may_stand_in_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("user"), "key@ward\n").unwrap();
        std::fs::write(folder.path().join("password"), "p:/ s\n").unwrap();
        let read = |upstream: &str, more: &str| {
            let text = format!("upstream: {upstream}\nupstream_password_file: password\n{more}constraints: []\n");
            Config::from_text(&folder.path().join("keyward.yaml"), &text, None)
        };
        let user = "upstream_username_file: user\n";
        let uri = |upstream, more| read(upstream, more).unwrap().upstream.uri().to_owned();
        assert_eq!(
            uri("mongodb://db/x?w=majority", user),
            "mongodb://key%40ward:p%3A%2F%20s@db/x?w=majority"
        );
        assert_eq!(uri("mongodb://keyward@a,b", ""), "mongodb://keyward:p%3A%2F%20s@a,b");
        for (upstream, more, reason) in [
            (
                "mongodb://keyward:x@db",
                "",
                "the connection string has a password already",
            ),
            ("mongodb://db", "", "whose password is it?"),
            ("mongodb://keyward@db", user, "the connection string has a user already"),
        ] {
            let problems = read(upstream, more).unwrap_err().to_string();
            assert!(problems.contains(reason), "{problems}");
        }
    }

    #[test]
    fn a_log_level_is_a_level_or_a_list_of_them() {
        for (level, fits) in [
            ("info", true),
            ("off", true),
            ("info,keyward=debug", true),
            ("inof", false),
            ("keyward=loud", false),
        ] {
            let text = with_required(&format!("log: {{ level: '{level}' }}"));
            assert_eq!(read(&text).is_ok(), fits, "{level}");
        }
    }

    #[test]
    fn problems_are_reported_in_the_files_order_with_their_places() {
        let problems = read("lease: 0s\nupstream: http://x\nconstraints:\n  - {}\nlog: { level: 3, colour: 1 }\n");
        let expected = "\
            keyward.yaml:1:1: lease: must be 1s to 10m\n\
            keyward.yaml:2:1: upstream: not a MongoDB connection string: unsupported connection string scheme: http\n\
            keyward.yaml:4:5: constraints[0].collection: missing; which collection, as database.collection?\n\
            keyward.yaml:4:5: constraints[0].key: missing; which fields must be unique, as createIndex writes it: { email: 1 }\n\
            keyward.yaml:5:8: log.level: must be text, not the number 3\n\
            keyward.yaml:5:18: log.colour: unknown setting `colour`; known here: format, level";
        assert_eq!(problems.unwrap_err().to_string(), expected);
    }
}
