//! A Keyward inside the test, on a runtime of its own, so that tests may block.

use std::sync::Arc;
use std::time::Duration;

use keyward::limits::Limits;
use keyward::listener;
use keyward::metrics::Metrics;
use keyward::session::{Drain, Service, Stage};
use keyward::upstream::Upstream;
use keyward::write;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running Keyward without constraints; ends when it is dropped.
pub struct Proxy {
    pub address: String,
    pub metrics: Metrics,
    runtime: Runtime,
    stage: watch::Sender<Stage>,
    server: Option<JoinHandle<bool>>,
}

impl Proxy {
    pub fn start(upstream: &str) -> Self {
        Self::with_limits(upstream, Limits::default())
    }

    pub fn with_limits(upstream: &str, limits: Limits) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (stage, stages) = watch::channel(Stage::Serving);
        let metrics = Metrics::new(&[]);
        let of_service = metrics.clone();
        let (address, server) = runtime.block_on(async {
            let upstream = Upstream::new(upstream).await.unwrap();
            let service = Service::new(
                upstream,
                write::Context::new(
                    Arc::default(),
                    Duration::from_secs(10),
                    of_service.group_commit.clone(),
                    false,
                ),
                of_service,
                limits,
            );
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let server = tokio::spawn(listener::run(listener, Arc::new(service), stages));
            (address, server)
        });
        Proxy {
            address,
            metrics,
            runtime,
            stage,
            server: Some(server),
        }
    }

    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }

    /// Asks it to send its clients away in that time, without waiting.
    pub fn begin_stop(&self, drain: Duration) {
        self.stage.send_replace(Stage::Draining(Drain::begin(drain)));
    }

    /// Waits until it has stopped.
    pub fn wait(&mut self) {
        self.runtime.block_on(self.server.take().unwrap()).unwrap();
    }
}
