//! Why a client's connection ends, and how loudly that is said.

use std::io;

use crate::upstream;
use crate::wire::Rejection;
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
    /// The client sent what the server, too, closes a connection for, or upstream what can't be read.
    #[error("a message was refused: {0}")]
    Refused(#[from] Rejection),
    /// The client spoke HTTP and was told so.
    #[error("the client speaks HTTP")]
    Http,
    /// The client began a TLS handshake.
    #[error("the client speaks TLS, which this port doesn't")]
    Tls,
    /// No upstream connection came about; the client was told so.
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
    Command(#[from] upstream::Error),
    /// A write's parts could not be followed to their end.
    #[error("a write could not be followed to its end: {0}")]
    Write(#[from] write::ForwardError),
    /// A reply answers something else than what was asked.
    #[error("upstream's replies are out of step")]
    OutOfStep,
    /// The server at the other end isn't the primary (any more): the driver is to connect anew.
    #[error("upstream isn't the primary any more")]
    NotPrimary,
    /// Keyward is stopping.
    #[error("keyward is stopping")]
    Stopping,
}

impl End {
    /// Whether an operator should hear of it at the usual log level.
    pub fn is_remarkable(&self) -> bool {
        !matches!(
            self,
            End::ClientClosed | End::Client(_) | End::Http | End::NotPrimary | End::Stopping
        )
    }
}
