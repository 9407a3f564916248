//! Limits how long Keyward waits for an answer.
//!
//! A server ends a command at the command's time limit, and the driver gives up a server that doesn't answer its monitor.
//! One case remains: a server that answers the monitor but not the command, such as a router whose shard stands still. The
//! command may still take effect then, so callers mustn't assume that it didn't.

use std::time::Duration;

use tokio::time::timeout;

use super::StoreError;

/// The minimum wait for an answer. It is longer than any time limit of a command, so that the server's own answer comes
/// first.
const LIMIT_MIN: Duration = Duration::from_secs(15);

/// How long the server may take to prove that a read is current.
pub const READ_MAX: Duration = Duration::from_secs(10);

/// How long to wait for the answer to a command if keys are reserved for `lease`. A later answer is of no use to a write.
pub(super) fn limit(lease: Duration) -> Duration {
    lease.max(LIMIT_MIN)
}

/// Waits for `asked`, but no longer than `limit`. Then it drops the command, and the driver closes its connection.
pub(super) async fn within<T, E: Into<StoreError>>(
    limit: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, StoreError> {
    match timeout(limit, asked).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(StoreError::TimedOut(limit)),
    }
}

/// Waits for `asked`, where no lease depends on the answer.
///
/// # Errors
/// [`StoreError::TimedOut`] if there is no answer within 15 s.
pub async fn answered<T, E: Into<StoreError>>(asked: impl Future<Output = Result<T, E>>) -> Result<T, StoreError> {
    within(LIMIT_MIN, asked).await
}
