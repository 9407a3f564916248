//! Raises the number of files, sockets included, that the process may have open to the highest that the system allows it.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Open files besides clients and their upstream connections: the log, the admin pages, Keyward's own connections.
const OTHERS: u64 = 500;

/// Allows as many as possible, and warns if they aren't enough for `connections` clients.
pub(super) fn allow(connections: usize) {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    let raised = limits.and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map(|()| hard));
    let needed = 2 * connections as u64 + OTHERS;
    match raised {
        Ok(open_max) if open_max < needed => tracing::warn!(
            open_max,
            needed,
            "fewer open files are allowed than limits.max_connections clients need, two each; raise the limit (LimitNOFILE, \
             ulimit -n) or lower the setting"
        ),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the limit of open files could not be raised"),
    }
}
