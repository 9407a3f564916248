//! Runs `keyward run`: one [`Instance`] from its start to its end, in the foreground.
//!
//! Once it takes clients it prints a line of JSON with its addresses. SIGHUP, or a change of its file, loads the
//! configuration again. After the first SIGTERM or SIGINT, clients still get their pending replies. A second one ends the
//! process at once. If Keyward doesn't start, standard error and the exit code give the reason.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::failure::CliFailure;
use super::signals::{Ending, Signals};
use super::watched::Watched;
use super::{Exit, open_files};
use crate::config::Config;
use crate::instance::Instance;
use crate::telemetry::{self, Telemetry};

/// Runs Keyward with the configuration in `file` until a signal stops it.
pub(super) fn run(file: &Path) -> Result<Exit, CliFailure> {
    let mut watched = Watched::new(file);
    let config = Config::load(file)?;
    let telemetry = telemetry::start(&config.log, config.traces.as_ref())?;
    open_files::allow(config.limits.max_connections);
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(serve((file, &config), &mut watched, &telemetry));
    // A second signal may leave connections open: they end here, not when they like.
    runtime.shutdown_background();
    telemetry.finish(*ended.as_ref().unwrap_or(&Duration::ZERO));
    ended.map(|_| Exit::Success)
}

/// Serves clients with the configuration of `file` until a signal comes. Returns how long the process may still take for its own affairs.
async fn serve(
    (file, config): (&Path, &Config),
    watched: &mut Watched,
    telemetry: &Telemetry,
) -> Result<Duration, CliFailure> {
    let mut signals = Signals::take_over()?;
    let mut instance = tokio::select! {
        started = Instance::start(config) => started.map_err(|error| CliFailure::of_start(error, file))?,
        signal = signals.next() => {
            tracing::info!(%signal, "stopped before it was ready");
            return Ok(Duration::ZERO);
        }
    };
    let (address, admin) = (instance.address().to_string(), instance.admin_address().to_string());
    // Keyward serves clients even if no program reads this line.
    let _ = writeln!(std::io::stdout(), "{}", json!({ "admin": admin, "listen": address }));
    let signal = serve_until_signal(&mut instance, &mut signals, watched, telemetry).await;
    tracing::info!(%signal, "stopping; a second signal ends the process at once");
    Ok(tokio::select! {
        left = instance.stop() => left,
        signal = signals.next() => {
            tracing::warn!(%signal, "connections are cut off");
            Duration::ZERO
        }
    })
}

/// Loads the configuration again whenever that is asked for, until a signal asks for the end.
async fn serve_until_signal(
    instance: &mut Instance,
    signals: &mut Signals,
    watched: &mut Watched,
    telemetry: &Telemetry,
) -> Ending {
    loop {
        let asked = tokio::select! {
            asked = signals.any() => asked,
            () = watched.changed(instance.reload_interval()) => None,
            list = instance.clients_changed() => {
                tokio::select! {
                    () = instance.follow_clients(list) => continue,
                    signal = signals.next() => return signal,
                }
            }
        };
        if let Some(signal) = asked {
            return signal;
        }
        let wanted = watched.load();
        tokio::select! {
            () = instance.reload(wanted, telemetry) => {}
            signal = signals.next() => return signal,
        }
    }
}
