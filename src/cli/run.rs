//! `keyward run`: one [`Instance`] from its start to its end, in the foreground.
//!
//! Once it takes clients it prints a line of JSON with its addresses. The first SIGTERM or SIGINT lets clients have the
//! answers they are owed; a second one ends the process at once. Why it didn't start is said on standard error and in
//! the exit code.

use std::path::Path;

use serde_json::json;

use super::Exit;
use super::failure::Failure;
use super::signals::Signals;
use crate::config::Config;
use crate::instance::Instance;
use crate::telemetry;

/// Runs Keyward with the configuration in `file` until it is told to stop.
pub(super) fn run(file: &Path) -> Exit {
    match start(file) {
        Ok(()) => Exit::Success,
        Err(error) => {
            error.tell();
            error.exit()
        }
    }
}

fn start(file: &Path) -> Result<(), Failure> {
    let config = Config::load(file)?;
    telemetry::start(&config.log)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(serve(&config));
    // A second signal may leave connections open: they end here, not when they like.
    runtime.shutdown_background();
    ended
}

async fn serve(config: &Config) -> Result<(), Failure> {
    let mut signals = Signals::take_over()?;
    let instance = tokio::select! {
        started = Instance::start(config) => started?,
        signal = signals.next() => {
            tracing::info!(%signal, "stopped before it was ready");
            return Ok(());
        }
    };
    let (address, admin) = (instance.address().to_string(), instance.admin_address().to_string());
    println!("{}", json!({ "listen": address, "admin": admin }));
    let signal = signals.next().await;
    tracing::info!(%signal, "stopping; a second signal ends the process at once");
    tokio::select! {
        () = instance.stop() => {}
        signal = signals.next() => tracing::warn!(%signal, "connections are cut off"),
    }
    Ok(())
}
