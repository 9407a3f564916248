//! `cargo demo`: a cluster of two shards, Keyward in front of it, and a short scene of what each of them lets in.
//!
//! Leaves both running until Ctrl-C, to be tried with `mongosh`; with `--once` it ends after the scene.

mod scene;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use keyward::config::Config;
use keyward::instance::Instance;
use testbed::Cluster;

fn main() -> ExitCode {
    let once = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--once") => true,
        Some(_) => {
            eprintln!("usage: cargo demo [--once]");
            return ExitCode::from(2);
        }
    };
    match run(once) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the demo failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(once: bool) -> Result<(), Box<dyn Error>> {
    println!("Starting a config server, two shards and a router (the first time, mongod is fetched) …");
    let cluster = Cluster::start()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        scene::prepare(&cluster).await?;
        let mut keyward = Instance::start(&configuration(&cluster)?).await?;
        let address = keyward.address();
        let invitation = invitation(&cluster, &keyward);
        tokio::select! {
            () = async {
                loop {
                    let list = keyward.clients_changed().await;
                    keyward.follow_clients(list).await;
                }
            } => {}
            played = async {
                scene::play(&cluster, address).await?;
                if !once {
                    println!("{invitation}");
                    tokio::signal::ctrl_c().await?;
                }
                Ok::<_, Box<dyn Error>>(())
            } => played?,
        }
        keyward.stop().await;
        Ok(())
    })
}

/// What a keyward.yaml for this would say; any free ports, so that two demos can run at once.
fn configuration(cluster: &Cluster) -> Result<Config, Box<dyn Error>> {
    let text = format!(
        "listen: 127.0.0.1:0\n\
         admin: 127.0.0.1:0\n\
         upstream: {}\n\
         constraints:\n  - collection: {}\n    key: {{ email: 1 }}\n",
        cluster.uri(),
        scene::PROTECTED,
    );
    println!("\nKeyward's configuration:\n\n{}", indented(&text));
    Ok(Config::from_text(Path::new("demo"), &text, None)?)
}

fn invitation(cluster: &Cluster, keyward: &Instance) -> String {
    format!(
        "\nBoth are still running. Try it yourself:\n\n\
         \x20   mongosh mongodb://{}/{}\n\
         \x20   > db.users.insertOne({{ country: 'nz', email: 'ann@example.com' }})\n\n\
         Past Keyward, on the router itself: {}\n\
         Metrics: http://{}/metrics\n\n\
         Ctrl-C ends everything.",
        keyward.address(),
        scene::DATABASE,
        cluster.uri(),
        keyward.admin_address(),
    )
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
