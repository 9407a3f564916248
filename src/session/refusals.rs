//! Limits the log lines about refused commands of one client: the first at once, then at most one a minute.
//!
//! These are the commands that Keyward can't protect.

use std::time::Duration;

use tokio::time::Instant;

use crate::raw::Doc;
use crate::server::reply;

/// How long to leave it between two lines about one client.
const PAUSE: Duration = Duration::from_secs(60);

/// The state of the log about a client's refused commands.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    logged: Option<Instant>,
    /// Refused commands since that line.
    unlogged: u64,
}

impl RefusalLog {
    /// Notes a command that is answered with this error. The line names the client if it's written in the client's span.
    pub(super) fn note(&mut self, error: &[u8]) {
        let now = Instant::now();
        if self.logged.is_some_and(|logged| now < logged + PAUSE) {
            self.unlogged += 1;
            return;
        }
        let errmsg = Doc::new(error).and_then(reply::errmsg).ok().flatten();
        let reason = String::from_utf8_lossy(errmsg.unwrap_or_default());
        tracing::info!(reason = &*reason, unlogged = self.unlogged, "command refused");
        (self.logged, self.unlogged) = (Some(now), 0);
    }
}
