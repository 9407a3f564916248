//! Lists why `keyward constraints` changes nothing, and what to do.

use crate::constraint::ConstraintName;
use crate::fleet::RegisterEntry;
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;
use crate::server::driver;

/// Why a constraint in the cluster isn't changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeRefusal {
    /// The cluster has no such constraint.
    #[error("the cluster knows no unique constraint {0}; `keyward constraints list` shows those that it knows")]
    Unknown(ConstraintName),
    /// Keywards count on it.
    #[error(
        "these Keywards count on it: {}. Take the constraint out of their files and reload them, or stop them; then run this again. One \
         that was killed leaves the register after two minutes, or by `keyward forget`",
        joined(.0)
    )]
    InUse(Vec<RegisterEntry>),
    /// Keywards count on the strategy.
    #[error(
        "these Keywards write with the present strategy: {}. Stop all of them; then run this again. One that was killed leaves the \
         register after two minutes, or by `keyward forget`",
        joined(.0)
    )]
    InUseWithStrategy(Vec<RegisterEntry>),
    /// Keywards of earlier versions might begin to count on it at this moment, and wouldn't notice the change.
    #[error(
        "these Keywards are of a version that doesn't notice such a change while it starts or reloads: {}. Stop or upgrade them first",
        joined(.0)
    )]
    Unnoticing(Vec<RegisterEntry>),
    /// A client made it.
    #[error(
        "a client made unique constraint {0}: end it through a Keyward, with dropIndexes, as any index; then run this again"
    )]
    OfClient(ConstraintName),
    /// Only clients' constraints are on the collection, and these can't be strict.
    #[error(
        "{0} has only constraints that clients made, and these are compensating; state one of them in the configuration files with \
         `strategy: strict` first"
    )]
    OnlyOfClients(Namespace),
    /// The user may not drop the proxy collection.
    #[error(
        "the user in `upstream` lacks dropCollection on {0}; grant it, or name a configuration file with another user by `--config`"
    )]
    MayNotDrop(Namespace),
    /// The user may not read the list of clients' constraints.
    #[error(
        "the user in `upstream` may not read keyward.clientConstraints, so a client may need the constraint; grant find on it, or name a \
         configuration file with another user by `--config`"
    )]
    MayNotReadList,
    /// A removal of the constraint is under way.
    #[error(
        "unique constraint {0} is being removed; run `keyward constraints remove {namespace} {name}` to the end first",
        namespace = .0.namespace, name = .0.name
    )]
    BeingRemoved(ConstraintName),
    /// A change of its strategy is under way.
    #[error(
        "the strategy of unique constraint {0} is being changed; run `keyward constraints strategy {namespace} {name} \
         strict`, or with `compensating`, to the end first",
        namespace = .0.namespace, name = .0.name
    )]
    StrategyChanging(ConstraintName),
    /// Another command has changed it at the same moment.
    #[error("another process changed the constraint at the same moment; run this again")]
    Overtaken,
    /// The deployment doesn't do as it is asked.
    #[error("the cluster: {0}{next}", next = next_step(.0))]
    Store(#[from] StoreError),
}

/// Another try helps only if the deployment may answer otherwise: missing rights come with their own way out.
fn next_step(error: &StoreError) -> &'static str {
    match error {
        StoreError::Driver(error) if driver::is_about_rights(error) => "",
        _ => "; run this again",
    }
}

fn joined(entries: &[RegisterEntry]) -> String {
    let entries: Vec<String> = entries.iter().map(ToString::to_string).collect();
    entries.join("; ")
}
