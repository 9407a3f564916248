//! Notices that the client is gone while Keyward waits for the server on its behalf.

use super::End;
use crate::stream::Incoming;

/// How many bytes Keyward reads of later messages meanwhile.
pub(super) const AHEAD_BYTES_MAX: usize = 64 * 1024;

/// Ends when the client is gone. As long as fewer than `ahead_max` bytes wait, Keyward reads what the client sends meanwhile. If the client
/// sends more, Keyward notices only later that it is gone.
pub(super) async fn gone(client: &mut Incoming, ahead_max: usize) -> End {
    while client.inbox.bytes().len() < ahead_max {
        match client.fill(0).await {
            Ok(0) => return End::ClientClosed,
            Ok(_) => {}
            Err(error) => return End::Client(error),
        }
    }
    std::future::pending().await
}
