//! Leases of TCP ports on 127.0.0.1 that stay one's own while nobody listens there: a killed server can be restarted on
//! its port.
//!
//! Ports come from below the range that the kernel hands to outgoing connections, so none of those can take one. A lock
//! on a file for each port keeps other testbeds of the same user away; whoever else listens is found by binding.

use std::fs::File;
use std::net::TcpListener;

use nix::fcntl::{Flock, FlockArg};
use rand::Rng;

use super::ProcessError;
use crate::fetch::cache;

/// Above the default ports of MongoDB and of Keyward: a configuration that states no address listens on those.
const FIRST: u16 = 28_000;
/// Linux's default start of the range for outgoing connections.
const END: u16 = 32_768;
const ATTEMPTS: usize = 1_000;

/// A port on 127.0.0.1 that no other testbed takes while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: Flock<File>,
}

impl Port {
    /// Leases any free port.
    ///
    /// # Errors
    /// [`ProcessError::NoPort`] if a thousand tries found none, or the lock files can't be made.
    pub fn lease() -> Result<Port, ProcessError> {
        for _ in 0..ATTEMPTS {
            match Port::lease_exactly(rand::rng().random_range(FIRST..END)) {
                Err(ProcessError::PortTaken(_)) => continue,
                leased => return leased,
            }
        }
        Err(ProcessError::NoPort)
    }

    /// Leases two free ports that follow each other.
    ///
    /// # Errors
    /// As [`Port::lease`].
    pub fn lease_two() -> Result<[Port; 2], ProcessError> {
        for _ in 0..ATTEMPTS {
            let first = Port::lease()?;
            match Port::lease_exactly(first.number() + 1) {
                Err(ProcessError::PortTaken(_)) => continue,
                second => return Ok([first, second?]),
            }
        }
        Err(ProcessError::NoPort)
    }

    /// Leases port `number`.
    ///
    /// # Errors
    /// [`ProcessError::PortTaken`] if somebody listens there, or another testbed has it.
    pub fn lease_exactly(number: u16) -> Result<Port, ProcessError> {
        let path = cache::folder("ports")?.join(number.to_string());
        let file = File::create(&path).map_err(|source| ProcessError::File { path, source })?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| ProcessError::PortTaken(number))?;
        TcpListener::bind(("127.0.0.1", number)).map_err(|_| ProcessError::PortTaken(number))?;
        Ok(Port { number, _lock: lock })
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leased_port_is_refused_to_others_until_it_is_given_back() {
        let port = Port::lease().unwrap();
        let number = port.number();
        assert!(matches!(Port::lease_exactly(number), Err(ProcessError::PortTaken(taken)) if taken == number));
        drop(port);
        assert_eq!(
            Port::lease_exactly(number).unwrap().address(),
            format!("127.0.0.1:{number}")
        );
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = listener.local_addr().unwrap().port();
        assert!(matches!(Port::lease_exactly(number), Err(ProcessError::PortTaken(_))));
    }
}
