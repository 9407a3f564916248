//! Runs `keyward backfill`: reserves for existing documents, as `keyward run` does, and ends.
//!
//! If it was killed, the next start continues where it stopped. With `--dry-run` it only reads.
//!
//! Other clients may write without reserving meanwhile. So the constraints aren't enforced after it, only backfilled:
//! `keyward run` reads the documents once more, and has little to write.

use std::path::PathBuf;

use clap::Args;

use super::failure::CliFailure;
use super::report_file::ReportFile;
use super::task::Task;
use super::{ConfigFile, Exit, OneCollection, say};
use crate::instance::StartError;
use crate::metrics::constraint_labels;
use crate::prepare::{self, PrepareError, Reports};

#[derive(Debug, Args)]
pub(super) struct BackfillOptions {
    /// Only read, and report the documents that violate a constraint; reserves and creates nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the report as one JSON document
    #[arg(long)]
    json: bool,
    /// Write the report as JSON to this file, too
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Backfills the collections of the configuration, or one of them.
pub(super) fn run(file: &ConfigFile, only: &OneCollection, options: &BackfillOptions) -> Result<Exit, CliFailure> {
    let task = Task::new(file, only)?;
    let report_file = options.report.as_deref().map(ReportFile::create).transpose()?;
    let constraints = task.constraints_of_file()?;
    let reports = task.runtime.block_on(async {
        let client = task.connect().await?;
        let (lease, metrics) = (task.config.lease, &task.metrics);
        let all = (&[][..], task.config.backfill_share);
        let reports = match options.dry_run {
            true => prepare::find_duplicates(&client, &constraints, lease, metrics).await,
            false => match prepare::prepare(&client, &constraints, lease, metrics, None, all).await {
                Ok(_) => Ok(Reports::default()),
                Err(PrepareError::Duplicates(reports)) => Ok(reports),
                Err(error) => Err(error),
            },
        };
        Ok::<_, CliFailure>(reports.map_err(StartError::from)?)
    })?;
    let labels = constraint_labels(&constraints);
    let json = reports.to_json(&labels, options.dry_run);
    if let Some(file) = report_file {
        file.finish(&format!("{json:#}"))?;
    }
    match (options.json, reports.is_empty()) {
        (true, true) => say(&format!("{json:#}")),
        (true, false) => {
            say(&format!("{json:#}"));
            eprintln!("keyward: {}", reports.without_values());
        }
        (false, true) if options.dry_run => say(&format!("no duplicates under {}", labels.join(", "))),
        (false, true) => {}
        (false, false) => eprintln!("keyward: {reports}"),
    }
    match &options.report {
        Some(path) => eprintln!("keyward: the whole report is in {}", path.display()),
        None if options.json || reports.is_empty() => {}
        None => eprintln!(
            "keyward: `--report FILE` writes the whole report to a file, with up to 1000 keys of each constraint"
        ),
    }
    Ok(match reports.is_empty() {
        true => Exit::Success,
        false => Exit::Duplicates,
    })
}
