//! Writes durations and the server's own time into commands.
//!
//! Keywards with different clocks share terms that are stated in the server's time.

use std::time::Duration;

use bson::{Bson, Document, doc};

/// An aggregation expression: the time at the server when it carries the command out, and `time` more.
pub fn from_now(time: Duration) -> Document {
    doc! { "$add": ["$$NOW", Bson::Int64(millis(time))] }
}

/// A duration as the server states it: in whole milliseconds.
pub fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
