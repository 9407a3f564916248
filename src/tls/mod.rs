//! Encryption with rustls on both sides: of clients' connections to Keyward, and of Keyward's to the deployment.
//!
//! Certificates are read whole and checked before they are used; a set of files that doesn't go together changes nothing.
//! Protocols and ciphers are rustls' own choice: TLS 1.2 and 1.3.

mod acceptor;
mod connector;
mod files;
mod follow;

use std::path::PathBuf;

pub use acceptor::{Acceptor, Client, Prepared, is_handshake};
pub use connector::Connector;
pub use files::TlsError;
pub use follow::follow;

/// How clients' connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether clients may do without.
    pub mode: Mode,
    /// The certificate that Keyward shows, with those that lead to its authority; PEM.
    pub certificate: PathBuf,
    /// Its private key; PEM, and may be the same file.
    pub key: PathBuf,
    /// The authorities of clients' certificates; PEM. Without it, clients are asked for none.
    pub client_ca: Option<PathBuf>,
    /// Whether clients may do without a certificate where there are authorities for it.
    pub client_certificate: ClientCertificate,
}

/// Whether clients may speak without encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Who doesn't speak TLS is told to, and closed.
    Required,
    /// Both are spoken at one port.
    Preferred,
}

/// Whether a client may do without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificate {
    /// The handshake fails without one.
    Required,
    /// One that is shown must be good.
    Optional,
}
