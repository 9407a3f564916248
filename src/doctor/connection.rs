//! Checks whether the deployment answers, and has what Keyward needs.
//!
//! The order of the checks is that of the lines. The examination ends if one of the first two fails.

use super::check::{CheckError, CheckOutcome};
use super::scratch::Scratch;
use crate::counted::Counted;
use crate::upstream::Upstream;

/// The deployment answers the user of the connection string.
pub async fn answers(scratch: &mut Scratch, upstream: &Upstream) -> Result<CheckOutcome, CheckError> {
    scratch.look(upstream).await?;
    let kind = match (&scratch.shards, scratch.hello.get_str("setName")) {
        (Some(shards), _) => format!("mongos of a cluster with {}", Counted(shards.len(), "shard")),
        (None, Ok(_)) => format!("replica set with {}", Counted(scratch.servers().len(), "member")),
        (None, Err(_)) => "a single server".to_owned(),
    };
    Ok(CheckOutcome::Passed(kind))
}

/// The scratch database can be created.
pub async fn scratch_database(scratch: &mut Scratch) -> Result<CheckOutcome, CheckError> {
    let created = scratch.create().await;
    match (created, scratch.lacks(super::check::Needs::Scratch)) {
        (Ok(()), _) => Ok(CheckOutcome::Passed(scratch.name().to_owned())),
        (Err(CheckError::Interrupted), _) => Err(CheckError::Interrupted),
        (Err(error), why) => {
            let seen = match error.into_outcome() {
                CheckOutcome::Skipped(seen) | CheckOutcome::Failed(seen) => seen,
                CheckOutcome::Passed(_) | CheckOutcome::Warned(_) => String::new(),
            };
            let why = why.unwrap_or_default();
            Ok(CheckOutcome::Warned(format!("{why}: {seen}")))
        }
    }
}
