//! Unpacks large compressed messages in other threads, a few at a time, within the shared memory.
//!
//! A small message that unpacks to 48 MB must cost others neither time nor memory.

use tokio::time::timeout;

use super::{End, Session};
use crate::wire::{Header, OpCode, Rejection, decompress, stated_bytes};

/// Unpacking fewer bytes than this takes less time than handing them over.
const LARGE_BYTES: usize = 1024 * 1024;

impl Session {
    /// Unpacks the message that has arrived, if it is large. A small one is unpacked when it is read.
    pub(super) async fn unpack_large(&mut self) -> Result<(), End> {
        let message = self.client_in.inbox.message()?.unwrap_or_default();
        let Ok(Some(header)) = Header::read(message) else {
            return Ok(());
        };
        if header.op_code != OpCode::COMPRESSED {
            return Ok(());
        }
        let length = Header::SIZE + stated_bytes(message).unwrap_or(0);
        if length > self.length_max() {
            return Err(End::TooLong(Header { length, ..header }, self.length_max()));
        }
        if length < LARGE_BYTES {
            return Ok(());
        }
        let packed = message.to_vec();
        // Other connections may wait for memory, too, each with a message in memory. The time-out keeps them from waiting for
        // each other forever.
        let room = self.unpacked_share.cover(length);
        timeout(self.limits.message_timeout, room)
            .await
            .map_err(|_| End::Stalled)?;
        let permit = self.service.unpacking.acquire().await;
        let unpacked = tokio::task::spawn_blocking(move || {
            let mut unpacked = Vec::new();
            decompress(&packed, &mut unpacked).map(|compressor| (compressor, unpacked))
        });
        let unpacked = unpacked.await;
        drop(permit);
        match unpacked {
            Ok(Ok((compressor, unpacked))) => {
                self.scratch = unpacked;
                self.unpacked_by = Some(compressor);
                Ok(())
            }
            // Reading the message reports this error again.
            Ok(Err(Rejection::NestedCompression)) => Ok(()),
            Ok(Err(rejection)) => Err(rejection.into()),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(End::Stopping),
            },
        }
    }

    /// Releases the memory of the message that has been served.
    pub(super) fn forget_unpacked(&mut self) {
        self.unpacked_by = None;
        if self.scratch.capacity() > super::SCRATCH_KEPT_BYTES_MAX {
            self.scratch = Vec::new();
        }
        self.unpacked_share.release();
    }
}
