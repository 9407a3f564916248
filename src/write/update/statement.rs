//! Chooses in place or transaction for one statement.

use super::in_place::update_in_place;
use super::in_transaction::StatementRun;
use super::result::StatementResult;
use crate::write::forward::ForwardError;
use crate::write::plan::Way;

/// Carries out the statement.
///
/// # Errors
/// [`ForwardError`] if the connection is gone: a retry finds out the outcome.
pub async fn carry_out(run: &mut StatementRun<'_, '_>, way: &Way<'_>) -> Result<StatementResult, ForwardError> {
    match way {
        Way::InPlace(key_update) => update_in_place(run, key_update).await,
        Way::InTransaction | Way::PassThrough => run.run_in_own_transaction().await,
    }
}
