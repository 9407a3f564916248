//! Applies another configuration to a running Keyward: either all of it holds, or none of it and the reason is
//! reported.
//!
//! Settings that can't be changed while Keyward runs are named, and stay unchanged until the next start. A new
//! constraint reserves for all writes at once. It backfills the existing documents only after everything that was
//! decided without it has ended. Until then, and if the reload fails, the previous constraints hold without a gap.

mod last;
mod meanwhile;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backfill_share::BackfillShare;
use crate::client_constraints::is_current;
use crate::config::{Config, Problems};
use crate::constraint::Constraint;
use crate::fleet::{self, Membership};
use crate::metrics::{constraint_label, constraint_labels};
use crate::prepare::{self, IfClaimed, PrepareError, ReservingConstraints, WaitingConstraint};
use crate::proxy_collection::StoreError;
use crate::readiness::Readiness;
use crate::session::Service;
use crate::tls;
use crate::traces;
pub use last::{HoldingConfiguration, LastReload};
use meanwhile::Meanwhile;
pub use meanwhile::{ListFollower, replace_clients_constraints};

/// How long operations that were decided by the old constraints may take to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often the log says that operations are waited for which former definitions of constraints decided.
const LOGGED: Duration = Duration::from_secs(10);

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// It is invalid by itself.
    #[error(transparent)]
    Config(#[from] Problems),
    /// Its constraints can't be made to hold.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The certificates can't be used.
    #[error("tls: {0}")]
    Tls(#[from] tls::TlsError),
    /// Earlier commands are still under way.
    #[error(
        "commands that began before the new constraints are still under way after {}: nothing was changed; load it again later",
        humantime::format_duration(PATIENCE)
    )]
    Busy,
    /// Clients have made or dropped constraints meanwhile.
    #[error("clients have made or dropped constraints meanwhile: nothing was changed; load it again")]
    ListChanged,
}

/// The changes of a reload.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Constraints that now reserve and didn't before.
    pub added: Vec<String>,
    /// The added constraints that aren't enforced yet, because another Keyward may write without them.
    pub waiting: Vec<String>,
    /// Constraints that no longer hold.
    pub removed: Vec<String>,
    /// Settings that differ in the file, but stay unchanged until the next start.
    pub needs_restart: Vec<&'static str>,
}

/// Makes `wanted` hold in place of `current`; `current` is then the configuration that holds. Meanwhile it applies other lists of clients'
/// constraints, also if the configuration is refused.
///
/// - Cancel: new constraints may reserve already, but enforce nothing.
/// # Errors
/// [`ReloadError`]; then the previous configuration still holds.
pub async fn apply(
    (service, membership, readiness): (&Service, &Membership, &Readiness),
    current: &mut Config,
    wanted: Config,
    follower: &mut impl ListFollower,
) -> Result<Changes, ReloadError> {
    // Checked before anything is changed, and used only once everything else holds.
    let certificates = match (&service.tls, &wanted.tls) {
        (Some(acceptor), Some(settings)) => Some((acceptor, tls::Prepared::load(settings.clone())?)),
        _ => None,
    };
    let applied = apply_constraints(
        (service, membership, readiness),
        current,
        (&wanted.constraints, wanted.backfill_share),
        follower,
    )
    .await?;
    let Applied {
        added,
        removed,
        waiting,
        holding,
    } = applied.shown(service, readiness);
    service.limit(wanted.limits);
    if let Some((acceptor, certificates)) = certificates {
        acceptor.replace(certificates);
    }
    let changes = Changes {
        added: constraint_labels(&added),
        waiting: constraint_labels(waiting.iter().map(|one| &one.constraint)),
        removed: constraint_labels(&removed),
        needs_restart: needing_restart(current, &wanted),
    };
    let format = current.log.format;
    let traces = match (&current.traces, &wanted.traces) {
        (Some(current), Some(wanted)) => Some(traces::TraceSettings {
            endpoint: current.endpoint.clone(),
            ..wanted.clone()
        }),
        (current, _) => current.clone(),
    };
    *current = Config {
        traces,
        listen: current.listen,
        admin: current.admin,
        upstream: current.upstream.clone(),
        lease: current.lease,
        constraints: holding.unwrap_or(wanted.constraints),
        tls: match current.tls.is_some() == wanted.tls.is_some() {
            true => wanted.tls.clone(),
            false => current.tls.clone(),
        },
        ..wanted
    };
    current.log.format = format;
    Ok(changes)
}

/// The settings that differ and can't be changed while Keyward runs. For `tls`, only its presence counts.
fn needing_restart(current: &Config, wanted: &Config) -> Vec<&'static str> {
    let settings = [
        ("listen", current.listen != wanted.listen),
        ("upstream", current.upstream.uri() != wanted.upstream.uri()),
        ("admin", current.admin != wanted.admin),
        ("lease", current.lease != wanted.lease),
        ("tls", current.tls.is_some() != wanted.tls.is_some()),
        ("log.format", current.log.format != wanted.log.format),
        ("traces.endpoint", endpoint(current) != endpoint(wanted)),
    ];
    let different = settings.into_iter().filter(|(_, is_different)| *is_different);
    different.map(|(name, _)| name).collect()
}

/// The endpoint that receives the traces.
fn endpoint(config: &Config) -> Option<&str> {
    config.traces.as_ref().map(|traces| traces.endpoint.as_str())
}

type Constraints = Vec<Arc<Constraint>>;

/// The result for the constraints.
struct Applied {
    /// The new constraints.
    added: Constraints,
    /// The removed constraints.
    removed: Constraints,
    /// The constraints that can't be called enforced yet.
    waiting: Vec<WaitingConstraint>,
    /// The constraints that hold, if they aren't those that were wanted: clients have changed theirs.
    holding: Option<Constraints>,
}

impl Applied {
    /// The same, shown to operators.
    fn shown(self, service: &Service, readiness: &Readiness) -> Applied {
        self.removed
            .iter()
            .for_each(|constraint| readiness.forget_note(&constraint_label(constraint)));
        fleet::show(&self.added, &self.waiting, service, readiness);
        self
    }
}

/// `these` without `those`.
fn without(
    these: &[Arc<Constraint>],
    those: &[Arc<Constraint>],
    is_it: fn(&Constraint, &Constraint) -> bool,
) -> Constraints {
    let is_there = |one: &Constraint| those.iter().any(|other| is_it(one, other));
    let left = these.iter().filter(|constraint| !is_there(constraint));
    left.cloned().collect()
}

/// Makes `wanted` enforced; returns the new constraints and the removed ones.
async fn apply_constraints(
    (service, membership, readiness): (&Service, &Membership, &Readiness),
    current: &mut Config,
    (wanted, backfill_share): (&[Arc<Constraint>], BackfillShare),
    follower: &mut impl ListFollower,
) -> Result<Applied, ReloadError> {
    let mut added = without(wanted, &current.constraints, Constraint::is_equivalent);
    // If a constraint has another definition under the same name, the definition stored in the cluster refuses it.
    let removed = without(&current.constraints, wanted, Constraint::has_name_of);
    if added.is_empty() && are_unchanged(&current.constraints, wanted) {
        return Ok(Applied {
            added,
            removed,
            waiting: Vec::new(),
            holding: None,
        });
    }
    prepare::check_strategies(service.upstream.client(), wanted, current.lease, &service.metrics).await?;
    // Until the new constraints hold, the removed ones hold, too.
    let reserving = made(service, current, wanted, removed.clone()).await?;
    let anew = made_anew((service, membership), &reserving, wanted).await;
    added.extend(without(&anew, &added, Constraint::has_name_of));
    // An earlier configuration may have failed to give up constraints. The entry mustn't list them once this one writes without them. If
    // that fails, there is nothing to take back yet.
    membership.settle().await.map_err(PrepareError::from)?;
    let is_made = |one: &&Arc<Constraint>| reserving.has(one);
    let constraints = wanted.iter().chain(&removed).filter(is_made).cloned().collect();
    let before = service.writes.catalog().clone();
    let mut meanwhile = Meanwhile {
        service,
        membership,
        readiness,
        reserving: Config {
            constraints,
            backfill_share,
            ..current.clone()
        },
        removed: &removed,
        follower,
        has_followed: false,
    };
    let enforced = enforce(&reserving, &added, &mut meanwhile).await;
    let mut waiting = match enforced {
        Ok(waiting) => waiting,
        Err(error) => {
            meanwhile.take_back(current, (&reserving, &added), before).await;
            return Err(error);
        }
    };
    let holding = meanwhile.holding();
    if let Some(holding) = &holding {
        let holds = |constraint: &Constraint| holding.iter().any(|one| one.has_name_of(constraint));
        added.retain(|one| holds(one));
        waiting.retain(|one| holds(&one.constraint));
    }
    let is_gone = |constraint: &Constraint| removed.iter().any(|gone| gone.has_name_of(constraint));
    drop(
        service
            .writes
            .replace(Arc::new(service.writes.catalog().without(is_gone))),
    );
    removed.iter().for_each(|constraint| service.forget(constraint));
    Ok(Applied {
        added,
        removed,
        waiting,
        holding,
    })
}

/// Makes `wanted` and `removed`. A removed one isn't made if the cluster has another definition of that name: no Keyward counts on it then.
async fn made(
    service: &Service,
    current: &Config,
    wanted: &[Arc<Constraint>],
    mut removed: Constraints,
) -> Result<ReservingConstraints, PrepareError> {
    loop {
        let all = [wanted, &removed].concat();
        let error = match prepare::make(service.upstream.client(), &all, current.lease, &service.metrics).await {
            Ok(mut reserving) => {
                reserving.go_on_from(&service.writes.catalog());
                return Ok(reserving);
            }
            Err(error) => error,
        };
        let PrepareError::OtherDefinition { namespace, name, .. } = &error else {
            return Err(error);
        };
        let before = removed.len();
        removed.retain(|one| !one.is_named(namespace, name));
        if removed.len() == before {
            return Err(error);
        }
    }
}

/// The clients' constraints among `wanted` that were made anew in the cluster, with the same options and another definition. The default
/// collation of a collection may have changed, for example. They count as new: writes that their former definitions decided may still be in
/// progress. After this Keyward was out of the register, so does every constraint that was made anew, also with the same definition: the
/// doubt can end only once they are listed.
async fn made_anew(
    (service, membership): (&Service, &Membership),
    reserving: &ReservingConstraints,
    wanted: &[Arc<Constraint>],
) -> Constraints {
    let writes = &service.writes;
    let is_in_doubt = membership.doubt().is_some();
    if !is_in_doubt && !writes.is_redefined() && !reserving.differs_from(&writes.catalog()) {
        return Vec::new();
    }
    let listed = membership.listed().await;
    let is_anew = |one: &&Arc<Constraint>| {
        let identities = reserving.identities(|made| made.has_name_of(one));
        (is_in_doubt || one.client_entry().is_some()) && !identities.iter().all(|identity| listed.contains(identity))
    };
    let anew: Constraints = wanted.iter().filter(is_anew).cloned().collect();
    if !anew.is_empty() {
        let names = constraint_labels(&anew).join(", ");
        tracing::warn!(
            names,
            "constraints were made anew: this Keyward applies their present definitions"
        );
    }
    anew
}

/// Makes all constraints reserve, and backfills the existing documents for those in `added`.
///
/// It also backfills if another Keyward has done so already, because this Keyward's writes until now are not reserved.
async fn enforce(
    reserving: &ReservingConstraints,
    added: &[Arc<Constraint>],
    meanwhile: &mut Meanwhile<'_, impl ListFollower>,
) -> Result<Vec<WaitingConstraint>, ReloadError> {
    let (service, membership, removed) = (meanwhile.service, meanwhile.membership, meanwhile.removed);
    let how = (IfClaimed::Wait, meanwhile.reserving.backfill_share);
    let client = service.upstream.client();
    added
        .iter()
        .for_each(|constraint| service.note_enforced(constraint, false));
    drop(service.writes.replace(Arc::new(reserving.catalog())));
    // If this stops midway, the next start backfills all documents, including those that were written here.
    suspend(service, &written_without(membership, added)).await?;
    let mut waiting = Vec::new();
    if !added.is_empty() || service.writes.is_redefined() {
        await_former(service).await?;
    }
    if !added.is_empty() {
        let is_new = |constraint: &Constraint| added.iter().any(|one| one.has_name_of(constraint));
        // Only now do all writes of this Keyward reserve for the new constraints.
        // If clients have made constraints meanwhile, the first write to each collection waits for them.
        let identities = reserving.identities(is_new);
        let declare = || {
            let is_current = is_current(service.client_list.as_ref());
            membership.declare_if(reserving.namespaces_of_file(), &identities, is_current)
        };
        let declared = match declare().await {
            // Everything that was decided without these has ended, also if the entry is a new one by now.
            Err(StoreError::Outlasted) => declare().await,
            declared => declared,
        };
        declared.map_err(PrepareError::from)?;
        reserving.check_unchanged(client, is_new).await?;
        // A backfill that began before now may have missed writes that were under way here.
        suspend(service, &written_without(membership, added)).await?;
        // Clients' constraints are backfilled in the background, and so are those that wait since before: if documents violate one, that
        // mustn't stop others.
        let is_meant = |constraint: &Constraint| constraint.client_entry().is_none() && is_new(constraint);
        let backfilling = reserving.backfill_documents(client, Some(membership), (is_meant, is_new, is_new), how);
        waiting = meanwhile.during(backfilling).await?;
    }
    let is_removed = |constraint: &Constraint| removed.iter().any(|one| one.has_name_of(constraint));
    // The register comes first. A Keyward that reads it from now on doesn't call the removed constraints enforced. A
    // Keyward that read it before finds them suspended.
    let given_up = membership.give_up(&reserving.identities(is_removed)).await;
    given_up.map_err(PrepareError::from)?;
    // A client may have made one of them again, and its builder may have read the register before. If a client makes it later, its
    // builder reads the register after this.
    if !removed.is_empty()
        && !is_current(service.client_list.as_ref())
            .await
            .map_err(PrepareError::from)?
    {
        return Err(ReloadError::ListChanged);
    }
    // A list that is gone may be restored: until then its constraints are suspended.
    let is_lost = service.client_list.as_ref().is_some_and(|list| list.is_gone());
    // The cluster may have another definition under the name of one, with which a client has made it anew.
    for constraint in removed.iter().filter(|one| reserving.has(one)) {
        match is_lost {
            true => prepare::suspend(client, constraint).await?,
            false => prepare::end(client, constraint).await?,
        }
    }
    Ok(waiting)
}

/// Waits until nothing takes effect any more that was decided before. If former definitions decided some of it, this Keyward may write nothing
/// meanwhile, so the log says why.
async fn await_former(service: &Service) -> Result<(), ReloadError> {
    let mut ending = pin!(service.writes.await_former(PATIENCE));
    let mut waited = Duration::ZERO;
    loop {
        tokio::select! {
            ended = &mut ending => return ended.map_err(|_| ReloadError::Busy),
            () = tokio::time::sleep(LOGGED) => waited += LOGGED,
        }
        if service.writes.is_redefined() {
            let error = PrepareError::Redefined(waited);
            tracing::warn!(%error, "whether the constraints are enforced can't be seen");
        }
    }
}

/// Those of `constraints` without which this Keyward may have written documents. That can't be so for a client's constraint on a collection that
/// it has never declared: as it declares one, it suspends the constraints that it lacks there. Others count on such a constraint already.
fn written_without(membership: &Membership, constraints: &[Arc<Constraint>]) -> Constraints {
    let written = constraints
        .iter()
        .filter(|one| one.client_entry().is_none() || membership.has_ever_declared(one.namespace()));
    written.cloned().collect()
}

/// Notes in the cluster that documents may exist for which none of these constraints has a reservation.
async fn suspend(service: &Service, constraints: &[Arc<Constraint>]) -> Result<(), ReloadError> {
    for constraint in constraints {
        prepare::suspend(service.upstream.client(), constraint).await?;
    }
    Ok(())
}

/// Whether `wanted` states for each constraint what `current` states, in the same order. Options that are no part of the definition
/// count, too: Keyward replaces the catalog for them. The order of a document's fields doesn't count here; [`Constraint::is_equivalent`] compares it
/// where it matters.
fn are_unchanged(current: &[Arc<Constraint>], wanted: &[Arc<Constraint>]) -> bool {
    let is_unchanged = |(one, other): (&Arc<Constraint>, &Arc<Constraint>)| {
        one.namespace() == other.namespace() && one.spec() == other.spec()
    };
    current.len() == wanted.len() && current.iter().zip(wanted).all(is_unchanged)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bson::doc;

    use super::*;
    use crate::constraint::{IndexSpec, OnViolation, Sharding, Strategy};
    use crate::namespace::Namespace;

    fn config(text: &str) -> Config {
        let text = format!("upstream: mongodb://db\nconstraints: []\n{text}");
        Config::from_text(Path::new("keyward.yaml"), &text, None).unwrap()
    }

    /// A reload that took a changed option for unchanged would report success and keep the old constraint.
    #[test]
    fn a_change_of_any_option_is_noticed() {
        let constraint = |spec: IndexSpec| {
            let constraint = Constraint::new(Namespace::new("shop", "users"), spec).unwrap();
            vec![Arc::new(constraint)]
        };
        let before = IndexSpec {
            key: doc! { "email": 1 },
            ..IndexSpec::default()
        };
        // A new option doesn't compile here until it is changed below.
        let IndexSpec {
            key: _,
            name: _,
            sparse: _,
            partial_filter_expression: _,
            collation: _,
            sharding: _,
            strategy: _,
            route: _,
            on_violation: _,
            client_entry: _,
        } = before.clone();
        let with = |change: fn(&mut IndexSpec)| {
            let mut spec = before.clone();
            change(&mut spec);
            spec
        };
        let changed = [
            with(|spec| spec.key = doc! { "email": -1 }),
            with(|spec| spec.key = doc! { "email": 1, "region": 1 }),
            with(|spec| spec.name = Some("other".to_owned())),
            with(|spec| spec.sparse = true),
            with(|spec| spec.partial_filter_expression = Some(doc! { "email": { "$exists": true } })),
            with(|spec| spec.collation = Some(doc! { "locale": "en", "strength": 2 })),
            with(|spec| spec.sharding = Sharding::Ranged),
            with(|spec| spec.strategy = Some(Strategy::Strict)),
            with(|spec| spec.strategy = Some(Strategy::Compensating)),
            with(|spec| spec.route = true),
            with(|spec| spec.on_violation = OnViolation::LeaveOut),
            with(|spec| spec.client_entry = Some(bson::oid::ObjectId::new())),
        ];
        let current = constraint(before.clone());
        assert!(are_unchanged(&current, &constraint(before)));
        for spec in changed {
            assert!(!are_unchanged(&current, &constraint(spec.clone())), "{spec:?}");
        }
    }

    #[test]
    fn settings_that_only_a_start_can_change_are_named() {
        let current = config("");
        for (text, expected) in [
            ("drain: 1s\nsweep: 2s\nlog: { level: debug }", vec![]),
            ("listen: 127.0.0.1:1", vec!["listen"]),
            ("lease: 1m\nadmin: 127.0.0.1:2", vec!["admin", "lease"]),
            ("log: { format: json, level: warn }", vec!["log.format"]),
            (
                "traces: { endpoint: http://collector:4318/v1/traces }",
                vec!["traces.endpoint"],
            ),
        ] {
            assert_eq!(needing_restart(&current, &config(text)), expected, "{text}");
        }
        let traced = |ratio| {
            config(&format!(
                "traces: {{ endpoint: 'http://collector/v1/traces', sampling_ratio: {ratio} }}"
            ))
        };
        assert!(needing_restart(&traced(1.0), &traced(0.5)).is_empty());
        let elsewhere = Config::from_text(Path::new("k"), "upstream: mongodb://x\nconstraints: []", None).unwrap();
        assert_eq!(needing_restart(&current, &elsewhere), ["upstream"]);
    }
}
