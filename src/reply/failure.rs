//! Tells whether the failure of one part of a command may fail the whole command.

use crate::raw::{Doc, Malformed};
use crate::server::code::{MAX_TIME_MS_EXPIRED, REAUTHENTICATION_REQUIRED};
use crate::server::definite::{of_another_primary, refused_before_execution};
use crate::server::reply::{RETRYABLE_WRITE_ERROR, code, has_label};

/// Whether the client would never get the results of the other parts if it got `failed`, the reply of one part that isn't `ok`. The
/// part has `count` statements.
///
/// A driver sends the command again if the error has the label, or after it has logged in again. It must see by itself that a server is no
/// primary any more. At a client's own time limit, the server fails the whole command, too. If the outcome of several statements is unknown,
/// none of them may be called failed.
pub fn loses_results(failed: Doc<'_>, count: usize, has_client_limit: bool) -> Result<bool, Malformed> {
    let code = code(failed)?.unwrap_or_default();
    let is_for_the_driver = of_another_primary(code) || code == REAUTHENTICATION_REQUIRED;
    let is_at_limit = has_client_limit && code == MAX_TIME_MS_EXPIRED;
    let is_unknown = count > 1 && !refused_before_execution(code);
    Ok(!is_for_the_driver && !is_at_limit && !is_unknown && !has_label(failed, RETRYABLE_WRITE_ERROR))
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn results_are_lost_unless_the_driver_or_the_clients_limit_says_so() {
        let loses = |failed: Document, count, has_client_limit| {
            loses_results(Doc::new(&failed.to_vec().unwrap()).unwrap(), count, has_client_limit).unwrap()
        };
        let of = |code: i32| doc! { "ok": 0.0, "code": code };
        assert!(loses(of(50), 1, false));
        assert!(!loses(of(50), 1, true));
        assert!(!loses(of(50), 2, false));
        assert!(loses(of(13), 2, true));
        assert!(!loses(of(10_107), 1, false));
        assert!(!loses(of(391), 1, false));
        let labelled = doc! { "ok": 0.0, "code": 6, "errorLabels": ["RetryableWriteError"] };
        assert!(!loses(labelled, 1, false));
    }
}
