//! Where a document is followed: a folder of its own, a deployment, `keyward` and `mongosh` on the PATH, and free ports in the place
//! of those that the documents name.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::process::Port;
use testbed::{NodeProject, ReplicaSet};

use crate::chapters::reader::file_name;
use crate::documentation::markdown::{Block, Page};
use testkit::scripts;

/// Answers for whoever would be asked at a terminal.
const PASSWORD_PROMPT: &str = "globalThis.passwordPrompt = () => 'secret';";

pub struct Place {
    folder: tempfile::TempDir,
    /// What the documents say, and what is so here.
    substitutes: Vec<(&'static str, String)>,
    /// The connection string for an administrator.
    administrator: String,
    shell: NodeProject,
    running: Vec<Running>,
    _ports: [Port; 2],
}

/// What a document has started in the foreground of a terminal.
struct Running {
    child: Child,
    place: String,
    errors: PathBuf,
}

impl Place {
    /// One where the documents' deployment is at `address`.
    pub fn at(address: String) -> Place {
        let administrator = format!("mongodb://{address}/");
        Place::new(address, administrator)
    }

    /// One whose deployment is a replica set with users.
    pub fn with_users(secured: &ReplicaSet) -> Place {
        Place::new(secured.addresses().remove(0), secured.uri())
    }

    fn new(address: String, administrator: String) -> Place {
        let ports = [Port::lease().unwrap(), Port::lease().unwrap()];
        let [listen, admin] = [0, 1].map(|port: usize| format!("127.0.0.1:{}", ports[port].number()));
        let shell = scripts::node();
        let folder = tempfile::tempdir().unwrap();
        let mongosh = shell.program("mongosh");
        let words = std::iter::once(mongosh.get_program()).chain(mongosh.get_args());
        let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        let script = format!(
            "#!/bin/sh\nHOME='{}' exec {} \"$@\"\n",
            shell.folder().display(),
            words.join(" ")
        );
        for programs in ["bin", "target/release"] {
            let programs = folder.path().join(programs);
            std::fs::create_dir_all(&programs).unwrap();
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_keyward"), programs.join("keyward")).unwrap();
        }
        executable(&folder.path().join("bin/mongosh"), &script);
        Place {
            folder,
            substitutes: vec![
                ("127.0.0.1:27017", address),
                ("127.0.0.1:27117", listen),
                ("127.0.0.1:9216", admin),
            ],
            administrator,
            shell,
            running: Vec::new(),
            _ports: ports,
        }
    }

    /// `text` as it reads here.
    pub fn resolved(&self, text: &str) -> String {
        let replace = |text: String, (said, here): &(&str, String)| text.replace(said, here);
        self.substitutes.iter().fold(text.to_owned(), replace)
    }

    /// Writes a configuration file; the ports that it leaves to their defaults are free ones here.
    pub fn write(&self, name: &str, text: &str) {
        let mut text = text.to_owned();
        for default in ["listen: 127.0.0.1:27117", "admin: 127.0.0.1:9216"] {
            let (setting, _) = default.split_once(' ').unwrap();
            if !text.lines().any(|line| line.starts_with(setting)) {
                text = format!("{default}\n{text}");
            }
        }
        std::fs::write(self.folder.path().join(name), self.resolved(&text)).unwrap();
    }

    /// Writes the file `name` that the document `path` shows.
    pub fn write_file_of(&self, path: &str, name: &str) {
        let mut blocks = Page::read(path).blocks().into_iter();
        let block = blocks.find(|block| file_name(block).as_deref() == Some(name)).unwrap();
        self.write(name, &block.text);
    }

    /// Runs `keyward` with the configuration that is there, to its successful end.
    pub fn keyward(&self, arguments: &[&str]) {
        scripts::output(&mut self.bash(&format!("keyward {} --config keyward.yaml", arguments.join(" "))));
    }

    /// Runs a block of commands; what it printed, on both outputs.
    pub fn run(&self, block: &Block, exit: i32) -> String {
        let output = self.bash(&self.resolved(&block.text)).output().unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let logs: Vec<String> = self.running.iter().map(Running::log).collect();
        assert_eq!(
            output.status.code(),
            Some(exit),
            "{}:\n{printed}\n{}",
            block.place,
            logs.join("\n")
        );
        printed
    }

    /// Types a block into a shell at the deployment; what that printed.
    pub fn type_into_shell(&self, block: &Block) -> String {
        let file = self.folder.path().join("block.js");
        std::fs::write(&file, format!("{PASSWORD_PROMPT}\n{}", self.resolved(&block.text))).unwrap();
        let mut mongosh = self.shell.program("mongosh");
        mongosh.args(["--quiet", &self.administrator, "--file"]).arg(&file);
        scripts::output(&mut mongosh)
    }

    /// Starts a command, and waits until it says that it is up; that line.
    pub fn start(&mut self, block: &Block) -> String {
        let command = self.resolved(block.text.trim());
        assert!(!command.contains('\n'), "{}: one command only", block.place);
        let errors = self.folder.path().join(format!("errors-{}", self.running.len()));
        let child = self
            .bash(&format!("exec {command}"))
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        self.running.push(Running {
            child,
            place: block.place.clone(),
            errors,
        });
        let running = self.running.last_mut().unwrap();
        let mut line = String::new();
        let output = running.child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{}: {}", block.place, running.log());
        line
    }

    /// Stops what was started, as Ctrl-C and supervisors do.
    pub fn stop(&mut self) {
        for mut running in self.running.drain(..) {
            kill(Pid::from_raw(running.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
            let exit = running.child.wait().unwrap().code();
            assert_eq!(exit, Some(0), "{}: {}", running.place, running.log());
        }
    }

    fn bash(&self, commands: &str) -> Command {
        let mut bash = Command::new("bash");
        let path = std::env::var("PATH").unwrap();
        bash.args(["-e", "-u", "-o", "pipefail", "-c", commands])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", self.folder.path().join("bin").display()))
            .env_remove("KEYWARD_UPSTREAM")
            .env_remove("KEYWARD_LOG")
            .stdin(Stdio::null());
        bash
    }
}

impl Running {
    fn log(&self) -> String {
        let mut log = String::new();
        std::fs::File::open(&self.errors)
            .unwrap()
            .read_to_string(&mut log)
            .unwrap();
        log
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn executable(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
