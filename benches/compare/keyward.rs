//! A Keyward of its own process, as it is or under `callgrind`, and what the system says of it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A running Keyward; killed when dropped.
pub struct Keyward {
    child: Child,
    /// Where it takes clients.
    pub address: String,
    _config: tempfile::NamedTempFile,
}

impl Keyward {
    /// Starts one in front of `upstream` that enforces `constraints` (YAML, a list).
    pub fn start(upstream: &str, constraints: &str) -> Keyward {
        Keyward::run(Command::new(env!("CARGO_BIN_EXE_keyward")), upstream, constraints)
    }

    /// Starts one whose instructions are counted: they are in `counts` once it has ended. On one worker thread, because what
    /// several do to find nothing to do depends on the machine.
    pub fn start_counted(upstream: &str, constraints: &str, counts: &Path) -> Keyward {
        let mut out = std::ffi::OsString::from("--callgrind-out-file=");
        out.push(counts);
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--quiet"]).arg(out);
        command
            .arg(env!("CARGO_BIN_EXE_keyward"))
            .env("TOKIO_WORKER_THREADS", "1");
        Keyward::run(command, upstream, constraints)
    }

    fn run(mut command: Command, upstream: &str, constraints: &str) -> Keyward {
        let config = config(upstream, constraints);
        let mut child = command
            .args(["run", "--config"])
            .arg(config.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).expect("a Keyward that starts");
        let address = ready["listen"].as_str().unwrap().to_owned();
        Keyward {
            child,
            address,
            _config: config,
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

    /// Runs `keyward backfill` to its end.
    pub fn backfill(upstream: &str, constraints: &str) {
        let config = config(upstream, constraints);
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyward"));
        command.args(["backfill", "--config"]).arg(config.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Has it end in order.
    pub fn stop(mut self) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Keyward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(upstream: &str, constraints: &str) -> tempfile::NamedTempFile {
    let mut config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    // Nothing that a clock begins, while it is measured.
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: {upstream}\nsweep: 1day\nreload_interval: \
         0s\nconstraints:\n{constraints}"
    );
    config.write_all(text.as_bytes()).unwrap();
    config
}
