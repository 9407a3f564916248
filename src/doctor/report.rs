//! Holds the lines of an examination: for people, as JSON, and in a bundle for a support request.
//!
//! A bundle has no data: no address, no credential, no value of a document or of a filter.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bson::{Bson, Document};
use serde_json::{Value, json};

use super::check::{Check, CheckOutcome};
use super::scratch::Scratch;
use crate::config::Config;
use crate::constraint::Constraint;
use crate::counted::Counted;

/// How bad the worst line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worst {
    /// Passed, or skipped.
    Passed,
    /// A warning.
    Warned,
    /// Failed.
    Failed,
}

/// A check that has ended.
pub struct Line {
    /// The check.
    pub check: Check,
    /// How it ended.
    pub outcome: CheckOutcome,
    /// How long it took.
    pub took: Duration,
}

impl Check {
    pub(super) fn line(self, outcome: CheckOutcome, begun: Instant) -> Line {
        Line {
            check: self,
            outcome,
            took: begun.elapsed(),
        }
    }
}

impl Line {
    /// The line for people.
    pub fn text(&self) -> String {
        let name = self.check.name;
        match &self.outcome {
            CheckOutcome::Passed(seen) if seen.is_empty() => format!("✓ {name}"),
            CheckOutcome::Passed(seen) => format!("✓ {name}: {seen}"),
            CheckOutcome::Warned(seen) => format!("‼ {name}: {} At risk: {}", sentence(seen), self.check.at_risk),
            CheckOutcome::Failed(seen) => format!("✗ {name}: {} At risk: {}", sentence(seen), self.check.at_risk),
            CheckOutcome::Skipped(why) => format!("- {name}: skipped, {why}"),
        }
    }

    /// The same as JSON.
    pub fn to_json(&self) -> Value {
        let (result, seen) = match &self.outcome {
            CheckOutcome::Passed(seen) => ("passed", seen),
            CheckOutcome::Warned(seen) => ("warned", seen),
            CheckOutcome::Failed(seen) => ("failed", seen),
            CheckOutcome::Skipped(why) => ("skipped", why),
        };
        json!({
            "group": self.check.group.name(), "check": self.check.name, "result": result, "seen": seen,
            "assumption": self.check.assumption, "atRisk": self.check.at_risk,
            "milliseconds": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
        })
    }

    fn worst(&self) -> Worst {
        match self.outcome {
            CheckOutcome::Passed(_) | CheckOutcome::Skipped(_) => Worst::Passed,
            CheckOutcome::Warned(_) => Worst::Warned,
            CheckOutcome::Failed(_) => Worst::Failed,
        }
    }
}

/// `text` with a full stop, unless it is a question.
fn sentence(text: &str) -> String {
    match text.ends_with(['?', '.', '!']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

/// All lines, and what a bundle says beside them.
#[derive(Default)]
pub struct Examination {
    /// The checks in their order.
    pub lines: Vec<Line>,
    /// The scratch database that may still exist, and why.
    pub left_behind: Option<(String, String)>,
    configuration: Value,
    topology: Value,
    /// The texts that a bundle doesn't show.
    secret: Vec<String>,
}

impl Examination {
    pub(super) fn of(config: &Config) -> Examination {
        let hosts = config.upstream.hosts().iter();
        Examination {
            configuration: json!({
                "lease": humantime::format_duration(config.lease).to_string(),
                "sweep": humantime::format_duration(config.sweep).to_string(),
                "tls": config.tls.is_some(),
                "constraints": config.constraints.iter().map(|one| described(one)).collect::<Vec<_>>(),
            }),
            secret: hosts.map(|host| host.name.clone()).collect(),
            ..Examination::default()
        }
    }

    /// Notes what kind of deployment it was.
    pub(super) fn note(&mut self, scratch: &Scratch) {
        let servers = scratch.servers();
        self.topology = json!({
            "kind": if scratch.shards.is_some() { "sharded" } else { "replica set" },
            "shards": scratch.shards.as_ref().map(Vec::len), "servers": servers.len(),
            "maxWireVersion": scratch.hello.get_i32("maxWireVersion").ok(),
        });
        self.secret.extend(servers.iter().filter_map(|server| {
            let (host, _) = server.rsplit_once(':')?;
            Some(host.to_owned())
        }));
    }

    /// The worst of all lines. A scratch database that is left behind counts as a warning.
    pub fn worst(&self) -> Worst {
        let left = match self.left_behind {
            Some(_) => Worst::Warned,
            None => Worst::Passed,
        };
        self.lines.iter().map(Line::worst).fold(left, Worst::max)
    }

    /// The last line for people.
    pub fn summary(&self) -> String {
        let count = |is: fn(&CheckOutcome) -> bool| self.lines.iter().filter(|line| is(&line.outcome)).count();
        let mut text = format!(
            "{} passed, {}, {} failed, {} skipped",
            count(|outcome| matches!(outcome, CheckOutcome::Passed(_))),
            Counted(count(|outcome| matches!(outcome, CheckOutcome::Warned(_))), "warning"),
            count(|outcome| matches!(outcome, CheckOutcome::Failed(_))),
            count(|outcome| matches!(outcome, CheckOutcome::Skipped(_))),
        );
        if let Some((name, why)) = &self.left_behind {
            // Writing to a String can't fail.
            let _ = write!(text, "\nThe scratch database {name} may still exist ({why}). Drop it.");
        }
        text
    }

    /// All of it as JSON.
    pub fn to_json(&self) -> Value {
        let left = self.left_behind.as_ref();
        json!({
            "checks": self.lines.iter().map(Line::to_json).collect::<Vec<_>>(),
            "worst": match self.worst() {
                Worst::Passed => "passed",
                Worst::Warned => "warned",
                Worst::Failed => "failed",
            },
            "leftBehind": left.map(|(name, why)| json!({ "database": name, "reason": why })),
        })
    }

    /// The bundle's text: the same, with versions, the topology's shape, and the configuration without values.
    pub fn bundle(&self) -> String {
        let mut bundle = self.to_json();
        bundle["version"] = json!(env!("CARGO_PKG_VERSION"));
        bundle["topology"] = self.topology.clone();
        bundle["configuration"] = self.configuration.clone();
        hide(&mut bundle, &self.secret);
        format!("{bundle:#}\n")
    }
}

/// Puts a word in the place of each secret text.
fn hide(value: &mut Value, secret: &[String]) {
    match value {
        Value::String(text) => {
            for one in secret.iter().filter(|one| !one.is_empty()) {
                *text = text.replace(one.as_str(), "(host)");
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| hide(value, secret)),
        Value::Object(fields) => fields.values_mut().for_each(|value| hide(value, secret)),
        _ => {}
    }
}

/// The constraint's definition, without the values of its filter.
fn described(constraint: &Constraint) -> Value {
    let mut definition = constraint.definition();
    if let Some(filter) = definition.get_mut("partialFilterExpression") {
        blank(filter);
    }
    if let Some(strategy) = constraint.strategy() {
        definition.insert("strategy", strategy.name());
    }
    serde_json::from_str(&Bson::Document(definition).to_string()).unwrap_or_default()
}

fn blank(value: &mut Bson) {
    match value {
        Bson::Document(fields) => blank_fields(fields),
        Bson::Array(values) => values.iter_mut().for_each(blank),
        other => *other = Bson::String("(value)".to_owned()),
    }
}

fn blank_fields(fields: &mut Document) {
    fields.iter_mut().for_each(|(_, value)| blank(value));
}
