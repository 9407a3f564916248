//! Writes durations and the server's own time into commands.
//!
//! Keywards with different clocks share terms that are stated in the server's time.

use std::time::Duration;

use bson::{Bson, Document, doc};

/// An aggregation expression: the time at the server when it carries the command out, and `time` more.
pub fn from_now(time: Duration) -> Document {
    doc! { "$add": ["$$NOW", Bson::Int64(millis(time))] }
}

/// An aggregation expression: whether the time in the field at `path` is past, or there is none. A time that is further away than twice the
/// `longest` term was noted while a clock was ahead, so it counts as past.
pub fn is_past(path: &str, longest: Duration) -> Document {
    let until = doc! { "$ifNull": [format!("${path}"), Bson::Null] };
    doc! { "$or": [{ "$lte": [until.clone(), "$$NOW"] }, { "$gt": [until, from_now(2 * longest)] }] }
}

/// A duration as the server states it: in whole milliseconds.
pub fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
