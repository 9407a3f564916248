//! Checks that every document has its keys reserved, and that every reservation has its document.
//!
//! Writes go on meanwhile, so a suspect is read again: at once, document and reservation in one snapshot, and once more a lease
//! later, when its write can have ended. Only suspects that are still wrong then are reported. The walk reads page by page, at a
//! limited rate, and remembers only suspects and findings. If it is killed, it has changed nothing, or repaired its findings
//! so far.

mod documents;
mod finding;
mod repair;
mod reservations;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bson::RawDocumentBuf;
use tokio::time::Instant;

use crate::catalog::Protected;
use crate::claims::owner_of;
use crate::constraint::Key;
use crate::progress::Progress;
use crate::proxy_collection::{Owner, ProxyCollection, StoreError};
use crate::raw::Doc;

pub use finding::{Finding, FindingKind};

/// The number of documents, or of reservations, that are read together.
const PAGE: i32 = 1_000;
/// The number of suspects that are read in one snapshot.
const SUSPECTS_AT_ONCE: usize = 200;
/// The number of suspects that are remembered until they are read again. With more, the walk waits for them.
const SUSPECTS_MAX: usize = 10_000;
/// The number of keys that are remembered because they were found without a reservation of their own. Another document that
/// holds one of them is found to be a duplicate.
const KEYS_REMEMBERED: usize = 100_000;

/// How to go about it.
#[derive(Debug, Clone, Copy)]
pub struct VerifySettings {
    /// How many documents, or reservations, to read in a second.
    pub rate: u32,
    /// Whether to repair what is safe to.
    pub repair: bool,
}

/// The numbers of documents and reservations read, and of findings.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Documents read.
    pub documents: u64,
    /// Reservations read.
    pub reservations: u64,
    /// Findings of each kind, and how many of them are repaired.
    pub findings: BTreeMap<FindingKind, (u64, u64)>,
}

impl Tally {
    /// How many findings there are that aren't repaired.
    pub fn left(&self) -> u64 {
        self.findings.values().map(|(found, repaired)| found - repaired).sum()
    }

    /// How many of those contradict a document. An abandoned reservation doesn't: the sweeper deletes it.
    pub fn contradictions(&self) -> u64 {
        let abandoned = self.findings.get(&FindingKind::Abandoned);
        self.left() - abandoned.map_or(0, |(found, repaired)| found - repaired)
    }

    /// How many findings are about documents, repaired or not.
    pub fn about_documents(&self) -> u64 {
        let of_documents = self
            .findings
            .iter()
            .filter(|(kind, _)| **kind != FindingKind::Abandoned);
        of_documents.map(|(_, (found, _))| found).sum()
    }

    /// Adds another collection's.
    pub fn add(&mut self, other: &Tally) {
        self.documents += other.documents;
        self.reservations += other.reservations;
        for (kind, (found, repaired)) in &other.findings {
            let sum = self.findings.entry(*kind).or_default();
            *sum = (sum.0 + found, sum.1 + repaired);
        }
    }
}

/// Verifies the constraint at `position` of a collection; each finding goes to `report` as it is found, and counts in `tally`.
///
/// # Errors
/// [`StoreError`] if the cluster gave no sure answer: the documents and reservations that weren't read may be right or wrong.
pub async fn verify(
    protected: &Protected,
    position: usize,
    settings: VerifySettings,
    tally: &mut Tally,
    report: &mut (dyn FnMut(&Finding) + Send + Sync),
) -> Result<(), StoreError> {
    let proxy = &protected.constraints[position];
    let (documents, reservations) = proxy.estimate().await?;
    let what = format!("{} {}", protected.namespace, proxy.constraint.name());
    let progress = Progress::start("verifying", what, 0, documents + reservations);
    let mut verification = Verification::new((protected, position), settings, progress, tally, report);
    verification.documents().await?;
    verification.reservations().await
}

/// Verifies documents that were just read, for the constraint at `position`. It doesn't wait for writes: a write through Keyward reserves a
/// key before a document holds it.
///
/// # Errors
/// The same.
pub async fn verify_documents(
    protected: &Protected,
    position: usize,
    settings: VerifySettings,
    documents: &[RawDocumentBuf],
    report: &mut (dyn FnMut(&Finding) + Send + Sync),
) -> Result<(), StoreError> {
    let mut tally = Tally::default();
    let mut verification = Verification::new((protected, position), settings, Progress::none(), &mut tally, report);
    verification.these(documents).await
}

/// One constraint being verified.
struct Verification<'a> {
    protected: &'a Protected,
    position: usize,
    proxy: &'a ProxyCollection,
    settings: VerifySettings,
    pace: Throttle,
    progress: Progress,
    /// Keys that were found without a reservation of their own, with a document that holds them.
    unreserved: HashMap<Key, Owner>,
    tally: &'a mut Tally,
    report: &'a mut (dyn FnMut(&Finding) + Send + Sync),
}

impl<'a> Verification<'a> {
    /// The verification of the constraint at `position` of a collection.
    fn new(
        (protected, position): (&'a Protected, usize),
        settings: VerifySettings,
        progress: Progress,
        tally: &'a mut Tally,
        report: &'a mut (dyn FnMut(&Finding) + Send + Sync),
    ) -> Verification<'a> {
        Verification {
            protected,
            position,
            proxy: &protected.constraints[position],
            settings,
            pace: Throttle::start(settings.rate),
            progress,
            unreserved: HashMap::new(),
            tally,
            report,
        }
    }

    fn note(&mut self, finding: &Finding) {
        let count = self.tally.findings.entry(finding.kind).or_default();
        count.0 += 1;
        count.1 += u64::from(finding.repaired);
        let report = &mut self.report;
        self.progress.aside(|| report(finding));
    }

    async fn have_read(&mut self, documents: usize) {
        self.progress.advance(documents as u64);
        self.pace.keep(documents as u64).await;
    }

    fn owner_of(&self) -> impl Fn(Doc<'_>) -> Option<Owner> {
        |document| owner_of(self.protected, document).ok()
    }
}

/// The times at which suspects are read again: first soon, since most of them are decided at once, then ever more seldom. The last time is
/// when none of them can be in flight any more.
#[derive(Debug)]
struct RecheckTimes {
    last: Instant,
    pause: Duration,
}

/// The pause from which on the log says what is waited for: few suspects need it.
const LOGGED_PAUSE: Duration = Duration::from_millis(1_600);

impl RecheckTimes {
    fn until(last: Instant) -> RecheckTimes {
        let pause = Duration::from_millis(100);
        RecheckTimes { last, pause }
    }

    /// Waits for the next time; false once the last one is over.
    async fn next(&mut self) -> bool {
        let now = Instant::now();
        if self.pause.is_zero() {
            return false;
        }
        if self.pause == LOGGED_PAUSE {
            let left =
                humantime::format_duration(Duration::from_secs(self.last.saturating_duration_since(now).as_secs()));
            tracing::info!(%left, "waiting until writes of suspicious documents can't be under way any more");
        }
        match now + self.pause < self.last {
            true => {
                tokio::time::sleep(self.pause).await;
                self.pause *= 2;
            }
            false => {
                tokio::time::sleep_until(self.last).await;
                self.pause = Duration::ZERO;
            }
        }
        true
    }
}

/// Keeps to a rate.
#[derive(Debug)]
struct Throttle {
    rate: u32,
    next: Instant,
}

impl Throttle {
    fn start(rate: u32) -> Throttle {
        let next = Instant::now();
        Throttle { rate, next }
    }

    /// Waits until so many more documents may be read. An unused part of the rate is lost.
    async fn keep(&mut self, documents: u64) {
        let earned = Duration::from_secs_f64(documents as f64 / f64::from(self.rate.max(1)));
        tokio::time::sleep_until(self.next).await;
        self.next = self.next.max(Instant::now()) + earned;
    }
}
