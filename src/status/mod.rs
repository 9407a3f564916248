//! Shows the state of a running Keyward to an operator: the page `/status`, and the output of `keyward status`.

mod board;
mod json;

use std::time::{Duration, Instant};

use maud::{DOCTYPE, PreEscaped, html};

use crate::admin::Admin;
use crate::client_constraints::{BuildPhase, DocumentProgress};
use crate::counted::Counted;
use crate::fleet::RegisterEntry;
use crate::metrics::ConstraintMetrics;
pub use board::{ReservationCounts, SeenFleet, StatusBoard};

/// The properties of a Keyward that don't change from its start to its end.
#[derive(Debug, Clone)]
pub struct About {
    /// The connection string, without the password.
    upstream: String,
    started: Instant,
}

impl About {
    /// One that starts now, in front of `upstream`, which is shown as it is.
    pub fn new(upstream: impl ToString) -> About {
        About {
            upstream: upstream.to_string(),
            started: Instant::now(),
        }
    }
}

/// One look at a Keyward.
#[derive(Debug)]
pub struct Status {
    /// Name and value.
    facts: Vec<(&'static str, String)>,
    /// The obstacles that keep clients out, and their reasons.
    obstacles: Vec<(String, String)>,
    /// The constraints that aren't enforced, and the reasons.
    notes: Vec<(String, String)>,
    /// A row for each constraint, under [`COLUMNS`].
    constraints: Vec<[String; COLUMNS.len()]>,
}

/// The columns for each constraint. From `reserved` on they count since the start; the metrics `keyward_constraint_*` have the same
/// numbers.
const COLUMNS: [&str; 10] = [
    "constraint",
    "enforced",
    "reservations",
    "reserved",
    "duplicates",
    "waits",
    "taken over",
    "released",
    "in doubt",
    "swept",
];

/// The width of a progress bar, in characters.
const BAR_WIDTH: usize = 20;

/// Light or dark as the reader's system is; where it is narrow, each constraint is a block of its own.
const STYLE: &str = include_str!("page.css");

impl Status {
    /// The present state of `admin`.
    pub fn of(admin: &Admin) -> Status {
        let (connections, commands) = (&admin.metrics.connections, &admin.metrics.commands);
        let up = Duration::from_secs(admin.about.started.elapsed().as_secs());
        let open = connections.opened.get().saturating_sub(connections.closed.get());
        let mean = |seconds: &prometheus::Histogram| match seconds.get_sample_count() {
            0 => "none yet".to_owned(),
            count => format!("{:.2} ms on average", seconds.get_sample_sum() * 1e3 / count as f64),
        };
        let (is_reached, since) = admin.metrics.upstream.reachable();
        let reached = if is_reached { "yes" } else { "no" };
        let mut facts = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("up for", humantime::format_duration(up).to_string()),
            ("upstream", admin.about.upstream.clone()),
            (
                "reached",
                format!("{reached}, for {}", humantime::format_duration(since)),
            ),
            (
                "connections",
                format!("{open} open, {} refused", connections.refused.get()),
            ),
            ("forwarded", Counted(commands.forwarded.get(), "command").to_string()),
            ("refused", Counted(commands.refused.get(), "command").to_string()),
            (
                "protected",
                Counted(commands.protected_seconds.get_sample_count(), "write").to_string(),
            ),
            ("write time", mean(&commands.protected_seconds)),
            ("in Keyward", mean(&commands.protected_proxy_seconds)),
        ];
        facts.extend(of_configuration(admin));
        facts.extend(of_fleet(admin));
        facts.extend(of_builds(admin));
        facts.extend(of_work(admin));
        facts.extend(of_audits(admin));
        let counts = admin.board.counts();
        facts.push(("counted", counted(counts.as_ref())));
        let row = |(name, is_enforced, metrics): (String, bool, ConstraintMetrics)| {
            let counted = |counter: &prometheus::IntCounter| counter.get().to_string();
            let reservations = counts.as_ref().and_then(|counts| counts.by_constraint.get(&name));
            [
                name,
                if is_enforced { "yes" } else { "no" }.to_owned(),
                reservations.map_or_else(|| "?".to_owned(), u64::to_string),
                counted(&metrics.reservations),
                counted(&metrics.duplicates),
                counted(&metrics.conflicts_waited),
                counted(&metrics.takeovers),
                counted(&metrics.released),
                counted(&metrics.in_doubt),
                counted(&metrics.swept),
            ]
        };
        let obstacles = admin.readiness.obstacles().into_iter();
        Status {
            facts,
            obstacles: obstacles.map(|(what, why)| (what.to_string(), why)).collect(),
            notes: admin.readiness.notes(),
            constraints: admin.metrics.constraints().into_iter().map(row).collect(),
        }
    }

    /// Whether clients are welcome.
    pub fn is_ready(&self) -> bool {
        self.obstacles.is_empty()
    }

    /// The status in lines, for a terminal.
    pub fn lines(&self) -> String {
        let mut lines = match self.is_ready() {
            true => "ready\n".to_owned(),
            false => "not ready\n".to_owned(),
        };
        for (what, why) in self.obstacles.iter().chain(&self.notes) {
            lines += &format!("  {what}: {why}\n");
        }
        lines += "\n";
        for (name, value) in &self.facts {
            lines += &format!("{name:<15}{value}\n");
        }
        if self.constraints.is_empty() {
            return lines + "\nno constraints\n";
        }
        let head = COLUMNS.map(str::to_owned);
        let rows: Vec<&[String; COLUMNS.len()]> = std::iter::once(&head).chain(&self.constraints).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        lines += "\n";
        for row in &rows {
            lines += &format!("{:<1$}", row[0], width(0));
            for (column, cell) in row.iter().enumerate().skip(1) {
                lines += &format!("  {cell:>0$}", width(column));
            }
            lines += "\n";
        }
        lines
    }

    /// The status as a page that renews itself.
    pub fn page(&self) -> String {
        let state = if self.is_ready() { "ready" } else { "not ready" };
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta http-equiv="refresh" content="5";
                    // None: without this a browser asks for one.
                    link rel="icon" href="data:,";
                    title { "Keyward: " (state) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { "Keyward " span.state.no[!self.is_ready()] { (state) } }
                    @if !self.is_ready() || !self.notes.is_empty() {
                        ul { @for (what, why) in self.obstacles.iter().chain(&self.notes) { li { b { (what) } ": " (why) } } }
                    }
                    dl { @for (name, value) in &self.facts { div { dt { (name) } dd { (value) } } } }
                    h2 { "Constraints" }
                    @if self.constraints.is_empty() { p { "no constraints" } } @else {
                        table {
                            thead { tr { @for column in COLUMNS { th scope="col" { (column) } } } }
                            tbody { @for row in &self.constraints { tr { @for (column, cell) in COLUMNS.iter().zip(row) {
                                td data-column=(column) .no[*column == "enforced" && cell == "no"] { (cell) }
                            } } } }
                        }
                    }
                }
            }
        };
        page.into_string()
    }
}

/// The configuration that holds, and the settings in the file that don't.
fn of_configuration(admin: &Admin) -> Vec<(&'static str, String)> {
    let holding = admin.reloads.holding();
    let at = humantime::format_rfc3339_seconds;
    let mut facts = vec![("configuration", format!("loaded at {}", at(holding.loaded_at)))];
    if let Some((time, why)) = holding.refused {
        facts.push(("refused file", format!("at {}: {why}", at(time))));
    }
    if !holding.needs_restart.is_empty() {
        facts.push(("needs restart", holding.needs_restart.join(", ")));
    }
    facts
}

/// The Keywards of the register.
fn of_fleet(admin: &Admin) -> Option<(&'static str, String)> {
    let seen = admin.board.fleet()?;
    let named = |entry: &RegisterEntry| {
        let (host, pid) = (&entry.host, entry.pid);
        let of_it = match (entry.id == seen.own, entry.has_left) {
            (true, _) => ", this one",
            (false, true) => ", ended",
            (false, false) => "",
        };
        format!(
            "{host} process {pid} (listen {}, version {}{of_it})",
            entry.address, entry.version
        )
    };
    let keywards: Vec<String> = seen.entries.iter().map(named).collect();
    Some(("fleet", keywards.join(", ")))
}

/// The builds of clients' constraints, on whichever Keyward they run.
fn of_builds(admin: &Admin) -> Vec<(&'static str, String)> {
    let builds = admin.board.builds();
    let shown = builds.iter().map(|build| {
        let names: Vec<&str> = build.constraints.iter().map(|constraint| constraint.name()).collect();
        let progress = match (build.phase, build.documents) {
            (BuildPhase::Waiting, _) => "waiting until all writers reserve".to_owned(),
            (BuildPhase::Backfilling, Some(documents)) => progress(documents),
            (BuildPhase::Backfilling, None) => "backfilling".to_owned(),
            (BuildPhase::Ending, _) => "all documents are reserved".to_owned(),
        };
        (
            "building",
            format!("{} {}: {progress}", build.namespace(), names.join(", ")),
        )
    });
    shown.collect()
}

/// The documents of a build, with a bar.
fn progress(documents: DocumentProgress) -> String {
    let percent = documents.percent();
    let filled = usize::try_from(percent).unwrap_or_default() * BAR_WIDTH / 100;
    format!(
        "backfilling [{:-<BAR_WIDTH$}] {percent} %, {} of about {}",
        "#".repeat(filled),
        documents.done,
        Counted(documents.of, "document")
    )
}

/// Long work under way.
fn of_work(admin: &Admin) -> Vec<(&'static str, String)> {
    let work = admin.board.work.all().into_iter();
    let shown = work.map(|item| {
        let text = format!("{}: {} of about {}", item.what, item.done, Counted(item.of, "document"));
        (item.doing, text)
    });
    shown.collect()
}

/// How far the audits have come, and their findings.
fn of_audits(admin: &Admin) -> Option<(&'static str, String)> {
    let seen = admin.board.audits()?;
    let constraints = admin.metrics.constraints();
    let sum = |counter: fn(&ConstraintMetrics) -> u64| -> u64 {
        constraints.iter().map(|(_, _, metrics)| counter(metrics)).sum()
    };
    let audited = match seen.collections {
        0 => "by other Keywards".to_owned(),
        collections => format!(
            "{}, {} s behind",
            Counted(collections as u64, "collection"),
            seen.behind.as_secs()
        ),
    };
    let reserved = Counted(sum(|metrics| metrics.audit_repaired.get()), "document");
    let violations = Counted(sum(|metrics| metrics.audit_violations.get()), "violation");
    Some((
        "audit",
        format!("{audited}; since the start {reserved} reserved, {violations}"),
    ))
}

/// The meaning of the numbers of each constraint.
fn counted(counts: Option<&ReservationCounts>) -> String {
    let reservations = match counts {
        Some(counts) => format!("reservations, about, {} s ago", counts.at.elapsed().as_secs()),
        None => "no reservations yet".to_owned(),
    };
    format!("{reservations}; in the columns after them, since the start")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::readiness::{Obstacle, Readiness};

    #[test]
    fn both_forms_say_what_stands_in_the_way_and_nothing_is_taken_for_markup() {
        let admin = Admin {
            metrics: Metrics::new(&[]),
            readiness: Readiness::starting(),
            about: About::new("mongodb://a/"),
            reloads: crate::reload::LastReload::default(),
            board: StatusBoard::default(),
        };
        admin.readiness.block(Obstacle::Upstream, "<b>gone</b>");
        let status = Status::of(&admin);
        assert!(!status.is_ready());
        let lines = status.lines();
        assert!(
            lines.starts_with("not ready\n  startup: starting\n  upstream: <b>gone</b>\n"),
            "{lines}"
        );
        assert!(status.page().contains("&lt;b&gt;gone&lt;/b&gt;"), "{}", status.page());
        admin.readiness.unblock(&Obstacle::Startup);
        admin.readiness.unblock(&Obstacle::Upstream);
        assert!(Status::of(&admin).lines().starts_with("ready\n\nversion "));
    }
}
