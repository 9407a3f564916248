//! Sends traces to the collector: an HTTP client that waits for its answers, on the exporter's own thread.
//!
//! That the collector doesn't answer, and that it does again, is logged once each: deliveries are tried every few seconds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};

/// More of an answer isn't read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Delivers to whatever URL it is given.
#[derive(Debug)]
pub(super) struct Collector {
    agent: ureq::Agent,
    is_away: AtomicBool,
}

impl Collector {
    /// A delivery may take so long.
    pub(super) fn new(patience: Duration) -> Collector {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(patience))
            .http_status_as_error(false)
            .build()
            .new_agent();
        Collector {
            agent,
            is_away: AtomicBool::new(false),
        }
    }

    fn deliver(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let (head, mut body) = self.agent.run(Request::from_parts(head, &body[..]))?.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }

    fn note(&self, failure: Option<&str>) {
        let was_away = self.is_away.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(error) if !was_away => {
                tracing::warn!(error, "the collector doesn't take traces; they are lost until it does");
            }
            None if was_away => tracing::info!("the collector takes traces again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let delivered = self.deliver(request);
        match &delivered {
            Ok(response) if response.status().is_success() => self.note(None),
            Ok(response) => self.note(Some(response.status().as_str())),
            Err(error) => self.note(Some(&error.to_string())),
        }
        Ok(delivered?)
    }
}
