//! What Keyward is shipped as, as far as it can be checked without a Docker engine and without a Kubernetes cluster: that every
//! file is well-formed by its own tool or schema, and that what the files name is there and fits together.

#![expect(clippy::unwrap_used, reason = "a file that isn't as it must be fails its test")]

mod compose;
mod helm;
mod kubernetes;
mod release;
mod shell;
mod systemd;

use std::path::PathBuf;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
