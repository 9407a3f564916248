//! The two directions of a socket: what comes in is cut into messages, what goes out is written piece by piece.
//!
//! Every read and every single write may be cancelled without losing or repeating a byte. This is the only place that
//! knows that a stream is TCP: encryption goes in here.

use std::io::{self, IoSlice};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::limits::Share;
use crate::wire::Inbox;

/// How many pieces go into one write; the system's own limit is 1024.
const PIECES_MAX: usize = 64;

/// After how much silence the system asks whether the peer is still there, how often, and how many times: as drivers
/// and servers of MongoDB do. Without it, a peer that vanished would be waited for without end.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(120))
    .with_interval(Duration::from_secs(10))
    .with_retries(9);

/// Takes a socket apart; small messages must not wait for more, so Nagle's algorithm is turned off.
///
/// # Errors
/// What the system says if the socket is dead already.
pub fn split(socket: TcpStream) -> io::Result<(Incoming, Outgoing)> {
    socket.set_nodelay(true)?;
    SockRef::from(&socket).set_tcp_keepalive(&KEEPALIVE)?;
    let (read, write) = socket.into_split();
    let incoming = Incoming {
        socket: read,
        inbox: Inbox::new(),
        share: Share::unlimited(),
    };
    Ok((incoming, Outgoing { socket: write }))
}

/// The receiving direction and what has arrived in it.
#[derive(Debug)]
pub struct Incoming {
    socket: OwnedReadHalf,
    /// What has arrived and is not dealt with yet.
    pub inbox: Inbox,
    /// The memory that the inbox takes, where that is limited.
    pub share: Share,
}

impl Incoming {
    /// Reads once; `wanted` is how many bytes are still expected, as far as one knows. 0 means the peer has closed.
    ///
    /// Waits first where the inbox has to grow and memory is short.
    ///
    /// # Errors
    /// What the system says.
    pub async fn fill(&mut self, wanted: usize) -> io::Result<usize> {
        self.share.cover(self.inbox.capacity_for(wanted)).await;
        self.socket.read_buf(self.inbox.space(wanted)).await
    }
}

/// The sending direction.
#[derive(Debug)]
pub struct Outgoing {
    socket: OwnedWriteHalf,
}

impl Outgoing {
    /// Writes some of `bytes` and says how many.
    ///
    /// # Errors
    /// What the system says, also if it takes nothing any more.
    pub async fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.socket.write(bytes).await? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }

    /// Writes all pieces in order. If this is cancelled, part of them may have been written.
    ///
    /// # Errors
    /// What the system says.
    pub async fn write_pieces(&mut self, pieces: impl Iterator<Item = &[u8]>) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = pieces.filter(|piece| !piece.is_empty()).map(IoSlice::new).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let count = left.len().min(PIECES_MAX);
            match self.socket.write_vectored(&left[..count]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => IoSlice::advance_slices(&mut left, written),
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more will come, once what was written has gone.
    ///
    /// # Errors
    /// What the system says.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.socket.shutdown().await
    }
}
