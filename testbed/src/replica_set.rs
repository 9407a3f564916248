//! Replica sets: several `mongod`s on one copy of the data, initiated and with a primary that takes majority writes.
//!
//! By itself one is a plain unsharded deployment (and the reference for what a native unique index does); with a role it
//! is a shard or the config server of a cluster.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::options::{ClientOptions, ServerAddress};

use crate::Error;
use crate::command;
use crate::fetch;
use crate::process::{Process, ProcessError, Workspace};

const PRIMARY_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// What a replica set is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Plain,
    Shard,
    ConfigServer,
}

/// What a replica set is started with.
#[derive(Debug, Clone)]
pub struct ReplicaSetBuilder {
    pub(crate) name: String,
    pub(crate) members: usize,
    pub(crate) role: Role,
    pub(crate) parameters: Vec<(String, String)>,
}

impl ReplicaSetBuilder {
    /// How many members it has; 1 by default.
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Sets a server parameter (`--setParameter name=value`) on every member.
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it in a temporary folder of its own, and waits until it has a primary.
    ///
    /// # Errors
    /// [`Error`] if a member doesn't start, or no primary is elected within a minute.
    pub fn start(self) -> Result<ReplicaSet, Error> {
        let workspace = Workspace::temporary()?;
        let mut set = self.start_in(workspace.path())?;
        set.workspace = Some(workspace);
        Ok(set)
    }

    /// Starts it in `folder`, which somebody else keeps and removes.
    pub(crate) fn start_in(self, folder: &Path) -> Result<ReplicaSet, Error> {
        let program = fetch::mongod()?;
        let started: Vec<_> = thread::scope(|scope| {
            let start = |index| self.start_member(&program, folder, index);
            let threads: Vec<_> = (0..self.members)
                .map(|index| scope.spawn(move || start(index)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("starting a member doesn't panic"))
                .collect()
        });
        let members = started.into_iter().collect::<Result<Vec<_>, _>>()?;
        let set = ReplicaSet {
            name: self.name,
            members,
            workspace: None,
        };
        set.initiate(self.role)?;
        set.wait_for_primary()?;
        Ok(set)
    }

    fn start_member(&self, program: &Path, folder: &Path, index: usize) -> Result<Process, ProcessError> {
        let name = format!("{}-{index}", self.name);
        let folder = folder.join(&name);
        fs::create_dir_all(&folder).map_err(|source| ProcessError::File {
            path: folder.clone(),
            source,
        })?;
        Process::start(&name, program, self.arguments(&folder), &folder, None)
    }

    fn arguments(&self, folder: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--replSet".into(), self.name.as_str().into()];
        match self.role {
            Role::Plain => {}
            Role::Shard => arguments.push("--shardsvr".into()),
            Role::ConfigServer => arguments.push("--configsvr".into()),
        }
        arguments.extend([
            "--dbpath".into(),
            folder.into(),
            "--logpath".into(),
            folder.join("log").into(),
        ]);
        arguments.extend(["--logappend", "--bind_ip", "127.0.0.1", "--nounixsocket"].map(OsString::from));
        // Small: several of these share one machine with a compiler. Log files of 100 MB each are the default.
        arguments.extend(["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "256"].map(OsString::from));
        arguments.extend(["--wiredTigerEngineConfigString", "log=(file_max=16MB,prealloc=false)"].map(OsString::from));
        let preset = [
            ("diagnosticDataCollectionEnabled", "false"),
            ("enableTestCommands", "1"),
            // Chunks may move back to where they came from at once.
            ("orphanCleanupDelaySecs", "0"),
        ];
        let preset = preset.map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (name, value) in preset.iter().chain(&self.parameters) {
            arguments.extend(["--setParameter".into(), format!("{name}={value}").into()]);
        }
        arguments
    }
}

/// A running replica set; dropping it kills its members.
#[derive(Debug)]
pub struct ReplicaSet {
    name: String,
    members: Vec<Process>,
    /// Its own folder, where it isn't part of a cluster. Behind the members, so that it goes after them.
    workspace: Option<Workspace>,
}

impl ReplicaSet {
    /// A replica set called `name`, to be started.
    pub fn builder(name: &str) -> ReplicaSetBuilder {
        ReplicaSetBuilder {
            name: name.to_owned(),
            members: 1,
            role: Role::Plain,
            parameters: Vec::new(),
        }
    }

    /// Starts a plain replica set of `members` members.
    ///
    /// # Errors
    /// As [`ReplicaSetBuilder::start`].
    pub fn start(members: usize) -> Result<ReplicaSet, Error> {
        ReplicaSet::builder("rs").members(members).start()
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
        self.members.iter().map(Process::address).collect()
    }

    /// `name/host:port,host:port`, as `addShard` and `--configdb` take it.
    pub fn connection_string(&self) -> String {
        format!("{}/{}", self.name, self.addresses().join(","))
    }

    /// The URI with which a driver finds it.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?replicaSet={}", self.addresses().join(","), self.name)
    }

    /// The member that is primary now, if one says so.
    pub fn primary(&self) -> Option<&Process> {
        self.members.iter().find(|member| {
            member.id().is_some()
                && command::run(&member.address(), "admin", doc! { "hello": 1 })
                    .is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
        })
    }

    /// Waits until a member is primary, takes majority writes, and the others follow it.
    ///
    /// # Errors
    /// [`Error::DeadlinePassed`] after a minute without one.
    pub fn wait_for_primary(&self) -> Result<&Process, Error> {
        let deadline = Instant::now() + PRIMARY_WITHIN;
        while Instant::now() < deadline {
            if let Some(primary) = self.primary() {
                return Ok(primary);
            }
            thread::sleep(POLL_EVERY);
        }
        Err(Error::DeadlinePassed {
            what: format!("a primary of {}", self.name),
            seconds: PRIMARY_WITHIN.as_secs(),
        })
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
        let options = ClientOptions::builder()
            .hosts(hosts)
            .repl_set_name(self.name.clone())
            .build();
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
        Ok(direct_client(&self.wait_for_primary()?.address()))
    }

    fn initiate(&self, role: Role) -> Result<(), Error> {
        let members: Vec<Bson> = (0i32..)
            .zip(self.addresses())
            .map(|(id, host)| doc! { "_id": id, "host": host }.into())
            .collect();
        let mut config = doc! {
            "_id": &self.name,
            "members": members,
            // Short, so that failovers in tests are.
            "settings": { "heartbeatIntervalMillis": 200, "electionTimeoutMillis": 2000 },
        };
        if role == Role::ConfigServer {
            config.insert("configsvr", true);
        }
        let initiate = doc! { "replSetInitiate": config };
        command::run(&self.members[0].address(), "admin", initiate)?;
        Ok(())
    }
}

/// A new client for the one server at `address` (`host:port`), on the caller's tokio runtime.
///
/// # Panics
/// Outside a tokio runtime.
pub fn direct_client(address: &str) -> mongodb::Client {
    let options = ClientOptions::builder()
        .hosts(vec![server_address(address)])
        .direct_connection(true)
        .build();
    mongodb::Client::with_options(options).expect("the options don't contradict each other")
}

fn server_address(address: &str) -> ServerAddress {
    ServerAddress::parse(address).expect("an address that the testbed made")
}
