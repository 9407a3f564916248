//! Checks the settings below `limits`: their ranges, and the defaults of [`Limits`] for what isn't given.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::check::{FoundProblems, in_words};
use super::problem::SettingPath;
use super::raw::RawLimits;
use crate::limits::Limits;
use crate::wire::MESSAGE_BYTES_MAX;

/// The name of a setting, and the values that it can have.
type Setting<T> = (&'static str, RangeInclusive<T>);

const CONNECTIONS: Setting<usize> = ("max_connections", 1..=1_000_000);
/// Smaller, and a handshake with a long list of client metadata wouldn't fit.
const UNAUTHENTICATED: Setting<usize> = ("max_unauthenticated_message_bytes", 16_384..=MESSAGE_BYTES_MAX);
/// Smaller, and a single message might never fit: its buffer may be twice as large.
const BUFFERED: Setting<usize> = ("max_buffered_bytes", 128 * 1024 * 1024..=1024 * 1024 * 1024 * 1024);
const DOCUMENTS: Setting<usize> = ("max_documents_per_statement", 1..=1_000_000);
const TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
const HANDSHAKE: Setting<Duration> = ("handshake_timeout", TIMEOUT);
const MESSAGE: Setting<Duration> = ("message_timeout", TIMEOUT);
const IDLE: Setting<Duration> = ("idle_timeout", Duration::ZERO..=Duration::from_secs(7 * 24 * 3600));
const UPSTREAM: Setting<Duration> = ("upstream_timeout", TIMEOUT);

/// The limits that `raw` and the defaults say.
pub fn check(raw: &RawLimits, found: &mut FoundProblems<'_>) -> Limits {
    let mut limits = Limits::default();
    let mut set = |limit: &mut usize, given: Option<usize>, setting: Setting<usize>| {
        check_one(limit, given, setting, numbers, found);
    };
    set(&mut limits.max_connections, raw.max_connections, CONNECTIONS);
    let unauthenticated = &mut limits.max_unauthenticated_message_bytes;
    set(unauthenticated, raw.max_unauthenticated_message_bytes, UNAUTHENTICATED);
    set(&mut limits.max_buffered_bytes, raw.max_buffered_bytes, BUFFERED);
    let documents = &mut limits.max_documents_per_statement;
    set(documents, raw.max_documents_per_statement, DOCUMENTS);
    let mut set = |limit: &mut Duration, given: Option<Duration>, setting: Setting<Duration>| {
        check_one(limit, given, setting, in_words, found);
    };
    set(&mut limits.handshake_timeout, raw.handshake_timeout, HANDSHAKE);
    set(&mut limits.message_timeout, raw.message_timeout, MESSAGE);
    set(&mut limits.idle_timeout, raw.idle_timeout, IDLE);
    set(&mut limits.upstream_timeout, raw.upstream_timeout, UPSTREAM);
    limits
}

/// Sets `limit` to the value that is `given`, and refuses one outside the setting's range.
fn check_one<T: PartialOrd, W: Display>(
    limit: &mut T,
    given: Option<T>,
    (name, range): Setting<T>,
    in_words: impl Fn(RangeInclusive<T>) -> W,
    found: &mut FoundProblems<'_>,
) {
    let Some(given) = given else {
        return;
    };
    if !range.contains(&given) {
        let path = SettingPath::top().field("limits").field(name);
        found.refuse(path, format!("must be {}", in_words(range)));
    }
    *limit = given;
}

fn numbers(range: RangeInclusive<usize>) -> String {
    format!("{} to {}", range.start(), range.end())
}

/// The line of the example configuration for each.
#[cfg(test)]
pub fn defaults_and_ranges() -> Vec<String> {
    let default = Limits::default();
    let number = |number: usize, (_, range): Setting<usize>| format!("# Default: {number}; {}", numbers(range));
    let duration = |duration, (_, range): Setting<Duration>| {
        let duration = humantime::format_duration(duration);
        format!("# Default: {duration}; {}", in_words(range))
    };
    vec![
        number(default.max_connections, CONNECTIONS),
        number(default.max_unauthenticated_message_bytes, UNAUTHENTICATED),
        number(default.max_buffered_bytes, BUFFERED),
        number(default.max_documents_per_statement, DOCUMENTS),
        duration(default.handshake_timeout, HANDSHAKE),
        duration(default.message_timeout, MESSAGE),
        duration(default.idle_timeout, IDLE),
        duration(default.upstream_timeout, UPSTREAM),
    ]
}
