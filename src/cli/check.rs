//! Runs `keyward check`: summarises what a configuration file means, or lists everything that is wrong with it.
//!
//! It reads the file just as `keyward run` does, and connects to nothing. With `--connect` it also looks at the deployment, as
//! `keyward doctor` does, but creates nothing there.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use tokio::runtime::Runtime;

use super::failure::CliFailure;
use super::{Exit, say};
use crate::config::{Config, LogFormat};
use crate::constraint::{Constraint, Strategy};
use crate::counted::Counted;
use crate::doctor::{self, CheckOutcome, Worst};
use crate::instance::StartError;
use crate::limits::Limits;
use crate::telemetry;
use crate::tls::{Mode, TlsSettings};

#[derive(Debug, Args)]
pub struct CheckOptions {
    /// Also ask the deployment: versions, privileges, settings, and whether a sample of the documents has duplicates. Creates nothing
    #[arg(long)]
    connect: bool,
}

/// Checks `file`; the summary goes to standard output, problems go to standard error.
pub(super) fn run(file: &Path, options: &CheckOptions) -> Result<Exit, CliFailure> {
    let config = Config::load(file)?;
    say(&format!(
        "{}: no problems\n\n{}",
        file.display(),
        summary(&config).trim_end()
    ));
    match options.connect {
        true => look(&config),
        false => Ok(Exit::Success),
    }
}

/// Looks at the deployment of `config`, and prints a line for each check and for each constraint.
fn look(config: &Config) -> Result<Exit, CliFailure> {
    telemetry::start(&config.log, None)?;
    Runtime::new()?.block_on(async {
        say(&"");
        let (report, upstream) = doctor::look(config, &mut |line| say(&line.text())).await;
        let Some(upstream) = upstream else {
            return Ok(Exit::Upstream);
        };
        let sampled = doctor::sample_duplicates(config, &upstream).await;
        let sampled = sampled.map_err(StartError::from)?;
        let (mut is_violated, mut is_unknown) = (false, false);
        for one in sampled {
            let name = one.name;
            say(&match &one.outcome {
                CheckOutcome::Failed(seen) => format!("✗ {name}: {seen}"),
                CheckOutcome::Skipped(why) => format!("- {name}: skipped, {why}"),
                CheckOutcome::Passed(seen) | CheckOutcome::Warned(seen) => format!("✓ {name}: {seen}"),
            });
            is_violated |= matches!(one.outcome, CheckOutcome::Failed(_));
            is_unknown |= matches!(one.outcome, CheckOutcome::Skipped(_));
        }
        Ok(match report.worst() {
            _ if is_violated => Exit::Duplicates,
            Worst::Failed => Exit::Upstream,
            Worst::Warned => Exit::Findings,
            Worst::Passed if is_unknown => Exit::Findings,
            Worst::Passed => Exit::Success,
        })
    })
}

fn summary(config: &Config) -> String {
    let format = match config.log.format {
        LogFormat::Text => "text",
        LogFormat::Json => "JSON",
    };
    let mut text = String::new();
    for (name, value) in [
        ("listen", format!("{}, {}", config.listen, tls(config.tls.as_ref()))),
        (
            "upstream",
            match config.upstream.has_tls() {
                true => format!("{}, with TLS", config.upstream),
                false => format!("{}, without TLS", config.upstream),
            },
        ),
        ("admin", config.admin.to_string()),
        ("lease", for_people(config.lease)),
        ("sweep", for_people(config.sweep)),
        ("audit", if config.audit { "on" } else { "off" }.to_owned()),
        ("backfill", format!("at {} of the full speed", config.backfill_share.0)),
        (
            "drain",
            format!("{}, after {}", for_people(config.drain), for_people(config.drain_delay)),
        ),
        ("reload", reload(config.reload_interval)),
        ("log", format!("{}, as {format}", config.log.level)),
    ] {
        push_line(&mut text, &format!("{name:<10}{value}"));
    }
    for (index, limit) in limits(&config.limits).into_iter().enumerate() {
        let name = if index == 0 { "limits" } else { "" };
        push_line(&mut text, &format!("{name:<10}{limit}"));
    }
    push_line(&mut text, "");
    if config.constraints.is_empty() {
        push_line(&mut text, "No constraints: everything is forwarded as it comes.");
    }
    for constraint in &config.constraints {
        push_line(&mut text, &sentence(constraint, strategy(config, constraint)));
    }
    text
}

fn tls(settings: Option<&TlsSettings>) -> &'static str {
    match settings.map(|settings| settings.mode) {
        None => "without TLS",
        Some(Mode::Preferred) => "with and without TLS",
        Some(Mode::Required) => "with TLS",
    }
}

/// The strategy of the constraint's collection. The file alone doesn't show the strategy that suits the deployment.
fn strategy(config: &Config, constraint: &Constraint) -> &'static str {
    let of_collection = config
        .constraints
        .iter()
        .filter(|one| one.namespace() == constraint.namespace());
    let stated: Vec<Option<Strategy>> = of_collection.map(|one| one.strategy()).collect();
    if stated.contains(&Some(Strategy::Strict)) {
        return Strategy::Strict.name();
    }
    match stated.contains(&None) {
        true => "compensating on shards, strict on a replica set",
        false => Strategy::Compensating.name(),
    }
}

fn reload(interval: Duration) -> String {
    match interval.is_zero() {
        true => "on SIGHUP".to_owned(),
        false => format!(
            "on SIGHUP, and when the file has changed (read every {})",
            for_people(interval)
        ),
    }
}

fn limits(limits: &Limits) -> Vec<String> {
    let idle = match limits.idle_timeout.is_zero() {
        true => "idle connections stay".to_owned(),
        false => format!("{} idle", for_people(limits.idle_timeout)),
    };
    vec![
        Counted(limits.max_connections, "connection").to_string(),
        format!(
            "{} bytes for messages on their way, {} of one before authentication",
            limits.max_buffered_bytes, limits.max_unauthenticated_message_bytes
        ),
        format!(
            "{} changed by one statement",
            Counted(limits.max_documents_per_statement, "document")
        ),
        format!(
            "{} for the first message, {} for the rest of one, {} for the upstream connection; {idle}",
            for_people(limits.handshake_timeout),
            for_people(limits.message_timeout),
            for_people(limits.upstream_timeout),
        ),
    ]
}

fn for_people(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// `shop.users: email_1 is unique over { "key": { "email": 1 }, "sparse": false }; reservations in …; strategy: …`
fn sentence(constraint: &Constraint, strategy: &str) -> String {
    let mut options = constraint.definition();
    for said_elsewhere in ["format", "collection", "name"] {
        options.remove(said_elsewhere);
    }
    let (namespace, name, proxy) = (constraint.namespace(), constraint.name(), constraint.proxy_collection());
    format!("{namespace}: {name} is unique over {options}; reservations in {proxy}; strategy: {strategy}")
}

fn push_line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes everything that is written to it");
}
