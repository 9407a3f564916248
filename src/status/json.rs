//! Shows the state of a running Keyward as JSON: the page `/status.json`, and the output of `keyward status --json`.

use std::time::Duration;

use serde_json::{Value, json};

use super::Status;
use super::board::SeenFleet;
use crate::admin::Admin;
use crate::client_constraints::{BuildPhase, BuildUnderWay};
use crate::fleet::RegisterEntry;
use crate::metrics::ConstraintMetrics;

impl Status {
    /// The present state of `admin`, with everything that the other forms show.
    pub fn json(admin: &Admin) -> Value {
        let metrics = &admin.metrics;
        let (is_reached, since) = metrics.upstream.reachable();
        let (connections, commands) = (&metrics.connections, &metrics.commands);
        let obstacles = admin.readiness.obstacles();
        let pair = |(what, why): (String, String)| json!({ "what": what, "why": why });
        let named = obstacles.iter().map(|(what, why)| (what.to_string(), why.clone()));
        let mut configuration = admin.reloads.configuration();
        configuration["lastReload"] = admin.reloads.last();
        json!({
            "ready": obstacles.is_empty(),
            "obstacles": named.map(pair).collect::<Vec<_>>(),
            "notes": admin.readiness.notes().into_iter().map(pair).collect::<Vec<_>>(),
            "version": env!("CARGO_PKG_VERSION"),
            "upSeconds": admin.about.started.elapsed().as_secs(),
            "upstream": { "name": admin.about.upstream, "reached": is_reached, "sinceSeconds": since.as_secs() },
            "connections": {
                "open": connections.opened.get().saturating_sub(connections.closed.get()),
                "refused": connections.refused.get(),
            },
            "commands": { "forwarded": commands.forwarded.get(), "refused": commands.refused.get() },
            "protectedWrites": {
                "count": commands.protected_seconds.get_sample_count(),
                "meanMilliseconds": mean_millis(&commands.protected_seconds),
                "meanProxyMilliseconds": mean_millis(&commands.protected_proxy_seconds),
            },
            "configuration": configuration,
            "work": admin.board.work.all().into_iter().map(|work| json!({
                "doing": work.doing, "what": work.what, "done": work.done, "ofAbout": work.of,
            })).collect::<Vec<_>>(),
            "builds": admin.board.builds().iter().map(build).collect::<Vec<_>>(),
            "audit": admin.board.audits().map(|seen| json!({
                "behindSeconds": seen.behind.as_secs(), "collections": seen.collections,
            })),
            "fleet": admin.board.fleet().map(|seen| fleet(&seen)),
            "constraints": constraints(admin),
        })
    }
}

fn build(build: &BuildUnderWay) -> Value {
    let phase = match build.phase {
        BuildPhase::Waiting => "waiting",
        BuildPhase::Backfilling => "backfilling",
        BuildPhase::Ending => "ending",
    };
    json!({
        "collection": build.namespace().to_string(),
        "constraints": build.constraints.iter().map(|constraint| constraint.name()).collect::<Vec<_>>(),
        "phase": phase,
        "done": build.documents.map(|documents| documents.done),
        "ofAbout": build.documents.map(|documents| documents.of),
    })
}

fn fleet(seen: &SeenFleet) -> Value {
    let keyward = |entry: &RegisterEntry| {
        let mut json = entry.json();
        json["isThis"] = (entry.id == seen.own).into();
        json
    };
    json!({
        "seenSecondsAgo": seen.at.elapsed().as_secs(),
        "keywards": seen.entries.iter().map(keyward).collect::<Vec<_>>(),
    })
}

fn constraints(admin: &Admin) -> Value {
    let counts = admin.board.counts();
    let row = |(name, is_enforced, metrics): (String, bool, ConstraintMetrics)| {
        let counted = counts.as_ref().and_then(|counts| {
            let count = counts.by_constraint.get(&name)?;
            Some(json!({ "count": count, "secondsAgo": counts.at.elapsed().as_secs() }))
        });
        json!({
            "constraint": name,
            "enforced": is_enforced,
            "reservations": counted,
            "sinceStart": {
                "reserved": metrics.reservations.get(), "duplicates": metrics.duplicates.get(),
                "waits": metrics.conflicts_waited.get(), "takenOver": metrics.takeovers.get(),
                "released": metrics.released.get(), "inDoubt": metrics.in_doubt.get(), "swept": metrics.swept.get(),
                "auditRepaired": metrics.audit_repaired.get(), "auditViolations": metrics.audit_violations.get(),
            },
        })
    };
    admin.metrics.constraints().into_iter().map(row).collect()
}

fn mean_millis(seconds: &prometheus::Histogram) -> Option<f64> {
    match seconds.get_sample_count() {
        0 => None,
        count => Some(Duration::from_secs_f64(seconds.get_sample_sum().max(0.0) / count as f64).as_secs_f64() * 1e3),
    }
}
