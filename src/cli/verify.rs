//! Runs `keyward verify`: compares documents with reservations, and prints one finding a line.
//!
//! It writes findings to standard output when it finds them, and a summary after them. Progress and errors go to standard
//! error. Without `--repair` it only reads.

use std::fmt::Display;
use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::failure::CliFailure;
use super::task::Task;
use super::{ConfigFile, Exit, OneCollection};
use crate::counted::Counted;
use crate::instance::StartError;
use crate::prepare::{self, PrepareError};
use crate::verify::{Finding, Tally, VerifySettings, verify};

#[derive(Debug, Args)]
pub(super) struct VerifyOptions {
    /// One JSON object a line: each finding, then a summary
    #[arg(long)]
    json: bool,
    /// Repair what is safe to repair, and report it all
    #[arg(long)]
    repair: bool,
    /// How many documents and reservations to read in a second, at most
    #[arg(long, value_name = "NUMBER", default_value_t = 5_000, value_parser = super::positive)]
    rate: u32,
}

/// Verifies the protected collections, or one of them: those in the configuration, and those where clients made constraints.
pub(super) fn run(file: &ConfigFile, only: &OneCollection, options: &VerifyOptions) -> Exit {
    match verified(file, only, options) {
        Ok(exit) => exit,
        Err(error) => {
            error.print();
            match error.exit() {
                Exit::Config => Exit::Config,
                _ => Exit::Unsure,
            }
        }
    }
}

fn verified(file: &ConfigFile, only: &OneCollection, options: &VerifyOptions) -> Result<Exit, CliFailure> {
    let task = Task::new(file, only)?;
    task.runtime.block_on(async {
        let client = task.connect().await?;
        let (constraints, unreadable) = task.constraints(&client).await?;
        let collections = prepare::prepared(&client, &constraints, task.config.lease, &task.metrics);
        let collections = collections.await.map_err(StartError::from)?;
        let settings = VerifySettings {
            rate: options.rate,
            repair: options.repair,
        };
        let mut total = Tally::default();
        let mut unverified = unreadable.len();
        for name in &unreadable {
            eprintln!(
                "keyward: a client made unique constraint {name}, and the user in `upstream` may not read keyward.clientConstraints; grant find on \
                 it, or name a configuration file with another user by `--config`"
            );
        }
        for protected in &collections {
            for (position, proxy) in protected.constraints.iter().enumerate() {
                let mut tally = Tally::default();
                let mut report = |finding: &Finding| show(options, finding);
                let verified = match prepare::check_enforced(&client, protected, position).await {
                    Ok(()) => verify(protected, position, settings, &mut tally, &mut report)
                        .await
                        .map_err(PrepareError::from),
                    Err(error) => Err(error),
                };
                if let Err(error) = verified {
                    unverified += 1;
                    let (namespace, name) = (&protected.namespace, proxy.constraint.name());
                    eprintln!("keyward: {namespace} {name} could not be verified to the end: {error}");
                }
                total.add(&tally);
            }
        }
        match options.json {
            true => say(&summary(&total, unverified)),
            false => say(&sentence(&total, unverified)),
        }
        Ok(match (total.contradictions(), unverified) {
            (0, 0) => Exit::Success,
            (0, _) => Exit::Unsure,
            _ => Exit::Findings,
        })
    })
}

fn show(options: &VerifyOptions, finding: &Finding) {
    match options.json {
        true => say(&finding.to_json()),
        false => say(finding),
    }
}

/// Prints `what` on standard output. If no program reads the output any more, the process ends.
fn say(what: &dyn Display) {
    if writeln!(std::io::stdout(), "{what}").is_err() {
        std::process::exit(Exit::Unsure as i32);
    }
}

fn summary(total: &Tally, unverified: usize) -> Value {
    let of_kind = |(kind, (found, repaired)): (&crate::verify::FindingKind, &(u64, u64))| {
        (kind.name().to_owned(), json!({ "found": found, "repaired": repaired }))
    };
    let kinds: serde_json::Map<String, Value> = total.findings.iter().map(of_kind).collect();
    json!({ "summary": {
        "documents": total.documents, "reservations": total.reservations, "findings": kinds,
        "left": total.left(), "contradictions": total.contradictions(), "constraintsNotVerified": unverified,
    } })
}

fn sentence(total: &Tally, unverified: usize) -> String {
    let found: u64 = total.findings.values().map(|(found, _)| found).sum();
    let repaired = found - total.left();
    let unverified = match unverified {
        0 => String::new(),
        count => format!("; {} could not be verified to the end", Counted(count, "constraint")),
    };
    let harmless = match total.left() - total.contradictions() {
        0 => String::new(),
        1 => "; 1 abandoned reservation is left, which does no harm".to_owned(),
        count => format!("; {count} abandoned reservations are left, which do no harm"),
    };
    format!(
        "{}, {}: {}, {repaired} of them repaired{harmless}{unverified}",
        Counted(total.documents, "document"),
        Counted(total.reservations, "reservation"),
        Counted(found, "finding")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::FindingKind;

    #[test]
    fn the_last_line_has_the_singular_for_one() {
        let mut total = Tally {
            documents: 1,
            reservations: 1,
            ..Tally::default()
        };
        assert_eq!(
            sentence(&total, 0),
            "1 document, 1 reservation: 0 findings, 0 of them repaired"
        );
        total.documents = 2;
        total.findings.insert(FindingKind::Abandoned, (1, 0));
        assert_eq!(
            sentence(&total, 1),
            "2 documents, 1 reservation: 1 finding, 0 of them repaired; 1 abandoned reservation is left, which does no harm; \
             1 constraint could not be verified to the end"
        );
    }
}
