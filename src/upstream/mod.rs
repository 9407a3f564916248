//! The deployment behind Keyward: where it is, Keyward's own client of it, and connections for clients.
//!
//! Who may be connected to is followed by the driver's own monitoring ([`topology`]), which also resolves
//! `mongodb+srv`; a client's connection goes to one of those, encrypted as the driver's, and for life ([`Connection`]). Connecting ends after a limit: nobody waits for ever.

mod connection;
mod topology;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::options::{ClientOptions, ServerAddress, Tls};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

pub use connection::{Connection, Error, Reply};
pub use topology::Targets;

use crate::stream;
use crate::tls::{Connector, TlsError};

/// How long one address may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// How long to leave it when no address accepted one.
const RETRY: Duration = Duration::from_millis(250);

/// Why the upstream can't be used at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The URI can't be read, or its hosts can't be looked up.
    #[error("the upstream URI can't be used: {0}")]
    Uri(#[from] mongodb::error::Error),
    /// The files for encryption that the URI names can't be used.
    #[error("the upstream URI asks for TLS: {0}")]
    Tls(#[from] TlsError),
    /// The URI asks for load balancer mode.
    #[error("the upstream URI asks for loadBalanced=true, which Keyward doesn't speak")]
    LoadBalanced,
}

/// No upstream connection came about within the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no upstream connection within {}: {reason}", humantime::format_duration(*.within))]
pub struct NoConnection {
    reason: String,
    within: Duration,
}

/// The deployment behind Keyward.
#[derive(Debug, Clone)]
pub struct Upstream {
    client: Client,
    targets: watch::Receiver<Targets>,
    turn: Arc<AtomicUsize>,
    has_credential: bool,
    tls: Option<Connector>,
}

impl Upstream {
    /// Starts to follow the deployment at `uri`: one or several `mongos`, or a replica set.
    ///
    /// # Errors
    /// [`SetupError`] if the URI can't be used; a deployment that can't be reached yet is no error.
    pub async fn new(uri: &str) -> Result<Self, SetupError> {
        let mut options = ClientOptions::parse(uri).await?;
        let tls = match &options.tls {
            Some(Tls::Enabled(tls)) => Some(Connector::new(tls)?),
            _ => None,
        };
        if options.load_balanced == Some(true) {
            return Err(SetupError::LoadBalanced);
        }
        options.app_name.get_or_insert_with(|| "keyward".into());
        // What Keyward itself reads decides over writes: a secondary's past, which the URI may ask for, is no ground for it.
        options.selection_criteria = None;
        options.read_concern = None;
        let has_credential = options.credential.is_some();
        let (publish, targets) = watch::channel(Targets::default());
        options.sdam_event_handler = Some(EventHandler::callback(move |event| topology::follow(&publish, event)));
        Ok(Upstream {
            client: Client::with_options(options)?,
            targets,
            turn: Arc::default(),
            has_credential,
            tls,
        })
    }

    /// Keyward's own client, under the user in the URI.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether Keyward itself has to authenticate, and so, one may assume, everybody else.
    pub fn has_credential(&self) -> bool {
        self.has_credential
    }

    /// Who may be connected to, as it changes.
    pub fn targets(&self) -> watch::Receiver<Targets> {
        self.targets.clone()
    }

    /// Connects to a `mongos` (each in turn) or to the primary.
    ///
    /// # Errors
    /// [`NoConnection`] if none accepts `within` that time.
    pub async fn connect(&self, within: Duration) -> Result<Connection, NoConnection> {
        let deadline = Instant::now() + within;
        let mut targets = self.targets.clone();
        let mut reason = "no mongos or primary is known".to_owned();
        loop {
            let addresses = targets.borrow_and_update().addresses().to_vec();
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            for offset in 0..addresses.len() {
                let address = &addresses[(turn + offset) % addresses.len()];
                match timeout_at(deadline, self.connect_to(address)).await {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(error)) => reason = format!("{address}: {error}"),
                    Err(_) => return Err(NoConnection { reason, within }),
                }
            }
            let pause = if addresses.is_empty() { within } else { RETRY };
            let changed = timeout(pause, targets.changed());
            if timeout_at(deadline, changed).await.is_err() {
                return Err(NoConnection { reason, within });
            }
        }
    }

    async fn connect_to(&self, address: &ServerAddress) -> io::Result<Connection> {
        let ServerAddress::Tcp { host, port } = address else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let connecting = async {
            let socket = TcpStream::connect((host.as_str(), port.unwrap_or(27017))).await?;
            match &self.tls {
                None => stream::split(socket),
                Some(tls) => stream::split_encrypted(tls.connect(host, socket).await?),
            }
        };
        let halves = timeout(CONNECT, connecting)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Connection::new(halves, address.clone()))
    }
}
