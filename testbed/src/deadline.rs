//! Waiting for what another process does: asked again and again, up to a deadline.

use std::thread;
use std::time::{Duration, Instant};

use crate::Error;

/// An election takes 2 s, a start less; on a machine busy compiling both can take many times that.
const WITHIN: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Returns once `happened` says so; `what` names it in the error.
pub(crate) fn wait_for(what: &str, mut happened: impl FnMut() -> bool) -> Result<(), Error> {
    let deadline = Instant::now() + WITHIN;
    while !happened() {
        if Instant::now() > deadline {
            return Err(Error::DeadlinePassed {
                what: what.to_owned(),
                seconds: WITHIN.as_secs(),
            });
        }
        thread::sleep(ASK_EVERY);
    }
    Ok(())
}
