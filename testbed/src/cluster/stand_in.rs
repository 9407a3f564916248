//! The stand-in router's life: frozen, continued, killed and restarted on its port as a process would be.
//!
//! All of it works inside and outside a tokio runtime; the router's own threads are ended on a thread made for that.

use std::io;
use std::net::TcpListener;
use std::sync::{Mutex, MutexGuard};
use std::thread;

use crate::Error;
use crate::deadline::wait_for;
use crate::process::{Port, ProcessError};
use crate::router::{Frozen, Router};

/// The testbed's own router, running inside this process.
#[derive(Debug)]
pub struct StandIn {
    port: Port,
    config_server: String,
    life: Mutex<Life>,
}

#[derive(Debug)]
enum Life {
    Running(Router),
    Frozen(Router, Frozen),
    Ended,
}

impl StandIn {
    pub(super) fn start(port: Port, config_server: String) -> Result<StandIn, Error> {
        let stand_in = StandIn {
            port,
            config_server,
            life: Mutex::new(Life::Ended),
        };
        stand_in.restart()?;
        Ok(stand_in)
    }

    /// Where it listens: `127.0.0.1:port`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// From now on, whether no `abortTransaction` of its reaches a shard.
    pub fn lose_aborts(&self, are_lost: bool) {
        match &*self.life() {
            Life::Running(router) | Life::Frozen(router, _) => router.lose_aborts(are_lost),
            Life::Ended => {}
        }
    }

    /// From now on, whether a single write that no document can meet asks no shard, as with the newest `mongos`; with 6.0 it does.
    pub fn fold_falsehoods(&self, are_folded: bool) {
        match &*self.life() {
            Life::Running(router) | Life::Frozen(router, _) => router.fold_falsehoods(are_folded),
            Life::Ended => {}
        }
    }

    /// From now on, whether it takes each new connection for one from a load balancer.
    pub fn serve_load_balancer(&self, is_behind_one: bool) {
        match &*self.life() {
            Life::Running(router) | Life::Frozen(router, _) => router.serve_load_balancer(is_behind_one),
            Life::Ended => {}
        }
    }

    pub(super) fn stop(&self) -> Result<(), Error> {
        self.change(|life| match life {
            Life::Running(router) => {
                let frozen = router.freeze();
                Life::Frozen(router, frozen)
            }
            other => other,
        })
    }

    pub(super) fn resume(&self) -> Result<(), Error> {
        self.change(|life| match life {
            Life::Frozen(router, frozen) => {
                drop(frozen);
                Life::Running(router)
            }
            other => other,
        })
    }

    pub(super) fn kill(&self) -> Result<(), Error> {
        let router = match std::mem::replace(&mut *self.life(), Life::Ended) {
            // A frozen one goes on for a moment: its threads can't be ended while they are held.
            Life::Running(router) | Life::Frozen(router, _) => router,
            Life::Ended => return Ok(()),
        };
        // A runtime can't be ended from within another.
        let ended = thread::spawn(|| router.stop()).join();
        ended.map_err(|_| io::Error::other("the router's threads panicked"))?;
        wait_for("the end of the router", || self.listen().is_ok())
    }

    pub(super) fn restart(&self) -> Result<(), Error> {
        let mut life = self.life();
        if matches!(*life, Life::Ended) {
            let port = self.port.number();
            let start = || Router::start(self.listen()?, self.config_server.clone());
            *life = Life::Running(start().map_err(|source| Error::Router { port, source })?);
        }
        Ok(())
    }

    fn change(&self, change: impl FnOnce(Life) -> Life) -> Result<(), Error> {
        let mut life = self.life();
        if matches!(*life, Life::Ended) {
            return Err(ProcessError::NotRunning("the stand-in router".to_owned()).into());
        }
        *life = change(std::mem::replace(&mut *life, Life::Ended));
        Ok(())
    }

    fn listen(&self) -> io::Result<TcpListener> {
        TcpListener::bind(("127.0.0.1", self.port.number()))
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
