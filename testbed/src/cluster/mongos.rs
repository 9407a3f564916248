//! The cluster's router: a real `mongos` process where one is installed, else the stand-in inside this process.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::stand_in::StandIn;
use crate::Error;
use crate::fetch;
use crate::process::{Port, Process, ProcessError};
use crate::replica_set::ReplicaSet;

/// The router of a cluster, to be frozen, continued, killed and restarted.
#[derive(Debug)]
pub enum Mongos {
    /// A `mongos` process.
    Real(Process),
    /// The testbed's own router.
    StandIn(StandIn),
}

impl Mongos {
    pub(super) fn start(port: Port, config_server: &ReplicaSet, folder: &Path) -> Result<Mongos, Error> {
        match fetch::mongos()? {
            Some(program) => start_real(&program, port, config_server, folder),
            None => {
                let config_server = config_server.members()[0].address();
                Ok(Mongos::StandIn(StandIn::start(port, config_server)?))
            }
        }
    }

    /// `127.0.0.1:port`, the same after a restart.
    pub fn address(&self) -> String {
        match self {
            Mongos::Real(process) => process.address(),
            Mongos::StandIn(stand_in) => stand_in.address(),
        }
    }

    /// Freezes it (SIGSTOP): its connections stay open, nothing answers.
    ///
    /// # Errors
    /// [`Error::Process`] if it isn't running.
    pub fn stop(&self) -> Result<(), Error> {
        match self {
            Mongos::Real(process) => Ok(process.stop()?),
            Mongos::StandIn(stand_in) => stand_in.stop(),
        }
    }

    /// Lets a frozen one go on (SIGCONT).
    ///
    /// # Errors
    /// [`Error::Process`] if it isn't running.
    pub fn resume(&self) -> Result<(), Error> {
        match self {
            Mongos::Real(process) => Ok(process.resume()?),
            Mongos::StandIn(stand_in) => stand_in.resume(),
        }
    }

    /// Ends it at once; every connection to it is dropped.
    ///
    /// # Errors
    /// [`Error::Process`] if the process can't be killed.
    pub fn kill(&self) -> Result<(), Error> {
        match self {
            Mongos::Real(process) => Ok(process.kill()?),
            Mongos::StandIn(stand_in) => stand_in.kill(),
        }
    }

    /// Starts it again, on the same port, if it isn't running.
    ///
    /// # Errors
    /// [`Error`] if it doesn't start.
    pub fn restart(&self) -> Result<(), Error> {
        match self {
            Mongos::Real(process) => Ok(process.restart()?),
            Mongos::StandIn(stand_in) => stand_in.restart(),
        }
    }
}

fn start_real(program: &Path, port: Port, config_server: &ReplicaSet, folder: &Path) -> Result<Mongos, Error> {
    let folder = folder.join("mongos");
    fs::create_dir_all(&folder).map_err(|source| ProcessError::File {
        path: folder.clone(),
        source,
    })?;
    let arguments: Vec<OsString> = vec![
        "--configdb".into(),
        config_server.connection_string().into(),
        "--bind_ip".into(),
        "127.0.0.1".into(),
        "--nounixsocket".into(),
        "--logpath".into(),
        folder.join("log").into(),
        "--logappend".into(),
        "--setParameter".into(),
        "enableTestCommands=1".into(),
    ];
    Ok(Mongos::Real(Process::start(
        "mongos",
        program,
        arguments,
        &folder,
        Some(port),
    )?))
}
