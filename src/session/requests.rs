//! Reads whole messages from the client, and passes them to upstream unchanged.
//!
//! A message is read whole before any part of it goes on, because only its end may show what it asks for. A message that
//! mustn't go on stays in the client's inbox until the session serves it.

use super::End;
use crate::stream::{Incoming, Outgoing};
use crate::wire::Header;

/// Where this direction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requests {
    /// The next message is arriving.
    Reading,
    /// The first message in the inbox is being sent to upstream.
    Sending {
        /// Bytes left.
        left: usize,
    },
    /// The first message in the inbox waits until no reply is pending.
    Waiting,
}

impl Requests {
    /// Goes one step on; true once a whole message has arrived that the session must look at.
    ///
    /// - Cancel: loses nothing.
    ///
    /// # Errors
    /// [`End`] if one of the two connections ends, or the client's stream can't be read on.
    pub async fn step(
        &mut self,
        client: &mut Incoming,
        upstream: &mut Outgoing,
        length_max: usize,
    ) -> Result<bool, End> {
        match self {
            Requests::Waiting => std::future::pending().await,
            Requests::Sending { left } => {
                let written = upstream
                    .write_some(&client.inbox.bytes()[..*left])
                    .await
                    .map_err(End::Upstream)?;
                *left -= written;
                if *left == 0 {
                    client.consume(written);
                    *self = Requests::Reading;
                } else {
                    client.inbox.consume(written);
                }
                Ok(false)
            }
            Requests::Reading => read_message(client, length_max).await,
        }
    }
}

/// Reads once, unless a whole message is there already; says whether one is. It may have `length_max` bytes.
pub async fn read_message(client: &mut Incoming, length_max: usize) -> Result<bool, End> {
    let arrived = client.inbox.bytes().len();
    let wanted = match client.inbox.header()? {
        Some(header) if header.length > length_max => return Err(End::TooLong(header, length_max)),
        Some(header) if arrived >= header.length => return Ok(true),
        Some(header) => header.length - arrived,
        None => Header::SIZE,
    };
    match client.fill(wanted).await.map_err(End::Client)? {
        0 => Err(End::ClientClosed),
        _ => Ok(false),
    }
}
