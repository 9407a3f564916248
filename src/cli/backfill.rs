//! `keyward backfill`: reserves for existing documents, as `keyward run` does, and ends. If it was killed, the next start continues
//! where it stopped.
//!
//! Nobody may reserve meanwhile what is written. So the constraints aren't enforced after it, only backfilled: `keyward run` reads
//! the documents once more, and has little to write.

use super::failure::CliFailure;
use super::task::Task;
use super::{ConfigFile, Exit, OneCollection};
use crate::instance::StartError;
use crate::prepare;

/// Backfills the collections of the configuration, or one of them.
pub(super) fn run(file: &ConfigFile, only: &OneCollection) -> Exit {
    match backfill_documents(file, only) {
        Ok(()) => Exit::Success,
        Err(error) => {
            error.print();
            error.exit()
        }
    }
}

fn backfill_documents(file: &ConfigFile, only: &OneCollection) -> Result<(), CliFailure> {
    let task = Task::new(file, only)?;
    let constraints = task.constraints_of_file()?;
    task.runtime.block_on(async {
        let client = task.connect().await?;
        prepare::prepare(&client, &constraints, task.config.lease, &task.metrics, None)
            .await
            .map_err(StartError::from)?;
        Ok(())
    })
}
