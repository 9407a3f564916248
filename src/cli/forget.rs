//! Runs `keyward forget`: removes a Keyward that has ended from the register.
//!
//! No constraint waits for that Keyward any more. The command refuses to remove a Keyward that still renews its entry.

use bson::oid::ObjectId;
use clap::Args;

use super::failure::CliFailure;
use super::task::Task;
use super::{ConfigFile, Exit, OneCollection, say};
use crate::fleet::{Forgotten, Register};
use crate::instance::StartError;
use crate::prepare::PrepareError;
use crate::proxy_collection::StoreError;

/// The Keyward to forget.
#[derive(Debug, Args)]
pub struct ForgetOptions {
    /// The Keyward's id, as `/readyz` names it; its process must be gone, with all that it had sent
    #[arg(value_name = "ID", value_parser = id)]
    id: ObjectId,
}

fn id(text: &str) -> Result<ObjectId, &'static str> {
    ObjectId::parse_str(text).map_err(|_| "an id has 24 hexadecimal digits; `/readyz` names it")
}

/// Takes the Keyward out of the register of the deployment in `file`.
pub(super) fn run(file: &ConfigFile, options: &ForgetOptions) -> Result<Exit, CliFailure> {
    let id = options.id;
    let task = Task::new(file, &OneCollection { collection: None })?;
    let forgotten = task.runtime.block_on(async {
        let client = task.connect().await?;
        let failed = |error: StoreError| StartError::from(PrepareError::from(error));
        let register = Register::of(&client);
        let entries = register.recent().await.map_err(failed)?;
        if !entries.iter().any(|entry| entry.id == id) {
            return Ok(Forgotten::Unknown);
        }
        tracing::info!(%id, "watching its entry for as long as it may write without renewing it");
        Ok::<_, CliFailure>(register.forget(id).await.map_err(failed)?)
    })?;
    match forgotten {
        Forgotten::Gone => {
            say(&format!("took Keyward {id} out of the register"));
            return Ok(Exit::Success);
        }
        Forgotten::Unknown => eprintln!("keyward: no Keyward {id} is in the register"),
        Forgotten::Lives(entry) => eprintln!("keyward: {entry} still renews its entry; stop it first"),
    }
    Ok(Exit::Findings)
}
