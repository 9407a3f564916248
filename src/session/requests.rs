//! Reads whole messages from the client, and passes them to upstream unchanged.
//!
//! A message is read whole before any part of it goes on, because only its end may show what it asks for. A message that
//! mustn't go on stays in the client's inbox until the session serves it.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

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
        /// It may only be sent while this Keyward may write.
        needs_permit: bool,
        /// Time may have passed since the message was judged: Keyward served it, or upstream was asked to take bytes. Before that, what was
        /// found then holds.
        is_begun: bool,
    },
    /// The first message in the inbox waits until no reply is pending.
    Waiting,
}

impl Requests {
    /// Goes one step on; true once a whole message has arrived that the session must look at.
    ///
    /// A command that needs the permit is sent only while `is_permitted` returns true: upstream may take a message's rest long after the
    /// command was judged. A server never runs a message that isn't whole.
    ///
    /// - Cancel: loses nothing.
    ///
    /// # Errors
    /// [`End`] if one of the two connections ends, the client's stream can't be read on, or the permit has ended.
    pub async fn step(
        &mut self,
        client: &mut Incoming,
        upstream: &mut Outgoing,
        length_max: usize,
        is_permitted: impl Fn() -> bool,
    ) -> Result<bool, End> {
        match self {
            Requests::Waiting => std::future::pending().await,
            Requests::Sending {
                left,
                needs_permit,
                is_begun,
            } => {
                let written = {
                    let mut sending = pin!(upstream.write_some(&client.inbox.bytes()[..*left]));
                    // Asked each time that upstream takes more, not only when this begins.
                    poll_fn(
                        |context| match std::mem::replace(is_begun, true) && *needs_permit && !is_permitted() {
                            true => Poll::Ready(Err(End::Outlasted)),
                            false => sending.as_mut().poll(context).map_err(End::Upstream),
                        },
                    )
                    .await?
                };
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

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::stream::split;

    /// More than two sockets hold.
    const LENGTH: usize = 32 << 20;

    /// Others may have taken this Keyward's writes for done by the time that upstream takes the rest.
    #[tokio::test]
    async fn the_rest_of_a_write_is_not_sent_after_the_permit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opened, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut client, mut upstream) = split(opened.unwrap()).unwrap();
        let mut server = accepted.unwrap().0;
        client.inbox.space(LENGTH).put_bytes(0, LENGTH);
        let mut requests = Requests::Sending {
            left: LENGTH,
            needs_permit: true,
            is_begun: false,
        };
        let is_permitted = std::cell::Cell::new(true);
        let mut step = async || {
            requests
                .step(&mut client, &mut upstream, LENGTH, || is_permitted.get())
                .await
        };
        loop {
            let stepped = pin!(step());
            tokio::select! {
                biased;
                stepped = stepped => stepped.unwrap(),
                // Nothing more fits.
                () = tokio::task::yield_now() => break,
            };
        }
        is_permitted.set(false);
        let mut taken = 0;
        let end = loop {
            let mut bytes = vec![0; 1 << 20];
            tokio::select! {
                biased;
                stepped = step() => break stepped.err(),
                read = server.read(&mut bytes) => taken += read.unwrap(),
            }
        };
        assert!(matches!(end, Some(End::Outlasted)), "{end:?} after {taken} bytes");
        assert!(matches!(requests, Requests::Sending { left, .. } if left > 0));
    }
}
