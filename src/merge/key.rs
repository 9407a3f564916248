//! Decides by which fields a `$merge` matches documents.

use super::stage::MergeStage;
use crate::catalog::Protected;
use crate::constraint::Constraint;

/// The fields to match by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeKey {
    /// Their paths, sorted.
    pub paths: Vec<String>,
    /// Whether only a constraint makes them unique, so that the server would refuse them.
    pub is_constraints: bool,
}

impl MergeKey {
    /// The fields that `stage` states, or those by which the server tells the documents of `protected` apart.
    ///
    /// A constraint stands in for an index only if it `is_enforced`, and has no collation and no filter. The command must not state
    /// a collation either (`is_collated`). The fields include the shard key, as the server requires of an index: a router must find the document.
    pub fn of(
        stage: &MergeStage<'_>,
        is_collated: bool,
        protected: &Protected,
        is_enforced: impl Fn(&Constraint) -> bool,
    ) -> MergeKey {
        let Some(on) = &stage.on else {
            let mut paths: Vec<String> = protected.place_paths().into_iter().map(str::to_owned).collect();
            paths.sort_unstable();
            paths.dedup();
            return MergeKey {
                paths,
                is_constraints: false,
            };
        };
        let stands_in = |constraint: &Constraint| {
            let mut fields: Vec<&str> = constraint.spec().key.keys().map(String::as_str).collect();
            fields.sort_unstable();
            fields == *on
                && !constraint.is_on_id()
                && !constraint.is_partial()
                && constraint.collation().is_none()
                && is_enforced(constraint)
        };
        let names_shard = protected.shard_key.iter().all(|path| on.contains(&path.as_str()));
        let mut constraints = protected.constraints.iter().map(|proxy| &*proxy.constraint);
        MergeKey {
            paths: on.iter().map(|path| (*path).to_owned()).collect(),
            is_constraints: !is_collated && !protected.is_collated && names_shard && constraints.any(stands_in),
        }
    }
}
