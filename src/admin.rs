//! Serves the admin port: `/metrics` for Prometheus, `/livez` and `/readyz` for supervisors and load balancers.
//!
//! `/status` is for people, `/status.json` for programs, and `/reload` for operators who have changed the configuration.
//!
//! It only shows state, and requires no login: it belongs on the loopback interface or behind a network policy.
//! `/livez` reports only that this process answers; `/readyz` covers the deployment.

use std::future::Future;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::reload::LastReload;
use crate::status::{About, Status, StatusBoard};

/// The data of the pages.
#[derive(Debug, Clone)]
pub struct Admin {
    /// For `/metrics`.
    pub metrics: Metrics,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// For `/status`.
    pub about: About,
    /// For `/reload`.
    pub reloads: LastReload,
    /// For `/status`.
    pub board: StatusBoard,
}

impl Admin {
    /// Answers on `listener` until `stop` completes.
    ///
    /// # Errors
    /// If the listener fails permanently.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        axum::serve(listener, self.pages()).with_graceful_shutdown(stop).await
    }

    fn pages(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .route("/livez", get(|| async { "alive\n" }))
            .route("/readyz", get(readyz))
            .route("/status", get(status))
            .route("/status.json", get(status_json))
            .route("/reload", get(reload))
            .with_state(self)
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match admin.metrics.text() {
        Ok((text, content_type)) => ([(header::CONTENT_TYPE, content_type)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// `ready`, or a line for each obstacle; then a line for each constraint that isn't enforced yet.
async fn readyz(State(admin): State<Admin>) -> (StatusCode, String) {
    let obstacles = admin.readiness.obstacles();
    let notes = admin.readiness.notes().into_iter();
    let notes: String = notes.map(|(what, text)| format!("{what}: {text}\n")).collect();
    if obstacles.is_empty() {
        return (StatusCode::OK, format!("ready\n{notes}"));
    }
    let lines = obstacles
        .iter()
        .map(|(obstacle, reason)| format!("{obstacle}: {reason}\n"));
    (StatusCode::SERVICE_UNAVAILABLE, lines.chain([notes]).collect())
}

/// A page for browsers, lines for other clients. The status code reports [`Status::is_ready`], as for `/readyz`.
async fn status(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    admin.board.refresh().await;
    let status = Status::of(&admin);
    let code = code_of(status.is_ready());
    let accepted = headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
    match accepted.is_some_and(|accepted| accepted.contains("text/html")) {
        true => (code, Html(status.page())).into_response(),
        false => (code, status.lines()).into_response(),
    }
}

/// The same for programs.
async fn status_json(State(admin): State<Admin>) -> Response {
    admin.board.refresh().await;
    let status = Status::json(&admin);
    let code = code_of(status["ready"] == true);
    let json = [(header::CONTENT_TYPE, "application/json")];
    (code, json, format!("{status}\n")).into_response()
}

fn code_of(is_ready: bool) -> StatusCode {
    match is_ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The outcome of the last reload, as JSON.
async fn reload(State(admin): State<Admin>) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, format!("{}\n", admin.reloads.last())).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::readiness::Obstacle;

    /// The whole answer to `GET path`.
    async fn get(admin: &Admin, path: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let served = tokio::spawn(admin.clone().serve(listener, std::future::pending()));
        let request = format!("GET {path} HTTP/1.1\r\nhost: keyward\r\nconnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        served.abort();
        answer
    }

    fn admin() -> Admin {
        Admin {
            metrics: Metrics::new(&[]),
            readiness: Readiness::starting(),
            about: About::new("mongodb://a/"),
            reloads: LastReload::default(),
            board: StatusBoard::default(),
        }
    }

    #[tokio::test]
    async fn readyz_names_what_stands_in_the_way() {
        let admin = admin();
        admin.readiness.block(Obstacle::Upstream, "connection refused");
        let answer = get(&admin, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(
            answer.ends_with("\r\n\r\nstartup: starting\nupstream: connection refused\n"),
            "{answer}"
        );
        admin.readiness.unblock(&Obstacle::Startup);
        admin.readiness.unblock(&Obstacle::Upstream);
        let answer = get(&admin, "/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nready\n"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn livez_doesnt_depend_on_readiness() {
        let answer = get(&admin(), "/livez").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }

    #[tokio::test]
    async fn metrics_come_as_prometheus_reads_them() {
        let answer = get(&admin(), "/metrics").await;
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        assert!(
            answer.contains("\nkeyward_client_connections_opened_total 0\n"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn any_other_page_is_not_found() {
        assert!(get(&admin(), "/").await.starts_with("HTTP/1.1 404 "));
    }
}
