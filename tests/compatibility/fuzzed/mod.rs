//! The fuzz targets, without a fuzzer: all bytes that were kept because they were worth something (fuzz/corpus), and many that
//! are made of those, by a seed. Nothing may panic, take long, or take much memory. `cargo fuzz` looks for new ones:
//! fuzz/README.md.

#![allow(clippy::unwrap_used)]

mod messages;
mod side_by_side;
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// So many inputs are made for each target, unless `KEYWARD_FUZZ_RUNS` says otherwise.
const RUNS: usize = 20_000;
/// No input may take longer, on a machine that has other things to do.
const RUN_MAX: Duration = Duration::from_secs(5);
const BYTES_MAX: usize = 16 * 1024;

#[test]
fn streams_of_messages() {
    go_through("framing", targets::framing);
}

#[test]
fn messages() {
    go_through("message", targets::message);
}

#[test]
fn packed_messages() {
    go_through("decompression", targets::decompression);
}

#[test]
fn documents() {
    go_through("keys", targets::keys);
}

#[test]
fn configurations() {
    go_through("configuration", targets::configuration);
}

/// What is made is the same each time, unless `KEYWARD_SEED` says otherwise: what a new seed finds is news, no reason to refuse
/// a change.
fn seed() -> u64 {
    testkit::given::number("KEYWARD_SEED").unwrap_or(1)
}

fn go_through(name: &str, target: fn(&[u8])) {
    let folder = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let kept: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(kept.len() > 5, "{folder} holds {}", kept.len());
    for (path, bytes) in paths.iter().zip(&kept) {
        run(target, bytes, &path.display().to_string());
    }
    let runs = testkit::given::number("KEYWARD_FUZZ_RUNS").map_or(RUNS, |runs| runs as usize);
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..runs {
        let bytes = made_of(&kept, &mut random);
        run(target, &bytes, &format!("{name}: KEYWARD_SEED={seed}, input {number}"));
    }
}

fn run(target: fn(&[u8]), bytes: &[u8], name: &str) {
    let started = Instant::now();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| target(bytes)));
    assert!(outcome.is_ok(), "{name}: {bytes:?}");
    assert!(started.elapsed() < RUN_MAX, "{name}: {:?}", started.elapsed());
}

/// One of what was kept, changed here and there as fuzzers do.
fn made_of(kept: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    const WORTH_TRYING: [i32; 8] = [0, 1, -1, 5, 127, 128, i32::MAX, i32::MIN];
    let mut bytes = kept.choose(random).unwrap().clone();
    bytes.truncate(BYTES_MAX);
    for _ in 0..random.random_range(1..=8) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..6) {
            0 if at < bytes.len() => bytes[at] = random.random(),
            1 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            2 if at + 4 <= bytes.len() => {
                let number: i32 = *WORTH_TRYING.choose(random).unwrap();
                bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
            3 => drop(bytes.drain(at..bytes.len().min(at + random.random_range(0..16)))),
            4 => {
                let other = kept.choose(random).unwrap();
                let from = random.random_range(0..=other.len());
                let piece = &other[from..other.len().min(from + random.random_range(0..64))];
                drop(bytes.splice(at..at, piece.iter().copied()));
            }
            _ => bytes.insert(at, random.random()),
        }
    }
    bytes
}
