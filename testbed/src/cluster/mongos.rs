//! The cluster's router: a real `mongos` process where one is installed, else the stand-in inside this process.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use crate::Error;
use crate::deadline::wait_for;
use crate::fetch;
use crate::process::{Port, Process, ProcessError};
use crate::replica_set::ReplicaSet;
use crate::router::Router;

/// The router of a cluster, to be killed and restarted.
#[derive(Debug)]
pub enum Mongos {
    /// A `mongos` process.
    Real(Process),
    /// The testbed's own router.
    StandIn(StandIn),
}

/// The testbed's own router, running inside this process.
#[derive(Debug)]
pub struct StandIn {
    port: Port,
    config_server: String,
    running: Mutex<Option<Router>>,
}

impl Mongos {
    pub(super) fn start(port: Port, config_server: &ReplicaSet, folder: &Path) -> Result<Mongos, Error> {
        match fetch::mongos()? {
            Some(program) => start_real(&program, port, config_server, folder),
            None => {
                let config_server = config_server.members()[0].address();
                let stand_in = Mongos::StandIn(StandIn {
                    port,
                    config_server,
                    running: Mutex::new(None),
                });
                stand_in.restart()?;
                Ok(stand_in)
            }
        }
    }

    /// `127.0.0.1:port`, the same after a restart.
    pub fn address(&self) -> String {
        match self {
            Mongos::Real(process) => process.address(),
            Mongos::StandIn(stand_in) => stand_in.port.address(),
        }
    }

    /// Ends it at once; every connection to it is dropped.
    ///
    /// # Errors
    /// [`Error::Process`] if the process can't be killed.
    pub fn kill(&self) -> Result<(), Error> {
        match self {
            Mongos::Real(process) => process.kill()?,
            Mongos::StandIn(stand_in) => stand_in.kill()?,
        }
        Ok(())
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

impl StandIn {
    fn kill(&self) -> Result<(), Error> {
        if let Some(router) = self.running().take() {
            router.stop();
            // Its threads end on their own time.
            wait_for("the end of the router", || self.listen().is_ok())?;
        }
        Ok(())
    }

    fn listen(&self) -> io::Result<TcpListener> {
        TcpListener::bind(("127.0.0.1", self.port.number()))
    }

    fn restart(&self) -> Result<(), Error> {
        let mut running = self.running();
        if running.is_none() {
            let port = self.port.number();
            let start = || Router::start(self.listen()?, self.config_server.clone());
            *running = Some(start().map_err(|source| Error::Router { port, source })?);
        }
        Ok(())
    }

    fn running(&self) -> MutexGuard<'_, Option<Router>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
