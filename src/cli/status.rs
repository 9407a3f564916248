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
    #[arg(long, value_name = "HOST:PORT", value_parser = admin_port)]
    admin: Option<String>,
    /// As one JSON object, with everything that the lines say
    #[arg(long)]
    json: bool,
}

/// Checks that `text` names a host and a port.
fn admin_port(text: &str) -> Result<String, &'static str> {
    let is_host = |host: &str| match host.strip_prefix('[') {
        Some(rest) => rest.ends_with(']'),
        None => !host.is_empty() && !host.contains([':', '/']),
    };
    match text.rsplit_once(':') {
        Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(text.to_owned()),
        _ => Err("not a host with a port, such as 127.0.0.1:9216"),
    }
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
    let (is_ready, text) = read(admin, page).map_err(|error| in_words(&error))?;
    match ready(&text) == Some(is_ready) {
        true => Ok((is_ready, text)),
        false => Err(format!("its page {page} is another one")),
    }
}

fn in_words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        ureq::Error::HostNotFound => "the host is unknown".to_owned(),
        ureq::Error::StatusCode(status) => format!("HTTP status {status}"),
        other => other.to_string(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_port_has_a_host_and_a_port() {
        for (text, fits) in [
            ("127.0.0.1:9216", true),
            ("keyward-0.keyward:9216", true),
            ("[::1]:9216", true),
            ("127.0.0.1", false),
            ("localhost", false),
            ("::1", false),
            (":9216", false),
            ("h:0", false),
            ("h:99999", false),
            ("http://h:9216", false),
        ] {
            assert_eq!(admin_port(text).is_ok(), fits, "{text}");
        }
    }
}
