//! Holds what Keyward does for a message, in instructions, against committed figures: a count is the same on a slow machine
//! and on a busy one.
//!
//! It counts the binary that the other tests run, in their profile: a release build of all dependencies, with link-time
//! optimisation, would take longer than everything else here, and what a change adds (a copy, an allocation, another pass over
//! the message) shows in both. What a release build comes to stands in `docs/performance.md`; `cargo bench --bench cost`
//! counts that. Without `valgrind`, and on other processors than x86-64, this is left out.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod figures;

use figures::{Figure, Figures};
use testkit::counted;

/// The most that an update that changes no key may take, as a multiple of a forwarded message.
const KEYLESS_MAX: f64 = 1.1;

#[test]
fn an_operation_takes_as_many_instructions_as_it_did() {
    if !cfg!(target_arch = "x86_64") || !counted::has_valgrind() {
        println!("left out: instructions are counted by valgrind, on x86-64");
        return;
    }
    let counted = counted::all();
    for counted in &counted {
        println!("{}: {:.0} instructions", counted.name, counted.instructions);
        for (function, instructions) in counted.by_function.iter().take(10) {
            println!("  {instructions:8.0} {function}");
        }
    }
    if Figures::are_accepted() {
        let figure = |counted: &counted::Counted| Figure {
            name: counted.name.to_owned(),
            instructions: counted.instructions.round() as u64,
        };
        let instructions = counted.iter().map(figure).collect();
        let rustc = figures::rustc();
        return Figures { rustc, instructions }.write();
    }
    let of = |name: &str| {
        counted
            .iter()
            .find(|counted| counted.name == name)
            .unwrap()
            .instructions
    };
    let (keyless, forwarded) = (of("update of no key"), of("forwarded message"));
    assert!(
        keyless <= KEYLESS_MAX * forwarded,
        "an update that changes no key goes on like a read: {keyless:.0} instructions, and {forwarded:.0}"
    );
    let committed = Figures::read();
    let objections: Vec<String> = counted
        .iter()
        .filter_map(|counted| committed.objection(counted.name, counted.instructions))
        .collect();
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

#[test]
fn what_has_changed_by_more_than_the_tolerance_is_named() {
    let instructions = vec![Figure {
        name: "ping".to_owned(),
        instructions: 1_000,
    }];
    let rustc = "rustc 1".to_owned();
    let committed = Figures { rustc, instructions };
    assert_eq!(committed.objection("ping", 1_049.0), None);
    assert_eq!(committed.objection("ping", 951.0), None);
    for is in [1_051.0, 949.0] {
        let objection = committed.objection("ping", is).unwrap();
        assert!(
            objection.starts_with(&format!("ping: was 1000 instructions, is {is:.0} (")),
            "{objection}"
        );
        assert!(
            objection.ends_with("KEYWARD_INSTRUCTIONS=accept cargo test --test instructions"),
            "{objection}"
        );
    }
    assert!(committed.objection("find", 1.0).is_some());
}
