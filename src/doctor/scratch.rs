//! Holds the scratch database, and the client by which checks reach it.
//!
//! No check touches another database's documents. On a sharded cluster one collection is spread over the shards by a hash, so that
//! nothing need be split or moved for it.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::options::{SelectionCriteria, ServerAddress};
use mongodb::{Client, Database};
use tokio::time::timeout;

use super::check::{CheckError, Needs};
use super::session::ScratchSession;
use crate::config::Config;
use crate::constraint::Constraint;
use crate::prepare;
use crate::server::driver;
use crate::upstream::Upstream;

/// How the names of scratch databases begin.
pub const PREFIX: &str = "keyward_doctor_";
/// The collection over two shards, or a plain one on a replica set.
pub const DOCUMENTS: &str = "documents";
/// How long one command may take.
const COMMAND_MAX: Duration = Duration::from_secs(40);
/// How long a server that is asked by its address may take.
const MEMBER_MAX: Duration = Duration::from_secs(5);
/// How many values of the shard key are tried until two are on different shards.
const PLACES_TRIED: i32 = 64;
/// How often the scratch database is dropped until it is gone.
const DROPS: usize = 3;

/// Two values of `h` in [`DOCUMENTS`]: on two shards, where there are any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwoPlaces {
    pub first: i32,
    pub second: i32,
    /// The shards' names; equal on a replica set.
    pub shards: [String; 2],
}

/// The scratch database, and the deployment around it.
pub struct Scratch {
    client: Client,
    name: String,
    /// One `mongos`, because transactions and cursors live in one.
    router: Option<ServerAddress>,
    /// The addresses of the configuration.
    pub addresses: Vec<String>,
    /// The lease of the configuration.
    pub lease: Duration,
    /// The constraints of the configuration.
    pub constraints: Vec<Arc<Constraint>>,
    /// The deployment's answer to `hello`.
    pub hello: Document,
    /// The names of the shards; none on a replica set.
    pub shards: Option<Vec<String>>,
    /// `Err` holds the reason why there are none.
    places: Result<TwoPlaces, String>,
    /// `Err` holds the reason why there is none.
    database: Result<(), String>,
    is_interrupted: Arc<AtomicBool>,
    number: AtomicI64,
    /// The sessions in which a check may have left a transaction open.
    sessions: Mutex<Vec<Document>>,
}

impl Scratch {
    /// For the deployment behind `upstream`; nothing is created yet.
    pub fn new(upstream: &Upstream, config: &Config, is_interrupted: Arc<AtomicBool>) -> Scratch {
        let addresses = config.upstream.hosts().iter();
        Scratch {
            client: upstream.client().clone(),
            name: format!("{PREFIX}{:016x}", rand::random::<u64>()),
            router: None,
            addresses: addresses.map(|host| format!("{}:{}", host.name, host.port)).collect(),
            lease: config.lease,
            constraints: config.constraints.clone(),
            hello: Document::new(),
            shards: None,
            places: Err("the collection for it doesn't exist".to_owned()),
            database: Err("the scratch database doesn't exist".to_owned()),
            is_interrupted,
            number: AtomicI64::new(1),
            sessions: Mutex::default(),
        }
    }

    /// The name of the scratch database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the run was asked to end.
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Acquire)
    }

    /// The next number of a statement or a transaction. The driver gives a session of its pool to one check after another, so no
    /// number is used twice.
    pub fn next_number(&self) -> i64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// Why a check with these needs can't run.
    pub fn lacks(&self, needs: Needs) -> Option<String> {
        if needs == Needs::Deployment {
            return None;
        }
        if let Err(why) = &self.database {
            return Some(why.clone());
        }
        let is_sharded = self.shards.is_some();
        match needs {
            Needs::Cluster | Needs::TwoShards if !is_sharded => Some("a replica set has no shards".to_owned()),
            Needs::TwoPlaces | Needs::TwoShards => self.places.as_ref().err().cloned(),
            _ => None,
        }
    }

    /// Two values of `h`.
    ///
    /// # Errors
    /// [`CheckError::Impossible`] if there are none.
    pub fn places(&self) -> Result<&TwoPlaces, CheckError> {
        self.places.as_ref().map_err(|why| CheckError::Impossible(why.clone()))
    }

    /// The scratch database.
    pub fn database(&self) -> Database {
        self.client.database(&self.name)
    }

    /// Begins a session of its own.
    pub async fn session(&self) -> Result<ScratchSession<'_>, CheckError> {
        let session = self.client.start_session().await?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.push(session.id().clone());
        Ok(ScratchSession::of(self, session))
    }

    /// Where commands go: to the one `mongos`, or to the primary.
    pub fn criteria(&self) -> Option<SelectionCriteria> {
        self.router.clone().map(at)
    }

    /// Waits for the answer to a command, unless the run was asked to end before it was sent. A command that is under way isn't given
    /// up, because it might create the database again after its drop.
    pub async fn answered<T>(
        &self,
        asked: impl Future<Output = Result<T, mongodb::error::Error>>,
    ) -> Result<T, CheckError> {
        if self.is_interrupted() {
            return Err(CheckError::Interrupted);
        }
        within_limit(asked).await
    }

    /// Runs a command in the scratch database.
    pub async fn run(&self, command: Document) -> Result<Document, CheckError> {
        self.run_in(&self.name, command).await
    }

    /// Runs a command in another database.
    pub async fn run_in(&self, database: &str, command: Document) -> Result<Document, CheckError> {
        self.answered(self.sent(database, command)).await
    }

    async fn sent(&self, database: &str, command: Document) -> Result<Document, mongodb::error::Error> {
        let database = self.client.database(database);
        let run = database.run_command(command);
        match self.criteria() {
            Some(criteria) => run.selection_criteria(criteria).await,
            None => run.await,
        }
    }

    /// The answer of the server at `address` to `hello`.
    pub async fn hello_of(&self, address: &str) -> Result<Document, CheckError> {
        let address = ServerAddress::parse(address)?;
        let admin = self.client.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 });
        let asked = timeout(MEMBER_MAX, hello.selection_criteria(at(address)).into_future());
        match asked.await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(CheckError::TimedOut),
        }
    }

    /// The servers that can be asked by their addresses: the replica set's members, or the `mongos` of the configuration.
    pub fn servers(&self) -> Vec<String> {
        let listed = |field: &str| self.hello.get_array(field).ok().into_iter().flatten();
        let mut servers: Vec<String> = ["hosts", "passives"]
            .into_iter()
            .flat_map(listed)
            .filter_map(|host| Some(host.as_str()?.to_owned()))
            .collect();
        if servers.is_empty() {
            servers.clone_from(&self.addresses);
        }
        servers
    }

    /// Learns what kind of deployment it is, and chooses a `mongos`.
    ///
    /// # Errors
    /// [`CheckError`] if it doesn't answer, or is of no use.
    pub async fn look(&mut self, upstream: &Upstream) -> Result<(), CheckError> {
        self.hello = self.run_in("admin", doc! { "hello": 1 }).await?;
        self.shards = match prepare::shards(&self.client).await.map_err(CheckError::from) {
            // The line about privileges says so, and a start waits for them.
            Err(error) if error.is_unauthorized() => driver::is_of_router(&self.hello).then(Vec::new),
            shards => shards?,
        };
        if self.shards.is_some() {
            self.router = upstream.targets().borrow().addresses().first().cloned();
        }
        Ok(())
    }

    /// Creates the scratch database and its collection.
    ///
    /// # Errors
    /// [`CheckError`] if the user may not, or the deployment doesn't do it.
    pub async fn create(&mut self) -> Result<(), CheckError> {
        let created = self.try_to_create().await;
        self.database = match &created {
            Ok(()) => Ok(()),
            Err(error) if error.is_unauthorized() => Err("the user may not write to a scratch database".to_owned()),
            Err(_) => Err("the scratch database can't be used".to_owned()),
        };
        created
    }

    async fn try_to_create(&mut self) -> Result<(), CheckError> {
        self.run(doc! { "create": "plain", "writeConcern": { "w": "majority" } })
            .await?;
        self.places = match self.spread().await {
            Ok(places) => Ok(places),
            Err(CheckError::Impossible(why)) => Err(why),
            Err(CheckError::Driver(error)) => {
                Err(format!("a collection over two shards: {}", driver::in_words(&error)))
            }
            Err(CheckError::Interrupted) => return Err(CheckError::Interrupted),
            Err(_) => Err("a collection over two shards: no answer that can be used".to_owned()),
        };
        Ok(())
    }

    async fn spread(&self) -> Result<TwoPlaces, CheckError> {
        let Some(shards) = &self.shards else {
            self.run(doc! { "create": DOCUMENTS, "writeConcern": { "w": "majority" } })
                .await?;
            let shards = [String::new(), String::new()];
            return Ok(TwoPlaces {
                first: 0,
                second: 1,
                shards,
            });
        };
        match shards.len() {
            0 => return Err(CheckError::Impossible("the user may not list the shards".to_owned())),
            1 => return Err(CheckError::Impossible("the cluster has one shard".to_owned())),
            _ => {}
        }
        let namespace = format!("{}.{DOCUMENTS}", self.name);
        let shard = doc! { "shardCollection": namespace, "key": { "h": "hashed" } };
        self.run_in("admin", shard).await?;
        let first = self.shard_of(DOCUMENTS, doc! { "h": 0 }).await?;
        for second in 1..PLACES_TRIED {
            let other = self.shard_of(DOCUMENTS, doc! { "h": second }).await?;
            if other != first {
                let shards = [first, other];
                return Ok(TwoPlaces {
                    first: 0,
                    second,
                    shards,
                });
            }
        }
        let why = format!("the server put all chunks of a new collection on {first}");
        Err(CheckError::Impossible(why))
    }

    /// The shard on which documents with this shard key are.
    pub async fn shard_of(&self, collection: &str, shard_key: Document) -> Result<String, CheckError> {
        let explain = doc! { "explain": { "find": collection, "filter": shard_key }, "verbosity": "queryPlanner" };
        let reply = self.run(explain).await?;
        let planner = reply.get_document("queryPlanner").ok();
        let plan = planner.and_then(|planner| planner.get_document("winningPlan").ok());
        let shards = plan.and_then(|plan| plan.get_array("shards").ok());
        let shard = shards.and_then(|shards| shards.first()?.as_document()?.get_str("shardName").ok());
        let unexpected = || CheckError::Unexpected("the plan of a query by the shard key names no shard".to_owned());
        shard.map(str::to_owned).ok_or_else(unexpected)
    }

    /// Drops the scratch database, also after an interruption. Gives the reason if it may still exist.
    pub async fn drop_database(&self) -> Option<String> {
        if self.database.is_err() && self.hello.is_empty() {
            return None;
        }
        self.end_transactions().await;
        let mut why = String::new();
        for _ in 0..DROPS {
            let drop = doc! { "dropDatabase": 1, "writeConcern": { "w": "majority" } };
            if let Err(error) = within_limit(self.sent(&self.name, drop)).await {
                if error.is_unauthorized() && self.database.is_err() {
                    // If the user may not create the database, Keyward has nothing to drop.
                    return None;
                }
                why = left_by(error);
                continue;
            }
            let list = doc! { "listCollections": 1, "nameOnly": true, "authorizedCollections": true };
            match within_limit(self.sent(&self.name, list)).await {
                Ok(reply) if driver::first_batch(&reply).is_none_or(<[_]>::is_empty) => return None,
                Ok(_) => why = "a command that came late has created it again".to_owned(),
                Err(error) => why = left_by(error),
            }
        }
        Some(why)
    }

    /// Ends what checks have left open. A drop would wait for it.
    async fn end_transactions(&self) {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !sessions.is_empty() {
            // If that fails, the server's own limit ends them.
            let _ = within_limit(self.sent("admin", doc! { "killSessions": sessions })).await;
        }
    }
}

fn left_by(error: CheckError) -> String {
    match error {
        CheckError::Driver(error) => driver::in_words(&error),
        _ => "no answer came in time".to_owned(),
    }
}

async fn within_limit<T>(asked: impl Future<Output = Result<T, mongodb::error::Error>>) -> Result<T, CheckError> {
    match timeout(COMMAND_MAX, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CheckError::TimedOut),
    }
}

fn at(address: ServerAddress) -> SelectionCriteria {
    SelectionCriteria::Predicate(Arc::new(move |server| *server.address() == address))
}
