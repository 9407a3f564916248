//! A `keyward run` with a configuration file that the test rewrites.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How long anything may take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Keyward {
    child: Child,
    pub address: String,
    pub admin: String,
    folder: tempfile::TempDir,
}

impl Keyward {
    /// Starts one with these settings, on free ports unless they say where to listen.
    pub fn start(settings: &str) -> Keyward {
        Keyward::start_in(settings, &[])
    }

    /// The same with these variables in its environment.
    pub fn start_in(settings: &str, environment: &[(&str, &str)]) -> Keyward {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keyward.yaml");
        std::fs::write(&file, whole(settings)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_keyward"))
            .args(["run", "--config"])
            .arg(&file)
            .env_remove("KEYWARD_UPSTREAM")
            .env_remove("KEYWARD_LOG")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(std::fs::File::create(folder.path().join("log")).unwrap()))
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {log}"));
        Keyward {
            child,
            address: ready["listen"].as_str().unwrap().to_owned(),
            admin: ready["admin"].as_str().unwrap().to_owned(),
            folder,
        }
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("keyward.yaml")
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Writes other settings into its file.
    pub fn rewrite(&self, settings: &str) {
        std::fs::write(self.file(), whole(settings)).unwrap();
    }

    pub fn send(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// Rewrites its file, has it loaded, and gives what `/reload` then says.
    pub fn reload(&self, settings: &str) -> Value {
        let before = self.count_reloads();
        self.rewrite(settings);
        self.send(Signal::SIGHUP);
        self.reloaded_after(before)
    }

    /// Waits for a reload after `before` of them.
    pub fn reloaded_after(&self, before: u64) -> Value {
        self.until("a reload", || self.count_reloads() > before);
        serde_json::from_str(self.get("/reload").split("\r\n\r\n").nth(1).unwrap()).unwrap()
    }

    pub fn count_reloads(&self) -> u64 {
        self.metric("keyward_config_reloads_applied_total") + self.metric("keyward_config_reloads_refused_total")
    }

    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        self.until_within(PATIENCE, what, is_so);
    }

    pub fn until_within(&self, patience: Duration, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + patience;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what} never came:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The whole answer to `GET page`.
    pub fn get(&self, page: &str) -> String {
        let mut socket = TcpStream::connect(&self.admin).unwrap();
        let request = format!("GET {page} HTTP/1.1\r\nhost: keyward\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        let metrics = self.get("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {metrics}")).parse().unwrap()
    }

    /// Runs a command through it; its reply, or the code of the error.
    pub fn run(&self, database: &str, command: Document) -> Result<Document, i32> {
        testbed::command::run(&self.address, database, command).map_err(|error| error.code().unwrap_or(-1))
    }

    pub fn insert(&self, database: &str, document: Document) -> Result<(), i32> {
        let reply = self.run(database, doc! { "insert": "users", "documents": [document] })?;
        match reply.get_array("writeErrors") {
            Ok(errors) => Err(errors[0].as_document().unwrap().get_i32("code").unwrap()),
            Err(_) => Ok(()),
        }
    }

    /// Tells it to stop, and waits until it has: unlike one that is killed, nobody takes it for one that may still write.
    pub fn stop(mut self) {
        self.send(Signal::SIGTERM);
        assert_eq!(self.ended(), Some(0), "{}", self.log());
    }

    /// Its exit code, once it has ended.
    pub fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it never ends:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What `keyward verify` says of its configuration: exit code and findings.
    pub fn verify(&self) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_keyward"))
            .args(["verify", "--config"])
            .arg(self.file())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Keyward {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn whole(settings: &str) -> String {
    let or_free = |setting: &str| match settings.lines().any(|line| line.starts_with(&format!("{setting}:"))) {
        true => String::new(),
        false => format!("{setting}: 127.0.0.1:0\n"),
    };
    format!("{}{}{settings}", or_free("listen"), or_free("admin"))
}
