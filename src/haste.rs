//! Shortens terms in debug builds, so that tests of long waits take seconds. Lengthens some, which are too short for tests on a busy
//! machine.
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

/// Multiplies the time that an insert waits for others' transactions before it runs alone, and the time after which their group hangs.
pub const GROUPS: &str = "KEYWARD_GROUPS_PATIENCE";

/// Divides `term` by the number in the environment variable `variable`.
pub fn hastened(term: Duration, variable: &str) -> Duration {
    term / factor(variable)
}

/// Multiplies `term` by the number in the environment variable `variable`.
pub fn lengthened(term: Duration, variable: &str) -> Duration {
    term * factor(variable)
}

fn factor(variable: &str) -> u32 {
    if !cfg!(debug_assertions) {
        return 1;
    }
    let wanted = std::env::var(variable).ok();
    let factor: u32 = wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(1);
    factor.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_as_it_is_where_no_test_asks_for_another() {
        let minute = Duration::from_secs(60);
        assert_eq!(lengthened(minute, GROUPS), minute);
        assert_eq!(hastened(minute, REGISTER), minute);
        assert_eq!(hastened(minute, "PATH"), minute);
    }
}
