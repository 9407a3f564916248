//! Checks the settings below `limits`: their ranges, and the defaults of [`Limits`] for absent settings.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::check::{Found, in_words};
use super::problem::SettingPath;
use super::raw::RawLimits;
use crate::limits::Limits;
use crate::wire::MESSAGE_BYTES_MAX;

const CONNECTIONS: RangeInclusive<usize> = 1..=1_000_000;
/// With a smaller limit, a handshake with much client metadata wouldn't fit.
const UNAUTHENTICATED: RangeInclusive<usize> = 16_384..=MESSAGE_BYTES_MAX;
/// With a smaller limit, a single message might never fit: its buffer may be twice as large as the message.
const BUFFERED: RangeInclusive<usize> = 128 * 1024 * 1024..=1024 * 1024 * 1024 * 1024;
const DOCUMENTS: RangeInclusive<usize> = 1..=1_000_000;
const TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
const IDLE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(7 * 24 * 3600);

/// The limits of `raw`, with the defaults for the others.
pub fn check(raw: &RawLimits, found: &mut Found<'_>) -> Limits {
    let default = Limits::default();
    let mut number = |name, given: Option<usize>, default, range: RangeInclusive<usize>| {
        let number = given.unwrap_or(default);
        if !range.contains(&number) {
            refuse(name, &numbers(&range), found);
        }
        number
    };
    let max_connections = number(
        "max_connections",
        raw.max_connections,
        default.max_connections,
        CONNECTIONS,
    );
    let max_unauthenticated_message_bytes = number(
        "max_unauthenticated_message_bytes",
        raw.max_unauthenticated_message_bytes,
        default.max_unauthenticated_message_bytes,
        UNAUTHENTICATED,
    );
    let max_buffered_bytes = number(
        "max_buffered_bytes",
        raw.max_buffered_bytes,
        default.max_buffered_bytes,
        BUFFERED,
    );
    let max_documents_per_statement = number(
        "max_documents_per_statement",
        raw.max_documents_per_statement,
        default.max_documents_per_statement,
        DOCUMENTS,
    );
    let mut duration = |name, given: Option<Duration>, default, range: RangeInclusive<Duration>| {
        let duration = given.unwrap_or(default);
        if !range.contains(&duration) {
            refuse(name, &in_words(range), found);
        }
        duration
    };
    Limits {
        max_connections,
        max_unauthenticated_message_bytes,
        max_buffered_bytes,
        max_documents_per_statement,
        handshake_timeout: duration(
            "handshake_timeout",
            raw.handshake_timeout,
            default.handshake_timeout,
            TIMEOUT,
        ),
        message_timeout: duration("message_timeout", raw.message_timeout, default.message_timeout, TIMEOUT),
        idle_timeout: duration("idle_timeout", raw.idle_timeout, default.idle_timeout, IDLE),
        upstream_timeout: duration(
            "upstream_timeout",
            raw.upstream_timeout,
            default.upstream_timeout,
            TIMEOUT,
        ),
    }
}

fn refuse(name: &str, range: &impl Display, found: &mut Found<'_>) {
    let path = SettingPath::top().field("limits").field(name);
    found.refuse(path, format!("must be {range}"));
}

fn numbers(range: &RangeInclusive<usize>) -> String {
    format!("{} to {}", range.start(), range.end())
}

/// The example file's comment on each limit.
#[cfg(test)]
pub fn defaults_and_ranges() -> Vec<String> {
    let default = Limits::default();
    let number = |number: usize, range| format!("# Default: {number}; {}", numbers(&range));
    let duration = |duration, range| {
        let duration = humantime::format_duration(duration);
        format!("# Default: {duration}; {}", in_words(range))
    };
    vec![
        number(default.max_connections, CONNECTIONS),
        number(default.max_unauthenticated_message_bytes, UNAUTHENTICATED),
        number(default.max_buffered_bytes, BUFFERED),
        number(default.max_documents_per_statement, DOCUMENTS),
        duration(default.handshake_timeout, TIMEOUT),
        duration(default.message_timeout, TIMEOUT),
        duration(default.idle_timeout, IDLE),
        duration(default.upstream_timeout, TIMEOUT),
    ]
}
