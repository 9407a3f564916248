//! Encrypts connections to the deployment as the connection string asks: with the driver's options and meaning.

use std::fmt;
use std::io;
use std::sync::Arc;

use mongodb::options::TlsOptions;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::files::{TlsError, authorities, certificates, private_key, provider, read};

/// Encrypts connections to the deployment.
#[derive(Clone)]
pub struct Connector(TlsConnector);

impl Connector {
    /// Makes a connector for `options`; without `tlsCAFile`, it trusts the authorities that Mozilla trusts.
    ///
    /// # Errors
    /// [`TlsError`] if a file can't be used.
    pub fn new(options: &TlsOptions) -> Result<Connector, TlsError> {
        let mut roots = RootCertStore::empty();
        match &options.ca_file_path {
            Some(path) => roots = authorities(path, &read(path)?)?,
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let file = options.cert_key_file_path.as_ref();
        let file = file.or(options.ca_file_path.as_ref()).cloned().unwrap_or_default();
        let unusable = |reason: String| TlsError::Unusable {
            path: file.clone(),
            reason,
        };
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let verifier: Arc<dyn ServerCertVerifier> = match options.allow_invalid_certificates {
            Some(true) => Arc::new(Unverified(verifier)),
            _ => verifier,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match &options.cert_key_file_path {
            Some(path) => {
                let content = read(path)?;
                builder
                    .with_client_auth_cert(certificates(path, &content)?, private_key(path, &content)?)
                    .map_err(|error| unusable(error.to_string()))?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Connector(TlsConnector::from(Arc::new(config))))
    }

    /// Does the handshake with the server that `host` names.
    ///
    /// # Errors
    /// The error of the system, or the fault of the server's certificate.
    pub async fn connect(
        &self,
        host: &str,
        socket: TcpStream,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.0.connect(name, socket).await
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

/// `tlsAllowInvalidCertificates`: every certificate is accepted. The verifier only checks that the server has its key.
#[derive(Debug)]
struct Unverified(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
