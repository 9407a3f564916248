//! A Keyward in a process of its own, with a configuration file that a test can rewrite.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::ClientOptions;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::plain_words::assert_in_plain_words;

/// How long anything may take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The code of Keyward's refusal while it may not write.
const NOT_PERMITTED: i32 = 6;

/// How long an admin page may take; that of a frozen Keyward never comes.
const ANSWER: Duration = Duration::from_secs(10);

/// The program that is tested. Cargo builds it beside the tests and benchmarks.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap();
    built.join("keyward")
}

/// A running Keyward; killed when dropped, unless it is one that leaves.
#[derive(Debug)]
pub struct Keyward {
    child: Child,
    /// Where it takes clients.
    pub address: String,
    /// Where its admin pages are.
    pub admin: String,
    folder: tempfile::TempDir,
    /// It isn't killed when dropped, but told to stop.
    leaves: bool,
}

/// A Keyward that refused to start.
#[derive(Debug)]
pub struct Refused {
    /// Its exit code.
    pub exit: Option<i32>,
    /// All that it has logged.
    pub errors: String,
}

/// How a Keyward starts.
impl Keyward {
    /// In front of `upstream`, with these `constraints` (YAML, a list).
    pub fn start(upstream: &str, constraints: &str) -> Keyward {
        Keyward::start_with_lease(upstream, "10s", constraints)
    }

    /// The same with another lease; further settings may follow it on lines of their own.
    pub fn start_with_lease(upstream: &str, lease: &str, constraints: &str) -> Keyward {
        Keyward::try_start(upstream, lease, constraints).unwrap_or_else(|refused| panic!("{}", refused.errors))
    }

    /// With the shortest lease, and sweeping as often as possible.
    pub fn start_sweeping(upstream: &str, constraints: &str) -> Keyward {
        Keyward::start_with_lease(upstream, "1s\nsweep: 1s", constraints)
    }

    /// As [`Keyward::start_with_lease`].
    ///
    /// # Errors
    /// [`Refused`] if it ends instead.
    pub fn try_start(upstream: &str, lease: &str, constraints: &str) -> Result<Keyward, Refused> {
        Keyward::try_start_with(upstream, lease, constraints, &[])
    }

    /// The same, with these variables in its environment.
    ///
    /// # Errors
    /// [`Refused`] if it ends instead.
    pub fn try_start_with(
        upstream: &str,
        lease: &str,
        constraints: &str,
        environment: &[(&str, &str)],
    ) -> Result<Keyward, Refused> {
        let settings = format!(
            "upstream: {upstream}\nlease: {lease}\nlog: {{ level: 'info,keyward=info' }}\nconstraints:\n{constraints}"
        );
        Keyward::begin(Command::new(program()), &settings, environment)
    }

    /// With these settings, on free ports unless they say where to listen.
    pub fn of(settings: &str) -> Keyward {
        Keyward::of_in(settings, &[])
    }

    /// The same with these variables in its environment.
    pub fn of_in(settings: &str, environment: &[(&str, &str)]) -> Keyward {
        let begun = Keyward::begin(Command::new(program()), settings, environment);
        begun.unwrap_or_else(|refused| panic!("{}", refused.errors))
    }

    /// One to be measured: nothing begins by a clock meanwhile.
    pub fn quiet(upstream: &str, constraints: &str) -> Keyward {
        let begun = Keyward::begin(Command::new(program()), &quiet(upstream, constraints), &[]);
        begun.unwrap_or_else(|refused| panic!("{}", refused.errors))
    }

    /// The same, whose instructions are counted: they are in `counts` once it has ended. On one worker thread, because what
    /// several do to find nothing to do depends on the machine.
    pub fn counted(upstream: &str, constraints: &str, counts: &Path) -> Keyward {
        let mut out = std::ffi::OsString::from("--callgrind-out-file=");
        out.push(counts);
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--quiet"])
            .arg(out)
            .arg(program())
            .env("TOKIO_WORKER_THREADS", "1");
        let begun = Keyward::begin(command, &quiet(upstream, constraints), &[]);
        begun.unwrap_or_else(|refused| panic!("{}", refused.errors))
    }

    fn begin(mut command: Command, settings: &str, environment: &[(&str, &str)]) -> Result<Keyward, Refused> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keyward.yaml");
        std::fs::write(&file, whole(settings)).unwrap();
        let log = folder.path().join("log");
        let mut child = command
            .args(["run", "--config"])
            .arg(&file)
            .env_remove("KEYWARD_UPSTREAM")
            .env_remove("KEYWARD_LOG")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line.is_empty() {
            let exit = child.wait().unwrap().code();
            let errors = std::fs::read_to_string(log).unwrap();
            return Err(Refused { exit, errors });
        }
        let ready: Value = serde_json::from_str(&line).unwrap();
        let of = |field: &str| ready[field].as_str().unwrap().to_owned();
        Ok(Keyward {
            child,
            address: of("listen"),
            admin: of("admin"),
            folder,
            leaves: false,
        })
    }

    /// Runs `keyward backfill` to its end.
    pub fn backfill(upstream: &str, constraints: &str) {
        let mut config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        config
            .write_all(whole(&quiet(upstream, constraints)).as_bytes())
            .unwrap();
        let mut command = Command::new(program());
        command.args(["backfill", "--config"]).arg(config.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Its clients.
impl Keyward {
    /// The connection string for its clients.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }

    /// A driver's client.
    pub async fn client(&self) -> Client {
        Client::with_uri_str(self.uri()).await.unwrap()
    }

    /// A client that never sends a write twice.
    pub async fn client_without_retries(&self) -> Client {
        let mut options = ClientOptions::parse(self.uri()).await.unwrap();
        options.retry_writes = Some(false);
        Client::with_options(options).unwrap()
    }

    /// Runs a command through it; its reply, or the code of the error.
    ///
    /// # Errors
    /// The error's code; -1 if no reply came.
    pub fn run(&self, database: &str, command: Document) -> Result<Document, i32> {
        testbed::command::run(&self.address, database, command).map_err(|error| error.code().unwrap_or(-1))
    }

    /// Inserts a document into `users`.
    ///
    /// # Errors
    /// The error's code; -1 if no reply came.
    pub fn insert(&self, database: &str, document: Document) -> Result<(), i32> {
        let reply = self.run(database, doc! { "insert": "users", "documents": [document] })?;
        match reply.get_array("writeErrors") {
            Ok(errors) => Err(errors[0].as_document().unwrap().get_i32("code").unwrap()),
            Err(_) => Ok(()),
        }
    }

    /// As [`Keyward::run`], and again as long as the answer is that Keyward may not write. A permit that is made short by haste can run
    /// out on a busy machine before its renewal.
    ///
    /// # Errors
    /// The error's code, but not 6; -1 if no reply came.
    pub fn run_once_permitted(&self, database: &str, command: Document) -> Result<Document, i32> {
        self.once_permitted(|| self.run(database, command.clone()))
    }

    /// As [`Keyward::insert`], and again as [`Keyward::run_once_permitted`] does.
    ///
    /// # Errors
    /// The error's code, but not 6; -1 if no reply came.
    pub fn insert_once_permitted(&self, database: &str, document: Document) -> Result<(), i32> {
        self.once_permitted(|| self.insert(database, document.clone()))
    }

    fn once_permitted<T>(&self, attempt: impl Fn() -> Result<T, i32>) -> Result<T, i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = attempt();
            if !matches!(answer, Err(NOT_PERMITTED)) {
                return answer;
            }
            assert!(Instant::now() < deadline, "it may never write:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Its configuration file.
impl Keyward {
    /// Where it is.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("keyward.yaml")
    }

    /// Writes other settings into it.
    pub fn rewrite(&self, settings: &str) {
        std::fs::write(self.file(), whole(settings)).unwrap();
    }

    /// Rewrites it, has it loaded, and gives what `/reload` then says.
    pub fn reload(&self, settings: &str) -> Value {
        let before = self.count_reloads();
        self.rewrite(settings);
        self.send(Signal::SIGHUP);
        self.reloaded_after(before)
    }

    /// Waits for a reload after `before` of them, and gives what `/reload` then says.
    pub fn reloaded_after(&self, before: u64) -> Value {
        self.until("a reload", || self.count_reloads() > before);
        serde_json::from_str(self.get("/reload").split("\r\n\r\n").nth(1).unwrap()).unwrap()
    }

    /// Reloads so far, refused ones included.
    pub fn count_reloads(&self) -> u64 {
        self.metric("keyward_config_reloads_applied_total") + self.metric("keyward_config_reloads_refused_total")
    }

    /// What `keyward verify` says of its configuration: exit code and findings.
    pub fn verify(&self) -> (Option<i32>, String) {
        let mut command = Command::new(program());
        command.args(["verify", "--config"]).arg(self.file());
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }
}

/// What it says of itself.
impl Keyward {
    /// The whole answer to `GET page`.
    pub fn get(&self, page: &str) -> String {
        page_at(&self.admin, page).unwrap()
    }

    /// Its metrics, as Prometheus reads them.
    pub fn metrics(&self) -> String {
        self.get("/metrics")
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        let metrics = self.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {metrics}")).parse().unwrap()
    }

    /// All that it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Waits until `is_so`, and fails with its log if that takes longer than [`PATIENCE`].
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        self.until_within(PATIENCE, what, is_so);
    }

    /// The same with a patience of its own.
    pub fn until_within(&self, patience: Duration, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + patience;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what} never came:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it occupies of the machine's memory, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The processor time that it has taken so far, in user space and in the system.
    pub fn cpu_time(&self) -> Duration {
        // The system counts in hundredths of a second, on every processor that there is a MongoDB for.
        const TICK: Duration = Duration::from_millis(10);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, after_name) = stat.rsplit_once(") ").unwrap();
        let ticks = after_name.split(' ').skip(11).take(2);
        TICK * ticks.map(|ticks| ticks.parse::<u32>().unwrap()).sum()
    }
}

/// How it is stopped, and how it ends.
impl Keyward {
    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// Sends it a signal.
    pub fn send(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it where it stands (`SIGSTOP`), until [`Keyward::wake`]. All of its threads stand still then.
    pub fn freeze(&self) {
        self.send(Signal::SIGSTOP);
        self.until("it stands still", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            // The state follows the name, which is in parentheses.
            threads.flatten().all(|thread| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
            })
        });
    }

    /// Lets it go on.
    pub fn wake(&self) {
        self.send(Signal::SIGCONT);
    }

    /// Tells it to stop, and waits until it has; gives its exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        self.send(Signal::SIGTERM);
        self.ended()
    }

    /// Has it end in order: unlike one that is killed, nobody takes it for one that may still write.
    pub fn stop(mut self) {
        assert_eq!(self.terminate(), Some(0), "{}", self.log());
    }

    /// Has it end in order when it is dropped. Its entry in the register goes with it: those of other tests on the same cluster don't
    /// wait for two minutes until it has expired.
    #[must_use]
    pub fn leaving(mut self) -> Keyward {
        self.leaves = true;
        self
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
}

impl Drop for Keyward {
    fn drop(&mut self) {
        if self.leaves && !std::thread::panicking() && matches!(self.child.try_wait(), Ok(None)) {
            self.wake();
            self.terminate();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        match std::thread::panicking() {
            true => println!("{}", self.log()),
            // Debug lines are for developers.
            false => self
                .log()
                .lines()
                .filter(|line| ["INFO", "WARN", "ERROR"].iter().any(|level| line.contains(level)))
                .for_each(assert_in_plain_words),
        }
    }
}

/// The whole answer of the Keyward with this admin address to `GET page`.
///
/// # Errors
/// If it doesn't answer.
pub fn page_at(admin: &str, page: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(admin)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let request = format!("GET {page} HTTP/1.1\r\nhost: keyward\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes())?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

fn whole(settings: &str) -> String {
    let or_free = |setting: &str| match settings.lines().any(|line| line.starts_with(&format!("{setting}:"))) {
        true => String::new(),
        false => format!("{setting}: 127.0.0.1:0\n"),
    };
    format!("{}{}{settings}", or_free("listen"), or_free("admin"))
}

fn quiet(upstream: &str, constraints: &str) -> String {
    format!("upstream: {upstream}\nsweep: 1day\nreload_interval: 0s\nconstraints:\n{constraints}")
}
