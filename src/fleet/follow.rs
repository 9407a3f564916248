//! Maintains this Keyward's part of the register: renews its entry, and enforces its constraints once all Keywards that may write
//! reserve for them.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use tokio::time::Instant;

use super::builds::{Backfilled, Builds};
use super::{Membership, RegisterEntry, replaced};
use crate::backfill_share::BackfillShare;
use crate::client_constraints::ClientConstraints;
use crate::constraint::Constraint;
use crate::haste::{self, hastened};
use crate::metrics::constraint_label;
use crate::prepare::{
    self, ConstraintState, PrepareError, Report, Reports, ReservingConstraints, Standing, WaitingConstraint,
};
use crate::proxy_collection::StoreError;
use crate::readiness::{Obstacle, Readiness};
use crate::session::Service;

/// How long to leave it between two polls of the register and at the states of the constraints.
pub(super) const POLL: Duration = Duration::from_secs(1);
/// How long commands may take to end that former definitions of the constraints decided, before the log says that they are waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to leave documents that violate a constraint before they are read again.
const AFTER_DUPLICATES: Duration = Duration::from_secs(30);
/// How long a Keyward may be seen that lacks an enforced constraint. One that is killed before it suspends the constraint is in the register
/// for 125 s.
const LACKED: Duration = Duration::from_secs(180);

/// Renews the entry for as long as it runs.
pub async fn renew(membership: Arc<Membership>, readiness: Readiness) {
    let mut is_failing = false;
    loop {
        let pause = match membership.renew().await {
            Ok(()) => {
                if std::mem::take(&mut is_failing) {
                    tracing::info!("this Keyward's entry in the register of Keywards is renewed again");
                }
                membership.terms().renewal()
            }
            Err(error) => {
                is_failing = true;
                tracing::warn!(%error, "this Keyward's entry in the register of Keywards could not be renewed");
                POLL.min(membership.terms().renewal())
            }
        };
        match (membership.is_permitted_to_write(), membership.doubt()) {
            (true, _) => readiness.unblock(&Obstacle::Register),
            (false, None) => readiness.block(
                Obstacle::Register,
                "this Keyward's entry couldn't be renewed in time: nothing is written until it can",
            ),
            (false, Some(_)) => readiness.block(
                Obstacle::Register,
                "this Keyward was out of the register for a while: nothing is written until it has seen that its constraints are \
                 as before",
            ),
        }
        tokio::time::sleep(pause).await;
    }
}

/// The constraints that are kept enforced.
#[derive(Debug)]
pub struct Kept {
    /// The constraints that hold: those of the configuration, and those of clients.
    pub constraints: Vec<Arc<Constraint>>,
    /// The list of clients' constraints that is applied.
    pub clients: ClientConstraints,
    /// How long a reservation whose owner isn't there yet is presumed in flight.
    pub lease: Duration,
    /// How fast a backfill may be.
    pub backfill_share: BackfillShare,
}

/// The findings of earlier polls.
#[derive(Debug, Default)]
struct Findings {
    /// The labels of constraints, each with a Keyward that the constraint waits for.
    waited_for: HashSet<(String, ObjectId)>,
    /// The labels of constraints, and when their documents were found to violate them.
    violated: HashMap<String, Instant>,
    /// The labels of constraints that are enforced although a Keyward lacks them, with their identities, that Keyward, and since when.
    lacked: HashMap<String, ((ObjectId, ObjectId), Instant)>,
}

/// The result of a poll.
enum Polled {
    /// It has made all constraints enforced that weren't. The next poll records that, and clients wait for the record.
    Enforced,
    /// It has made none enforced, or not all. A client whose command fails for another constraint has until the next poll to withdraw.
    Unfinished,
}

/// Keeps the constraints enforced for as long as it runs, and shows which are.
pub async fn keep(service: Arc<Service>, membership: Arc<Membership>, kept: Kept, readiness: Readiness) {
    let mut findings = Findings::default();
    loop {
        // Nothing is written here until the next poll: it mustn't wait for the end of a backfill.
        let polled = tokio::select! {
            polled = poll(&service, &membership, &kept, &mut findings, &readiness) => polled,
            () = membership.doubt_arisen() => continue,
        };
        match polled {
            Ok(Polled::Enforced) => continue,
            Ok(Polled::Unfinished) => {}
            Err(error) => tracing::warn!(%error, "whether the constraints are enforced can't be seen"),
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = membership.doubt_arisen() => {}
        }
    }
}

async fn poll(
    service: &Service,
    membership: &Membership,
    kept: &Kept,
    findings: &mut Findings,
    readiness: &Readiness,
) -> Result<Polled, PrepareError> {
    let (client, metrics) = (service.upstream.client(), &service.metrics);
    let entries = membership.poll().await?;
    service.board.note_fleet(membership.id(), &entries);
    metrics.keywards.set(entries.len().try_into().unwrap_or(i64::MAX));
    let builds = Builds::of(&kept.clients, membership.id(), &entries);
    builds.begin(service, &kept.constraints).await?;
    let standings = prepare::standings(client, &kept.constraints).await?;
    replaced::note_gone(service, &kept.constraints, &standings);
    // It ends a doubt, without which nothing may be written anywhere, and lists the constraints.
    note_own(service, membership, kept, &entries, &standings).await?;
    if replaced::renew_gone(service, membership, kept, readiness).await?
        || suspend_lacked(service, membership, kept, (&entries, &standings), findings).await?
    {
        return Ok(Polled::Unfinished);
    }
    let (mut waiting, mut enforced, mut to_do) = (Vec::new(), Vec::new(), Vec::new());
    findings.forget_old_violations();
    for (constraint, standing) in kept.constraints.iter().zip(standings) {
        if standing.is_some_and(|standing| standing.state == ConstraintState::Enforced) {
            findings.forget_violation(constraint, service);
            enforced.extend(builds.enforced(client, constraint).await);
            continue;
        }
        service.note_enforced(constraint, false);
        if findings.is_violated(constraint) {
            continue;
        }
        match still_waited_for(constraint, standing, (membership.id(), &entries), &findings.waited_for) {
            Some(others) => waiting.push(WaitingConstraint::of(constraint, others)),
            None if builds.is_of_other(constraint) => waiting.push(WaitingConstraint::of(constraint, Vec::new())),
            None => to_do.push(constraint.clone()),
        }
    }
    if let Some(list) = &service.client_list {
        builds.record(list, &enforced).await?;
    }
    // Before the backfill, which may take hours: by its end, these may be enforced no longer.
    let mut shown = kept.constraints.clone();
    shown
        .retain(|constraint| !findings.is_violated(constraint) && !to_do.iter().any(|one| one.has_name_of(constraint)));
    show(&shown, &waiting, service, readiness);
    if to_do.is_empty() {
        return Ok(Polled::Unfinished);
    }
    let Some(backfilled) = backfill(service, membership, kept, &builds, &to_do).await? else {
        return Ok(Polled::Unfinished);
    };
    let polled = match backfilled.is_complete() {
        true => Polled::Enforced,
        false => Polled::Unfinished,
    };
    waiting.extend(backfilled.waiting);
    findings.note_waiting(&waiting);
    findings.show_violated(backfilled.violated, &to_do, service, readiness);
    to_do.retain(|constraint| !findings.is_violated(constraint));
    show(&to_do, &waiting, service, readiness);
    Ok(polled)
}

/// Suspends constraints that stay enforced although another Keyward must have suspended them, and returns whether there are any. Then the
/// cluster has lost the suspension: by `movePrimary`, or because an operator put the definitions back.
async fn suspend_lacked(
    service: &Service,
    membership: &Membership,
    kept: &Kept,
    (entries, standings): (&[RegisterEntry], &[Option<Standing>]),
    findings: &mut Findings,
) -> Result<bool, PrepareError> {
    let mut is_any_suspended = false;
    for (constraint, standing) in kept.constraints.iter().zip(standings) {
        let enforced = standing.filter(|standing| standing.state == ConstraintState::Enforced);
        let found = enforced.and_then(|Standing { identity, .. }| {
            let has_suspended =
                |entry: &&RegisterEntry| entry.has_suspended(constraint, identity, kept.clients.version);
            let mut others = entries.iter().filter(|entry| entry.id != membership.id());
            others.find(has_suspended).map(|entry| (identity, entry.id))
        });
        if !findings.is_lacked_for_long(constraint, found) {
            continue;
        }
        prepare::suspend(service.upstream.client(), constraint).await?;
        is_any_suspended = true;
        let keyward = found.map(|(_, keyward)| keyward.to_hex());
        tracing::error!(
            constraint = constraint_label(constraint),
            keyward,
            "a Keyward may write without an enforced constraint: it counts as reserving again"
        );
    }
    Ok(is_any_suspended)
}

/// Backfills the documents of those `meant`. It returns none once some proxy collections are gone: their reservations come first, at the next
/// poll. After that the backfill goes on.
async fn backfill(
    service: &Service,
    membership: &Membership,
    kept: &Kept,
    builds: &Builds<'_>,
    meant: &[Arc<Constraint>],
) -> Result<Option<Backfilled>, PrepareError> {
    let client = service.upstream.client();
    let mut reserving = prepare::make(client, &kept.constraints, kept.lease, &service.metrics).await?;
    if !reserving.go_on_from(&service.writes.catalog()) {
        return Ok(None);
    }
    let backfilled = builds.backfill(service, membership, meant, (&reserving, kept.backfill_share));
    tokio::select! {
        backfilled = backfilled => backfilled.map(Some),
        // Writes wait for its reservations.
        () = replaced::noticed_gone(service, kept) => Ok(None),
    }
}

impl Findings {
    /// Whether documents violated `constraint` when they were read last.
    fn is_violated(&self, constraint: &Constraint) -> bool {
        self.violated.contains_key(&constraint_label(constraint))
    }

    /// Whether this identity of `constraint` was lacked by this Keyward at each poll for [`LACKED`].
    fn is_lacked_for_long(&mut self, constraint: &Constraint, found: Option<(ObjectId, ObjectId)>) -> bool {
        let label = constraint_label(constraint);
        let Some(found) = found else {
            self.lacked.remove(&label);
            return false;
        };
        let (noted, since) = self.lacked.entry(label).or_insert((found, Instant::now()));
        if *noted != found {
            (*noted, *since) = (found, Instant::now());
        }
        since.elapsed() >= hastened(LACKED, haste::REGISTER)
    }

    /// Forgets that documents violated `constraint`, which is enforced now.
    fn forget_violation(&mut self, constraint: &Constraint, service: &Service) {
        self.violated.remove(&constraint_label(constraint));
        if let (Some(list), Some(id)) = (&service.client_list, constraint.client_entry()) {
            list.forget_violated(id);
        }
    }

    /// Forgets violations of documents that are to be read again.
    fn forget_old_violations(&mut self) {
        let lately = hastened(AFTER_DUPLICATES, haste::REGISTER);
        self.violated.retain(|_, at| at.elapsed() < lately);
    }

    fn note_waiting(&mut self, waiting: &[WaitingConstraint]) {
        let pairs = waiting.iter().flat_map(|one| {
            let label = constraint_label(&one.constraint);
            one.others.iter().map(move |entry| (label.clone(), entry.id))
        });
        self.waited_for = pairs.collect();
    }

    /// Shows which of `constraints` the `violated` reports are about, until their documents are read again.
    fn show_violated(
        &mut self,
        violated: Vec<Report>,
        constraints: &[Arc<Constraint>],
        service: &Service,
        readiness: &Readiness,
    ) {
        if violated.is_empty() {
            return;
        }
        for report in &violated {
            for constraint in constraints.iter().filter(|constraint| report.is_of(constraint)) {
                let label = constraint_label(constraint);
                service.metrics.set_waits_for(constraint, 0);
                readiness.note(&label, format!("reserving: {}", report.without_values()));
                self.violated.insert(label, Instant::now());
            }
        }
        tracing::error!(reports = %Reports(violated), "constraints aren't enforced");
    }
}

/// Keeps this Keyward's entry in the register as its constraints are.
async fn note_own(
    service: &Service,
    membership: &Membership,
    kept: &Kept,
    entries: &[RegisterEntry],
    standings: &[Option<Standing>],
) -> Result<(), PrepareError> {
    let own = entries.iter().find(|entry| entry.id == membership.id());
    // Everything that the list took out has ended here before it was applied.
    if own.is_some_and(|own| own.clients_version.is_some_and(|noted| noted != kept.clients.version)) {
        membership.note_clients_version(kept.clients.version).await?;
    }
    let is_listed = |identity| own.is_some_and(|own| own.constraints.contains(identity));
    // The cluster may have lost a definition since, with a dropped database for example.
    let is_any_unlisted = standings.iter().flatten().any(|one| !is_listed(&one.identity));
    // One constraint that can't be made anew mustn't keep the writes to all other collections waiting.
    if let Some(doubt) = membership.doubt()
        && !is_any_unlisted
    {
        end_doubt(service, membership, doubt).await?;
    }
    let must_list = is_any_unlisted || membership.doubt().is_some();
    // Nothing else may wait for writes that former definitions decided, once a list or a reload was applied in part.
    if !must_list && !service.writes.is_redefined() {
        return Ok(());
    }
    match list_as_they_are(service, membership, kept).await {
        // All are listed: writes that are still waited for mustn't keep other constraints from going on.
        Err(PrepareError::Redefined(_)) if !must_list => Ok(()),
        listed => listed,
    }
}

/// Makes the entry list the constraints as the cluster has them by now: all writes here reserve for these. Ends the doubt whether they have
/// changed.
async fn list_as_they_are(service: &Service, membership: &Membership, kept: &Kept) -> Result<(), PrepareError> {
    let client = service.upstream.client();
    let (rejoined, doubt) = (membership.rejoined(), membership.doubt());
    let mut reserving = prepare::make(client, &kept.constraints, kept.lease, &service.metrics).await?;
    reserving.go_on_from(&service.writes.catalog());
    reserve_as_defined(service, membership, &reserving).await?;
    membership.list(&reserving.identities(|_| true), rejoined).await?;
    reserving.check_unchanged(client, |_| true).await?;
    if let Some(doubt) = doubt {
        confirm(service, membership, doubt).await?;
    }
    Ok(())
}

/// Makes writes here reserve as the cluster defines the constraints by now, and waits for those that weren't decided so. While this Keyward
/// was out of the register, a constraint may have been made anew with another collation. A database may have been dropped past Keyward: then
/// writes that are under way here have their reservations in collections that are gone.
///
/// If this is broken off, the next call goes on.
///
/// # Errors
/// [`PrepareError::Redefined`] if commands take long to end.
async fn reserve_as_defined(
    service: &Service,
    membership: &Membership,
    reserving: &ReservingConstraints,
) -> Result<(), PrepareError> {
    let writes = &service.writes;
    let listed = membership.listed().await;
    let is_any_unlisted = reserving.identities(|_| true).iter().any(|one| !listed.contains(one));
    let is_any_anew = is_any_unlisted && !writes.is_redefined();
    if is_any_anew || reserving.differs_from(&writes.catalog()) {
        tracing::warn!("constraints were made anew: this Keyward applies their present definitions");
        writes.make_anew(|catalog| reserving.in_place_of_changed(catalog));
    }
    // Another task may have applied a present definition already, together with a new list of clients' constraints.
    if writes.is_redefined() {
        let ended = writes.await_former(PATIENCE).await;
        ended.map_err(|_| PrepareError::Redefined(PATIENCE))?;
    }
    Ok(())
}

/// Ends a doubt whether the constraints have changed, for as long as it runs, while [`keep`] doesn't run: another task replaces them, or
/// Keyward drains its clients' connections.
///
/// It lists nothing: the other task may be about to give a constraint up. So the doubt stays if the entry doesn't list each constraint
/// that writes here reserve for, as the cluster has it.
///
/// - Cancel: at any time.
pub async fn end_doubts(service: &Service, membership: &Membership) -> Infallible {
    loop {
        if let Some(doubt) = membership.doubt()
            && let Err(error) = end_doubt(service, membership, doubt).await
        {
            tracing::warn!(%error, "whether the constraints are enforced can't be seen");
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn end_doubt(service: &Service, membership: &Membership, doubt: u64) -> Result<(), StoreError> {
    // The entry comes first: a command that changes a constraint changes its identity, and then reads the register.
    let listed = membership.listed().await;
    let catalog = service.writes.catalog().clone();
    let protected = catalog.all().flat_map(|protected| &protected.constraints);
    let constraints = protected.map(|proxy| &*proxy.constraint);
    let are_listed = prepare::are_listed(service.upstream.client(), constraints, &listed).await?;
    match are_listed && !service.writes.is_redefined() {
        true => confirm(service, membership, doubt).await,
        false => Ok(()),
    }
}

/// Ends a doubt: the constraints are listed, and the cluster has them as they are here. First it refuses the commit of the transactions from
/// before. Until now, nothing could be committed at all.
async fn confirm(service: &Service, membership: &Membership, doubt: u64) -> Result<(), StoreError> {
    service.writes.refuse_transactions_until_now();
    membership.confirm(doubt).await
}

/// The Keywards that a constraint waits for, if one read of the register and of the constraint's document shows them: only those that a
/// full check has found before, or the one that reads its documents. That costs the same each time, however long it takes. A claim of its
/// `own` is left from a backfill that was broken off.
fn still_waited_for(
    constraint: &Constraint,
    standing: Option<Standing>,
    (own, entries): (ObjectId, &[RegisterEntry]),
    waited_for: &HashSet<(String, ObjectId)>,
) -> Option<Vec<RegisterEntry>> {
    let standing = standing?;
    let label = constraint_label(constraint);
    let lacking = entries
        .iter()
        .filter(|entry| entry.lacks(constraint.namespace(), standing.identity));
    let lacking: Vec<RegisterEntry> = lacking.cloned().collect();
    let is_known = lacking
        .iter()
        .all(|entry| waited_for.contains(&(label.clone(), entry.id)));
    let is_read_elsewhere = standing.claimed_by.is_some_and(|by| by != own);
    (is_known && (is_read_elsewhere || !lacking.is_empty())).then_some(lacking)
}

/// Shows which of `constraints` are enforced, and which Keywards the others wait for.
pub fn show(constraints: &[Arc<Constraint>], waiting: &[WaitingConstraint], service: &Service, readiness: &Readiness) {
    for constraint in constraints {
        let label = constraint_label(constraint);
        match waiting.iter().find(|one| constraint_label(&one.constraint) == label) {
            None => show_enforced(constraint, service, readiness),
            Some(WaitingConstraint { others, .. }) => {
                service.note_enforced(constraint, false);
                service.metrics.set_waits_for(constraint, others.len());
                let others: Vec<String> = others.iter().map(ToString::to_string).collect();
                readiness.note(
                    &label,
                    match others.is_empty() {
                        true => "reserving: a Keyward reads the documents".to_owned(),
                        false => format!("reserving: waits for {}", others.join("; ")),
                    },
                );
            }
        }
    }
}

fn show_enforced(constraint: &Constraint, service: &Service, readiness: &Readiness) {
    // The note comes first: a task that revokes this notes its own.
    readiness.forget_note(&constraint_label(constraint));
    service.metrics.set_waits_for(constraint, 0);
    service.note_enforced(constraint, true);
}
