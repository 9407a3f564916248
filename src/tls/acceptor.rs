//! Accepts clients' connections: detects TLS and does the handshake with the current certificates.
//!
//! The certificates are one immutable set, which is replaced as a whole. Existing connections keep their set.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::files::{Files, TlsError};
use super::{Mode, TlsSettings};

/// The number of bytes that distinguish a handshake from a message.
const TELLING: usize = 12;
/// The delay before the next look at first bytes that begin like a handshake but are too few to decide.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A client's connection, after its encryption is known.
#[derive(Debug)]
pub enum Client {
    /// Encrypted.
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
    /// Not encrypted, which is allowed.
    Plain(TcpStream),
    /// Not encrypted, though it must be.
    Refused(TcpStream),
}

/// Certificates that are valid, and not in use yet.
pub struct Prepared(Current);

/// Accepts encrypted connections.
pub struct Acceptor {
    current: ArcSwap<Current>,
}

struct Current {
    settings: TlsSettings,
    fingerprint: u128,
    config: Arc<ServerConfig>,
}

impl Current {
    fn load(settings: TlsSettings) -> Result<Current, TlsError> {
        let files = Files::read(&settings)?;
        Ok(Current {
            config: Arc::new(files.server_config(&settings)?),
            fingerprint: files.fingerprint(),
            settings,
        })
    }
}

impl Prepared {
    /// The certificates that `settings` names.
    pub fn load(settings: TlsSettings) -> Result<Prepared, TlsError> {
        Current::load(settings).map(Prepared)
    }
}

impl Acceptor {
    /// Makes an acceptor with the certificates that `settings` names.
    pub fn new(settings: TlsSettings) -> Result<Acceptor, TlsError> {
        Ok(Acceptor {
            current: ArcSwap::from_pointee(Current::load(settings)?),
        })
    }

    /// The current settings.
    pub fn settings(&self) -> TlsSettings {
        self.current.load().settings.clone()
    }

    /// Uses the prepared certificates for new connections.
    pub fn replace(&self, prepared: Prepared) {
        self.current.store(Arc::new(prepared.0));
    }

    /// The fingerprint of the files in use, to compare with the files on disk.
    pub(super) fn fingerprint(&self) -> u128 {
        self.current.load().fingerprint
    }

    /// Finds out whether the client speaks TLS, and does the handshake if it does.
    ///
    /// # Errors
    /// The error of the system or of the handshake.
    pub async fn accept(&self, socket: TcpStream) -> io::Result<Client> {
        let current = self.current.load_full();
        if !speaks_tls(&socket).await? {
            return Ok(match current.settings.mode {
                Mode::Required => Client::Refused(socket),
                Mode::Preferred => Client::Plain(socket),
            });
        }
        let acceptor = TlsAcceptor::from(Arc::clone(&current.config));
        Ok(Client::Tls(Box::new(acceptor.accept(socket).await?)))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acceptor({:?})", self.current.load().settings)
    }
}

/// Whether the first bytes begin a TLS handshake. It leaves them in the socket.
async fn speaks_tls(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0; TELLING];
    loop {
        let there = socket.peek(&mut first).await?;
        let seen = &first[..there];
        let may_be = [0x16, 0x03].iter().zip(seen).all(|(expected, byte)| expected == byte);
        if there == 0 || there == TELLING || !may_be {
            return Ok(is_handshake(seen));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Whether the bytes begin a TLS handshake.
///
/// The same bytes could be a message header with an allowed length. But as a header, they would answer an earlier
/// message, and a first message never does. The server decides in the same way.
pub fn is_handshake(bytes: &[u8]) -> bool {
    let answers = bytes.get(8..12);
    bytes.starts_with(&[0x16, 0x03]) && answers.is_some_and(|answers| answers != [0; 4] && answers != [0xff; 4])
}
