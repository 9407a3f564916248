//! Runs `keyward doctor`: tries what correctness and speed rest on at the real deployment, and prints one line for each assumption.
//!
//! Lines go to standard output when they are known, or all of them as one JSON document. The first SIGINT or SIGTERM ends the checks and
//! has the scratch database dropped; a second one ends the process at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;

use super::failure::CliFailure;
use super::report_file::ReportFile;
use super::signals::Signals;
use super::{ConfigFile, Exit, say};
use crate::config::Config;
use crate::doctor::{self, Examination, Group, Line, Worst};
use crate::telemetry;

#[derive(Debug, Args)]
pub(super) struct DoctorOptions {
    /// One JSON document with all results
    #[arg(long)]
    json: bool,
    /// Write a file for a support request: results, versions, and the configuration without addresses, credentials and values
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
}

/// Examines the deployment of the configuration.
pub(super) fn run(file: &ConfigFile, options: &DoctorOptions) -> Result<Exit, CliFailure> {
    let config = Config::load(&file.config)?;
    telemetry::start(&config.log, None)?;
    // Before the checks, which take long.
    let bundle = options.bundle.as_deref().map(ReportFile::create).transpose()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (report, is_interrupted) = runtime.block_on(examine(&config, options))?;
    match options.json {
        true => say(&format!("{:#}", report.to_json())),
        false => say(&format!("\n{}", report.summary())),
    }
    if let Some(bundle) = bundle {
        bundle.finish(report.bundle().trim_end())?;
    }
    Ok(match report.worst() {
        _ if is_interrupted => Exit::Unsure,
        Worst::Passed => Exit::Success,
        Worst::Warned => Exit::Findings,
        Worst::Failed => Exit::Unsure,
    })
}

async fn examine(config: &Config, options: &DoctorOptions) -> Result<(Examination, bool), CliFailure> {
    let mut signals = Signals::take_over()?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let mut last = None;
    let mut show = |line: &Line| {
        if !options.json {
            show_line(line, &mut last);
        }
    };
    let mut examining = std::pin::pin!(doctor::examine(config, is_interrupted.clone(), &mut show));
    loop {
        tokio::select! {
            report = &mut examining => return Ok((report, is_interrupted.load(Ordering::Acquire))),
            signal = signals.next() => {
                if is_interrupted.swap(true, Ordering::AcqRel) {
                    eprintln!("keyward: {signal} again; a database {}… may still exist", doctor::PREFIX);
                    std::process::exit(Exit::Unsure as i32);
                }
                eprintln!("keyward: {signal}; dropping the scratch database");
            }
        }
    }
}

/// Prints the line, below the heading of its group.
fn show_line(line: &Line, last: &mut Option<Group>) {
    let group = line.check.group;
    if *last != Some(group) {
        let gap = if last.is_some() { "\n" } else { "" };
        let name = group.name();
        say(&format!("{gap}{name}\n{}", "-".repeat(name.len())));
        *last = Some(group);
    }
    say(&line.text());
}
