//! Splits a socket into its two directions: incoming bytes are cut into messages, outgoing bytes are written in pieces.
//!
//! Every read and every single write may be cancelled without losing or repeating a byte. Only this module knows
//! whether a stream is encrypted; a plain stream pays nothing for it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;

use crate::limits::Share;
use crate::wire::Inbox;

/// How many pieces one write contains; the system's own limit is 1024.
const PIECES_MAX: usize = 64;

/// After how much silence the system probes the peer, how often, and how many times: the same as MongoDB's drivers and
/// servers. Without probes, Keyward would wait for a vanished peer without end.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(120))
    .with_interval(Duration::from_secs(10))
    .with_retries(9);

/// Splits a socket. Small messages must not wait for more data, so Nagle's algorithm is turned off.
///
/// # Errors
/// The system's error if the socket is dead already.
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

/// Splits an encrypted connection.
///
/// # Errors
/// The system's error if the socket is dead already.
pub fn split_encrypted(stream: impl Into<TlsStream<TcpStream>>) -> io::Result<(Incoming, Outgoing)> {
    let stream = stream.into();
    set_options(stream.get_ref().0)?;
    let both = Encrypted(Arc::new(Mutex::new(stream)));
    let write = EncryptedHalf {
        half: both.clone(),
        taken: 0,
    };
    Ok((
        Incoming::new(Reader::Encrypted(both)),
        Outgoing {
            to: Writer::Encrypted(write),
        },
    ))
}

fn set_options(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_keepalive(&KEEPALIVE)
}

/// The receiving direction and its received bytes.
#[derive(Debug)]
pub struct Incoming {
    from: Reader,
    /// Received bytes that are not processed yet.
    pub inbox: Inbox,
    /// The inbox's share of the memory, if that is limited.
    pub share: Share,
}

#[derive(Debug)]
enum Reader {
    Plain(OwnedReadHalf),
    Encrypted(Encrypted),
}

/// An encrypted stream that both directions share. tokio's own split would hide the socket.
#[derive(Debug, Clone)]
struct Encrypted(Arc<Mutex<TlsStream<TcpStream>>>);

impl Encrypted {
    fn lock(&self) -> MutexGuard<'_, TlsStream<TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(context, into)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(context)
    }
}

impl Incoming {
    fn new(from: Reader) -> Self {
        Incoming {
            from,
            inbox: Inbox::default(),
            share: Share::unlimited(),
        }
    }

    /// Reads once; `wanted` is the number of bytes still expected, as far as known. 0 means that the peer has closed.
    ///
    /// If the inbox has to grow and memory is short, it waits first.
    pub async fn fill(&mut self, wanted: usize) -> io::Result<usize> {
        self.share.cover(self.inbox.capacity_for(wanted)).await;
        let space = self.inbox.space(wanted);
        match &mut self.from {
            Reader::Plain(socket) => socket.read_buf(space).await,
            // Most peers close without a notice in the encrypted stream. A message's header shows where it ends.
            Reader::Encrypted(half) => match half.read_buf(space).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                result => result,
            },
        }
    }

    /// Whether the peer has closed its direction, also if bytes from before still wait. The system is asked, not the runtime: the
    /// runtime's knowledge may be as old as a pause of this process.
    pub fn is_closed_by_peer(&self) -> bool {
        match &self.from {
            Reader::Plain(socket) => is_closed_by_peer(socket.as_ref()),
            Reader::Encrypted(stream) => is_closed_by_peer(stream.lock().get_ref().0),
        }
    }

    /// Drops the first `count` received bytes, whose message is processed. It releases their memory at once, because
    /// the time of the next read isn't known.
    pub fn consume(&mut self, count: usize) {
        self.inbox.consume(count);
        self.share.shrink(self.inbox.capacity());
    }
}

fn is_closed_by_peer(socket: &TcpStream) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    // No time to wait. Errors and broken connections are always reported, too.
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// The sending direction.
#[derive(Debug)]
pub struct Outgoing {
    to: Writer,
}

#[derive(Debug)]
enum Writer {
    Plain(OwnedWriteHalf),
    Encrypted(EncryptedHalf),
}

#[derive(Debug)]
struct EncryptedHalf {
    half: Encrypted,
    /// The number of bytes that a cancelled write encrypted before all of them went to the system.
    taken: usize,
}

impl EncryptedHalf {
    async fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.taken == 0 {
            self.taken = self.half.write(bytes).await?;
        }
        self.half.flush().await?;
        Ok(std::mem::take(&mut self.taken))
    }
}

impl Outgoing {
    /// Writes some of `bytes` and returns how many. If this is cancelled, the next write must begin with the same
    /// bytes.
    ///
    /// # Errors
    /// The system's error, also if it accepts no more bytes.
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

    /// Signals to the peer that nothing more will come, after all written bytes are sent.
    pub async fn finish(&mut self) -> io::Result<()> {
        match &mut self.to {
            Writer::Plain(socket) => socket.shutdown().await,
            Writer::Encrypted(encrypted) => encrypted.half.shutdown().await,
        }
    }
}
