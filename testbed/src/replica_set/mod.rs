//! Replica sets: several `mongod`s on one copy of the data, initiated and with a primary that takes majority writes.
//!
//! By itself one is a plain unsharded deployment (and the reference for what a native unique index does); with a role it
//! is a shard or the config server of a cluster.

mod builder;

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::options::{ClientOptions, Credential, ServerAddress};

use crate::Error;
use crate::alone::Alone;
use crate::command::{self, CommandError, majority};
use crate::deadline::wait_for;
use crate::fail_point::FailPoint;
use crate::process::{Process, Workspace};

pub use builder::ReplicaSetBuilder;
pub(crate) use builder::{Detour, Role};

/// How long a primary that was told to step down doesn't stand for election again.
const STEP_DOWN_S: i32 = 5;

/// A user of a replica set with access control.
#[derive(Debug, Clone)]
struct User {
    name: String,
    password: String,
}

/// A running replica set; dropping it kills its members.
#[derive(Debug)]
pub struct ReplicaSet {
    name: String,
    members: Vec<Process>,
    /// Where others reach the members.
    addresses: Vec<String>,
    root: Option<User>,
    /// Its own folder, where it isn't part of a cluster. Behind the members, so that it goes after them.
    workspace: Option<Workspace>,
}

impl ReplicaSet {
    /// A plain replica set called `name`, to be started.
    pub fn builder(name: &str) -> ReplicaSetBuilder {
        ReplicaSetBuilder::new(name, Role::Plain)
    }

    /// Starts a plain replica set of `members` members.
    ///
    /// # Errors
    /// As [`ReplicaSetBuilder::start`].
    pub fn start(members: usize) -> Result<ReplicaSet, Error> {
        ReplicaSet::builder("rs").members(members).start()
    }

    /// A replica set of one member that all tests of one binary share, started at the first call. Each test takes
    /// databases of its own, and leaves the members running.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn shared() -> &'static ReplicaSet {
        static SHARED: OnceLock<Result<ReplicaSet, Error>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| ReplicaSet::start(1)).as_ref();
        shared.unwrap_or_else(|error| panic!("the shared replica set can't be started: {error}"))
    }

    /// A replica set like the shared one that no other test uses meanwhile, for fail points and server parameters.
    ///
    /// # Errors
    /// As [`ReplicaSetBuilder::start`].
    pub fn alone() -> Result<Alone<ReplicaSet>, Error> {
        static FREE: Mutex<Vec<&ReplicaSet>> = Mutex::new(Vec::new());
        Alone::take(&FREE, || ReplicaSet::start(1))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its members' processes, to be stopped, continued, killed and restarted.
    pub fn members(&self) -> &[Process] {
        &self.members
    }

    /// `127.0.0.1:port` of each member.
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// `name/host:port,host:port`, as `addShard` and `--configdb` take it.
    pub fn connection_string(&self) -> String {
        format!("{}/{}", self.name, self.addresses().join(","))
    }

    /// The URI with which a driver finds it, credentials included where it has any.
    pub fn uri(&self) -> String {
        let user = self
            .root
            .as_ref()
            .map(|root| format!("{}:{}@", root.name, root.password))
            .unwrap_or_default();
        format!(
            "mongodb://{user}{}/?replicaSet={}",
            self.addresses().join(","),
            self.name
        )
    }

    /// The member that is primary now, if one says so.
    pub fn primary(&self) -> Option<&Process> {
        self.members
            .iter()
            .find(|member| member.id().is_some() && is_primary(&member.address()))
    }

    /// Waits until a member is primary.
    ///
    /// # Errors
    /// [`Error::DeadlinePassed`] after a minute without one.
    pub fn wait_for_primary(&self) -> Result<&Process, Error> {
        let mut primary = None;
        wait_for(&format!("a primary of {}", self.name), || {
            primary = self.primary();
            primary.is_some()
        })?;
        Ok(primary.expect("the wait above ended with one"))
    }

    /// Waits until a member is primary, every other follows it, and a majority takes writes.
    ///
    /// # Errors
    /// [`Error::DeadlinePassed`] after a minute, [`Error::Command`] if the primary doesn't take a majority write.
    pub fn wait_until_whole(&self) -> Result<(), Error> {
        wait_for(&format!("every member of {} following a primary", self.name), || {
            self.is_whole()
        })?;
        let note = doc! { "appendOplogNote": 1, "data": { "ready": 1 }, "writeConcern": majority() };
        self.run("admin", note).map(drop)
    }

    /// Makes the primary step down, and waits until there is one again: another member, or, where there is none, the same
    /// one some seconds later.
    ///
    /// # Errors
    /// [`Error`] if the primary refuses, or there is no new one within a minute.
    pub fn step_down(&self) -> Result<&Process, Error> {
        let primary = self.wait_for_primary()?;
        let seconds = if self.members.len() == 1 { 1 } else { STEP_DOWN_S };
        command::run(
            &primary.address(),
            "admin",
            doc! { "replSetStepDown": seconds, "force": true },
        )?;
        self.wait_for_primary()
    }

    /// Turns a fail point on at the present primary: `mode` is the server's (`"alwaysOn"`, `{times: 1}`, …), `data` what the
    /// fail point takes (`failCommand`: `{failCommands: ["insert"], errorCode: 91}`). Dropping the result turns it off.
    ///
    /// # Errors
    /// [`Error`] if there is no primary, or it doesn't know the fail point.
    pub fn fail_point(&self, name: &str, mode: impl Into<bson::Bson>, data: Document) -> Result<FailPoint, Error> {
        FailPoint::turn_on(&self.wait_for_primary()?.address(), name, mode.into(), data)
    }

    /// Runs `command` on the primary's `database` and gives the successful reply.
    ///
    /// # Errors
    /// [`Error`] if there is no primary, or it refuses the command.
    pub fn run(&self, database: &str, command: Document) -> Result<Document, Error> {
        Ok(command::run(&self.wait_for_primary()?.address(), database, command)?)
    }

    /// A new client for the whole set, on the caller's tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn client(&self) -> mongodb::Client {
        let hosts: Vec<_> = self.addresses().iter().map(|address| server_address(address)).collect();
        let mut options = ClientOptions::builder()
            .hosts(hosts)
            .repl_set_name(self.name.clone())
            .build();
        options.credential = self.credential();
        mongodb::Client::with_options(options).expect("the options don't contradict each other")
    }

    /// A new client for the present primary alone, past any router, on the caller's tokio runtime.
    ///
    /// # Errors
    /// [`Error::DeadlinePassed`] if there is no primary.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn direct_client(&self) -> Result<mongodb::Client, Error> {
        Ok(direct_client(&self.wait_for_primary()?.address(), self.credential()))
    }

    fn credential(&self) -> Option<Credential> {
        let root = self.root.as_ref()?;
        Some(
            Credential::builder()
                .username(root.name.clone())
                .password(root.password.clone())
                .build(),
        )
    }

    fn is_whole(&self) -> bool {
        const PRIMARY: i32 = 1;
        const SECONDARY: i32 = 2;
        let Some(primary) = self.primary() else {
            return false;
        };
        let status = command::run(&primary.address(), "admin", doc! { "replSetGetStatus": 1 });
        let states = |status: Document| -> Option<Vec<i32>> {
            status
                .get_array("members")
                .ok()?
                .iter()
                .map(|member| member.as_document()?.get_i32("state").ok())
                .collect()
        };
        let states = status.ok().and_then(states).unwrap_or_default();
        states.len() == self.members.len() && states.iter().all(|state| [PRIMARY, SECONDARY].contains(state))
    }
}

fn is_primary(address: &str) -> bool {
    let greet = || -> Result<Document, CommandError> {
        let mut connection = command::Connection::open(address)?;
        // A frozen member accepts connections and says nothing.
        connection.reply_timeout(Duration::from_secs(1))?;
        connection.run("admin", doc! { "hello": 1 })
    };
    greet().is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
}

/// A new client for the one server at `address` (`host:port`), on the caller's tokio runtime.
pub(crate) fn direct_client(address: &str, credential: Option<Credential>) -> mongodb::Client {
    let hosts = vec![server_address(address)];
    let mut options = ClientOptions::builder().hosts(hosts).direct_connection(true).build();
    options.credential = credential;
    mongodb::Client::with_options(options).expect("the options don't contradict each other")
}

fn server_address(address: &str) -> ServerAddress {
    ServerAddress::parse(address).expect("an address that the testbed made")
}

impl Drop for ReplicaSet {
    fn drop(&mut self) {
        self.members.iter().for_each(Process::begin_kill);
    }
}
