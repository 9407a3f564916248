//! A Keyward inside the test, on a runtime of its own, so that tests may block.

use std::sync::Arc;
use std::time::Duration;

use keyward::catalog::Catalog;
use keyward::metrics::Metrics;
use keyward::server::{self, Limits};
use keyward::session::Service;
use keyward::upstream::Upstream;
use keyward::write;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running Keyward without constraints; ends when it is dropped.
pub struct Proxy {
    pub address: String,
    runtime: Runtime,
    stop: watch::Sender<bool>,
    server: Option<JoinHandle<()>>,
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
        let (stop, stopping) = watch::channel(false);
        let (address, server) = runtime.block_on(async {
            let service = Service {
                upstream: Upstream::new(upstream).await.unwrap(),
                writes: write::Context::new(Arc::new(Catalog::default()), Duration::from_secs(10)),
                metrics: Metrics::new(&[]),
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let server = tokio::spawn(server::run(listener, Arc::new(service), limits, stopping));
            (address, server)
        });
        Proxy {
            address,
            runtime,
            stop,
            server: Some(server),
        }
    }

    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }

    /// Asks it to stop, without waiting.
    pub fn begin_stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until it has stopped.
    pub fn wait(&mut self) {
        self.runtime.block_on(self.server.take().unwrap()).unwrap();
    }
}
