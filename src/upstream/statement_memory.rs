//! Tries whether the deployment says which statement of a retry it had carried out before.
//!
//! Retries rest on it: without it, a retry could release keys that its first try has used.

use bson::{Document, doc};
use mongodb::error::Error;
use mongodb::options::SelectionCriteria;
use mongodb::{ClientSession, Database};

use crate::server::driver::names_its_statement;

/// Sends `command`, a write of one statement, twice under `number`. Returns whether the second reply names the statement as
/// carried out before (`retriedStmtIds`). Returns `None` if the first one changed no document, because a server needn't remember
/// that.
///
/// The driver must not use `session` for writes of its own: they would have the same numbers.
///
/// # Errors
/// [`Error`] if the deployment doesn't answer, or refuses.
pub async fn reports_retries(
    database: &Database,
    session: &mut ClientSession,
    command: &Document,
    number: i64,
    criteria: Option<SelectionCriteria>,
) -> Result<Option<bool>, Error> {
    let mut numbered = command.clone();
    numbered.extend(doc! { "txnNumber": number, "writeConcern": { "w": "majority" } });
    let mut replies = Vec::new();
    for _ in 0..2 {
        let run = database.run_command(numbered.clone());
        let run = match &criteria {
            Some(criteria) => run.selection_criteria(criteria.clone()),
            None => run,
        };
        replies.push(run.session(&mut *session).await?);
    }
    let has_changed = |reply: &Document| reply.get_i32("n").ok() == Some(1);
    Ok(has_changed(&replies[0]).then(|| names_its_statement(&replies[1])))
}
