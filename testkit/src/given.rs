//! What a run is given from outside: the variables of the environment that its tests read.

use rand::Rng;

/// The number in the variable `name`; none if it isn't set.
///
/// # Panics
/// If it isn't a whole number.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is a whole number, not {text:?}")))
}

/// The seed of a random test: `KEYWARD_SEED`, or any. It is printed, and so shown with a failure.
pub fn seed() -> u64 {
    let seed = number("KEYWARD_SEED").unwrap_or_else(|| rand::rng().random());
    println!("KEYWARD_SEED={seed}");
    seed
}

/// Prints its seed if the test fails while it lives, so that the run can be repeated.
#[derive(Debug)]
pub struct Replay(pub u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("KEYWARD_SEED={}", self.0);
        }
    }
}
