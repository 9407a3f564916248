//! A stand-in for `mongos`: a router in front of a real config server and real shards, for tests and demos on machines
//! where no `mongos` is installed.
//!
//! The way of a message: `message` (bytes to requests) → `session` (one client's connection) → `dispatch` (by the
//! command's name) → `read`, `write`, `ddl`, … (which shards, what to send) → `operation` (what each message to a shard
//! carries) → `shard` (connections). `routing` knows which shard owns what.
//!
//! Every command to a shard carries the routing version it is based on, so that a chunk may move at any time. What the
//! router can't do right it answers with an error, never with a wrong result.

mod attempts;
mod clock;
mod command;
mod ddl;
mod default_concerns;
mod diagnostics;
mod dispatch;
mod display;
mod error;
mod fail_command;
mod find_and_modify;
mod freeze;
mod hello;
mod message;
mod operation;
mod operations;
#[path = "../../../src/raw/mod.rs"]
#[allow(dead_code, reason = "the proxy uses the rest")]
mod raw;
mod read;
mod reply;
mod routing;
mod session;
mod shard;
mod transaction;
mod transaction_end;
mod write;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use tokio::runtime::Runtime;

use clock::Clock;
use default_concerns::DefaultConcerns;
use fail_command::FailCommand;
use read::Cursors;
use routing::{Catalog, Link};
use shard::{Pools, ReplicaSet};
use transaction::Sessions;

pub use freeze::Frozen;

/// Threads of its own: the machine is shared with every process of the cluster.
const WORKER_THREADS: usize = 2;
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// A running router.
#[derive(Debug)]
pub struct Router {
    address: SocketAddr,
    runtime: Runtime,
    shared: Arc<Shared>,
}

impl Router {
    /// Serves on `listener` for the cluster whose config server has a member at `config_server` (`host:port`), on threads of
    /// its own. The config server is first contacted when a client needs it.
    ///
    /// # Errors
    /// If the listener can't be used or the threads can't be started.
    pub fn start(listener: TcpListener, config_server: String) -> io::Result<Router> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKER_THREADS)
            .thread_name("router")
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared::new(address, &config_server));
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        runtime.spawn(session::accept(listener, Arc::clone(&shared)));
        Ok(Router {
            address,
            runtime,
            shared,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on, whether no `abortTransaction` of its reaches a shard, as if the network had lost it. A router ignores the
    /// answers, so nothing else shows.
    pub fn lose_aborts(&self, are_lost: bool) {
        self.shared.loses_aborts.store(are_lost, Ordering::SeqCst);
    }

    /// From now on, whether a single write that no document can meet is answered without asking a shard, as by the newest
    /// `mongos`. It is unless this says otherwise: 6.0 targets such a write by its shard key, or refuses it without one.
    pub fn fold_falsehoods(&self, are_folded: bool) {
        self.shared.folds_falsehoods.store(are_folded, Ordering::SeqCst);
    }

    /// From now on, whether it takes each new connection for one from a load balancer.
    pub fn serve_load_balancer(&self, is_behind_one: bool) {
        self.shared
            .is_behind_load_balancer
            .store(is_behind_one, Ordering::SeqCst);
    }

    /// Keeps it from reading and answering anything until the result is dropped; its connections stay open.
    pub fn freeze(&self) -> Frozen {
        freeze::freeze(self.runtime.handle(), WORKER_THREADS)
    }

    /// Ends it and drops every connection at once, as a killed process would.
    pub fn stop(self) {
        // Dropping the tasks closes their sockets; none of them blocks a thread.
        self.runtime.shutdown_timeout(STOP_LIMIT);
    }
}

/// What all sessions share.
#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    started: Instant,
    /// Tells this router from the one that listened there before, in `topologyVersion`.
    process_id: ObjectId,
    catalog: Catalog,
    default_concerns: DefaultConcerns,
    pools: Pools,
    clock: Clock,
    sessions: Sessions,
    cursors: Cursors,
    fail_command: FailCommand,
    last_connection: AtomicI64,
    last_message: AtomicI32,
    /// No `abortTransaction` reaches a shard.
    loses_aborts: AtomicBool,
    /// A single write that no document can meet asks no shard.
    folds_falsehoods: AtomicBool,
    /// New connections come from a load balancer.
    is_behind_load_balancer: AtomicBool,
}

impl Shared {
    fn new(address: SocketAddr, config_server: &str) -> Self {
        Shared {
            address,
            started: Instant::now(),
            process_id: ObjectId::new(),
            catalog: Catalog::new(ReplicaSet::new("config", config_server)),
            default_concerns: DefaultConcerns::default(),
            pools: Pools::default(),
            clock: Clock::default(),
            sessions: Sessions::default(),
            cursors: Cursors::default(),
            fail_command: FailCommand::default(),
            last_connection: AtomicI64::new(0),
            last_message: AtomicI32::new(0),
            loses_aborts: AtomicBool::new(false),
            folds_falsehoods: AtomicBool::new(true),
            is_behind_load_balancer: AtomicBool::new(false),
        }
    }

    /// Whether a single write with this query is for nothing, and asks no shard.
    fn is_for_nothing(&self, query: raw::Doc<'_>) -> bool {
        self.folds_falsehoods.load(Ordering::SeqCst) && routing::is_never_met(query)
    }

    fn link(&self) -> Link<'_> {
        Link {
            pools: &self.pools,
            clock: &self.clock,
        }
    }
}
