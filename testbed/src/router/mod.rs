//! The stand-in router. Placeholder until the router itself lands.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// Stands where a `mongos` would.
#[derive(Debug)]
pub struct Router {
    listener: TcpListener,
}

impl Router {
    /// Serves `listener` for the cluster of `config_server` (`host:port`).
    ///
    /// # Errors
    /// If the runtime can't be started.
    pub fn start(listener: TcpListener, config_server: String) -> io::Result<Router> {
        let _ = config_server;
        Ok(Router { listener })
    }

    /// Where it listens.
    ///
    /// # Panics
    /// If the listener has no local address.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("a bound listener has an address")
    }

    /// Drops every connection at once, as a killed process would.
    pub fn stop(self) {}
}
