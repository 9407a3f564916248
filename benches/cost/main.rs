//! What Keyward itself does for a forwarded message and for a protected insert: `cargo bench --bench cost`.
//!
//! It prints instructions (counted by `callgrind`), the functions that take most of them, and processor time. `-- --write`
//! puts that into `docs/performance.md`; `-- instructions` leaves the time out, which a busy machine would distort.

#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, reason = "nothing is drawn here")]
#[path = "../compare/page.rs"]
mod page;
mod processor;

use testkit::counted::{self, Counted};

/// So many functions are listed.
const LISTED: usize = 10;

fn main() {
    testbed::process::use_disk();
    let has = |wanted: &str| std::env::args().skip(1).any(|argument| argument == wanted);
    let tell = |name: &str, text: &str| {
        println!("{text}\n");
        if has("--write") {
            page::write(name, text);
        }
    };
    match counted::has_valgrind() {
        true => tell("instructions", &instructions(&counted::all())),
        false => eprintln!("valgrind isn't installed: instructions are left out"),
    }
    if !has("instructions") {
        tell("processor", &processor::table());
    }
}

fn instructions(counted: &[Counted]) -> String {
    let build = match cfg!(debug_assertions) {
        true => "The tests' build: opt-level 1, with assertions.",
        false => "A release build.",
    };
    let mut text = format!("{build}\n\n| operation | instructions |\n| --- | ---: |");
    for counted in counted {
        text += &format!("\n| {} | {:.0} |", counted.name, counted.instructions);
    }
    for counted in counted {
        text += &format!(
            "\n\nWhere those of a {} are spent, each function without what it calls:\n\n| instructions | part | function \
             |\n| ---: | ---: | --- |",
            counted.name
        );
        for (function, instructions) in counted.by_function.iter().take(LISTED) {
            let part = instructions / counted.instructions * 100.0;
            text += &format!(
                "\n| {instructions:.0} | {part:.1} % | `{}` |",
                function.replace('|', "\\|")
            );
        }
    }
    text
}
