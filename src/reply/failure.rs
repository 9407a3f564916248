//! Tells whether the failure of one part of a command may fail the whole command.

use crate::raw::{Doc, Malformed};
use crate::server::code::MAX_TIME_MS_EXPIRED;
use crate::server::reply::{RETRYABLE_WRITE_ERROR, code, has_label};

/// Whether the client would never get the results of the other parts if it got `failed`, the reply of one part that isn't `ok`.
///
/// A driver sends the command again if the error has the label. At a client's own time limit, the server fails the whole command, too.
pub fn loses_results(failed: Doc<'_>, has_client_limit: bool) -> Result<bool, Malformed> {
    let is_at_limit = has_client_limit && code(failed)? == Some(MAX_TIME_MS_EXPIRED);
    Ok(!is_at_limit && !has_label(failed, RETRYABLE_WRITE_ERROR))
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn results_are_lost_unless_the_driver_or_the_clients_limit_says_so() {
        let loses = |failed: Document, has_client_limit| {
            loses_results(Doc::new(&failed.to_vec().unwrap()).unwrap(), has_client_limit).unwrap()
        };
        let late = doc! { "ok": 0.0, "code": 50 };
        assert!(loses(late.clone(), false));
        assert!(!loses(late, true));
        assert!(loses(doc! { "ok": 0.0, "code": 10_107 }, true));
        let labelled = doc! { "ok": 0.0, "code": 10_107, "errorLabels": ["RetryableWriteError"] };
        assert!(!loses(labelled, false));
    }
}
