//! Tells whether the failure of one part of a command may fail the whole command.

use crate::raw::{Doc, Malformed};
use crate::server::code::{MAX_TIME_MS_EXPIRED, REAUTHENTICATION_REQUIRED};
use crate::server::definite::{of_another_primary, refused_before_execution};
use crate::server::reply::{RETRYABLE_WRITE_ERROR, code, has_label};

/// The terms of a client's command that decide whether one part may fail it as a whole.
#[derive(Debug, Clone, Copy)]
pub struct CommandTerms {
    /// Whether the driver may send the command again.
    pub is_retryable: bool,
    /// Whether the client set a time limit.
    pub has_limit: bool,
}

/// Whether the client would never get the results of the other parts if it got `failed`, the reply of one part that isn't `ok`. The outcome
/// of `count` statements of the part isn't known otherwise.
///
/// A driver sends a retryable command again if the error has the label, or says that the server is no primary any more. After a login it
/// sends any command again. One without a number must then not have taken effect in part. At a client's own time limit, the server fails
/// the whole command, too. If the outcome of several statements is unknown, none of them may be called failed. In every other case Keyward
/// does as a router does: the part's statements get errors of their own.
pub fn loses_results(failed: Doc<'_>, count: usize, terms: CommandTerms) -> Result<bool, Malformed> {
    let code = code(failed)?.unwrap_or_default();
    let repeats_retryable =
        of_another_primary(code) || code == REAUTHENTICATION_REQUIRED || has_label(failed, RETRYABLE_WRITE_ERROR);
    let is_sent_again = terms.is_retryable && repeats_retryable;
    let is_at_limit = terms.has_limit && code == MAX_TIME_MS_EXPIRED;
    let is_unknown = count > 1 && !refused_before_execution(code);
    Ok(!is_sent_again && !is_at_limit && !is_unknown)
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn results_are_lost_unless_the_driver_or_the_clients_limit_says_so() {
        let loses = |failed: Document, count, is_retryable, has_limit| {
            let terms = CommandTerms {
                is_retryable,
                has_limit,
            };
            loses_results(Doc::new(&failed.to_vec().unwrap()).unwrap(), count, terms).unwrap()
        };
        let of = |code: i32| doc! { "ok": 0.0, "code": code };
        assert!(loses(of(50), 1, true, false));
        assert!(!loses(of(50), 1, true, true));
        assert!(!loses(of(50), 2, true, false));
        assert!(loses(of(13), 2, true, true));
        assert!(!loses(of(391), 1, true, false));
        assert!(loses(of(391), 1, false, false));
        let labelled = doc! { "ok": 0.0, "code": 6, "errorLabels": ["RetryableWriteError"] };
        for failed in [of(10_107), labelled] {
            assert!(!loses(failed.clone(), 1, true, false));
            assert!(loses(failed.clone(), 1, false, false));
            assert!(!loses(failed, 2, false, false));
        }
    }
}
