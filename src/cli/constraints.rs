//! Runs `keyward constraints`: shows the constraints that the cluster knows, ends one there, or changes a collection's strategy.
//!
//! It uses only `upstream` of the configuration file. The constraints in the file don't matter.

use clap::{Args, Subcommand, ValueEnum};
use mongodb::Client;
use serde_json::{Value, json};

use super::failure::CliFailure;
use super::task::Task;
use super::{ConfigFile, Exit, OneCollection, say};
use crate::constraint::{ConstraintName, Strategy};
use crate::counted::Counted;
use crate::extended_json;
use crate::fleet::RegisterEntry;
use crate::instance::StartError;
use crate::known_constraints::{self, ChangeRefusal, KnownConstraint, known_constraints};
use crate::namespace::Namespace;
use crate::prepare::PrepareError;

#[derive(Debug, Subcommand)]
pub(super) enum ConstraintsCommand {
    /// One line for each constraint that the cluster knows: of files, and of clients
    List {
        #[command(flatten)]
        file: ConfigFile,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// All of one constraint: its definition, state and reservations, and which Keywards count on it
    Show {
        #[command(flatten)]
        named: NamedConstraint,
        #[command(flatten)]
        file: ConfigFile,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// End a constraint in the cluster: its definition and its reservations. Refuses while a Keyward counts on it
    Remove {
        #[command(flatten)]
        named: NamedConstraint,
        #[command(flatten)]
        file: ConfigFile,
    },
    /// Change the strategy of a constraint's collection. Refuses while a Keyward counts on a constraint there
    Strategy {
        #[command(flatten)]
        named: NamedConstraint,
        /// The new strategy
        strategy: NewStrategy,
        #[command(flatten)]
        file: ConfigFile,
    },
}

/// A constraint in the cluster.
#[derive(Debug, Args)]
pub(super) struct NamedConstraint {
    /// Its collection, as database.collection
    #[arg(value_name = "NAMESPACE")]
    namespace: Namespace,
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum NewStrategy {
    /// Assumes that no command arrives later than a lease
    Compensating,
    /// Assumes nothing about time
    Strict,
}

/// Carries the command out.
pub(super) fn run(command: &ConstraintsCommand) -> Result<Exit, CliFailure> {
    match command {
        ConstraintsCommand::List { file, json } => list(file, *json),
        ConstraintsCommand::Show { named, file, json } => show(file, named, *json),
        ConstraintsCommand::Remove { named, file } => remove(file, named),
        ConstraintsCommand::Strategy { named, strategy, file } => set_strategy(file, named, *strategy),
    }?;
    Ok(Exit::Success)
}

/// Runs `work` with a client of the deployment in `file`.
fn with_client<T>(
    file: &ConfigFile,
    work: impl AsyncFnOnce(&Client) -> Result<T, CliFailure>,
) -> Result<T, CliFailure> {
    let task = Task::new(file, &OneCollection { collection: None })?;
    task.runtime.block_on(async { work(&task.connect().await?).await })
}

async fn all(client: &Client) -> Result<Vec<KnownConstraint>, CliFailure> {
    let known = known_constraints(client).await;
    Ok(known.map_err(|error| StartError::from(PrepareError::from(error)))?)
}

fn list(file: &ConfigFile, is_json: bool) -> Result<(), CliFailure> {
    let known = with_client(file, async |client: &Client| all(client).await)?;
    if is_json {
        known.iter().for_each(|constraint| say(&as_json(constraint)));
        return Ok(());
    }
    if known.is_empty() {
        say(&"the cluster knows no constraints");
        return Ok(());
    }
    let head = [
        "collection",
        "constraint",
        "key",
        "made by",
        "strategy",
        "state",
        "counted on by",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(known.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        say(&cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    Ok(())
}

fn row(constraint: &KnownConstraint) -> [String; 7] {
    [
        constraint.namespace.to_string(),
        constraint.name.clone(),
        constraint
            .key()
            .map_or_else(|| "unknown".to_owned(), ToString::to_string),
        source(constraint).to_owned(),
        constraint.strategy.clone().unwrap_or_else(|| "none yet".to_owned()),
        constraint.state.to_owned(),
        match constraint.counted_on_by.is_empty() {
            true => "no Keyward".to_owned(),
            false => {
                let named = |entry: &RegisterEntry| format!("{} process {}", entry.host, entry.pid);
                constraint
                    .counted_on_by
                    .iter()
                    .map(named)
                    .collect::<Vec<_>>()
                    .join(", ")
            }
        },
    ]
}

fn source(constraint: &KnownConstraint) -> &'static str {
    match constraint.is_of_client {
        true => "client",
        false => "file",
    }
}

fn show(file: &ConfigFile, named: &NamedConstraint, is_json: bool) -> Result<(), CliFailure> {
    let (constraint, reservations) = with_client(file, async |client: &Client| {
        let is_it = |one: &KnownConstraint| one.namespace == named.namespace && one.name == named.name;
        let constraint = all(client).await?.into_iter().find(is_it);
        let unknown = || ChangeRefusal::Unknown(ConstraintName::new(&named.namespace, &named.name));
        let constraint = constraint.ok_or_else(unknown)?;
        let reservations = constraint
            .count_reservations(client)
            .await
            .map_err(ChangeRefusal::from)?;
        Ok((constraint, reservations))
    })?;
    if is_json {
        let mut json = as_json(&constraint);
        json["reservations"] = reservations.into();
        say(&json);
        return Ok(());
    }
    for (name, value) in facts(&constraint, reservations) {
        say(&format!("{name:<15}{value}"));
    }
    Ok(())
}

fn facts(constraint: &KnownConstraint, reservations: u64) -> Vec<(&'static str, String)> {
    let definition = constraint.definition.as_ref();
    let mut facts = vec![
        ("collection", constraint.namespace.to_string()),
        ("constraint", constraint.name.clone()),
        (
            "definition",
            definition.map_or_else(|| "unknown".to_owned(), ToString::to_string),
        ),
        ("made by", source(constraint).to_owned()),
        (
            "strategy",
            constraint.strategy.clone().unwrap_or_else(|| "none yet".to_owned()),
        ),
        ("state", constraint.state.to_owned()),
        (
            "reservations",
            format!("about {reservations} in {}", constraint.proxy_collection()),
        ),
    ];
    if let Some(backfill) = &constraint.backfill {
        let of = backfill.of.map(|of| format!(" of about {of}")).unwrap_or_default();
        let after = backfill.after.as_ref();
        let after = after.map(|after| format!(", up to _id {after}")).unwrap_or_default();
        facts.push((
            "backfill",
            format!("about {}{of}{after}", Counted(backfill.done, "document")),
        ));
    }
    if constraint.counted_on_by.is_empty() {
        facts.push(("counted on by", "no Keyward".to_owned()));
    }
    let each = constraint.counted_on_by.iter();
    facts.extend(each.map(|entry| ("counted on by", format!("{entry}, version {}", entry.version))));
    let each = constraint.lacked_by.iter();
    facts.extend(each.map(|entry| ("lacked by", format!("{entry}, version {}", entry.version))));
    facts
}

fn as_json(constraint: &KnownConstraint) -> Value {
    let document = |document: Option<&bson::Document>| match document {
        Some(document) => extended(&document.clone().into()),
        None => Value::Null,
    };
    let keywards = |entries: &[RegisterEntry]| entries.iter().map(RegisterEntry::json).collect::<Vec<Value>>();
    let backfill = constraint
        .backfill
        .as_ref()
        .map(|backfill| json!({ "documents": backfill.done, "ofAbout": backfill.of, "after": backfill.after.as_ref().map(extended) }));
    json!({
        "collection": constraint.namespace.to_string(),
        "constraint": constraint.name,
        "key": document(constraint.key()),
        "definition": document(constraint.definition.as_ref()),
        "madeBy": source(constraint),
        "strategy": constraint.strategy,
        "state": constraint.state,
        "proxyCollection": constraint.proxy_collection().to_string(),
        "backfill": backfill,
        "countedOnBy": keywards(&constraint.counted_on_by),
        "lackedBy": keywards(&constraint.lacked_by),
    })
}

fn extended(value: &bson::Bson) -> Value {
    match bson::RawBson::try_from(value.clone()) {
        Ok(value) => extended_json::as_json(&value),
        Err(_) => Value::Null,
    }
}

fn remove(file: &ConfigFile, named: &NamedConstraint) -> Result<(), CliFailure> {
    let NamedConstraint { namespace, name } = named;
    let removed = with_client(file, async |client: &Client| {
        Ok(known_constraints::remove(client, namespace, name).await?)
    })?;
    match removed.proxy_collection {
        Some(proxy) => say(&format!(
            "removed unique constraint {name} on {namespace}, and its reservations in {proxy}"
        )),
        None => say(&format!(
            "removed unique constraint {name} on {namespace}; it had no proxy collection any more"
        )),
    }
    Ok(())
}

fn set_strategy(file: &ConfigFile, named: &NamedConstraint, strategy: NewStrategy) -> Result<(), CliFailure> {
    let NamedConstraint { namespace, name } = named;
    let strategy = match strategy {
        NewStrategy::Compensating => Strategy::Compensating,
        NewStrategy::Strict => Strategy::Strict,
    };
    let changed = with_client(file, async |client: &Client| {
        Ok(known_constraints::set_strategy(client, namespace, name, strategy).await?)
    })?;
    let (changed, strategy) = (changed.join(", "), strategy.name());
    say(&format!(
        "{namespace}: strategy {strategy} for {changed}; now write `strategy: {strategy}` for one of them in every file"
    ));
    Ok(())
}
