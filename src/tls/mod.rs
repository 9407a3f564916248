//! Encrypts both sides with rustls: clients' connections to Keyward, and Keyward's connections to the deployment.
//!
//! Certificates are read and checked as a whole before they are used. If a set of files doesn't match, the old one
//! stays in use. Protocols and ciphers are rustls' own choice: TLS 1.2 and 1.3.

mod acceptor;
mod connector;
mod files;
mod follow;

use std::path::PathBuf;

use serde::Deserialize;

pub use acceptor::{Acceptor, Client, Prepared, is_handshake};
pub use connector::Connector;
pub use files::TlsError;
pub use follow::follow;

/// How clients' connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// Whether clients may connect without encryption.
    pub mode: Mode,
    /// The certificate that Keyward shows, with the chain to its authority; PEM.
    pub certificate: PathBuf,
    /// Its private key; PEM. It may be in the same file.
    pub key: PathBuf,
    /// The authorities of clients' certificates; PEM. If absent, Keyward asks clients for no certificate.
    pub client_ca: Option<PathBuf>,
    /// Whether clients may connect without a certificate, if `client_ca` is given.
    pub client_certificate: ClientCertificate,
}

/// Whether clients may connect without encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Keyward answers a client without TLS with an error, and closes its connection.
    Required,
    /// Clients may connect with and without TLS at the same port.
    Preferred,
}

/// Whether a client may connect without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificate {
    /// Without a certificate, the handshake fails.
    #[default]
    Required,
    /// A client may omit its certificate; a certificate that it shows must be valid.
    Optional,
}
