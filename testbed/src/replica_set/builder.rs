//! What a replica set is started with, and starting it: all members at once, then initiated, then waited for.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, thread};

use bson::{Bson, Document, doc};

use super::{ReplicaSet, User};
use crate::Error;
use crate::command;
use crate::fetch;
use crate::process::{Process, ProcessError, Workspace};

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
    name: String,
    members: usize,
    role: Role,
    parameters: Vec<(String, String)>,
    root: Option<User>,
    lets_anybody_in: bool,
    tls: Option<Tls>,
    detour: Option<Detour>,
}

/// The address by which others reach a member, given the address at which it listens: a relay's, for instance.
#[derive(Clone)]
pub(crate) struct Detour(pub(crate) Arc<dyn Fn(&str) -> String + Send + Sync>);

impl fmt::Debug for Detour {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Detour")
    }
}

/// The files with which every member asks for encryption.
#[derive(Debug, Clone)]
struct Tls {
    certificate_key: PathBuf,
    ca: PathBuf,
}

impl ReplicaSetBuilder {
    pub(crate) fn new(name: &str, role: Role) -> Self {
        ReplicaSetBuilder {
            name: name.to_owned(),
            members: 1,
            role,
            parameters: Vec::new(),
            root: None,
            lets_anybody_in: false,
            tls: None,
            detour: None,
        }
    }

    /// How many members it has; 1 by default.
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Sets a server parameter (`--setParameter name=value`) on every member; the last value given counts.
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn parameters(mut self, parameters: &[(String, String)]) -> Self {
        self.parameters.extend_from_slice(parameters);
        self
    }

    pub(crate) fn detour(mut self, detour: Option<&Detour>) -> Self {
        self.detour = detour.cloned();
        self
    }

    /// Turns access control on, with one user who may do everything; it is off by default.
    ///
    /// What needs a privilege then goes through a client ([`ReplicaSet::client`] has the user's), not through
    /// [`ReplicaSet::run`], which doesn't authenticate.
    pub fn root_user(mut self, name: &str, password: &str) -> Self {
        self.root = Some(User {
            name: name.to_owned(),
            password: password.to_owned(),
        });
        self
    }

    /// Lets clients in that don't log in, too, as while an operator turns access control on. Only with a root user.
    pub fn let_anybody_in(mut self) -> Self {
        self.lets_anybody_in = true;
        self
    }

    /// Requires TLS of everybody, clients' certificates included: `certificate_key` is what every member shows, for
    /// 127.0.0.1, and `ca` the authority of all; PEM files. It is off by default.
    ///
    /// The set is set up before it is turned on; from then on only clients with certificates reach it.
    pub fn require_tls(mut self, certificate_key: &Path, ca: &Path) -> Self {
        self.tls = Some(Tls {
            certificate_key: certificate_key.to_owned(),
            ca: ca.to_owned(),
        });
        self
    }

    /// Starts it in a temporary folder of its own, and waits until it has a primary that takes majority writes and every
    /// other member follows it.
    ///
    /// # Errors
    /// [`Error`] if a member doesn't start, or one isn't ready within a minute.
    pub fn start(self) -> Result<ReplicaSet, Error> {
        let workspace = Workspace::temporary()?;
        let mut set = self.start_in(workspace.path())?;
        set.workspace = Some(workspace);
        Ok(set)
    }

    /// Starts it in `folder`, which somebody else keeps and removes.
    pub(crate) fn start_in(self, folder: &Path) -> Result<ReplicaSet, Error> {
        let members = self.start_members(folder)?;
        let address = |member: &Process| match &self.detour {
            Some(Detour(detour)) => detour(&member.address()),
            None => member.address(),
        };
        let mut set = ReplicaSet {
            name: self.name.clone(),
            addresses: members.iter().map(address).collect(),
            members,
            root: None,
            workspace: None,
        };
        command::run(
            &set.members[0].address(),
            "admin",
            doc! { "replSetInitiate": self.configuration(&set) },
        )?;
        set.wait_until_whole()?;
        if let Some(root) = &self.root {
            create_root(&set, root)?;
            self.turn_access_control_on(&mut set, folder)?;
            set.root = self.root;
        }
        if let Some(tls) = &self.tls {
            turn_tls_on(&mut set, tls)?;
        }
        Ok(set)
    }

    fn start_members(&self, folder: &Path) -> Result<Vec<Process>, Error> {
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
        Ok(started.into_iter().collect::<Result<_, _>>()?)
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
        // Small, as several of these share a machine: by default each would set 300 MB of journal aside. But once a tenth of the
        // cache is changes of open transactions, every writer waits for room: four tests that write documents of 16 MiB at once
        // must stay below that.
        arguments.extend(["--wiredTigerCacheSizeGB", "1", "--oplogSize", "256"].map(OsString::from));
        arguments.extend(["--wiredTigerEngineConfigString", "log=(file_max=16MB,prealloc=false)"].map(OsString::from));
        for (name, value) in self.all_parameters() {
            arguments.extend(["--setParameter".into(), format!("{name}={value}").into()]);
        }
        arguments
    }

    /// What was asked for, and what wasn't but suits a test.
    fn all_parameters(&self) -> BTreeMap<&str, &str> {
        let preset = [
            ("diagnosticDataCollectionEnabled", "false"),
            ("enableTestCommands", "1"),
            // Chunks may move back to where they came from at once.
            ("orphanCleanupDelaySecs", "0"),
            // Else a reshardCollection waits for five minutes, so that slow requests by the former shard key come to an end.
            ("reshardingMinimumOperationDurationMillis", "0"),
        ];
        let asked = self
            .parameters
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        preset.into_iter().chain(asked).collect()
    }

    fn configuration(&self, set: &ReplicaSet) -> Document {
        let member = |(id, host): (i32, String)| Bson::from(doc! { "_id": id, "host": host });
        let members: Vec<Bson> = (0..).zip(set.addresses()).map(member).collect();
        // Short, so that elections in tests are.
        let settings = doc! { "heartbeatIntervalMillis": 200, "electionTimeoutMillis": 2000 };
        let mut configuration = doc! { "_id": &self.name, "members": members, "settings": settings };
        if self.role == Role::ConfigServer {
            configuration.insert("configsvr", true);
        }
        configuration
    }

    /// The members ask for authentication only after a restart, so all that had to be set up was, without any.
    fn turn_access_control_on(&self, set: &mut ReplicaSet, folder: &Path) -> Result<(), Error> {
        let path = folder.join("key");
        let failed = |source| ProcessError::File {
            path: path.clone(),
            source,
        };
        fs::write(&path, "dGhlIG1lbWJlcnMnIHNlY3JldA==").map_err(failed)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        for member in &mut set.members {
            member.terminate()?;
            member.add_arguments(["--keyFile".into(), path.clone().into()]);
            if self.lets_anybody_in {
                member.add_arguments(["--transitionToAuth".into()]);
            }
        }
        for member in &set.members {
            member.restart()?;
        }
        set.wait_for_primary().map(drop)
    }
}

/// What talks to the members here speaks no TLS: so they are restarted once nothing is left to be said.
fn turn_tls_on(set: &mut ReplicaSet, tls: &Tls) -> Result<(), Error> {
    for member in &mut set.members {
        member.terminate()?;
        member.add_arguments(["--tlsMode".into(), "requireTLS".into()]);
        member.add_arguments(["--tlsCertificateKeyFile".into(), tls.certificate_key.clone().into()]);
        member.add_arguments(["--tlsCAFile".into(), tls.ca.clone().into()]);
    }
    for member in &set.members {
        member.restart_unseen()?;
    }
    Ok(())
}

fn create_root(set: &ReplicaSet, root: &User) -> Result<(), Error> {
    let create = doc! {
        "createUser": &root.name, "pwd": &root.password, "roles": ["root"], "writeConcern": command::majority(),
    };
    set.run("admin", create).map(drop)
}
