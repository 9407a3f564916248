//! `keyward check`: a configuration file into a summary of what it means, or into everything that is wrong with it.
//!
//! It reads the file just as `keyward run` does, and connects to nothing.

use std::fmt::Write as _;
use std::path::Path;

use super::Exit;
use crate::config::{Config, LogFormat};
use crate::constraint::Constraint;

/// Checks `file`; the summary goes to standard output, problems go to standard error.
pub fn run(file: &Path) -> Exit {
    match Config::load(file) {
        Ok(config) => {
            print!("{}: no problems\n\n{}", file.display(), summary(&config));
            Exit::Success
        }
        Err(problems) => {
            eprintln!("{problems}");
            Exit::Config
        }
    }
}

fn summary(config: &Config) -> String {
    let format = match config.log.format {
        LogFormat::Text => "text",
        LogFormat::Json => "JSON",
    };
    let mut text = String::new();
    for (name, value) in [
        ("listen", config.listen.to_string()),
        ("upstream", config.upstream.to_string()),
        ("admin", config.admin.to_string()),
        ("lease", humantime::format_duration(config.lease).to_string()),
        ("sweep", humantime::format_duration(config.sweep).to_string()),
        ("drain", humantime::format_duration(config.drain).to_string()),
        ("log", format!("{}, as {format}", config.log.level)),
        ("limits", format!("{} connections", config.limits.max_connections)),
    ] {
        push_line(&mut text, &format!("{name:<10}{value}"));
    }
    push_line(&mut text, "");
    if config.constraints.is_empty() {
        push_line(&mut text, "No constraints: everything is forwarded as it comes.");
    }
    for constraint in &config.constraints {
        push_line(&mut text, &sentence(constraint));
    }
    text
}

/// `shop.users: email_1 is unique over { "key": { "email": 1 }, "sparse": false }; reservations in …`
fn sentence(constraint: &Constraint) -> String {
    let mut options = constraint.definition();
    for said_elsewhere in ["format", "collection", "name"] {
        options.remove(said_elsewhere);
    }
    let (namespace, name, proxy) = (constraint.namespace(), constraint.name(), constraint.proxy_collection());
    format!("{namespace}: {name} is unique over {options}; reservations in {proxy}")
}

fn push_line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes everything that is written to it");
}
