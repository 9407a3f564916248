//! One server process: started, waited for, stopped (SIGSTOP), continued, killed and restarted on the same port and data.
//!
//! A `Process` that is dropped is killed. Whatever kills the process that holds it kills the server, too.

mod lifeline;
mod port;
mod workspace;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use bson::doc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::command::Connection;
use crate::fetch::FetchError;

pub use lifeline::spawn;
pub use port::Port;
pub use workspace::{Workspace, use_disk};

/// Starting takes 0.3 s alone; on a machine busy compiling it can take many times that.
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(10);
/// `mongod`'s exit code when it can't listen on its port.
const PORT_TAKEN: i32 = 48;

/// Why a server process could not be started, signalled or ended.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The cache folder, which also holds the ports' locks, can't be used.
    #[error(transparent)]
    Cache(#[from] FetchError),
    /// A file or folder could not be made or read.
    #[error("{path} can't be made or read")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A cluster's folder already holds something.
    #[error("{0} is not empty")]
    FolderInUse(PathBuf),
    /// No free port was found.
    #[error("no free port was found")]
    NoPort,
    /// Somebody else has that port.
    #[error("port {0} is taken")]
    PortTaken(u16),
    /// The program can't be started, signalled or waited for.
    #[error("{name} can't be started or signalled")]
    System {
        /// The server's name.
        name: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The server ended by itself before it answered.
    #[error("{name} ended with {status} before it was ready:\n{log}")]
    Ended {
        /// The server's name.
        name: String,
        /// Its exit status.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The server runs but doesn't answer.
    #[error("{name} did not answer within {} s:\n{log}", READY_WITHIN.as_secs())]
    NotReady {
        /// The server's name.
        name: String,
        /// The last lines of its log.
        log: String,
    },
    /// The server isn't running, so it can't be signalled.
    #[error("{0} is not running")]
    NotRunning(String),
}

/// A server process of the testbed.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    port: Port,
    folder: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Starts `program` with `arguments` and a `--port`, and waits until it answers `hello`.
    ///
    /// `name` stands in messages; what it writes to its outputs goes to files in `folder`. Without a `port` any free one
    /// is taken, and another if somebody else listens there first.
    ///
    /// # Errors
    /// [`ProcessError`] if it ends before it answers, or doesn't answer within a minute.
    pub fn start(
        name: &str,
        program: &Path,
        arguments: Vec<OsString>,
        folder: &Path,
        port: Option<Port>,
    ) -> Result<Process, ProcessError> {
        let any_port = port.is_none();
        let mut process = Process {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments,
            port: port.map_or_else(Port::lease, Ok)?,
            folder: folder.to_owned(),
            child: Mutex::new(None),
        };
        loop {
            match process.restart() {
                Err(ProcessError::Ended { status, .. }) if any_port && status.code() == Some(PORT_TAKEN) => {
                    process.port = Port::lease()?;
                }
                result => return result.map(|()| process),
            }
        }
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `127.0.0.1:port`, the same after a restart.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// Gives it further arguments from its next start on.
    pub(crate) fn add_arguments(&mut self, arguments: impl IntoIterator<Item = OsString>) {
        self.arguments.extend(arguments);
    }

    /// Its process id, if it runs.
    pub fn id(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Starts it again if it isn't running, on the same port and data, and waits until it answers `hello`.
    ///
    /// A member of a replica set may not be primary yet when this returns.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn restart(&self) -> Result<(), ProcessError> {
        match self.restart_unseen()? {
            true => self.wait_until_ready(),
            false => Ok(()),
        }
    }

    /// Starts it without any of its data, as a member of a replica set that is to copy the others'. What it is now is killed.
    ///
    /// # Errors
    /// As [`Process::start`]; [`ProcessError::File`] if the data can't be removed.
    pub fn restart_empty(&self) -> Result<(), ProcessError> {
        self.kill()?;
        let file_error = |source| ProcessError::File {
            path: self.folder.clone(),
            source,
        };
        fs::remove_dir_all(&self.folder).map_err(file_error)?;
        fs::create_dir(&self.folder).map_err(file_error)?;
        self.restart()
    }

    /// Starts it again if it isn't running, and doesn't wait until it answers; says whether it wasn't.
    pub(crate) fn restart_unseen(&self) -> Result<bool, ProcessError> {
        let mut child = self.child();
        if let Some(running) = child.as_mut()
            && running.try_wait().map_err(|source| self.system(source))?.is_none()
        {
            return Ok(false);
        }
        *child = Some(self.spawn()?);
        Ok(true)
    }

    /// Freezes it (SIGSTOP): its connections stay open, nothing answers. Returns once it stands still.
    ///
    /// # Errors
    /// [`ProcessError::NotRunning`].
    pub fn stop(&self) -> Result<(), ProcessError> {
        self.signal(Signal::SIGSTOP)?;
        // The signal takes effect when one of its threads is next scheduled; on a busy machine the others answer meanwhile.
        let Some(id) = self.id().and_then(|id| i32::try_from(id).ok()) else {
            return Ok(());
        };
        let stopped = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(Pid::from_raw(id)), stopped).map_err(|errno| self.system(errno.into()))?;
        Ok(())
    }

    /// Lets a frozen one go on (SIGCONT).
    ///
    /// # Errors
    /// [`ProcessError::NotRunning`].
    pub fn resume(&self) -> Result<(), ProcessError> {
        self.signal(Signal::SIGCONT)
    }

    /// Kills it (SIGKILL) and waits until it is gone. Nothing happens if it isn't running.
    ///
    /// # Errors
    /// [`ProcessError::System`] if it can't be waited for.
    pub fn kill(&self) -> Result<(), ProcessError> {
        self.end(Signal::SIGKILL)
    }

    /// Asks it to shut down cleanly (SIGTERM) and waits until it is gone. Nothing happens if it isn't running.
    ///
    /// # Errors
    /// [`ProcessError::System`] if it can't be waited for.
    pub fn terminate(&self) -> Result<(), ProcessError> {
        self.end(Signal::SIGTERM)
    }

    /// The end of its log and of what it wrote to its standard outputs, for error messages.
    pub fn log_tail(&self) -> String {
        let read = |file: &str| fs::read(self.folder.join(file)).unwrap_or_default();
        let text = [read("output"), read("log")].concat();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn spawn(&self) -> Result<Child, ProcessError> {
        let path = self.folder.join("output");
        let files = File::create(&path).and_then(|output| Ok((output.try_clone()?, output)));
        let (output, errors) = files.map_err(|source| ProcessError::File { path, source })?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .arg("--port")
            .arg(self.port.number().to_string());
        command.stdin(std::process::Stdio::null()).stdout(output).stderr(errors);
        // A terminal's Ctrl-C is for the testbed, which then ends its servers in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        lifeline::spawn(command).map_err(|source| self.system(source))
    }

    fn wait_until_ready(&self) -> Result<(), ProcessError> {
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            if answers_hello(&self.address()) {
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                return Err(ProcessError::Ended {
                    name: self.name.clone(),
                    status,
                    log: self.log_tail(),
                });
            }
            thread::sleep(POLL_EVERY);
        }
        Err(ProcessError::NotReady {
            name: self.name.clone(),
            log: self.log_tail(),
        })
    }

    fn ended(&self) -> Result<Option<ExitStatus>, ProcessError> {
        match self.child().as_mut() {
            Some(child) => child.try_wait().map_err(|source| self.system(source)),
            None => Ok(None),
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        let child = self.child();
        let child = child
            .as_ref()
            .ok_or_else(|| ProcessError::NotRunning(self.name.clone()))?;
        send(child, signal).map_err(|source| self.system(source))
    }

    fn end(&self, signal: Signal) -> Result<(), ProcessError> {
        let Some(mut child) = self.child().take() else {
            return Ok(());
        };
        // One that has ended by itself, and was seen to, can't be signalled.
        let has_ended = child.try_wait().map_err(|source| self.system(source))?.is_some();
        if !has_ended {
            send(&child, signal).map_err(|source| self.system(source))?;
            // A frozen process takes no SIGTERM before it goes on.
            send(&child, Signal::SIGCONT).map_err(|source| self.system(source))?;
        }
        child.wait().map_err(|source| self.system(source))?;
        Ok(())
    }

    fn system(&self, source: std::io::Error) -> ProcessError {
        ProcessError::System {
            name: self.name.clone(),
            source,
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Process {
    /// Tells it to be gone without waiting for that, where several are to go at once.
    pub(crate) fn begin_kill(&self) {
        let _ = self.signal(Signal::SIGKILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A child that has ended but not been waited for still owns its id, so this can't hit a stranger.
fn send(child: &Child, signal: Signal) -> std::io::Result<()> {
    let id = i32::try_from(child.id()).map_err(std::io::Error::other)?;
    kill(Pid::from_raw(id), signal).map_err(std::io::Error::from)
}

fn answers_hello(address: &str) -> bool {
    let greet = || {
        let mut connection = Connection::open(address)?;
        connection.reply_timeout(Duration::from_secs(5))?;
        connection.run("admin", doc! { "hello": 1 })
    };
    greet().is_ok()
}
