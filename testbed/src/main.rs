//! The `testbed` command: a throwaway cluster in the foreground, until SIGINT or SIGTERM.
//!
//! Standard output holds one line, the cluster's addresses as JSON, written once it can be used; everything else goes to
//! standard error. However this process ends, its servers end with it.

use std::error::Error as _;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use testbed::cluster::Mongos;
use testbed::{Cluster, Error, ReplicaSet};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(about = "A throwaway sharded MongoDB cluster")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a cluster, prints its addresses as one line of JSON, and keeps it until SIGINT or SIGTERM.
    Up(Up),
}

#[derive(Args)]
struct Up {
    /// How many shards the cluster has.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    shards: u8,
    /// How many members each shard has.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=7))]
    replicas: u8,
    /// An empty folder for data and logs, which then stay; a temporary one that is removed at the end by default.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The router's port; any free one by default.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// A replica set with access control in the place of the cluster (whose stand-in router can't log anybody in), and a
    /// user `root` with password `root` who may do everything.
    #[arg(long, conflicts_with_all = ["shards", "dir", "port"])]
    auth: bool,
}

/// What was started.
enum Started {
    Cluster(Box<Cluster>),
    Secured(ReplicaSet),
}

/// The line on standard output for a replica set.
#[derive(Serialize)]
struct Secured {
    uri: String,
    members: Vec<String>,
}

/// The line on standard output.
#[derive(Serialize)]
struct Addresses {
    router: String,
    config: String,
    shards: Vec<Shard>,
    mongos: &'static str,
}

#[derive(Serialize)]
struct Shard {
    name: String,
    members: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Cli {
        command: Command::Up(up),
    } = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    match run(up).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

async fn run(up: Up) -> Result<(), Error> {
    let interrupted = interruption()?;
    let began = Instant::now();
    // Interrupted while it starts, the whole process just ends, and what it has started with it.
    let starting = tokio::task::spawn_blocking(|| start(up));
    tokio::pin!(interrupted);
    let started = tokio::select! {
        started = starting => started.map_err(io::Error::other)??,
        () = &mut interrupted => std::process::exit(130),
    };
    announce(&started)?;
    let uri = match &started {
        Started::Cluster(cluster) => cluster.uri(),
        Started::Secured(set) => set.uri(),
    };
    let seconds = format!("{:.1}", began.elapsed().as_secs_f32());
    tracing::info!(uri, seconds, "ready; interrupt (Ctrl-C) to end it");
    interrupted.await;
    tracing::info!("ending");
    tokio::task::spawn_blocking(|| drop(started))
        .await
        .map_err(io::Error::other)?;
    Ok(())
}

/// Ends at the first SIGINT or SIGTERM, which no longer end the process by themselves from now on.
fn interruption() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn start(up: Up) -> Result<Started, Error> {
    testbed::process::use_disk();
    if up.auth {
        let set = ReplicaSet::builder("rs")
            .members(up.replicas.into())
            .root_user("root", "root");
        return set.start().map(Started::Secured);
    }
    let mut builder = Cluster::builder().shards(up.shards.into()).replicas(up.replicas.into());
    if let Some(folder) = up.dir {
        builder = builder.folder(folder);
    }
    if let Some(port) = up.port {
        builder = builder.port(port);
    }
    builder.start().map(|cluster| Started::Cluster(Box::new(cluster)))
}

fn announce(started: &Started) -> io::Result<()> {
    let cluster = match started {
        Started::Cluster(cluster) => cluster,
        Started::Secured(set) => {
            let secured = Secured {
                uri: set.uri(),
                members: set.addresses(),
            };
            let line = serde_json::to_string(&secured).map_err(io::Error::other)?;
            return writeln!(io::stdout(), "{line}");
        }
    };
    let shard = |set: &ReplicaSet| Shard {
        name: set.name().to_owned(),
        members: set.addresses(),
    };
    let addresses = Addresses {
        router: cluster.router_address(),
        config: cluster.config_server().addresses().remove(0),
        shards: cluster.shards().iter().map(shard).collect(),
        mongos: match cluster.mongos() {
            Mongos::Real(_) => "real",
            Mongos::StandIn(_) => "stand-in",
        },
    };
    let line = serde_json::to_string(&addresses).map_err(io::Error::other)?;
    writeln!(io::stdout(), "{line}")
}

fn report(error: &Error) {
    eprintln!("testbed: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
}
