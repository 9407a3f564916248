//! The two directions of a socket: what comes in is cut into messages, what goes out is written piece by piece.
//!
//! Every read and every single write may be cancelled without losing or repeating a byte. This is the only place that
//! knows whether a stream is encrypted; one that isn't pays nothing for it.

use std::io::{self, IoSlice};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;

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
    set_options(&socket)?;
    let (read, write) = socket.into_split();
    Ok((
        Incoming::new(Reader::Plain(read)),
        Outgoing {
            to: Writer::Plain(write),
        },
    ))
}

/// Takes an encrypted connection apart.
///
/// # Errors
/// What the system says if the socket is dead already.
pub fn split_encrypted(stream: impl Into<TlsStream<TcpStream>>) -> io::Result<(Incoming, Outgoing)> {
    let stream = stream.into();
    set_options(stream.get_ref().0)?;
    let (read, write) = tokio::io::split(stream);
    let write = Encrypted { half: write, taken: 0 };
    Ok((
        Incoming::new(Reader::Encrypted(read)),
        Outgoing {
            to: Writer::Encrypted(write),
        },
    ))
}

fn set_options(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_keepalive(&KEEPALIVE)
}

/// The receiving direction and what has arrived in it.
#[derive(Debug)]
pub struct Incoming {
    from: Reader,
    /// What has arrived and is not dealt with yet.
    pub inbox: Inbox,
    /// The memory that the inbox takes, where that is limited.
    pub share: Share,
}

#[derive(Debug)]
enum Reader {
    Plain(OwnedReadHalf),
    Encrypted(ReadHalf<TlsStream<TcpStream>>),
}

impl Incoming {
    fn new(from: Reader) -> Self {
        Incoming {
            from,
            inbox: Inbox::new(),
            share: Share::unlimited(),
        }
    }

    /// Reads once; `wanted` is how many bytes are still expected, as far as one knows. 0 means the peer has closed.
    ///
    /// Waits first where the inbox has to grow and memory is short.
    ///
    /// # Errors
    /// What the system says.
    pub async fn fill(&mut self, wanted: usize) -> io::Result<usize> {
        self.share.cover(self.inbox.capacity_for(wanted)).await;
        let space = self.inbox.space(wanted);
        match &mut self.from {
            Reader::Plain(socket) => socket.read_buf(space).await,
            // Most peers close without saying so in the encrypted stream. Where a message ends, its header says.
            Reader::Encrypted(half) => match half.read_buf(space).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                result => result,
            },
        }
    }

    /// Drops the first `count` bytes that have arrived, with which a message has been dealt with, and gives back at once the
    /// memory that they took: when more will be read isn't known.
    pub fn consume(&mut self, count: usize) {
        self.inbox.consume(count);
        self.share.shrink(self.inbox.capacity());
    }
}

/// The sending direction.
#[derive(Debug)]
pub struct Outgoing {
    to: Writer,
}

#[derive(Debug)]
enum Writer {
    Plain(OwnedWriteHalf),
    Encrypted(Encrypted),
}

#[derive(Debug)]
struct Encrypted {
    half: WriteHalf<TlsStream<TcpStream>>,
    /// So many bytes were encrypted by a write that was cancelled before all of them went to the system.
    taken: usize,
}

impl Encrypted {
    async fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.taken == 0 {
            self.taken = self.half.write(bytes).await?;
        }
        self.half.flush().await?;
        Ok(std::mem::take(&mut self.taken))
    }
}

impl Outgoing {
    /// Writes some of `bytes` and says how many. If this is cancelled, what is written next must begin with the same
    /// bytes.
    ///
    /// # Errors
    /// What the system says, also if it takes nothing any more.
    pub async fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.to {
            Writer::Plain(socket) => socket.write(bytes).await?,
            Writer::Encrypted(encrypted) => encrypted.write_some(bytes).await?,
        };
        match written {
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
            let written = match &mut self.to {
                Writer::Plain(socket) => socket.write_vectored(&left[..count]).await?,
                Writer::Encrypted(encrypted) => encrypted.half.write_vectored(&left[..count]).await?,
            };
            match written {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => IoSlice::advance_slices(&mut left, written),
            }
        }
        match &mut self.to {
            Writer::Plain(_) => Ok(()),
            Writer::Encrypted(encrypted) => encrypted.half.flush().await,
        }
    }

    /// Tells the peer that nothing more will come, once what was written has gone.
    ///
    /// # Errors
    /// What the system says.
    pub async fn finish(&mut self) -> io::Result<()> {
        match &mut self.to {
            Writer::Plain(socket) => socket.shutdown().await,
            Writer::Encrypted(encrypted) => encrypted.half.shutdown().await,
        }
    }
}
