//! Runs `keyward shard`: shards a collection with unique indexes that the server couldn't keep.

use std::time::Duration;

use bson::Document;
use clap::Args;

use super::failure::CliFailure;
use super::task::Task;
use super::{ConfigFile, Exit, OneCollection, say};
use crate::namespace::Namespace;
use crate::shard::{ShardPlan, ShardTask};
use crate::verify::{Finding, VerifySettings};

#[derive(Debug, Args)]
pub(super) struct ShardOptions {
    /// The collection, as database.collection
    #[arg(value_name = "NAMESPACE")]
    namespace: Namespace,
    /// The shard key as JSON, for example '{"region": 1}' or '{"_id": "hashed"}'
    #[arg(value_name = "KEY", value_parser = shard_key)]
    key: Document,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// How many seconds to wait for writes past Keyward, before the indexes are replaced and after the collection is sharded
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = super::whole)]
    watch: u32,
    /// How many documents and reservations to compare in a second, at most
    #[arg(long, value_name = "NUMBER", default_value_t = 5_000, value_parser = super::positive)]
    rate: u32,
}

fn shard_key(text: &str) -> Result<Document, String> {
    let key: Document = serde_json::from_str(text).map_err(|error| match error.is_data() {
        true => "not a JSON object".to_owned(),
        false => format!("not a JSON object: it can't be read at its column {}", error.column()),
    })?;
    match key.is_empty() {
        true => Err("a shard key has a field".to_owned()),
        false => Ok(key),
    }
}

/// Shards the collection.
pub(super) fn run(file: &ConfigFile, options: &ShardOptions) -> Result<Exit, CliFailure> {
    let task = Task::new(file, &OneCollection { collection: None })?;
    task.runtime.block_on(async {
        let client = task.connect().await?;
        let shard = ShardTask {
            client: &client,
            namespace: &options.namespace,
            key: &options.key,
            of_file: &task.config.constraints,
            lease: task.config.lease,
            verification: VerifySettings {
                rate: options.rate,
                repair: false,
            },
            watch: Duration::from_secs(options.watch.into()),
            metrics: &task.metrics,
        };
        let plan = shard.plan().await?;
        if options.dry_run {
            announce(options, &plan);
            return Ok(Exit::Success);
        }
        let mut report = |finding: &Finding| say(finding);
        shard.carry_out(&plan, &mut |done| say(&done), &mut report).await?;
        Ok(Exit::Success)
    })
}

fn announce(options: &ShardOptions, plan: &ShardPlan) {
    for unique in &plan.taken_over {
        say(&format!("{}: would become a constraint", unique.name()));
    }
    let (namespace, key) = (&options.namespace, &options.key);
    match plan.is_sharded {
        true => say(&format!("{namespace} is sharded by {key} already")),
        false => say(&format!("{namespace} would be sharded by {key}")),
    }
}
