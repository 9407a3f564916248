//! Audits one collection, whenever it is this Keyward's turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::RawDocumentBuf;
use tokio::time::Instant;

use super::Auditor;
use super::changes::ChangeReader;
use super::turn::AuditTurn;
use crate::catalog::Protected;
use crate::haste::{self, hastened};
use crate::metrics::ConstraintMetrics;
use crate::namespace::Namespace;
use crate::prepare::note_written_past;
use crate::proxy_collection::StoreError;
use crate::verify::{Finding, FindingKind, Tally, VerifySettings, verify, verify_documents};

/// How long to leave it until the turn, or an audit that was broken off, is tried again.
const PAUSE: Duration = Duration::from_secs(10);
/// How long to leave it between two renewals of the turn.
const RENEWAL: Duration = Duration::from_secs(5);
/// How many documents or reservations to compare in a second if the history is gone.
const RATE: u32 = 5_000;

/// Audits the collection, over and over.
pub(super) async fn audit_again_and_again(auditor: Arc<Auditor>, namespace: Namespace) {
    loop {
        match AuditTurn::take(&auditor.client, &namespace, &auditor.id).await {
            Ok(Some(turn)) => {
                let mut audit = CollectionAudit {
                    auditor: &auditor,
                    namespace: &namespace,
                    turn,
                };
                match audit.run().await {
                    Ok(()) => auditor.progress().forget(&namespace),
                    Err(error) => {
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
}

impl CollectionAudit<'_> {
    /// Audits until the turn is another Keyward's, or the collection isn't protected any more.
    async fn run(&mut self) -> Result<(), StoreError> {
        tracing::info!(namespace = %self.namespace, "auditing");
        self.auditor.progress().note_begun(self.namespace, Instant::now());
        loop {
            match self.follow().await {
                Err(StoreError::Driver(error)) if is_history_lost(&error) && self.turn.token.is_some() => {
                    tracing::warn!(namespace = %self.namespace, "changes were missed: comparing all documents");
                    self.turn.token = None;
                }
                Ok(Followed::Invalidated) => {}
                Ok(Followed::Unreported) => {
                    tracing::info!(namespace = %self.namespace, "a constraint is enforced by now: comparing all documents");
                    self.turn.token = None;
                }
                Ok(Followed::Ended) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Follows the changes behind the turn's token. Without one, it follows those from now on, and compares all documents meanwhile.
    async fn follow(&mut self) -> Result<Followed, StoreError> {
        let changes = ChangeReader::of(&self.auditor.client, self.namespace, self.turn.token.clone()).await?;
        let (auditor, namespace) = (self.auditor, self.namespace);
        let is_compared = AtomicBool::new(self.turn.token.is_some());
        let comparing = async {
            if !is_compared.load(Ordering::Acquire) {
                if let Some(protected) = protected(auditor, namespace) {
                    compare(auditor, &protected, None).await?;
                }
                is_compared.store(true, Ordering::Release);
            }
            std::future::pending::<Result<Followed, StoreError>>().await
        };
        tokio::select! {
            ended = self.audit(changes, &is_compared) => ended,
            failed = comparing => failed,
        }
    }

    async fn audit(&mut self, mut changes: ChangeReader, is_compared: &AtomicBool) -> Result<Followed, StoreError> {
        let mut renewed = Instant::now();
        loop {
            let batch = changes.next().await?;
            let Some(protected) = protected(self.auditor, self.namespace) else {
                return Ok(Followed::Ended);
            };
            if !batch.documents.is_empty() {
                compare(self.auditor, &protected, Some(&batch.documents)).await?;
            }
            if is_compared.load(Ordering::Acquire) && self.auditor.has_more_to_report(&protected) {
                return Ok(Followed::Unreported);
            }
            if batch.is_last {
                let is_compared = is_compared.load(Ordering::Acquire);
                let mut progress = self.auditor.progress();
                progress.note_caught_up(self.namespace, is_compared, Instant::now());
            }
            if is_compared.load(Ordering::Acquire) {
                // This process alone knows that something is unreported. If another one goes on, it must compare all documents.
                let is_all_reported = !self.auditor.has_unreported(&protected);
                self.turn.token = batch.token.filter(|_| is_all_reported);
            }
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
    /// Violations of a constraint weren't reported, because it wasn't enforced. It is by now.
    Unreported,
    /// The collection is gone; there may be a new one.
    Invalidated,
    /// The turn is another Keyward's, or nothing is protected there any more.
    Ended,
}

fn protected(auditor: &Auditor, namespace: &Namespace) -> Option<Arc<Protected>> {
    (auditor.current)().on(namespace).cloned()
}

/// Compares these documents with their reservations; without any given, all documents with all reservations.
///
/// Findings are noted in the constraint's document: those about given documents before they are repaired. So a command that finds a document
/// reserved finds the note, too.
async fn compare(
    auditor: &Auditor,
    protected: &Protected,
    documents: Option<&[RawDocumentBuf]>,
) -> Result<(), StoreError> {
    let client = &auditor.client;
    let mut reports = Vec::new();
    for position in 0..protected.constraints.len() {
        let constraint = &protected.constraints[position].constraint;
        let mut report = AuditReport::of(protected, position, (auditor.is_enforced)(constraint));
        let mut note = |finding: &Finding| report.note(finding);
        match documents {
            Some(documents) => {
                let mut findings = 0;
                let mut count = |_: &Finding| findings += 1;
                verify_documents(protected, position, settings(false), documents, &mut count).await?;
                if findings > 0 {
                    note_written_past(client, constraint, findings).await?;
                    verify_documents(protected, position, settings(true), documents, &mut note).await?;
                }
            }
            None => {
                let mut tally = Tally::default();
                verify(protected, position, settings(true), &mut tally, &mut note).await?;
                let findings = tally.about_documents();
                if findings > 0 {
                    note_written_past(client, constraint, findings).await?;
                }
            }
        }
        match report.is_enforced {
            true if documents.is_none() => auditor.note_unreported(constraint, false),
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
    ended(reports)
}

fn settings(repair: bool) -> VerifySettings {
    VerifySettings { rate: RATE, repair }
}

/// Logs the findings of one constraint, and counts them.
struct AuditReport<'a> {
    metrics: &'a ConstraintMetrics,
    /// Whether the constraint was enforced before the documents were compared. If not, nothing is reported.
    is_enforced: bool,
    violations: u64,
    /// A key couldn't be reserved.
    is_any_left: bool,
}

impl AuditReport<'_> {
    /// One of the constraint at this position, without a finding.
    fn of(protected: &Protected, position: usize, is_enforced: bool) -> AuditReport<'_> {
        AuditReport {
            is_enforced,
            metrics: &protected.constraints[position].metrics,
            violations: 0,
            is_any_left: false,
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
                self.is_any_left |= kind != FindingKind::Unreadable && finding.reason.is_some();
                if self.is_enforced {
                    tracing::warn!(%finding, "written past Keyward; not repaired");
                }
            }
        }
    }
}

/// Counts the violations, unless the audit has to come back to these documents: it mustn't record then that it is past them.
fn ended(reports: Vec<AuditReport<'_>>) -> Result<(), StoreError> {
    if reports.iter().any(|report| report.is_any_left) {
        return Err(StoreError::Unrepaired);
    }
    for report in reports.iter().filter(|report| report.is_enforced) {
        report.metrics.audit_violations.inc_by(report.violations);
    }
    Ok(())
}

/// Whether the servers no longer have the changes since a token, or don't know the token.
fn is_history_lost(error: &mongodb::error::Error) -> bool {
    error.contains_label("NonResumableChangeStreamError")
}
