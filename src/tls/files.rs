//! PEM files into certificates, keys and authorities, or what is wrong with them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use xxhash_rust::xxh3::xxh3_128;

use super::{ClientCertificate, Settings};

/// Why certificates can't be used; never quotes a key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("{} cannot be read: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// A file doesn't hold what it should.
    #[error("{} holds no {what} in PEM form", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// What the files hold doesn't go together, or is of a kind that isn't spoken.
    #[error("{} can't be used: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What rustls says.
        reason: String,
    },
}

/// The content of the files for clients' connections.
pub struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    /// Reads them, each once, so that what is checked is what is used.
    ///
    /// # Errors
    /// [`TlsError::Unreadable`].
    pub fn read(settings: &Settings) -> Result<Files, TlsError> {
        Ok(Files {
            certificate: read(&settings.certificate)?,
            key: read(&settings.key)?,
            client_ca: settings.client_ca.as_deref().map(read).transpose()?,
        })
    }

    /// Tells them from any others.
    pub fn fingerprint(&self) -> u128 {
        let ca = self.client_ca.as_deref().unwrap_or_default();
        xxh3_128(&[&self.certificate[..], &self.key, ca].join(&b"\0"[..]))
    }

    /// What clients' connections are accepted with.
    ///
    /// # Errors
    /// [`TlsError`] if the files don't hold what they should, or key and certificate don't go together.
    pub fn server_config(&self, settings: &Settings) -> Result<ServerConfig, TlsError> {
        let unusable = |path: &Path, reason: String| TlsError::Unusable {
            path: path.to_owned(),
            reason,
        };
        let chain = certificates(&settings.certificate, &self.certificate)?;
        let key = private_key(&settings.key, &self.key)?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&settings.certificate, error.to_string()))?;
        let builder = match (&settings.client_ca, &self.client_ca) {
            (Some(path), Some(content)) => {
                let roots = Arc::new(authorities(path, content)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = match settings.client_certificate {
                    ClientCertificate::Required => verifier,
                    ClientCertificate::Optional => verifier.allow_unauthenticated(),
                };
                let verifier = verifier.build().map_err(|error| unusable(path, error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        builder
            .with_single_cert(chain, key)
            .map_err(|error| unusable(&settings.certificate, error.to_string()))
    }
}

/// The cryptography: the one that the driver has, too.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A file's content.
///
/// # Errors
/// [`TlsError::Unreadable`].
pub fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|cause| TlsError::Unreadable {
        path: path.to_owned(),
        cause,
    })
}

/// The certificates in `content`, at least one.
///
/// # Errors
/// [`TlsError`] if there is none, or one is no PEM.
pub fn certificates(path: &Path, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let empty = || TlsError::Empty {
        path: path.to_owned(),
        what: "certificate",
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
    certificates
        .ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(empty)
}

/// The private key in `content`.
///
/// # Errors
/// [`TlsError::Empty`] if there is none; an encrypted one can't be read either.
pub fn private_key(path: &Path, content: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(content).map_err(|_| TlsError::Empty {
        path: path.to_owned(),
        what: "unencrypted private key",
    })
}

/// The authorities in `content`.
///
/// # Errors
/// [`TlsError`] if there is none, or one is no certificate.
pub fn authorities(path: &Path, content: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, content)? {
        roots.add(certificate).map_err(|error| TlsError::Unusable {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
    }
    Ok(roots)
}
