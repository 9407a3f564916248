//! Reads certificates, keys and authorities from PEM files, and reports their faults.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use xxhash_rust::xxh3::xxh3_128;

use super::{ClientCertificate, TlsSettings};

/// Why certificates can't be used; never quotes a key.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names each field")]
pub enum TlsError {
    /// A file can't be read.
    #[error("{} cannot be read: {cause}", path.display())]
    Unreadable { path: PathBuf, cause: io::Error },
    /// A file doesn't hold the expected certificate or key.
    #[error("{} holds no {what} in PEM form", path.display())]
    Empty { path: PathBuf, what: &'static str },
    /// A key or certificate doesn't match the others, or is of a kind that isn't supported.
    #[error("{} can't be used: {reason}", path.display())]
    Unusable { path: PathBuf, reason: String },
}

/// The content of the files for clients' connections.
pub struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    /// Reads each file once, so that the checked content is the content in use.
    pub fn read(settings: &TlsSettings) -> Result<Files, TlsError> {
        Ok(Files {
            certificate: read(&settings.certificate)?,
            key: read(&settings.key)?,
            client_ca: settings.client_ca.as_deref().map(read).transpose()?,
        })
    }

    /// A hash that identifies the content of the files.
    pub fn fingerprint(&self) -> u128 {
        let ca = self.client_ca.as_deref().unwrap_or_default();
        xxh3_128(&[&self.certificate[..], &self.key, ca].join(&b"\0"[..]))
    }

    /// The rustls configuration for clients' connections.
    ///
    /// # Errors
    /// [`TlsError`] if a file doesn't hold the expected content, or if key and certificate don't match.
    pub fn server_config(&self, settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
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

/// The provider of cryptography, which the driver also uses.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A file's content.
pub fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|cause| TlsError::Unreadable {
        path: path.to_owned(),
        cause,
    })
}

/// The certificates in `content`, at least one.
///
/// # Errors
/// [`TlsError`] if there is none, or if one isn't PEM.
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
/// [`TlsError::Empty`] if there is none, or if it is encrypted.
pub fn private_key(path: &Path, content: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(content).map_err(|_| TlsError::Empty {
        path: path.to_owned(),
        what: "unencrypted private key",
    })
}

/// The authorities in `content`.
///
/// # Errors
/// [`TlsError`] if there is none, or if one isn't a certificate.
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
