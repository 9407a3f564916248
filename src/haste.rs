//! Shortens terms in debug builds, so that tests of long waits take seconds.
//!
//! A release build ignores the environment variables.

use std::time::Duration;

/// Divides the terms of the register of Keywards, of a claim to a backfill, and the pause after duplicates.
pub const REGISTER: &str = "KEYWARD_REGISTER_HASTE";
/// Divides the time that a change of the catalog waits for clients' transactions. It is a variable of its own: the servers must
/// end transactions as early.
pub const TRANSACTIONS: &str = "KEYWARD_TRANSACTIONS_HASTE";

/// Divides the time that a statement may take if the client set no limit.
pub const STATEMENTS: &str = "KEYWARD_STATEMENTS_HASTE";

/// Divides `term` by the number in the environment variable `variable`.
pub fn hastened(term: Duration, variable: &str) -> Duration {
    if !cfg!(debug_assertions) {
        return term;
    }
    let wanted = std::env::var(variable).ok();
    let haste: u32 = wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(1);
    term / haste.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_whole_where_no_test_asks_for_less() {
        let minute = Duration::from_secs(60);
        assert_eq!(hastened(minute, REGISTER), minute);
        assert_eq!(hastened(minute, "PATH"), minute);
    }
}
