//! Defines a check of the deployment, and the ways in which it can end.

use futures_util::future::BoxFuture;
use mongodb::error::{Error, TRANSIENT_TRANSACTION_ERROR};

use super::scratch::Scratch;
use crate::prepare::PrepareError;
use crate::proxy_collection::StoreError;
use crate::server::{code, driver};

/// The group that a check is shown in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Whether anything can be examined.
    Connection,
    /// The servers' versions.
    Versions,
    /// The privileges of the user.
    Privileges,
    /// Where documents are, and what moves them.
    Sharding,
    /// The documents that transactions see, and the ways in which they end.
    Transactions,
    /// The memory of retryable writes.
    Retries,
    /// Reads that decide something, and default concerns.
    Reads,
    /// Errors that are read or imitated.
    Errors,
    /// Clients' change streams.
    ChangeStreams,
    /// The cluster time and clocks.
    Clocks,
}

impl Group {
    /// The heading of its lines.
    pub fn name(self) -> &'static str {
        match self {
            Group::Connection => "connection",
            Group::Versions => "versions",
            Group::Privileges => "privileges",
            Group::Sharding => "sharding",
            Group::Transactions => "transactions",
            Group::Retries => "retries",
            Group::Reads => "reads",
            Group::Errors => "errors",
            Group::ChangeStreams => "change streams",
            Group::Clocks => "clocks",
        }
    }
}

/// The objects that must exist before a check can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A deployment that answers.
    Deployment,
    /// The scratch database.
    Scratch,
    /// The scratch database on a sharded cluster.
    Cluster,
    /// On a sharded cluster, a collection over two shards; on a replica set, the scratch database.
    TwoPlaces,
    /// A collection over two shards of a sharded cluster.
    TwoShards,
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The assumption holds; with what was seen, if that is worth a word.
    Passed(String),
    /// Something is unusual, but nothing rests on it.
    Warned(String),
    /// The assumption doesn't hold; with what was seen.
    Failed(String),
    /// The check wasn't run to its end; with the reason.
    Skipped(String),
}

impl CheckOutcome {
    /// Passed, without a word.
    pub fn passed() -> CheckOutcome {
        CheckOutcome::Passed(String::new())
    }

    /// Passed if `holds`, else failed with what was seen.
    pub fn of(holds: bool, seen: impl FnOnce() -> String) -> CheckOutcome {
        match holds {
            true => CheckOutcome::passed(),
            false => CheckOutcome::Failed(seen()),
        }
    }
}

/// Why a check came to no outcome by itself.
#[derive(Debug)]
pub enum CheckError {
    /// The driver failed, or the server refused a command that it should carry out.
    Driver(Error),
    /// No answer came in time.
    TimedOut,
    /// The run was asked to end.
    Interrupted,
    /// The check can't be run here; with the reason.
    Impossible(String),
    /// The answer isn't that of any known server.
    Unexpected(String),
    /// A transaction was ended by something that another try may not meet.
    Transient(String),
}

impl From<Error> for CheckError {
    fn from(error: Error) -> Self {
        CheckError::Driver(error)
    }
}

impl From<StoreError> for CheckError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Driver(error) => CheckError::Driver(error),
            StoreError::TimedOut(_) => CheckError::TimedOut,
            other => CheckError::Unexpected(other.to_string()),
        }
    }
}

impl From<PrepareError> for CheckError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Store(error) => error.into(),
            other => CheckError::Unexpected(other.to_string()),
        }
    }
}

impl CheckError {
    /// Whether another try may go well: a transaction met one that it had no part in.
    pub fn may_pass(&self) -> bool {
        match self {
            CheckError::Driver(error) => error.contains_label(TRANSIENT_TRANSACTION_ERROR),
            CheckError::Transient(_) => true,
            _ => false,
        }
    }

    /// Whether the user may not do what a check needs.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, CheckError::Driver(error) if driver::code_of(error) == Some(code::UNAUTHORIZED))
    }

    /// The outcome of a check that ended so.
    pub fn into_outcome(self) -> CheckOutcome {
        match self {
            CheckError::Driver(error) if driver::code_of(&error) == Some(code::UNAUTHORIZED) => {
                CheckOutcome::Skipped(format!("the user lacks a privilege: {}", driver::in_words(&error)))
            }
            CheckError::Driver(error) => CheckOutcome::Failed(driver::in_words(&error)),
            CheckError::TimedOut => CheckOutcome::Failed("no answer came in time".to_owned()),
            CheckError::Interrupted => CheckOutcome::Skipped("interrupted".to_owned()),
            CheckError::Impossible(why) => CheckOutcome::Skipped(why),
            CheckError::Unexpected(what) | CheckError::Transient(what) => CheckOutcome::Failed(what),
        }
    }
}

/// A check under way.
pub type Running<'a> = BoxFuture<'a, Result<CheckOutcome, CheckError>>;

/// One line of the examination.
#[derive(Clone, Copy)]
pub struct Check {
    /// The group that it is shown in.
    pub group: Group,
    /// Its name: unique, and the same in every version.
    pub name: &'static str,
    /// The assumption about the deployment that it checks.
    pub assumption: &'static str,
    /// The effect that is at risk if the assumption doesn't hold.
    pub at_risk: &'static str,
    /// The objects that must exist before it can run.
    pub needs: Needs,
    /// Runs it.
    pub run: for<'a> fn(&'a Scratch) -> Running<'a>,
}
