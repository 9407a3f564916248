//! Audits one collection, whenever it is this Keyward's turn.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{RawDocumentBuf, Timestamp};
use tokio::time::Instant;

use super::Auditor;
use super::changes::{ChangeBatch, ChangeReader};
use super::turn::{AuditRecord, AuditTurn, audited_as};
use crate::catalog::Protected;
use crate::constraint::Constraint;
use crate::haste::{self, hastened};
use crate::metrics::ConstraintMetrics;
use crate::namespace::Namespace;
use crate::prepare::note_written_past;
use crate::proxy_collection::StoreError;
use crate::verify::{Finding, FindingKind, Tally, VerifySettings, verify, verify_documents};

/// How long to leave it until the turn, or an audit that was broken off, is tried again.
const PAUSE: Duration = Duration::from_secs(10);
/// How often in sequence keys may not be reserved before the audit goes on without them: the cause may stay, and all later documents would be
/// without a reservation.
const TRIES: u32 = 12;
/// How long to leave it then until all documents are compared again.
const LEFT: Duration = Duration::from_secs(3_600);
/// How long to leave it between two renewals of the turn.
const RENEWAL: Duration = Duration::from_secs(5);
/// How many documents or reservations to compare in a second if the history is gone.
const RATE: u32 = 5_000;

/// Audits the collection, over and over.
pub(super) async fn audit_again_and_again(auditor: Arc<Auditor>, namespace: Namespace) {
    let mut unrepaired = 0;
    loop {
        match AuditTurn::take(&auditor.client, &namespace, &auditor.id).await {
            Ok(Some(turn)) => {
                let mut audit = CollectionAudit {
                    auditor: &auditor,
                    namespace: &namespace,
                    turn,
                    unrepaired: &mut unrepaired,
                };
                match audit.run().await {
                    Ok(()) => auditor.progress().forget(&namespace),
                    Err(error) => {
                        unrepaired += u32::from(matches!(error, StoreError::Unrepaired));
                        auditor.progress().note_broken_off(&namespace, Instant::now());
                        tracing::warn!(%error, %namespace, "an audit was broken off; it is tried again");
                    }
                }
            }
            Ok(None) => auditor.progress().forget(&namespace),
            Err(error) => {
                auditor.progress().note_broken_off(&namespace, Instant::now());
                tracing::warn!(%error, %namespace, "an audit can't begin; it is tried again");
            }
        }
        tokio::time::sleep(hastened(PAUSE, haste::REGISTER)).await;
    }
}

/// One collection, while it is this Keyward's turn.
struct CollectionAudit<'a> {
    auditor: &'a Auditor,
    namespace: &'a Namespace,
    turn: AuditTurn<'a>,
    /// How often in sequence it was broken off because the key of a document couldn't be reserved.
    unrepaired: &'a mut u32,
}

/// How far the comparison beside the changes has come, and when a key was first left without a reservation, if one was.
#[derive(Default)]
struct Comparison {
    is_done: bool,
    left_since: Option<Instant>,
}

impl Comparison {
    fn note_left(&mut self, is_any_left: bool) {
        if is_any_left {
            self.left_since.get_or_insert_with(Instant::now);
        }
    }
}

impl CollectionAudit<'_> {
    /// Audits until the turn is another Keyward's, or the collection isn't protected any more.
    async fn run(&mut self) -> Result<(), StoreError> {
        tracing::info!(namespace = %self.namespace, "auditing");
        self.auditor.progress().note_begun(self.namespace, Instant::now());
        loop {
            match self.follow().await {
                Err(StoreError::Driver(error)) if is_history_lost(&error) && self.turn.record.is_some() => {
                    tracing::warn!(namespace = %self.namespace, "changes were missed: comparing all documents");
                    self.auditor.progress().note_broken_off(self.namespace, Instant::now());
                    self.turn.record = None;
                }
                Ok(Followed::Invalidated | Followed::Added) => {}
                Ok(Followed::Left) => {
                    tracing::info!(namespace = %self.namespace, "keys were left without a reservation: comparing all documents");
                    self.turn.record = None;
                }
                Ok(Followed::Unreported) => {
                    tracing::info!(namespace = %self.namespace, "a constraint is enforced by now: comparing all documents");
                    self.turn.record = None;
                }
                Ok(Followed::Ended) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Follows the changes behind the turn's record; without one, those from now on. Meanwhile it compares all documents for the constraints
    /// that the record doesn't name.
    async fn follow(&mut self) -> Result<Followed, StoreError> {
        let Some(protected) = protected(self.auditor, self.namespace) else {
            return Ok(Followed::Ended);
        };
        let token = self.turn.record.as_ref().map(|record| record.token.clone());
        let changes = ChangeReader::of(&self.auditor.client, self.namespace, token).await?;
        let names = named(&protected);
        let lacking = names.difference(&self.recorded()).cloned().collect::<BTreeSet<_>>();
        if !lacking.is_empty() && self.turn.record.is_some() {
            tracing::info!(namespace = %self.namespace, "constraints were added: comparing all documents for them");
        }
        let compared = Mutex::new(Comparison {
            is_done: lacking.is_empty(),
            left_since: None,
        });
        let (auditor, may_leave) = (self.auditor, self.may_leave());
        let comparing = async {
            if !lacking.is_empty() {
                let is_any_left = compare(auditor, &protected, ComparedDocuments::All(&lacking), may_leave).await?;
                let mut compared = compared.lock().unwrap_or_else(PoisonError::into_inner);
                compared.note_left(is_any_left);
                compared.is_done = true;
            }
            std::future::pending::<Result<Followed, StoreError>>().await
        };
        tokio::select! {
            ended = self.audit(changes, names, &compared) => ended,
            failed = comparing => failed,
        }
    }

    /// Compares these documents, as [`compare`] does. If it has to come back to them, the next audit begins with them.
    async fn compare_these(&mut self, protected: &Protected, documents: &[RawDocumentBuf]) -> Result<bool, StoreError> {
        let documents = ComparedDocuments::These(documents);
        let compared = compare(self.auditor, protected, documents, self.may_leave()).await;
        if let Err(StoreError::Unrepaired) = compared {
            self.turn.renew().await?;
        }
        compared
    }

    /// Whether the audit goes on if the key of a document can't be reserved.
    fn may_leave(&self) -> bool {
        *self.unrepaired >= TRIES
    }

    /// The constraints that the record names.
    fn recorded(&self) -> BTreeSet<String> {
        let record = self.turn.record.as_ref();
        record.map(|record| record.constraints.clone()).unwrap_or_default()
    }

    /// Audits the changes for the constraints with these `names`, until there is another one.
    async fn audit(
        &mut self,
        mut changes: ChangeReader,
        mut names: BTreeSet<String>,
        compared: &Mutex<Comparison>,
    ) -> Result<Followed, StoreError> {
        let mut renewed = Instant::now();
        loop {
            let batch = changes.next().await?;
            let Some(protected) = protected(self.auditor, self.namespace) else {
                return Ok(Followed::Ended);
            };
            let present = named(&protected);
            if !present.is_subset(&names) {
                return Ok(Followed::Added);
            }
            // One that is gone may come back: then these changes weren't audited for it.
            names = present;
            let is_any_left = match batch.documents.is_empty() {
                true => false,
                false => self.compare_these(&protected, &batch.documents).await?,
            };
            let (is_compared, left_since) = {
                let mut compared = compared.lock().unwrap_or_else(PoisonError::into_inner);
                compared.note_left(is_any_left);
                (compared.is_done, compared.left_since)
            };
            if is_compared && left_since.is_some_and(|since| since.elapsed() >= hastened(LEFT, haste::REGISTER)) {
                return Ok(Followed::Left);
            }
            if is_compared && self.auditor.has_more_to_report(&protected) {
                return Ok(Followed::Unreported);
            }
            // After a failure, the first documents are those that it came from.
            if is_compared && left_since.is_none() && !batch.documents.is_empty() {
                *self.unrepaired = 0;
            }
            if let Some(caught_up) = caught_up(&batch, protected.times().operation, Instant::now()) {
                let mut progress = self.auditor.progress();
                progress.note_caught_up(self.namespace, is_compared, caught_up);
            }
            // This process alone knows that something is unreported, or left. If another one goes on, it must compare all documents.
            let is_all_reported = !self.auditor.has_unreported(&protected) && left_since.is_none();
            let constraints = match is_compared {
                true => names.clone(),
                false => self.recorded().intersection(&names).cloned().collect(),
            };
            let token = batch.token.filter(|_| is_all_reported && !constraints.is_empty());
            self.turn.record = token.map(|token| AuditRecord { token, constraints });
            if batch.is_invalidated || renewed.elapsed() >= hastened(RENEWAL, haste::REGISTER) {
                renewed = Instant::now();
                if !self.turn.renew().await? {
                    return Ok(Followed::Ended);
                }
            }
            if batch.is_invalidated {
                return Ok(Followed::Invalidated);
            }
        }
    }
}

/// How following the changes ended.
enum Followed {
    /// There is a constraint for which the changes so far weren't audited.
    Added,
    /// Violations of a constraint weren't reported, because it wasn't enforced. It is by now.
    Unreported,
    /// Keys were left without a reservation a while ago.
    Left,
    /// The collection is gone; there may be a new one.
    Invalidated,
    /// The turn is another Keyward's, or nothing is protected there any more.
    Ended,
}

/// Every change until then is audited: until `now`, or as far behind it as the last change is behind the `latest` cluster time that is known.
fn caught_up(batch: &ChangeBatch, latest: Option<Timestamp>, now: Instant) -> Option<Instant> {
    if batch.is_last {
        return Some(now);
    }
    let behind = latest?.time.saturating_sub(batch.time?.time);
    now.checked_sub(Duration::from_secs(behind.into()))
}

fn protected(auditor: &Auditor, namespace: &Namespace) -> Option<Arc<Protected>> {
    (auditor.current)().on(namespace).cloned()
}

/// The names of the collection's constraints in a record.
fn named(protected: &Protected) -> BTreeSet<String> {
    let constraints = protected.constraints.iter().map(|proxy| &proxy.constraint);
    constraints.map(|constraint| audited_as(constraint)).collect()
}

/// The documents that are compared with their reservations.
#[derive(Clone, Copy)]
enum ComparedDocuments<'a> {
    /// These, for each constraint.
    These(&'a [RawDocumentBuf]),
    /// All documents, with all reservations, for the constraints that a record names so.
    All(&'a BTreeSet<String>),
}

impl ComparedDocuments<'_> {
    fn is_for(self, constraint: &Constraint) -> bool {
        match self {
            ComparedDocuments::These(_) => true,
            ComparedDocuments::All(names) => names.contains(&audited_as(constraint)),
        }
    }
}

/// Compares documents with their reservations.
///
/// Findings are noted in the constraint's document: those about given documents before they are repaired. So a command that finds a document
/// reserved finds the note, too. Returns whether a key was left without a reservation, if that `may_leave` any.
async fn compare(
    auditor: &Auditor,
    protected: &Protected,
    compared: ComparedDocuments<'_>,
    may_leave: bool,
) -> Result<bool, StoreError> {
    let client = &auditor.client;
    let mut reports = Vec::new();
    for position in 0..protected.constraints.len() {
        let constraint = &protected.constraints[position].constraint;
        if !compared.is_for(constraint) {
            continue;
        }
        let is_enforced = (auditor.is_enforced)(constraint);
        let mut report = AuditReport::of(protected, position, (is_enforced, may_leave));
        let mut note = |finding: &Finding| report.note(finding);
        match compared {
            ComparedDocuments::These(documents) => {
                let mut findings = 0;
                let mut count = |_: &Finding| findings += 1;
                verify_documents(protected, position, settings(false), documents, &mut count).await?;
                if findings > 0 {
                    note_written_past(client, constraint, findings).await?;
                    verify_documents(protected, position, settings(true), documents, &mut note).await?;
                }
            }
            ComparedDocuments::All(_) => {
                let mut tally = Tally::default();
                verify(protected, position, settings(true), &mut tally, &mut note).await?;
                let findings = tally.about_documents();
                if findings > 0 {
                    note_written_past(client, constraint, findings).await?;
                }
            }
        }
        match report.is_enforced {
            true if matches!(compared, ComparedDocuments::All(_)) => auditor.note_unreported(constraint, false),
            false if report.violations > 0 => {
                auditor.note_unreported(constraint, true);
                let namespace = &protected.namespace;
                tracing::info!(
                    %namespace, constraint = constraint.name(),
                    "documents violate a constraint that isn't enforced yet; the audit reports them once it is"
                );
            }
            _ => {}
        }
        reports.push(report);
    }
    ended(reports, may_leave)
}

fn settings(repair: bool) -> VerifySettings {
    VerifySettings { rate: RATE, repair }
}

/// Logs the findings of one constraint, and counts them.
struct AuditReport<'a> {
    metrics: &'a ConstraintMetrics,
    /// Whether the constraint was enforced before the documents were compared. If not, nothing is reported.
    is_enforced: bool,
    /// Whether the audit goes on if a key couldn't be reserved.
    may_leave: bool,
    violations: u64,
    /// How many keys couldn't be reserved.
    left: u64,
}

impl AuditReport<'_> {
    /// One of the constraint at this position, without a finding.
    fn of(protected: &Protected, position: usize, (is_enforced, may_leave): (bool, bool)) -> AuditReport<'_> {
        AuditReport {
            is_enforced,
            may_leave,
            metrics: &protected.constraints[position].metrics,
            violations: 0,
            left: 0,
        }
    }

    fn note(&mut self, finding: &Finding) {
        match (finding.kind, finding.repaired) {
            // A delete past Keyward leaves these, or a write that was cut off. No document is at fault, and the sweeper deletes them, too.
            (FindingKind::Abandoned, _) => {}
            (_, true) if !self.is_enforced => {}
            (_, true) => {
                self.metrics.audit_repaired.inc();
                tracing::warn!(%finding, "written past Keyward; repaired");
            }
            (FindingKind::Unindexable, false) => {
                self.violations += 1;
                if self.is_enforced {
                    tracing::error!(%finding, "a document has a value that no unique index can hold, written past Keyward; change or delete it");
                }
            }
            (FindingKind::Duplicate, false) if finding.reason.is_none() => {
                self.violations += 1;
                if self.is_enforced {
                    tracing::error!(%finding, "a document violates a constraint, written past Keyward; change or delete one of the documents");
                }
            }
            (kind, false) => {
                // With a reason, the repair failed. A key of duplicates must be reserved as well: or a third document could take it.
                let is_left = kind != FindingKind::Unreadable && finding.reason.is_some();
                self.left += u64::from(is_left);
                match is_left && self.may_leave {
                    _ if !self.is_enforced => {}
                    true => tracing::error!(
                        %finding,
                        "written past Keyward; another document can have the same key, which can't be reserved; the audit goes on"
                    ),
                    false => tracing::warn!(%finding, "written past Keyward; not repaired"),
                }
            }
        }
    }
}

/// Counts the violations, unless the audit has to come back to these documents: it mustn't record then that it is past them. Returns whether a
/// key was left without a reservation: it counts, too.
fn ended(reports: Vec<AuditReport<'_>>, may_leave: bool) -> Result<bool, StoreError> {
    let is_any_left = reports.iter().any(|report| report.left > 0);
    if is_any_left && !may_leave {
        return Err(StoreError::Unrepaired);
    }
    for report in reports.iter().filter(|report| report.is_enforced) {
        report.metrics.audit_violations.inc_by(report.violations + report.left);
    }
    Ok(is_any_left)
}

/// Whether the servers no longer have the changes since a token, or don't know the token.
fn is_history_lost(error: &mongodb::error::Error) -> bool {
    error.contains_label("NonResumableChangeStreamError")
}
