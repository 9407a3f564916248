//! Runs the checks of `keyward doctor`: each tries one assumption about a real deployment, and its result is one line.
//!
//! It works in a scratch database of its own and drops it at the end, also after failures and interruptions. It reads and writes
//! no other documents. The groups are in files of their own; a start uses some of the same functions.

mod change_streams;
mod check;
mod checks;
mod clocks;
mod connection;
mod duplicates;
mod errors;
mod privileges;
mod reads;
mod report;
mod retries;
mod scratch;
mod session;
mod sharding;
mod transactions;
mod versions;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bson::Document;

use crate::config::Config;
use crate::server::{code, driver};
use crate::upstream::Upstream;

pub use check::{Check, CheckError, CheckOutcome, Group, Needs, Running};
pub use checks::{checks, of_connection};
pub use duplicates::{SampledConstraint, sample_duplicates};
pub use report::{Examination, Line, Worst};
pub use scratch::{PREFIX, Scratch};

/// How often a check is tried whose transactions meet others, or a collection that the servers are still making known.
const TRIES: u32 = 6;
/// How long to pause between two tries.
const PAUSE: Duration = Duration::from_millis(250);

/// Examines the deployment of `config`; `show` gets each line once it is known.
///
/// Once `is_interrupted` is set, no further command of a check is sent. The scratch database is dropped all the same.
pub async fn examine(config: &Config, is_interrupted: Arc<AtomicBool>, show: &mut dyn FnMut(&Line)) -> Examination {
    let (mut report, scratch) = answering(config, is_interrupted, show).await;
    let mut add = |line: Line| {
        show(&line);
        report.lines.push(line);
    };
    let Some((_, mut scratch)) = scratch else {
        skip_all(&mut add, "the deployment can't be used");
        return report;
    };
    let [_, scratch_database] = of_connection();
    let begun = Instant::now();
    add(scratch_database.line(ended(connection::scratch_database(&mut scratch).await), begun));
    for check in checks() {
        let begun = Instant::now();
        let ended = run(&check, &scratch).await;
        add(check.line(ended, begun));
    }
    report.left_behind = scratch
        .drop_database()
        .await
        .map(|why| (scratch.name().to_owned(), why));
    report.note(&scratch);
    report
}

/// Runs those checks that create nothing and read only what the servers say of themselves. Also returns the deployment, if it answers.
pub async fn look(config: &Config, show: &mut dyn FnMut(&Line)) -> (Examination, Option<Upstream>) {
    let (mut report, scratch) = answering(config, Arc::default(), show).await;
    let Some((upstream, scratch)) = scratch else {
        return (report, None);
    };
    for check in checks().into_iter().filter(|check| check.needs == Needs::Deployment) {
        let begun = Instant::now();
        let ended = run(&check, &scratch).await;
        let line = check.line(ended, begun);
        show(&line);
        report.lines.push(line);
    }
    (report, Some(upstream))
}

/// Runs the first check: whether the deployment answers, and can be used.
async fn answering(
    config: &Config,
    is_interrupted: Arc<AtomicBool>,
    show: &mut dyn FnMut(&Line),
) -> (Examination, Option<(Upstream, Scratch)>) {
    let mut report = Examination::of(config);
    let mut add = |line: Line| {
        show(&line);
        report.lines.push(line);
    };
    let [answers, _] = of_connection();
    let begun = Instant::now();
    let upstream = match Upstream::new(config.upstream.uri()).await {
        Ok(upstream) => upstream,
        Err(error) => {
            add(answers.line(CheckOutcome::Failed(error.to_string()), begun));
            return (report, None);
        }
    };
    let mut scratch = Scratch::new(&upstream, config, is_interrupted);
    let answering = upstream.reporting_silence(connection::answers(&mut scratch, &upstream));
    let outcome = match ended(answering.await) {
        // Nothing can be examined then.
        CheckOutcome::Skipped(why) => CheckOutcome::Failed(why),
        outcome => outcome,
    };
    let is_usable = matches!(outcome, CheckOutcome::Passed(_));
    add(answers.line(outcome, begun));
    (report, is_usable.then_some((upstream, scratch)))
}

async fn run(check: &Check, scratch: &Scratch) -> CheckOutcome {
    if scratch.is_interrupted() {
        return CheckError::Interrupted.into_outcome();
    }
    if let Some(why) = scratch.lacks(check.needs) {
        return CheckOutcome::Skipped(why);
    }
    let mut last = (check.run)(scratch).await;
    for _ in 1..TRIES {
        match &last {
            Err(error) if error.may_pass() => {}
            _ => break,
        }
        tokio::time::sleep(PAUSE).await;
        last = (check.run)(scratch).await;
    }
    ended(last)
}

fn ended(result: Result<CheckOutcome, CheckError>) -> CheckOutcome {
    result.unwrap_or_else(CheckError::into_outcome)
}

fn skip_all(add: &mut impl FnMut(Line), why: &str) {
    let [_, scratch_database] = of_connection();
    for check in [scratch_database].into_iter().chain(checks()) {
        add(check.line(CheckOutcome::Skipped(why.to_owned()), Instant::now()));
    }
}

/// The reply to a question that not every kind of server answers.
fn stated(reply: Result<Document, CheckError>) -> Result<Document, CheckError> {
    const UNKNOWN: [i32; 3] = [
        code::INVALID_OPTIONS,
        code::COMMAND_NOT_FOUND,
        code::COMMAND_NOT_SUPPORTED,
    ];
    match reply {
        Err(CheckError::Driver(error)) if driver::code_of(&error).is_some_and(|code| UNKNOWN.contains(&code)) => {
            Err(CheckError::Impossible("the server doesn't state it".to_owned()))
        }
        other => other,
    }
}
