//! Keeps the constraints that this Keyward serves clients without, because existing documents violate them.
//!
//! Such a constraint is as if the configuration did not name it. Once this Keyward writes to its collection, the register lists the
//! collection without it, so no Keyward calls it enforced. A reload or a start tries it again.

use std::sync::Arc;

use mongodb::Client;

use crate::client_constraints::ClientConstraints;
use crate::constraint::{Constraint, Strategy};
use crate::fleet::Membership;
use crate::metrics::{constraint_label, constraint_labels};
use crate::prepare::{self, ConstraintState, PrepareError, Reports};
use crate::proxy_collection::StoreError;
use crate::readiness::Readiness;
use crate::session::Service;

/// The violated constraints, each with the number of documents that must change.
#[derive(Debug, Default)]
pub(super) struct LeftOutConstraints(Vec<(Arc<Constraint>, u64)>);

impl LeftOutConstraints {
    /// Leaves out the constraints that `reports` is about, if all of them may be; returns whether they may. They are
    /// some of `constraints`; there may be none.
    pub(super) fn add(&mut self, constraints: &[Arc<Constraint>], reports: &Reports) -> bool {
        let violated = reports.0.iter().map(|report| {
            let constraint = constraints.iter().find(|constraint| report.is_of(constraint))?;
            constraint.may_be_left_out().then(|| (constraint.clone(), report))
        });
        let Some(violated) = violated.collect::<Option<Vec<_>>>() else {
            return false;
        };
        for (constraint, report) in &violated {
            tracing::warn!(
                constraint = constraint_label(constraint), %report,
                "a constraint is left out, because existing documents violate it: clients write to its collection without it; \
                 change or delete the documents, then load the configuration again"
            );
        }
        self.0.extend(
            violated
                .into_iter()
                .map(|(constraint, report)| (constraint, report.count)),
        );
        true
    }

    /// `constraints` without those left out. Where one of these is strict, the other constraints of its collection
    /// stay strict: the cluster has recorded that strategy for them.
    pub(super) fn taken_out_of(&self, constraints: &[Arc<Constraint>]) -> Vec<Arc<Constraint>> {
        self.kept_strict(constraints.iter().filter(|constraint| !self.has(constraint)))
    }

    fn kept_strict<'c>(&self, constraints: impl Iterator<Item = &'c Arc<Constraint>>) -> Vec<Arc<Constraint>> {
        let is_strict = |constraint: &&Arc<Constraint>| {
            let mut strict = self.0.iter().map(|(left_out, _)| left_out);
            strict.any(|left_out| {
                left_out.namespace() == constraint.namespace() && left_out.strategy() == Some(Strategy::Strict)
            })
        };
        let kept = constraints.map(|constraint| match is_strict(&constraint) {
            true => Arc::new(constraint.strict()),
            false => constraint.clone(),
        });
        kept.collect()
    }

    /// The constraints of the file without those left out, and those of clients.
    pub(super) fn serving(&self, of_file: &[Arc<Constraint>], clients: &ClientConstraints) -> Vec<Arc<Constraint>> {
        let of_file = self.taken_out_of(of_file);
        self.kept_strict(clients.with(&of_file).iter())
    }

    /// Sees to it that no Keyward counts on this one for them: it may have listed them before it knew of the violation. Nothing may be
    /// written here yet.
    ///
    /// # Errors
    /// [`PrepareError`] if the cluster doesn't confirm it.
    pub(super) async fn give_up(&self, client: &Client, membership: &Membership) -> Result<(), PrepareError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let constraints = self.constraints();
        let standings = prepare::standings(client, &constraints).await?;
        let identities: Vec<_> = standings.into_iter().flatten().map(|one| one.identity).collect();
        membership.give_up(&identities).await?;
        // One that read the register before can't call them enforced any more.
        for constraint in &constraints {
            prepare::suspend_unless_enforced(client, constraint).await?;
        }
        Ok(())
    }

    /// Whether another Keyward has made one of them enforced.
    pub(super) async fn is_any_enforced(&self, client: &Client) -> Result<bool, StoreError> {
        let standings = prepare::standings(client, &self.constraints()).await?;
        let mut standings = standings.into_iter().flatten();
        Ok(standings.any(|standing| standing.state == ConstraintState::Enforced))
    }

    /// Their names.
    pub(super) fn names(&self) -> Vec<String> {
        constraint_labels(self.0.iter().map(|(constraint, _)| constraint))
    }

    /// Shows operators that these aren't enforced. Those of `before` that are left out no more are forgotten, unless they
    /// are in `current`.
    pub(super) fn show(
        &self,
        before: &LeftOutConstraints,
        current: &[Arc<Constraint>],
        service: &Service,
        readiness: &Readiness,
    ) {
        for (constraint, _) in before.0.iter().filter(|(constraint, _)| !self.has(constraint)) {
            if !current.iter().any(|one| one.has_name_of(constraint)) {
                service.forget(constraint);
                readiness.forget_note(&constraint_label(constraint));
            }
        }
        for (constraint, documents) in &self.0 {
            service.note_enforced(constraint, false);
            service.metrics.set_waits_for(constraint, 0);
            let note = match documents {
                1 => "left out: 1 document violates it, and clients write without it; change or delete that one, then load the \
                      configuration again"
                    .to_owned(),
                documents => format!(
                    "left out: {documents} documents violate it, and clients write without it; change or delete them, then load the \
                     configuration again"
                ),
            };
            readiness.note(&constraint_label(constraint), note);
        }
    }

    fn constraints(&self) -> Vec<Arc<Constraint>> {
        self.0.iter().map(|(constraint, _)| constraint.clone()).collect()
    }

    fn has(&self, constraint: &Constraint) -> bool {
        self.0.iter().any(|(left_out, _)| left_out.has_name_of(constraint))
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use bson::oid::ObjectId;

    use super::*;
    use crate::client_constraints::{BuildState, ClientConstraint};
    use crate::constraint::{IndexSpec, OnViolation};
    use crate::namespace::Namespace;
    use crate::prepare::Report;

    fn constraint(collection: &str, field: &str, spec: IndexSpec) -> Arc<Constraint> {
        let spec = IndexSpec {
            key: doc! { field: 1 },
            ..spec
        };
        Arc::new(Constraint::new(Namespace::new("shop", collection), spec).unwrap())
    }

    #[test]
    fn a_constraint_is_left_out_only_if_every_violated_one_may_be() {
        let may = IndexSpec {
            on_violation: OnViolation::LeaveOut,
            ..IndexSpec::default()
        };
        let email = constraint("users", "email", may);
        let phone = constraint("users", "phone", IndexSpec::default());
        let all = [email.clone(), phone.clone()];
        let report = |constraint: &Constraint| Report {
            count: 3,
            ..Report::of(constraint)
        };
        let mut left_out = LeftOutConstraints::default();
        assert!(!left_out.add(&all, &Reports(vec![report(&email), report(&phone)])));
        assert!(!left_out.add(&all[1..], &Reports(vec![report(&email)])));
        assert!(left_out.names().is_empty());
        assert!(left_out.add(&all, &Reports(vec![report(&email)])));
        assert_eq!(left_out.names(), ["shop.users.email_1"]);
        let kept = left_out.taken_out_of(&all);
        assert_eq!(kept.iter().map(|one| one.name()).collect::<Vec<_>>(), ["phone_1"]);
    }

    /// A client's index of the name is no part of the file.
    #[test]
    fn a_clients_constraint_of_the_name_is_served_in_its_place() {
        let may = IndexSpec {
            on_violation: OnViolation::LeaveOut,
            strategy: Some(Strategy::Strict),
            ..IndexSpec::default()
        };
        let email = constraint("users", "email", may);
        let of_client = IndexSpec {
            client_entry: Some(ObjectId::new()),
            ..IndexSpec::default()
        };
        let list = ClientConstraints {
            constraints: vec![ClientConstraint {
                id: ObjectId::new(),
                command: ObjectId::new(),
                constraint: constraint("users", "email", of_client),
                collection_uuid: None,
                state: BuildState::Built,
            }],
            ..ClientConstraints::default()
        };
        let mut left_out = LeftOutConstraints::default();
        let report = Report {
            count: 1,
            ..Report::of(&email)
        };
        assert!(left_out.add(std::slice::from_ref(&email), &Reports(vec![report])));
        let serving = left_out.serving(&[email], &list);
        let [served] = &serving[..] else { panic!("{serving:?}") };
        assert!(served.client_entry().is_some());
        assert_eq!(served.strategy(), Some(Strategy::Strict));
    }

    /// The cluster has recorded the strategy for the whole collection. Without this, the other constraints couldn't start.
    #[test]
    fn the_strategy_of_a_collection_stays_when_the_constraint_that_chose_it_is_left_out() {
        let strict = IndexSpec {
            on_violation: OnViolation::LeaveOut,
            strategy: Some(Strategy::Strict),
            ..IndexSpec::default()
        };
        let email = constraint("users", "email", strict);
        let all = [
            email.clone(),
            constraint("users", "phone", IndexSpec::default()),
            constraint("orders", "receipt", IndexSpec::default()),
        ];
        let mut left_out = LeftOutConstraints::default();
        let report = Report {
            count: 1,
            ..Report::of(&email)
        };
        assert!(left_out.add(&all, &Reports(vec![report])));
        let strategies: Vec<_> = left_out.taken_out_of(&all).iter().map(|one| one.strategy()).collect();
        assert_eq!(strategies, [Some(Strategy::Strict), None]);
    }
}
