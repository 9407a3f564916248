//! Starts the log: `tracing` events as lines on standard error, as text or as one JSON object each.
//!
//! It also starts the traces, if they are on ([`crate::traces`]).
//!
//! `log.level` sets which events are logged. The environment variable `KEYWARD_LOG` takes precedence over it, so that
//! one process can be examined without changing its file ([`Config::load`]). Events carry values as fields, but never a
//! client's documents.

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry_otlp::ExporterBuildError;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::{Config, Log, LogFormat};
use crate::traces::{self, Traces};

/// Why the log or the traces can't start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// One of OpenTelemetry's environment variables is invalid: the collector's URL was checked before.
    #[error("traces: {0}")]
    Traces(#[from] ExporterBuildError),
    /// This process has a log already.
    #[error("the log was started twice")]
    StartedTwice,
}

/// The log and the traces of this process while it lives.
#[derive(Debug)]
pub struct Telemetry {
    filter: reload::Handle<EnvFilter, Registry>,
    traces: Option<Traces>,
}

impl Telemetry {
    /// Applies `config` from now on: `log.level`, and the share of commands that are traced, if any are.
    pub fn apply(&self, config: &Config) {
        if let Err(error) = self.filter.reload(filter(&config.log)) {
            tracing::warn!(%error, "the log level could not be changed");
        }
        if let (Some(traces), Some(settings)) = (&self.traces, &config.traces) {
            traces.sample(settings.sampling_ratio);
        }
    }

    /// Sends the remaining traces, but takes no longer than `time`.
    pub fn finish(self, time: Duration) {
        if let Some(traces) = self.traces {
            traces.finish(time);
        }
    }
}

/// Starts the log of this process, and its traces if `traces` has settings for them.
///
/// # Errors
/// [`TelemetryError`] if OpenTelemetry's environment can't be read, or the log has been started before.
pub fn start(log: &Log, traces: Option<&traces::TraceSettings>) -> Result<Telemetry, TelemetryError> {
    let (level, filter) = reload::Layer::new(filter(log));
    let traces = traces.map(Traces::start).transpose()?;
    let layers = layers(log.format, level, traces.as_ref());
    let started = tracing_subscriber::registry().with(layers).try_init();
    started.map_err(|_| TelemetryError::StartedTwice)?;
    let to_standard_error = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match tracing::enabled!(tracing::Level::ERROR) {
        true => log_panic(panic),
        false => to_standard_error(panic),
    }));
    Ok(Telemetry { filter, traces })
}

/// Logs that a task ends because an invariant doesn't hold. Else a task in the background would end unseen.
fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let reason = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    tracing::error!(
        place,
        reason,
        "an invariant does not hold: the task that met it has ended"
    );
}

fn filter(log: &Log) -> EnvFilter {
    // Nothing is lost: the level was checked with the configuration.
    EnvFilter::builder().parse_lossy(&log.level)
}

fn layers(
    format: LogFormat,
    level: reload::Layer<EnvFilter, Registry>,
    traces: Option<&Traces>,
) -> Box<dyn Layer<Registry> + Send + Sync> {
    let lines = fmt::layer()
        // Else a closed standard error is a panic, and the log of that panic another one.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    match traces {
        // Both have filters of their own, so neither gets the other's events.
        Some(traces) => {
            let lines = lines.with_filter(level.and(traces::others()));
            vec![lines.boxed(), traces.layer().boxed()].boxed()
        }
        // One filter for all: events that it refuses aren't even made.
        None => level.and_then(traces::others()).and_then(lines).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::raw::Doc;
    use crate::traces::CommandSpan;
    use crate::wire::{Message, OpQuery};

    /// Whether a command gets a span.
    fn is_traced(level: &str, traces: Option<&Traces>) -> bool {
        let command = doc! { "ping": 1, "$db": "shop" }.to_vec().unwrap();
        let message = Message::Query(OpQuery {
            database: b"shop",
            name: "ping",
            command: Doc::new(&command).unwrap(),
        });
        let (level, _filter) = reload::Layer::new(EnvFilter::new(level));
        let subscriber = tracing_subscriber::registry().with(layers(LogFormat::Text, level, traces));
        tracing::subscriber::with_default(subscriber, || CommandSpan::of(&message).is_on())
    }

    #[test]
    fn without_traces_no_span_is_made_and_with_them_one_is_however_much_is_logged() {
        let settings = traces::TraceSettings {
            endpoint: "http://127.0.0.1:9/v1/traces".to_owned(),
            sampling_ratio: 0.0,
        };
        let traces = Traces::start(&settings).unwrap();
        for level in ["off", "info", "keyward=trace"] {
            assert!(!is_traced(level, None), "{level}");
            assert!(is_traced(level, Some(&traces)), "{level}");
        }
        traces.finish(Duration::from_secs(60));
    }
}
