//! Runs `keyward status`: shows what a running Keyward says of itself, read from its admin port.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::Exit;
use crate::config::Config;

/// An admin port that takes longer doesn't answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where to ask.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// Ask this admin port, and not the one in the configuration file
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
}

/// Prints the status of the Keyward whose configuration is `file`, or that `options` name.
pub(super) fn run(file: &Path, options: &StatusOptions) -> Exit {
    let admin = match options.admin {
        Some(admin) => admin,
        None => match Config::load(file) {
            Ok(config) => config.admin,
            Err(problems) => {
                eprintln!("{problems}");
                return Exit::Config;
            }
        },
    };
    match ask(admin) {
        Ok((is_ready, lines)) => {
            // A reader that has closed the pipe still gets the exit code.
            let _ = write!(std::io::stdout(), "{lines}");
            match is_ready {
                true => Exit::Success,
                false => Exit::Findings,
            }
        }
        Err(error) => {
            eprintln!("keyward: {admin} doesn't answer as a Keyward's admin port does: {error}");
            Exit::Unsure
        }
    }
}

fn ask(admin: SocketAddr) -> Result<(bool, String), String> {
    let (is_ready, lines) = read(admin).map_err(|error| error.to_string())?;
    match lines.starts_with(if is_ready { "ready" } else { "not ready" }) {
        true => Ok((is_ready, lines)),
        false => Err("its page /status is another one".to_owned()),
    }
}

fn read(admin: SocketAddr) -> Result<(bool, String), ureq::Error> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .new_agent();
    let mut reply = agent
        .get(format!("http://{admin}/status"))
        .header("accept", "text/plain")
        .call()?;
    match reply.status().as_u16() {
        200 => Ok((true, reply.body_mut().read_to_string()?)),
        503 => Ok((false, reply.body_mut().read_to_string()?)),
        other => Err(ureq::Error::StatusCode(other)),
    }
}
