//! Defines the error of a command that was sent on a connection and got no usable reply.

use crate::raw::Malformed;
use crate::upstream;

/// The reason why there is no usable reply: the upstream connection is gone, or what it sent can't be read. Keyward must then
/// close the client's connection, too.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The connection is gone: all forwarded writes are in doubt, and Keyward must close the client's connection, too.
    #[error(transparent)]
    ConnectionLost(#[from] upstream::ConnectionError),
    /// Another client's connection is gone that also carried this client's insert. The insert is in doubt, as if this client's
    /// own connection were gone.
    #[error("the connection that inserted for several clients is gone")]
    GroupConnectionLost,
    /// The reply isn't BSON.
    #[error("the server's reply: {0}")]
    Malformed(#[from] Malformed),
}
