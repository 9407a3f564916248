//! Records as spans for OpenTelemetry how long a client's command took, and what Keyward asked the deployment for it.
//!
//! If traces are off, a message costs one check of that, and no span is made. If they are on, spans carry names (of commands,
//! databases, collections, constraints), counts and error codes. They never carry a value of a document, a payload of
//! authentication, or the text of an error, which may quote one.

mod collector;
mod command;
mod step;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use opentelemetry::trace::{SpanKind, TraceId, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, ResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{Sampler, SamplingResult, SdkTracerProvider, ShouldSample};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use collector::Collector;
pub use command::{CommandSpan, REPLY_BYTES_MAX, note_outcome};
pub use step::{ProxyRequest, UpstreamSpan, asking, waiting_for_group};

/// Marks the spans that are traces: the log shows none of them, and nothing else is traced. No module's path, which is what
/// marks an event of the log.
const TARGET: &str = "keyward traces";
/// The target under which the collector's HTTP client logs, at `trace`, all bytes that it sends and gets.
const HTTP_TARGET: &str = "ureq_proto";
/// How long one delivery to the collector may take.
const DELIVERY: Duration = Duration::from_secs(5);

/// Where traces go, and how many.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSettings {
    /// The collector's URL for OTLP over HTTP.
    pub endpoint: String,
    /// The share of commands that are traced, 0 to 1.
    pub sampling_ratio: f64,
}

/// The traces of this process, on their way to a collector.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    ratio: Ratio,
}

impl Traces {
    /// Begins to deliver to the collector, from a thread of its own. If the collector is slow or away, spans that don't fit
    /// into the queue are dropped: nothing waits for the queue.
    ///
    /// # Errors
    /// [`ExporterBuildError`] if an environment variable of OpenTelemetry's is wrong.
    pub fn start(settings: &TraceSettings) -> Result<Traces, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(DELIVERY))
            .with_endpoint(&settings.endpoint)
            .with_timeout(DELIVERY)
            .build()?;
        let ratio = Ratio::of(settings.sampling_ratio);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(ratio.clone())))
            .with_resource(resource())
            .build();
        Ok(Traces { provider, ratio })
    }

    /// Traces this share of commands from now on.
    pub fn sample(&self, ratio: f64) {
        self.ratio.set(ratio);
    }

    /// The layer that makes traces from the spans that are marked for it.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("keyward"))
            .with_context_activation(false)
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_level(false)
            .with_target(false)
            .with_filter(filter_fn(|metadata| metadata.target() == TARGET).with_max_level_hint(LevelFilter::INFO))
    }

    /// Delivers what is left, if that takes no longer than `time`.
    pub fn finish(self, time: Duration) {
        // The library's error is debug output. A collector that takes no traces is logged where they are sent.
        if self.provider.shutdown_with_timeout(time).is_err() {
            tracing::warn!(
                waited_s = time.as_secs_f32(),
                "the last traces may not have reached the collector"
            );
        }
    }
}

/// The sender of the traces. Values from the environment override it.
fn resource() -> Resource {
    let detectors: [Box<dyn ResourceDetector>; 2] = [
        Box::new(TelemetryResourceDetector),
        Box::new(EnvResourceDetector::new()),
    ];
    let resource = Resource::builder_empty()
        .with_service_name("keyward")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detectors(&detectors);
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name),
        _ => resource,
    }
    .build()
}

/// Selects the events of the log: all but traces, and the bytes that go to the collector. These bytes may contain a token for it.
pub fn others() -> FilterFn {
    let is_other: fn(&Metadata<'_>) -> bool = |metadata| {
        let is_bytes = metadata.target().starts_with(HTTP_TARGET) && *metadata.level() == Level::TRACE;
        metadata.target() != TARGET && !is_bytes
    };
    filter_fn(is_other).with_max_level_hint(LevelFilter::TRACE)
}

/// The share of commands that are traced; clones share it.
#[derive(Debug, Clone)]
struct Ratio(Arc<ArcSwap<Sampler>>);

impl Ratio {
    fn of(ratio: f64) -> Ratio {
        Ratio(Arc::new(ArcSwap::from_pointee(Sampler::TraceIdRatioBased(ratio))))
    }

    fn set(&self, ratio: f64) {
        self.0.store(Arc::new(Sampler::TraceIdRatioBased(ratio)));
    }
}

impl ShouldSample for Ratio {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[opentelemetry::trace::Link],
    ) -> SamplingResult {
        let sampler = self.0.load();
        sampler.should_sample(parent, trace, name, kind, attributes, links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_can_be_changed() {
        use opentelemetry_sdk::trace::SamplingDecision;
        let ratio = Ratio::of(0.0);
        let decide = || {
            ratio
                .should_sample(None, TraceId::from(7), "", &SpanKind::Server, &[], &[])
                .decision
        };
        assert_eq!(decide(), SamplingDecision::Drop);
        ratio.clone().set(1.0);
        assert_eq!(decide(), SamplingDecision::RecordAndSample);
    }
}
