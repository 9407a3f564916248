//! Checks the `tls` section.
//!
//! It loads the certificates for clients' connections, so that an accepted section can be used.

use std::path::Path;

use super::check::FoundProblems;
use super::problem::SettingPath;
use super::raw::{RawTls, RawTlsMode};
use crate::tls::{Acceptor, Mode, TlsSettings};

/// Checks the section; its file names are relative to `directory`.
pub fn check(raw: RawTls, directory: &Path, found: &mut FoundProblems<'_>) -> Option<TlsSettings> {
    let path = SettingPath::top().field("tls");
    let mode = match raw.mode {
        None | Some(RawTlsMode::Required) => Mode::Required,
        Some(RawTlsMode::Preferred) => Mode::Preferred,
        Some(RawTlsMode::Off) => return None,
    };
    let Some(certificate) = raw.certificate else {
        found.refuse(
            path.field("certificate"),
            "missing; which certificate does Keyward show? (PEM)",
        );
        return None;
    };
    if raw.client_ca.is_none() && raw.client_certificate.is_some() {
        let reason = "needs client_ca: the authorities whose certificates are good";
        found.refuse(path.field("client_certificate"), reason);
        return None;
    }
    let settings = TlsSettings {
        mode,
        key: directory.join(raw.key.as_ref().unwrap_or(&certificate)),
        certificate: directory.join(certificate),
        client_ca: raw.client_ca.map(|file| directory.join(file)),
        client_certificate: raw.client_certificate.unwrap_or_default(),
    };
    match Acceptor::new(settings.clone()) {
        Ok(_) => Some(settings),
        Err(error) => {
            found.refuse(path, error);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    /// The problem with `tls`. `both.pem` holds a self-signed certificate and its key, `other.pem` another key.
    fn refusal(tls: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let made = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        let both = one.cert.pem() + &one.signing_key.serialize_pem();
        std::fs::write(folder.path().join("both.pem"), both).unwrap();
        std::fs::write(folder.path().join("other.pem"), other.signing_key.serialize_pem()).unwrap();
        let text = format!("upstream: mongodb://db\nconstraints: []\ntls: {tls}\n");
        let checked = Config::from_text(&folder.path().join("keyward.yaml"), &text, None);
        let problems = checked.err()?.problems;
        Some(format!("{}: {}", problems[0].path, problems[0].reason))
    }

    #[test]
    fn certificates_are_taken_that_go_together() {
        assert_eq!(refusal("{ certificate: both.pem }"), None);
        assert_eq!(
            refusal("{ certificate: both.pem, client_ca: both.pem, mode: preferred }"),
            None
        );
        assert_eq!(refusal("{ mode: 'off', certificate: missing.pem }"), None);
        for (tls, reason) in [
            ("{ mode: required }", "tls.certificate: missing"),
            ("{ certificate: missing.pem }", "missing.pem cannot be read"),
            ("{ certificate: other.pem }", "other.pem holds no certificate"),
            ("{ certificate: both.pem, key: keyward.yaml }", "cannot be read"),
            ("{ certificate: both.pem, key: other.pem }", "can't be used"),
            (
                "{ certificate: both.pem, client_ca: other.pem }",
                "holds no certificate",
            ),
            (
                "{ certificate: both.pem, client_certificate: optional }",
                "needs client_ca",
            ),
        ] {
            let said = refusal(tls).unwrap_or_default();
            assert!(said.contains(reason), "{tls}: {said}");
        }
    }
}
