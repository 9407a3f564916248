//! Defines the command line: the words that `keyward` understands, and the meaning of each exit code.
//!
//! One file a subcommand. Results go to standard output, the log and errors to standard error.

mod backfill;
mod check;
mod constraints;
mod doctor;
mod failure;
mod forget;
mod open_files;
mod report_file;
mod run;
mod shard;
mod shell;
mod signals;
mod status;
mod task;
mod verify;
mod watched;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Unique constraints across every shard of MongoDB: a proxy between drivers and mongos.
#[derive(Debug, Parser)]
#[command(name = "keyward", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the proxy until SIGTERM or SIGINT; once it takes clients it prints a line of JSON with its addresses. SIGHUP, or a
    /// change of the file, loads the configuration again
    Run(ConfigFile),
    /// Reserve for existing documents, as `run` does before it takes clients, and end; continues where it was stopped. Lists the documents
    /// that violate a constraint
    Backfill {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        only: OneCollection,
        #[command(flatten)]
        options: backfill::BackfillOptions,
    },
    /// Read everything, and list what documents and reservations contradict each other in
    Verify {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        only: OneCollection,
        #[command(flatten)]
        options: verify::VerifyOptions,
    },
    /// Check a configuration file, and say what it would have Keyward do; connects to nothing without `--connect`
    Check {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        options: check::CheckOptions,
    },
    /// Try at the real deployment what Keyward rests on, in a scratch database of its own: one line for each assumption
    Doctor {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        options: doctor::DoctorOptions,
    },
    /// Print what a running Keyward says of itself, as its page `/status` does
    Status {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        options: status::StatusOptions,
    },
    /// Take a Keyward that was killed out of the cluster's register, so that no constraint waits for it any more
    Forget {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        options: forget::ForgetOptions,
    },
    /// Show the constraints that the cluster knows, end one there, or change its strategy
    #[command(subcommand)]
    Constraints(constraints::ConstraintsCommand),
    /// Shard a collection with unique indexes that the server couldn't keep: Keyward takes them over, then the server shards it
    Shard {
        #[command(flatten)]
        options: shard::ShardOptions,
        #[command(flatten)]
        file: ConfigFile,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, in roff: `keyward man | man -l -`
    Man,
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration file; see config.example.yaml
    #[arg(long, value_name = "FILE", default_value = "keyward.yaml")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct OneCollection {
    /// Only this one of the collections in the configuration, as database.collection
    #[arg(long, value_name = "NAMESPACE")]
    collection: Option<String>,
}

/// Reads the number of a command-line option that must be 1 or more.
fn positive(text: &str) -> Result<u32, &'static str> {
    match text.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err("not a whole number from 1 to 4294967295"),
    }
}

/// Reads the number of a command-line option that may be 0.
fn whole(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "not a whole number from 0 to 4294967295")
}

/// How a command ended; the numbers are those of `sysexits.h` where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Exit {
    /// All is well.
    Success = 0,
    /// `verify` has found something and not repaired it. Or the Keyward that `status` asked isn't ready. Or `forget` got an id that isn't in
    /// the register, or that of a living Keyward. Or `constraints` changed nothing. Or `shard` stopped. Or `doctor` or `check --connect` warns.
    Findings = 1,
    /// The command line is wrong; or `verify` or `status` can't tell; or a check of `doctor` failed.
    Unsure = 2,
    /// Existing documents violate a constraint.
    Duplicates = 65,
    /// The deployment refuses Keyward, or doesn't do as it is asked.
    Upstream = 69,
    /// An address can't be listened on, or another part of the process failed.
    System = 71,
    /// The configuration is wrong, can't be read, or contradicts the cluster's.
    Config = 78,
}

const EXIT_CODES: &str = "\
Exit codes:
   0  all is well
   1  verify: documents and reservations contradict each other, and that isn't repaired; status: not ready; forget: not gone; constraints: nothing changed; shard: not done; doctor, check: a warning
   2  the command line is wrong; verify: it could not tell; status: no Keyward answered; doctor: a check failed, or it was interrupted
  65  existing documents violate a constraint
  69  the deployment refuses Keyward, or doesn't do as it is asked
  71  an address can't be listened on, or another part of the process failed
  78  the configuration is wrong, can't be read, or contradicts the cluster's";

/// Runs the command of this process's command line.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        CliCommand::Run(file) => run::run(&file.config),
        CliCommand::Backfill { file, only, options } => backfill::run(&file, &only, &options),
        CliCommand::Verify { file, only, options } => Ok(verify::run(&file, &only, &options)),
        CliCommand::Check { file, options } => check::run(&file.config, &options),
        CliCommand::Doctor { file, options } => doctor::run(&file, &options),
        CliCommand::Status { file, options } => status::run(&file.config, &options),
        CliCommand::Forget { file, options } => forget::run(&file, &options),
        CliCommand::Constraints(command) => constraints::run(&command),
        CliCommand::Shard { options, file } => shard::run(&file, &options),
        CliCommand::Completions { shell } => Ok(shell::completions(shell)),
        CliCommand::Man => Ok(shell::manual()),
    };
    let exit = done.unwrap_or_else(|error| {
        error.print();
        error.exit()
    });
    ExitCode::from(exit as u8)
}

/// Prints `what` on standard output. If no program reads the output any more, the exit code still shows how the command ended.
fn say(what: &dyn Display) {
    let _ = writeln!(std::io::stdout(), "{what}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
