//! Decides how a connection ends when Keyward stops: the error for its client, and the time when it may close.
//!
//! It behaves as a `mongos` in quiesce mode. Handshakes get error 91, and so do those that wait for a change: drivers then look for
//! another server and close their connections. Commands that clients still send are carried out. In the second half of the
//! time, commands that begin something new get that error, too. A connection that has been quiet for a moment is closed.

use std::time::Duration;

use bson::oid::ObjectId;
use bson::spec::ElementType;
use tokio::sync::watch;
use tokio::time::Instant;

use super::request_context::RequestContext;
use crate::classify::Verdict;
use crate::raw::Builder;
use crate::server::{
    clock::millis,
    code::SHUTDOWN_IN_PROGRESS,
    reply::{append_command_error, append_label},
};

/// A driver that has got the error uses no connection again that has been quiet for this long.
const QUIET: Duration = Duration::from_secs(1);

/// Whether Keyward serves, or drains before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It accepts clients and serves them.
    Serving,
    /// It sends clients away.
    Draining(Drain),
}

/// The time in which clients are sent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    begun: Instant,
    until: Instant,
}

impl Drain {
    /// Begins now, and takes no longer than `time`.
    pub fn begin(time: Duration) -> Drain {
        let begun = Instant::now();
        Drain {
            begun,
            until: begun + time,
        }
    }

    /// When Keyward closes the remaining connections.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// How long a connection must be quiet before it is closed.
    pub fn quiet(&self) -> Duration {
        QUIET.min((self.until - self.begun) / 4)
    }

    /// Whether Keyward turns a command away: a handshake, or, in the second half of the time, a command that continues nothing.
    pub fn rejects(&self, verdict: &Verdict<'_>, request_context: &RequestContext) -> bool {
        matches!(verdict, Verdict::Hello(_)) || self.is_in_second_half() && !request_context.continues_earlier()
    }

    fn is_in_second_half(&self) -> bool {
        Instant::now() >= self.begun + (self.until - self.begun) / 2
    }

    /// The error that a handshake gets, or a command with this context.
    ///
    /// Its topology version names this process. Drivers ignore a version that is older than the one they know. The next Keyward
    /// at this address passes on the version of its own `mongos`, which names another process.
    pub fn error(&self, process: ObjectId, request_context: Option<&RequestContext>) -> Vec<u8> {
        let left = self.until.saturating_duration_since(Instant::now());
        let mut body = Builder::new();
        body.open(ElementType::EmbeddedDocument, b"topologyVersion")
            .append(ElementType::ObjectId, b"processId", &process.bytes())
            .int64("counter", 1)
            .close();
        let errmsg = b"Keyward is in quiesce mode and will shut down";
        append_command_error(&mut body, errmsg, SHUTDOWN_IN_PROGRESS);
        body.int64("remainingQuiesceTimeMillis", millis(left));
        if let Some(label) = request_context.and_then(RequestContext::label) {
            append_label(&mut body, label);
        }
        body.finish()
    }
}

/// Ends when Keyward drains and a connection without any message has had a moment to send one.
pub(super) async fn nothing_came(stage: &mut watch::Receiver<Stage>) {
    if let Some(drain) = draining(stage).await {
        tokio::time::sleep(drain.quiet()).await;
    }
}

/// Ends when Keyward drains; `None` if Keyward stops without draining.
pub(crate) async fn draining(stage: &mut watch::Receiver<Stage>) -> Option<Drain> {
    let stage = stage.wait_for(|stage| *stage != Stage::Serving).await.ok()?;
    match *stage {
        Stage::Draining(drain) => Some(drain),
        Stage::Serving => None,
    }
}
