//! Clusters and replica sets that one test has for itself, and the next test after it: most tests that set fail points or
//! parameters, which hold for a whole server, need not pay for a start.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

/// A cluster or replica set that no other test uses meanwhile. The test leaves it without fail points and with its
/// parameters as they were; its databases stay, so each test has a name of its own. It is kept for the next test unless
/// this one fails.
#[derive(Debug)]
pub struct Alone<T: 'static> {
    one: &'static T,
    free: &'static Mutex<Vec<&'static T>>,
}

impl<T> Alone<T> {
    /// Takes one of those that are `free`, or starts another.
    pub(crate) fn take<E>(
        free: &'static Mutex<Vec<&'static T>>,
        start: impl FnOnce() -> Result<T, E>,
    ) -> Result<Self, E> {
        let kept = free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let one = match kept {
            Some(one) => one,
            // Like a shared one it lives as long as the process, which its servers do not outlive.
            None => Box::leak(Box::new(start()?)),
        };
        Ok(Alone { one, free })
    }
}

impl<T> Deref for Alone<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.one
    }
}

impl<T> Drop for Alone<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(free: &'static Mutex<Vec<&'static u8>>, new: u8) -> Alone<u8> {
        Alone::take(free, || Ok::<_, ()>(new)).unwrap()
    }

    #[test]
    fn one_is_had_by_one_test_at_a_time_and_kept_for_the_next() {
        static FREE: Mutex<Vec<&u8>> = Mutex::new(Vec::new());
        let (first, second) = (take(&FREE, 1), take(&FREE, 2));
        assert_eq!((*first, *second), (1, 2));
        drop(first);
        assert_eq!(*take(&FREE, 3), 1);
    }

    #[test]
    fn what_a_failed_test_had_is_not_used_again() {
        static FREE: Mutex<Vec<&u8>> = Mutex::new(Vec::new());
        let failed = std::thread::spawn(|| {
            let _one = take(&FREE, 1);
            panic!("as a failed test");
        });
        assert!(failed.join().is_err());
        assert_eq!(*take(&FREE, 2), 2);
    }
}
