//! Runs `keyward status`: shows what a running Keyward says of itself, read from its admin port.

use std::path::Path;
use std::time::Duration;

use clap::Args;

use serde_json::Value;

use super::failure::CliFailure;
use super::{Exit, say};
use crate::config::Config;

/// An admin port that takes longer doesn't answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where to ask.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// Ask this admin port, and not the one in the configuration file; the file isn't read then
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
    /// As one JSON object, with everything that the lines say
    #[arg(long)]
    json: bool,
}

/// Prints the status of the Keyward whose configuration is `file`, or that `options` name.
pub(super) fn run(file: &Path, options: &StatusOptions) -> Result<Exit, CliFailure> {
    let admin = match &options.admin {
        Some(admin) => admin.clone(),
        None => Config::load(file)?.admin.to_string(),
    };
    let asked = match options.json {
        true => ask(&admin, "/status.json", |text| {
            serde_json::from_str::<Value>(text).ok()?["ready"].as_bool()
        }),
        false => ask(&admin, "/status", |text| {
            let is_either = text.starts_with("ready") || text.starts_with("not ready");
            is_either.then(|| text.starts_with("ready"))
        }),
    };
    Ok(match asked {
        Ok((is_ready, lines)) => {
            say(&lines.trim_end());
            match is_ready {
                true => Exit::Success,
                false => Exit::Findings,
            }
        }
        Err(error) => {
            eprintln!(
                "keyward: {admin} doesn't answer as a Keyward's admin port does: {error}; is Keyward running there?"
            );
            Exit::Unsure
        }
    })
}

/// The page, and whether clients are welcome, as its status code says. `ready` reads the same from the text; none if it is no such page.
fn ask(admin: &str, page: &str, ready: impl Fn(&str) -> Option<bool>) -> Result<(bool, String), String> {
    let (is_ready, text) = read(admin, page).map_err(|error| error.to_string())?;
    match ready(&text) == Some(is_ready) {
        true => Ok((is_ready, text)),
        false => Err(format!("its page {page} is another one")),
    }
}

fn read(admin: &str, page: &str) -> Result<(bool, String), ureq::Error> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .new_agent();
    let mut reply = agent
        .get(format!("http://{admin}{page}"))
        .header("accept", "text/plain")
        .call()?;
    match reply.status().as_u16() {
        200 => Ok((true, reply.body_mut().read_to_string()?)),
        503 => Ok((false, reply.body_mut().read_to_string()?)),
        other => Err(ureq::Error::StatusCode(other)),
    }
}
