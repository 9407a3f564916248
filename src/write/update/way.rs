//! Carries out a statement outside a client's transaction, in the way that its plan names.

use super::in_place::run_in_place;
use super::result::StatementResult;
use super::statement_run::StatementRun;
use crate::write::forward_error::ForwardError;
use crate::write::plan::Way;

/// Carries out the statement.
///
/// # Errors
/// [`ForwardError`] if the connection is gone: a retry finds out the outcome.
pub async fn carry_out_statement(
    run: &mut StatementRun<'_, '_>,
    way: &Way<'_>,
) -> Result<StatementResult, ForwardError> {
    match way {
        Way::InPlace(key_update) => run_in_place(run, key_update, None).await,
        Way::Upsert(upsert) => run_in_place(run, &upsert.key_update, Some(&upsert.document)).await,
        // No statement of `Way::Forward` comes here: `super::statements` forwards those, and a `findAndModify` of that way goes on
        // unchanged as a whole.
        Way::InTransaction | Way::Forward => run.run_in_own_transaction().await,
    }
}
