//! Reaches the deployment behind Keyward: finds it, holds Keyward's own client of it, and opens connections for clients.
//!
//! The driver's own monitoring follows the addresses ([`topology`]), and resolves `mongodb+srv`. A client's connection goes to
//! one of them, encrypted as the driver's, and stays there ([`Connection`]). Connecting has a time limit.

mod connection;
mod probe;
mod shard_keys;
mod statement_memory;
mod topology;

use std::io;
use std::time::Duration;

use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::options::{ClientOptions, ReadConcern, ServerAddress, Tls, WriteConcern};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

pub use connection::{Connection, ConnectionError, Reply, Unanswered};
pub use probe::Probe;
pub use shard_keys::{CollectionSharding, shard_keys, sharded_collection, sharded_collections};
pub use statement_memory::reports_retries;
pub use topology::{Targets, WIRE_VERSION_MIN};

use crate::metrics::UpstreamMetrics;
use crate::server::driver;
use crate::stream;
use crate::tls::{Connector, TlsError};

/// How long one address may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// How long the deployment may be silent before an operator who waits for its answer learns so.
const SILENCE: Duration = Duration::from_secs(3);
/// How long to leave it when no address accepted one.
const RETRY: Duration = Duration::from_millis(250);
/// How long upstream may take nothing of what was sent, before the system breaks the connection. Otherwise the system would send a write
/// again for a quarter of an hour, long after other Keywards take it for done or lost (`EntryTerms::aftermath`).
const UNTAKEN_MAX: Duration = Duration::from_secs(60);

/// How many connections of its own Keyward opens at most where each open cursor may need one, unless the URI says so.
const POOL_MAX: u32 = 1_000;

/// Why the upstream can't be used at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The URI can't be read, or its hosts can't be looked up.
    #[error("the upstream URI can't be used: {}", driver::in_words(.0))]
    Uri(#[from] mongodb::error::Error),
    /// The files for encryption that the URI names can't be used.
    #[error("the upstream URI asks for TLS: {0}")]
    Tls(#[from] TlsError),
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
    options: ClientOptions,
    targets: watch::Receiver<Targets>,
    /// Why the other servers can't be used.
    reasons: watch::Receiver<Vec<String>>,
    /// Where connections go as long as it can be reached.
    chosen: watch::Sender<Option<ServerAddress>>,
    has_credential: bool,
    tls: Option<Connector>,
    /// Counts clients' connections.
    metrics: Option<UpstreamMetrics>,
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
        options.app_name.get_or_insert_with(|| "keyward".into());
        // Keyward's own reads decide about writes. So they don't use secondaries, which the URI may ask for, or the cluster's default
        // read concern: `available` shows documents that a moved chunk has left behind.
        options.selection_criteria = None;
        options.read_concern = Some(ReadConcern::local());
        // A rollback must not undo Keyward's own writes, except where a command states its own write concern. No time limit of the URI
        // ends that wait.
        options.write_concern = Some(WriteConcern::majority());
        if options.load_balanced == Some(true) {
            // Then the driver keeps a connection for each open cursor.
            options.max_pool_size.get_or_insert(POOL_MAX);
        }
        let has_credential = options.credential.is_some();
        let (publish, targets) = watch::channel(Targets::default());
        let (publish_reasons, reasons) = watch::channel(Vec::new());
        let plain = options.clone();
        options.sdam_event_handler = Some(EventHandler::callback(move |event| {
            topology::follow(&publish, &publish_reasons, event);
        }));
        Ok(Upstream {
            client: Client::with_options(options)?,
            options: plain,
            targets,
            reasons,
            chosen: watch::Sender::default(),
            has_credential,
            tls,
            metrics: None,
        })
    }

    /// Counts clients' connections in `metrics`.
    pub fn counted(self, metrics: UpstreamMetrics) -> Upstream {
        Upstream {
            metrics: Some(metrics),
            ..self
        }
    }

    /// Keyward's own client, under the user in the URI.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Another client under the same user, with sessions of its own. A caller that numbers writes by hand needs one: the driver would
    /// give a session of [`Upstream::client`] to a later write, with a number that the server has seen.
    ///
    /// # Errors
    /// [`SetupError`] if the options can't be used.
    pub fn apart(&self) -> Result<Client, SetupError> {
        let mut options = self.options.clone();
        options.max_pool_size = Some(1);
        Ok(Client::with_options(options)?)
    }

    /// Another client under the same user, for audits. Each audited collection has a connection most of the time: a read of its change stream
    /// waits for changes. With the connections of [`Upstream::client`], reservations would wait for them.
    ///
    /// # Errors
    /// The same.
    pub fn for_audits(&self) -> Result<Client, SetupError> {
        let mut options = self.options.clone();
        options.max_pool_size.get_or_insert(POOL_MAX);
        Ok(Client::with_options(options)?)
    }

    /// Whether a load balancer gives each connection to one of several `mongos`.
    fn is_load_balanced(&self) -> bool {
        self.options.load_balanced == Some(true)
    }

    /// Whether Keyward itself has to authenticate. It then assumes that clients have to, too.
    pub fn has_credential(&self) -> bool {
        self.has_credential
    }

    /// The addresses that a client's connection may use, as they change.
    pub fn targets(&self) -> watch::Receiver<Targets> {
        self.targets.clone()
    }

    /// The server that new connections go to, as it changes.
    pub fn chosen(&self) -> watch::Receiver<Option<ServerAddress>> {
        self.chosen.subscribe()
    }

    /// Why no server can be used, where none can.
    pub fn why_no_target(&self) -> String {
        let reasons = self.reasons.borrow();
        match reasons.is_empty() {
            true => "no mongos or primary is known".to_owned(),
            false => reasons.join("; "),
        }
    }

    /// Waits for the answer to a question that is asked through [`Upstream::client`]. If it takes long, the log says why.
    pub async fn reporting_silence<T>(&self, asked: impl Future<Output = T>) -> T {
        let mut asked = std::pin::pin!(asked);
        if let Ok(answer) = timeout(SILENCE, &mut asked).await {
            return answer;
        }
        tracing::warn!(reason = self.why_no_target(), "the deployment has not answered yet");
        asked.await
    }

    /// Connects to the primary, or to a `mongos`. All connections use the same one while it can be reached: drivers take this for
    /// one server, and cursors and transactions live in one `mongos`. It is chosen at random.
    ///
    /// # Errors
    /// [`NoConnection`] if none accepts `within` that time.
    pub async fn connect(&self, within: Duration) -> Result<Connection, NoConnection> {
        let connected = self.connect_to_any(within).await;
        if let Some(metrics) = &self.metrics {
            match &connected {
                Ok(_) => metrics.opened.inc(),
                Err(_) => metrics.failed.inc(),
            }
        }
        connected
    }

    async fn connect_to_any(&self, within: Duration) -> Result<Connection, NoConnection> {
        let deadline = Instant::now() + within;
        let mut targets = self.targets.clone();
        let mut reason = String::new();
        loop {
            let addresses = self.in_order(&targets.borrow_and_update());
            for address in &addresses {
                match timeout_at(deadline, self.connect_to_one(address, &addresses[0])).await {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(why)) => reason = why,
                    Err(_) => {
                        if reason.is_empty() {
                            reason = format!("{address} accepted no connection");
                        }
                        return Err(NoConnection { reason, within });
                    }
                }
            }
            let pause = if addresses.is_empty() { within } else { RETRY };
            if addresses.is_empty() {
                reason = self.why_no_target();
            }
            let changed = timeout(pause, targets.changed());
            if timeout_at(deadline, changed).await.is_err() {
                return Err(NoConnection { reason, within });
            }
        }
    }

    /// The addresses of `targets`, the chosen one first. If none is chosen, or the chosen one is of no use any more, one is chosen by
    /// chance. It is of no use if another server is the primary, or if it is a `mongos` that is too old or left the deployment.
    ///
    /// A `mongos` stays chosen while it doesn't answer the driver: one error of Keyward's own is enough for that. Only a connection shows
    /// whether another one must be chosen.
    fn in_order(&self, targets: &Targets) -> Vec<ServerAddress> {
        let mut addresses = targets.addresses().to_vec();
        if addresses.is_empty() {
            return addresses;
        }
        self.chosen.send_if_modified(|chosen| {
            let there = chosen
                .as_ref()
                .and_then(|chosen| addresses.iter().position(|one| one == chosen));
            let first = there.unwrap_or_else(|| rand::random_range(0..addresses.len()));
            addresses.rotate_left(first);
            if there.is_some() {
                return false;
            }
            let silent = chosen.as_ref().filter(|chosen| targets.is_silent(chosen));
            if silent.is_some() && !targets.follows_primary() {
                addresses.splice(0..0, silent.cloned());
                return false;
            }
            *chosen = addresses.first().cloned();
            true
        });
        addresses
    }

    /// Chooses `address` instead of `former`, unless another one was chosen meanwhile.
    fn choose(&self, address: &ServerAddress, former: &ServerAddress) {
        self.chosen.send_if_modified(|chosen| {
            let is_former = chosen.as_ref() == Some(former);
            if is_former {
                *chosen = Some(address.clone());
            }
            is_former
        });
    }

    /// Connects to `address`. If it isn't the one that was chosen, it must answer first, and is then chosen: a server that has
    /// stopped accepts connections, too.
    async fn connect_to_one(&self, address: &ServerAddress, chosen: &ServerAddress) -> Result<Connection, String> {
        let is_chosen = address == chosen;
        if !is_chosen {
            // Boxed: its state would be part of every idle connection.
            Box::pin(self.probe_once(address)).await?;
        }
        let connected = self.connect_to(address).await;
        let connection = connected.map_err(|error| format!("{address}: {error}"))?;
        if !is_chosen {
            self.choose(address, chosen);
        }
        Ok(connection)
    }

    async fn connect_to(&self, address: &ServerAddress) -> io::Result<Connection> {
        let ServerAddress::Tcp { host, port } = address else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let connecting = async {
            let socket = TcpStream::connect((host.as_str(), port.unwrap_or(27017))).await?;
            SockRef::from(&socket).set_tcp_user_timeout(Some(UNTAKEN_MAX))?;
            match &self.tls {
                None => stream::split(socket),
                Some(tls) => stream::split_encrypted(tls.connect(host, socket).await?),
            }
        };
        let halves = timeout(CONNECT, connecting)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let connection = Connection::new(halves, address.clone());
        Ok(match self.targets.borrow().follows_primary() {
            true => connection.of_primary(),
            false => connection,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_uri_has_no_say_in_what_may_be_rolled_back() {
        let uri = "mongodb://a:1/?journal=false&wtimeoutMS=1&readPreference=secondary&readConcernLevel=local";
        let upstream = Upstream::new(uri).await.unwrap();
        let client = upstream.client();
        assert_eq!(client.write_concern(), Some(&WriteConcern::majority()));
        let reads = (client.selection_criteria(), client.read_concern());
        assert_eq!(reads, (None, Some(&ReadConcern::local())));
    }

    #[tokio::test]
    async fn all_connections_go_to_one_of_several_mongos() {
        let addresses = ["a:1", "b:1", "c:1"].map(|address| ServerAddress::parse(address).unwrap());
        let mut first = Vec::new();
        for _ in 0..60 {
            let upstream = Upstream::new("mongodb://a:1,b:1,c:1").await.unwrap();
            let routers = |addresses: &[ServerAddress], silent: &[ServerAddress]| Targets::of(addresses, silent, false);
            let all = routers(&addresses, &[]);
            let order = upstream.in_order(&all);
            assert_eq!(order.len(), 3);
            assert_eq!(upstream.in_order(&all), order);
            // Other targets come and go meanwhile, and so does the chosen one.
            assert_eq!(upstream.in_order(&routers(&order[..1], &order[1..]))[0], order[0]);
            assert_eq!(upstream.in_order(&routers(&order[1..], &order[..1]))[0], order[0]);
            upstream.choose(&order[1], &order[0]);
            assert_eq!(upstream.in_order(&all)[0], order[1]);
            // Another task has found out about the former one later.
            upstream.choose(&order[2], &order[0]);
            assert_eq!(upstream.in_order(&all)[0], order[1]);
            // Another server is the primary.
            let primary = Targets::of(&order[2..], &order[..2], true);
            assert_eq!(upstream.in_order(&primary), order[2..]);
            first.push(order[0].to_string());
        }
        first.sort_unstable();
        first.dedup();
        assert_eq!(first, ["a:1", "b:1", "c:1"], "not every Keyward goes to the same one");
    }

    /// It is too old, or the deployment doesn't have it any more. It may still accept connections.
    #[tokio::test]
    async fn a_chosen_mongos_that_is_no_target_any_more_gets_no_connection() {
        let addresses = ["a:1", "b:1", "c:1"].map(|address| ServerAddress::parse(address).unwrap());
        let upstream = Upstream::new("mongodb://a:1,b:1,c:1").await.unwrap();
        let mut chosen = upstream.chosen();
        let order = upstream.in_order(&Targets::of(&addresses, &[], false));
        assert_eq!(chosen.borrow_and_update().as_ref(), Some(&order[0]));
        let others = upstream.in_order(&Targets::of(&order[1..2], &order[2..], false));
        assert_eq!(others, order[1..2]);
        // Existing connections learn it, too.
        assert!(chosen.has_changed().unwrap());
        assert_eq!(chosen.borrow_and_update().as_ref(), Some(&order[1]));
    }
}
