//! Records the spans of what Keyward asks the deployment while it serves a command, below that command's.

use std::sync::Arc;

use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

use super::TARGET;
use super::command::{is_traced, note};
use crate::constraint::Constraint;
use crate::raw::Doc;

/// The kinds of requests to the proxy collection of a constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyRequest {
    /// To hold keys.
    Reserve,
    /// Reads reservations.
    Read,
    /// Whether the documents that are said to hold keys are there.
    LookUp,
    /// To hold a key that another attempt has left behind.
    TakeOver,
    /// To hold keys no longer.
    Release,
}

impl ProxyRequest {
    fn name(self) -> &'static str {
        match self {
            ProxyRequest::Reserve => "reserve",
            ProxyRequest::Read => "read reservation",
            ProxyRequest::LookUp => "look up owner",
            ProxyRequest::TakeOver => "take over",
            ProxyRequest::Release => "release",
        }
    }
}

/// Waits for the answer to `asked`, which is about `count` keys of `constraint`. Outside of commands nothing is traced.
pub async fn asking<T, E>(
    step: ProxyRequest,
    constraint: &Arc<Constraint>,
    count: usize,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let span = match is_in_command() {
        true => info_span!(
            target: TARGET,
            "step",
            otel.name = step.name(),
            otel.kind = "client",
            otel.status_code = Empty,
            db.namespace = constraint.namespace().database,
            db.collection.name = constraint.proxy_collection().collection,
            keyward.constraint = constraint.name(),
            keyward.keys = count,
        ),
        false => Span::none(),
    };
    let answer = asked.instrument(span.clone()).await;
    if answer.is_err() {
        span.record("otel.status_code", "ERROR");
    }
    answer
}

/// Waits until another client's group commit takes the insert, too, or the client has its own turn.
pub async fn waiting_for_group<T>(waited: impl Future<Output = T>) -> T {
    let span = match is_in_command() {
        true => info_span!(target: TARGET, "wait", otel.name = "group commit wait", otel.kind = "internal"),
        false => Span::none(),
    };
    waited.instrument(span).await
}

/// A command on the client's own connection that serves the client's.
#[derive(Debug)]
pub struct UpstreamSpan(Span);

impl UpstreamSpan {
    /// Begins with the command that has this `body`.
    pub fn asking(body: &[u8]) -> UpstreamSpan {
        if !is_in_command() {
            return UpstreamSpan(Span::none());
        }
        let first = Doc::new(body).ok().and_then(|body| body.elements().next()?.ok());
        let name = first
            .and_then(|first| std::str::from_utf8(first.name).ok())
            .unwrap_or_default();
        UpstreamSpan(info_span!(
            target: TARGET,
            "upstream",
            otel.name = format!("upstream {name}"),
            otel.kind = "client",
            otel.status_code = Empty,
            db.operation.name = name,
            db.response.status_code = Empty,
        ))
    }

    /// Ends with this reply.
    pub fn answered(self, reply: Doc<'_>) {
        if !self.0.is_none() {
            note(&self.0, reply);
        }
    }
}

/// Whether what runs now is traced. The current span may be one of the log's.
fn is_in_command() -> bool {
    is_traced(&Span::current())
}
