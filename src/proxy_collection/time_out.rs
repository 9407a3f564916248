//! An answer that doesn't come is waited for only so long.
//!
//! Servers end what they were given a time for, and the driver gives a server up that doesn't answer its monitor. That leaves
//! one that answers the monitor and not this, as a router may whose shard stands still. What was asked may still come to
//! pass then: nobody may go on as if it hadn't.

use std::time::Duration;

use tokio::time::timeout;

use super::StoreError;

/// The least that is waited for an answer: longer than any time limit that commands are given, so that the server's own word
/// comes first.
const LIMIT_MIN: Duration = Duration::from_secs(15);

/// How long to wait for the answer to a command where keys are reserved for `lease`: what comes later than that is of no use
/// to a write.
pub(super) fn limit(lease: Duration) -> Duration {
    lease.max(LIMIT_MIN)
}

/// What `asked` gives within `limit`. Later than that it is dropped, and the driver closes its connection.
pub(super) async fn within<T, E: Into<StoreError>>(
    limit: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, StoreError> {
    match timeout(limit, asked).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(StoreError::Late(limit)),
    }
}

/// What `asked` gives, where no lease depends on it.
///
/// # Errors
/// [`StoreError::Late`] if it gives nothing within 15 s.
pub async fn answered<T, E: Into<StoreError>>(asked: impl Future<Output = Result<T, E>>) -> Result<T, StoreError> {
    within(LIMIT_MIN, asked).await
}
