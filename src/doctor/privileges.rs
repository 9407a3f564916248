//! Checks the privileges of the user in the connection string, by the function that a start uses.

use super::check::{CheckError, CheckOutcome};
use super::scratch::Scratch;
use crate::prepare::privileges;

/// The user has every privilege that the constraints need.
pub async fn role(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let missing = privileges::missing(scratch.client(), &scratch.constraints).await?;
    Ok(CheckOutcome::of(missing.is_empty(), || {
        format!("the user lacks {}", missing.join("; "))
    }))
}
