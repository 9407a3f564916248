//! Checks the `traces` section: where traces are sent, and how many.

use std::ops::RangeInclusive;

use axum::http::Uri;

use super::check::FoundProblems;
use super::problem::SettingPath;
use super::raw::RawTraces;
use crate::traces::TraceSettings;

const RATIO: RangeInclusive<f64> = 0.0..=1.0;
const DEFAULT_RATIO: f64 = 1.0;

/// Checks the section without contacting the collector.
pub fn check(raw: RawTraces, found: &mut FoundProblems<'_>) -> Option<TraceSettings> {
    let path = SettingPath::top().field("traces");
    let sampling_ratio = raw.sampling_ratio.unwrap_or(DEFAULT_RATIO);
    if !RATIO.contains(&sampling_ratio) {
        let reason = format!("must be {} to {}", RATIO.start(), RATIO.end());
        found.refuse(path.field("sampling_ratio"), reason);
    }
    let Some(endpoint) = raw.endpoint else {
        found.refuse(
            path.field("endpoint"),
            "missing; where does the collector take OTLP over HTTP?",
        );
        return None;
    };
    if let Err(reason) = check_endpoint(&endpoint) {
        found.refuse(path.field("endpoint"), reason);
        return None;
    }
    Some(TraceSettings {
        endpoint,
        sampling_ratio,
    })
}

/// Checks the endpoint. The error doesn't quote it, because it may hold a password.
fn check_endpoint(endpoint: &str) -> Result<(), &'static str> {
    let not_a_url = "not a URL such as http://127.0.0.1:4318/v1/traces";
    let uri: Uri = endpoint.parse().map_err(|_| not_a_url)?;
    let authority = uri.authority().ok_or(not_a_url)?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(not_a_url);
    }
    if authority.as_str().contains('@') {
        return Err(
            "holds a user; put the collector's credentials into the environment variable OTEL_EXPORTER_OTLP_HEADERS",
        );
    }
    match uri.path() {
        "" | "/" => Err("has no path; a collector takes traces at /v1/traces"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;
    use crate::traces::TraceSettings;

    fn read(traces: &str) -> Result<Option<TraceSettings>, String> {
        let text = format!("upstream: mongodb://db\nconstraints: []\n{traces}");
        match Config::from_text(Path::new("keyward.yaml"), &text, None) {
            Ok(config) => Ok(config.traces),
            Err(problems) => Err(problems.to_string()),
        }
    }

    #[test]
    fn traces_are_off_unless_they_have_somewhere_to_go() {
        assert_eq!(read(""), Ok(None));
        let settings = read("traces: { endpoint: 'https://collector:4318/v1/traces' }")
            .unwrap()
            .unwrap();
        assert_eq!(settings.endpoint, "https://collector:4318/v1/traces");
        assert!((settings.sampling_ratio - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn wrong_settings_of_traces_are_refused() {
        for (traces, expected) in [
            ("{}", "traces.endpoint: missing"),
            ("{ endpoint: collector }", "traces.endpoint: not a URL"),
            ("{ endpoint: 'grpc://collector:4317/x' }", "traces.endpoint: not a URL"),
            ("{ endpoint: 'http://collector:4318' }", "traces.endpoint: has no path"),
            (
                "{ endpoint: 'http://me:s3cret@collector/v1/traces' }",
                "traces.endpoint: holds a user",
            ),
            (
                "{ endpoint: 'http://c/v1/traces', sampling_ratio: 1.5 }",
                "traces.sampling_ratio: must be 0 to 1",
            ),
            (
                "{ endpoint: 'http://c/v1/traces', ratio: 1 }",
                "traces.ratio: unknown setting `ratio`; did you mean `sampling_ratio`?",
            ),
        ] {
            let refused = read(&format!("traces: {traces}")).unwrap_err();
            assert!(
                refused.contains(expected) && !refused.contains("s3cret"),
                "{traces}: {refused}"
            );
        }
    }
}
