//! A collector for OpenTelemetry: takes OTLP over HTTP, and keeps what it is sent, as bytes and as spans.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

pub struct Collector {
    pub endpoint: String,
    deliveries: Arc<Mutex<Vec<Bytes>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Collector {
    pub fn start() -> Collector {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let deliveries: Arc<Mutex<Vec<Bytes>>> = Arc::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let kept = deliveries.clone();
        let take = move |delivery: Bytes| async move {
            kept.lock().unwrap().push(delivery);
            (StatusCode::OK, [("content-type", "application/x-protobuf")], "")
        };
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, Router::new().route("/v1/traces", post(take))).await
        });
        Collector {
            endpoint,
            deliveries,
            _runtime: runtime,
        }
    }

    /// All that has come, as it came.
    pub fn bytes(&self) -> Vec<u8> {
        self.deliveries.lock().unwrap().concat()
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let deliveries = self.deliveries.lock().unwrap();
        let requests = deliveries.iter().map(|bytes| Message::decode(bytes.clone()).unwrap());
        requests.collect()
    }

    /// All spans that have come, in the order in which they began.
    pub fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let mut spans: Vec<Span> = scopes.flat_map(|scope| scope.spans).collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }

    /// Who has sent them.
    pub fn resource(&self) -> Resource {
        let mut requests = self.requests().into_iter();
        requests.next().unwrap().resource_spans[0].resource.clone().unwrap()
    }
}

/// The value of an attribute, as text.
pub fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    let AnyValue { value } = attribute.value.clone()?;
    match value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{name}: {other:?}"),
    }
}
