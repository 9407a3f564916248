//! Raises the number of files, sockets included, that the process may have open, as far as the system allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files besides clients and their upstream connections: the log, the admin pages, Keyward's own connections.
const OTHERS: u64 = 500;

/// Allows as many as possible, and warns if they aren't enough for `connections` clients.
pub(super) fn allow(connections: usize) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let open_max = maximum.unwrap_or(u64::MAX);
    let needed = 2 * connections as u64 + OTHERS;
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) if open_max < needed => tracing::warn!(
            open_max,
            needed,
            "fewer open files are allowed than limits.max_connections clients need, two each; raise the limit (LimitNOFILE, \
             ulimit -n) or lower the setting"
        ),
        Ok(()) => {}
        Err(error) => tracing::warn!(%error, "the limit of open files could not be raised"),
    }
}
