//! Lists why a client's connection ends, and at which level the log says so.

use std::io;

use crate::authorization;
use crate::upstream;
use crate::wire::{Header, Rejection};
use crate::write;

/// Why a client's connection ends.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The client closed it.
    #[error("the client closed the connection")]
    ClientClosed,
    /// The client's side broke.
    #[error("the client's connection broke: {0}")]
    Client(io::Error),
    /// The client sent a message for which the server closes a connection, too, or upstream sent one that can't be read. Or a reply
    /// would be longer than a message may be.
    #[error("a message was refused: {0}")]
    Refused(#[from] Rejection),
    /// The client spoke HTTP and got an error that says so.
    #[error("the client speaks HTTP")]
    Http,
    /// The client began a TLS handshake.
    #[error("the client speaks TLS, which this port doesn't")]
    Tls,
    /// The TLS handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Handshake(io::Error),
    /// The client doesn't speak TLS, and got an error that says so.
    #[error("the client doesn't speak TLS, which tls.mode requires")]
    NotTls,
    /// The client's privileges couldn't be read.
    #[error("the client's rights can't be found out: {0}")]
    Rights(#[from] authorization::RightsError),
    /// No upstream connection came about; the client got an error.
    #[error(transparent)]
    NoUpstream(#[from] upstream::NoConnection),
    /// Upstream closed the connection.
    #[error("upstream closed the connection")]
    UpstreamClosed,
    /// Upstream's side broke.
    #[error("the upstream connection broke: {0}")]
    Upstream(io::Error),
    /// A command of Keyward's own on this connection failed on the way.
    #[error("a command on the upstream connection failed: {0}")]
    Command(#[from] upstream::ConnectionError),
    /// This Keyward may write no longer, and a client's write isn't sent whole yet.
    #[error(
        "this Keyward's entry in the register of Keywards couldn't be renewed in time, and a write was still being sent: it has no effect"
    )]
    Outlasted,
    /// A write's parts could not be followed to their end.
    #[error("a write could not be followed to its end: {0}")]
    Write(#[from] write::ForwardError),
    /// A reply answers something else than what was asked.
    #[error("upstream's replies are out of step")]
    OutOfStep,
    /// The server at the other end isn't the primary (any more): the driver is to connect anew.
    #[error("upstream isn't the primary any more")]
    NotPrimary,
    /// New connections go to another server: one client must not have connections to two.
    #[error("clients' connections go to another mongos now")]
    LeftBehind,
    /// The client sends a longer message than it may before it has authenticated.
    #[error(
        "the client has begun a message of {length} bytes, and it may have {1} before it has authenticated \
         (limits.max_unauthenticated_message_bytes)",
        length = .0.length
    )]
    TooLong(Header, usize),
    /// No first message came in time.
    #[error("no message came within limits.handshake_timeout")]
    NoHandshake,
    /// The client stopped in the middle of a message, or there was no memory for the rest of it.
    #[error(
        "a message wasn't whole within limits.message_timeout: the client sent nothing more, or all of limits.max_buffered_bytes was in use"
    )]
    Stalled,
    /// The client doesn't read its replies. So a message of its own or Keyward's reply can't go on, which takes memory that others need. Or a
    /// new catalog waits for the reply to a write.
    #[error(
        "the client read nothing within limits.message_timeout, while its message or reply held a part of limits.max_buffered_bytes, or a change of constraints waited"
    )]
    Unread,
    /// No message came for a long time.
    #[error("the connection was idle for longer than limits.idle_timeout")]
    Idle,
    /// Keyward is stopping.
    #[error("keyward is stopping")]
    Stopping,
}

impl End {
    /// Whether the connection to upstream may have broken: upstream may still be at work on a command.
    pub fn may_have_lost_upstream(&self) -> bool {
        matches!(
            self,
            End::UpstreamClosed | End::Upstream(_) | End::Command(_) | End::Write(_) | End::Rights(_) | End::OutOfStep
        )
    }

    /// Whether an operator should hear of it at the usual log level.
    pub fn is_remarkable(&self) -> bool {
        !matches!(
            self,
            End::ClientClosed
                | End::Client(_)
                | End::Http
                | End::NotPrimary
                | End::LeftBehind
                | End::Idle
                | End::Stopping
        )
    }
}
