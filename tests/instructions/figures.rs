//! The committed figures, and what is said of one that isn't right any more.

use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// A figure may differ by so much, in percent: what timing does to the same program is far below it.
pub const TOLERANCE: f64 = 5.0;

/// Makes the figures of the run the committed ones.
const ACCEPT: &str = "KEYWARD_INSTRUCTIONS=accept cargo test --test instructions";

/// `figures.json`, beside this file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The compiler that they are from.
    pub rustc: String,
    /// Instructions for one operation, as the tests build Keyward.
    pub instructions: Vec<Figure>,
}

/// One of them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figure {
    pub name: String,
    pub instructions: u64,
}

impl Figures {
    /// Whether the run is asked to make its figures the committed ones.
    pub fn are_accepted() -> bool {
        std::env::var("KEYWARD_INSTRUCTIONS").is_ok_and(|asked| asked == "accept")
    }

    pub fn read() -> Figures {
        serde_json::from_slice(&std::fs::read(file()).unwrap()).unwrap()
    }

    pub fn write(&self) {
        let mut text = serde_json::to_string_pretty(self).unwrap();
        text.push('\n');
        std::fs::write(file(), text).unwrap();
    }

    /// What is wrong with a figure as it `is` now; nothing if it is as it was.
    pub fn objection(&self, name: &str, is: f64) -> Option<String> {
        let Some(figure) = self.instructions.iter().find(|figure| figure.name == name) else {
            return Some(format!(
                "{name}: no figure is committed, it is {is:.0}. To accept it: {ACCEPT}"
            ));
        };
        let was = figure.instructions as f64;
        let change = (is / was - 1.0) * 100.0;
        // One that has become smaller is refused, too: left as it is, it would let the same amount creep back.
        (change.abs() > TOLERANCE).then(|| {
            format!(
                "{name}: was {was:.0} instructions, is {is:.0} ({change:+.1} %, {TOLERANCE} % are allowed; was with {}, is with \
                 {}). If that is as it should be, accept it: {ACCEPT}",
                self.rustc,
                rustc(),
            )
        })
    }
}

/// The compiler that is there.
pub fn rustc() -> String {
    let output = Command::new("rustc").arg("--version").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/instructions/figures.json")
}
