//! Checks the connection string of the deployment behind Keyward, and never shows its password.
//!
//! Keyward's own driver uses the whole string. Clients' connections use only its addresses and its encryption. Keyward
//! decides some options itself. It refuses a string that contradicts them, because it would silently ignore its
//! options.

use std::fmt;
use std::time::Duration;

use mongodb::error::ErrorKind;
use mongodb::options::{
    Acknowledgment, ConnectionString, HostInfo, ReadConcernLevel, ReadPreference, ServerAddress, Tls,
};

use crate::tls::Connector;

/// Options whose values are secret, in lower case.
const SECRET_OPTIONS: [&str; 3] = [
    "authmechanismproperties",
    "tlscertificatekeyfilepassword",
    "proxypassword",
];
/// The driver asks servers no more often than this.
const HEARTBEAT_MIN_MS: u64 = 500;
/// The port of a host without one.
const DEFAULT_PORT: u16 = 27017;

/// The deployment's addresses and Keyward's login there; `Display` and `Debug` omit the password.
#[derive(Clone, PartialEq, Eq)]
pub struct UpstreamUri {
    uri: String,
    username: Option<String>,
    /// With `mongodb+srv`, the name under which the addresses are looked up.
    service: Option<String>,
    hosts: Vec<Host>,
    replica_set: Option<String>,
    has_tls: bool,
}

/// One address of the connection string.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// A name or an IP address, as written.
    pub name: String,
    /// The TCP port.
    pub port: u16,
}

/// Why a connection string is refused; never quotes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message names each field")]
pub enum UpstreamUriError {
    /// The driver can't read it.
    #[error("not a MongoDB connection string: {0}")]
    Malformed(String),
    /// It asks for something that Keyward can't do.
    #[error("{0} is not supported yet")]
    NotSupported(&'static str),
    /// A file that it names can't be used.
    #[error("asks for TLS: {0}")]
    Tls(String),
    /// It holds a user or a password that is also given elsewhere.
    #[error("the connection string has a {0} already")]
    Twice(&'static str),
    /// A password is given elsewhere, but no user.
    #[error("whose password is it? Give upstream_username_file, or put the user into the connection string")]
    Nobody,
    /// An option's number is too small for the driver.
    #[error("{option} must be {least} or more")]
    TooSmall { option: &'static str, least: u64 },
    /// Several of these.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<UpstreamUriError>),
    /// It sets an option that Keyward sets itself.
    #[error("{option} must be left out or be {instead}: {because}")]
    Contradictory {
        option: &'static str,
        instead: &'static str,
        because: &'static str,
    },
}

impl UpstreamUri {
    /// Checks a MongoDB connection string.
    ///
    /// # Errors
    /// [`UpstreamUriError`] with all its problems.
    pub fn new(uri: &str) -> Result<Self, UpstreamUriError> {
        let parsed = ConnectionString::parse(uri).map_err(|error| malformed(uri, &error))?;
        let mut refused = refused_options(&parsed);
        if let Some(Tls::Enabled(options)) = &parsed.tls
            && let Err(error) = Connector::new(options)
        {
            refused.push(UpstreamUriError::Tls(error.to_string()));
        }
        let (service, hosts) = match parsed.host_info {
            HostInfo::DnsRecord(name) => (Some(name), Ok(Vec::new())),
            addresses => (None, hosts(addresses)),
        };
        let hosts = hosts.unwrap_or_else(|error| {
            refused.push(error);
            Vec::new()
        });
        match refused.pop() {
            Some(only) if refused.is_empty() => return Err(only),
            Some(last) => {
                refused.push(last);
                return Err(UpstreamUriError::Several(refused));
            }
            None => {}
        }
        Ok(UpstreamUri {
            has_tls: match &parsed.tls {
                Some(tls) => matches!(tls, Tls::Enabled(_)),
                // The driver's default.
                None => service.is_some(),
            },
            uri: uri.to_owned(),
            username: parsed.credential.and_then(|credential| credential.username),
            service,
            hosts,
            replica_set: parsed.replica_set,
        })
    }

    /// The whole connection string, password included: for the driver, never for a log.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Whether the connections to it are encrypted.
    pub fn has_tls(&self) -> bool {
        self.has_tls
    }

    /// The addresses in the order of the string; none with `mongodb+srv`, which has a name in their place.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl fmt::Display for UpstreamUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.service {
            Some(_) => "mongodb+srv://",
            None => "mongodb://",
        })?;
        if let Some(username) = &self.username {
            write!(f, "{username}:***@")?;
        }
        if let Some(service) = &self.service {
            f.write_str(service)?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{host}")?;
        }
        match &self.replica_set {
            Some(name) => write!(f, "/?replicaSet={name}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for UpstreamUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpstreamUri({self})")
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// The connection string `uri` with a user and a password that are given elsewhere.
///
/// # Errors
/// [`UpstreamUriError`] if it has its own, or if there is a password without a user.
pub fn with_credentials(uri: &str, username: Option<&str>, password: Option<&str>) -> Result<String, UpstreamUriError> {
    if username.is_none() && password.is_none() {
        return Ok(uri.to_owned());
    }
    // If it isn't a connection string, `UpstreamUri::new` reports that.
    let Some((scheme, rest)) = uri.split_once("://") else {
        return Ok(uri.to_owned());
    };
    let (authority, options) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (written, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user = match (written, username) {
        ("", Some(username)) => percent_encoded(username),
        ("", None) => return Err(UpstreamUriError::Nobody),
        (_, Some(_)) => return Err(UpstreamUriError::Twice("user")),
        (written, None) if written.contains(':') => return Err(UpstreamUriError::Twice("password")),
        (written, None) => written.to_owned(),
    };
    let password = password.map(|password| format!(":{}", percent_encoded(password)));
    Ok(format!(
        "{scheme}://{user}{}@{hosts}{options}",
        password.unwrap_or_default()
    ))
}

fn percent_encoded(text: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}

/// The options in the string that Keyward can't follow, or follows in another way.
fn refused_options(parsed: &ConnectionString) -> Vec<UpstreamUriError> {
    let acknowledgment = parsed.write_concern.as_ref().and_then(|concern| concern.w.as_ref());
    let level = parsed.read_concern.as_ref().map(|concern| &concern.level);
    let has_several_hosts = matches!(&parsed.host_info, HostInfo::HostIdentifiers(hosts) if hosts.len() > 1);
    let is_load_balanced = parsed.load_balanced == Some(true);
    let unsupported = [(parsed.tls_insecure() == Some(true), "tlsInsecure")];
    let contradictory = [
        (
            acknowledgment.is_some_and(|w| *w != Acknowledgment::Majority),
            "w",
            "majority",
            "a reservation that can be rolled back protects nothing",
        ),
        (
            !matches!(parsed.read_preference, None | Some(ReadPreference::Primary)),
            "readPreference",
            "primary",
            "a secondary may not know yet who owns a key",
        ),
        (
            level.is_some_and(|level| *level != ReadConcernLevel::Majority),
            "readConcernLevel",
            "majority",
            "a read may return data that is rolled back later",
        ),
        (
            parsed.retry_writes == Some(false),
            "retryWrites",
            "true",
            "a reservation must survive an election",
        ),
        (
            is_load_balanced && has_several_hosts,
            "loadBalanced",
            "false",
            "the connection string has several addresses",
        ),
        (
            is_load_balanced && (parsed.replica_set.is_some() || parsed.direct_connection == Some(true)),
            "loadBalanced",
            "false",
            "replicaSet and directConnection name a server, and a load balancer chooses it",
        ),
        (
            parsed.direct_connection == Some(true) && has_several_hosts,
            "directConnection",
            "false",
            "the connection string has several addresses",
        ),
    ];
    let unsupported = unsupported.into_iter().filter(|(is_set, _)| *is_set);
    let unsupported = unsupported.map(|(_, option)| UpstreamUriError::NotSupported(option));
    let contradictory = contradictory.into_iter().filter(|(is_set, ..)| *is_set);
    let contradictory = contradictory.map(|(_, option, instead, because)| UpstreamUriError::Contradictory {
        option,
        instead,
        because,
    });
    unsupported.chain(contradictory).chain(too_small(parsed)).collect()
}

/// The options whose numbers the driver would refuse only when it connects, under names of its own.
fn too_small(parsed: &ConnectionString) -> impl Iterator<Item = UpstreamUriError> {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let numbers = [
        (
            "heartbeatFrequencyMS",
            parsed.heartbeat_frequency.map(milliseconds),
            HEARTBEAT_MIN_MS,
        ),
        ("maxPoolSize", parsed.max_pool_size.map(u64::from), 1),
        ("maxConnecting", parsed.max_connecting.map(u64::from), 1),
    ];
    let small = numbers
        .into_iter()
        .filter(|(_, number, least)| number.is_some_and(|number| number < *least));
    small.map(|(option, _, least)| UpstreamUriError::TooSmall { option, least })
}

fn hosts(info: HostInfo) -> Result<Vec<Host>, UpstreamUriError> {
    let HostInfo::HostIdentifiers(addresses) = info else {
        return Err(UpstreamUriError::NotSupported("mongodb+srv"));
    };
    addresses
        .into_iter()
        .map(|address| match address {
            ServerAddress::Tcp { host, port } => Ok(Host {
                name: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
                port: port.unwrap_or(DEFAULT_PORT),
            }),
            _ => Err(UpstreamUriError::NotSupported("a Unix domain socket")),
        })
        .collect()
}

/// The driver's own text, unless that could repeat a part of the credentials before the `@` or of a secret option.
fn malformed(uri: &str, error: &mongodb::error::Error) -> UpstreamUriError {
    let reason = match &*error.kind {
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let repeats = |secrets: &str| {
        let mut parts = secrets.split([':', '/', '@', ',', '&', '=']);
        parts.any(|part| part.len() > 2 && !part.starts_with("mongodb") && reason.contains(part))
    };
    let (authority, options) = uri.split_once('?').unwrap_or((uri, ""));
    let secret_options = options
        .split('&')
        .filter_map(|option| option.split_once('='))
        .any(|(name, value)| SECRET_OPTIONS.contains(&name.to_ascii_lowercase().as_str()) && repeats(value));
    let is_secret = |credentials: &str| repeats(credentials) && credentials.contains(':');
    UpstreamUriError::Malformed(match authority.rsplit_once('@').or(uri.rsplit_once('@')) {
        _ if secret_options => "an option with a password in it has a value that it can't have".to_owned(),
        Some((credentials, _)) if repeats(credentials) => {
            "its user name or password is not written as a URI wants it (percent-encoded)".to_owned()
        }
        // The string may be cut off before its `@`.
        None if is_secret(authority.split_once("://").map_or(authority, |(_, hosts)| hosts)) => {
            "an address is not written as host:port".to_owned()
        }
        _ => reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_the_wrong_place_is_not_repeated() {
        for uri in [
            "mongodb://root:s3cret",
            "mongodb://root:s3cret/shop",
            "mongodb://db/?authMechanismProperties=s3cret",
            "mongodb://db/?tls=true&tlsCertificateKeyFilePassword=s3cret&retryWrites=s3cret",
        ] {
            let error = UpstreamUri::new(uri).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{uri}: {error}");
        }
        let error = UpstreamUri::new("mongodb://db/?retryWrites=perhaps")
            .unwrap_err()
            .to_string();
        assert!(error.contains("retrywrites"), "{error}");
    }

    #[test]
    fn hosts_are_read_in_order_with_the_default_port() {
        let upstream = UpstreamUri::new("mongodb://a:1,b,[::1]:3/?replicaSet=rs0").unwrap();
        let hosts: Vec<String> = upstream.hosts().iter().map(Host::to_string).collect();
        assert_eq!(hosts, ["a:1", "b:27017", "[::1]:3"]);
        assert_eq!(upstream.replica_set.as_deref(), Some("rs0"));
    }

    #[test]
    fn the_password_is_never_shown() {
        let upstream = UpstreamUri::new("mongodb://keyward:s3cret@db:27017/?authSource=admin").unwrap();
        assert_eq!(upstream.to_string(), "mongodb://keyward:***@db:27017");
        assert_eq!(format!("{upstream:?}"), "UpstreamUri(mongodb://keyward:***@db:27017)");
        assert!(upstream.uri().contains("s3cret"));
        for broken in [
            "mongodb://keyward:s3cret@@db",
            "mongodb://key:ward:s3cret@db",
            "mongodb://keyward:s3cret/@db",
            "mongodb://keyward:s3cret%@db",
            "mongodb://keyward:s3cret@db/?w=s3",
            "mongo://keyward:s3cret@db",
            "keyward:s3cret@db",
        ] {
            let shown = format!("{:?}", UpstreamUri::new(broken));
            assert!(!shown.contains("s3cret"), "{broken} gives {shown}");
        }
    }

    #[test]
    fn a_name_may_stand_for_the_addresses() {
        let upstream = UpstreamUri::new("mongodb+srv://keyward:s3cret@db.example.com/?tls=true").unwrap();
        assert_eq!(upstream.to_string(), "mongodb+srv://keyward:***@db.example.com");
        assert!(upstream.hosts().is_empty());
    }

    #[test]
    fn options_that_an_application_usually_has_are_taken() {
        let usual = "mongodb://u:p@a,b/app?retryWrites=true&w=majority&authSource=admin&appName=keyward&maxPoolSize=20\
                     &heartbeatFrequencyMS=500";
        assert!(UpstreamUri::new(usual).is_ok());
        assert!(UpstreamUri::new("mongodb://a/?loadBalanced=true").is_ok());
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let wrong = "mongodb://a/?w=1&readPreference=secondary&retryWrites=false&loadBalanced=false";
        let error = UpstreamUri::new(wrong).unwrap_err().to_string();
        for option in ["w must", "; readPreference must", "; retryWrites must"] {
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn options_that_would_be_ignored_are_refused() {
        for (uri, part) in [
            ("mongodb://a/?w=1", "w must"),
            ("mongodb://a/?readPreference=secondary", "readPreference must"),
            ("mongodb://a/?readConcernLevel=local", "readConcernLevel must"),
            ("mongodb://a/?retryWrites=false", "retryWrites must"),
            ("mongodb://a,b/?loadBalanced=true", "loadBalanced must"),
            ("mongodb://a/?loadBalanced=true&replicaSet=r", "loadBalanced must"),
            (
                "mongodb://a/?tls=true&tlsCAFile=/missing.pem",
                "/missing.pem cannot be read",
            ),
            (
                "mongodb://a/?heartbeatFrequencyMS=499",
                "heartbeatFrequencyMS must be 500 or more",
            ),
            ("mongodb://a/?maxPoolSize=0", "maxPoolSize must be 1 or more"),
            ("mongodb://a/?maxConnecting=0", "maxConnecting must be 1 or more"),
            ("mongodb://a,b/?directConnection=true", "directConnection must"),
            ("mongodb://%2Ftmp%2Fmongodb.sock", "a Unix domain socket is not"),
            (
                "mongodb://a/?wibble=1",
                "not a MongoDB connection string: wibble is an invalid option",
            ),
            ("http://a", "not a MongoDB connection string"),
            ("", "not a MongoDB connection string"),
        ] {
            let error = UpstreamUri::new(uri).unwrap_err().to_string();
            assert!(error.contains(part), "{uri} gives {error}");
        }
    }
}
