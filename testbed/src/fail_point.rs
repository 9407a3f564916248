//! The server's own fault injection: a fail point that is on while a value lives.

use bson::{Bson, Document, doc};

use crate::Error;
use crate::command;

/// A fail point that is on at one server; dropping this turns it off.
#[derive(Debug)]
pub struct FailPoint {
    address: String,
    name: String,
    /// How often it had been met before this one was turned on.
    met: i64,
}

impl FailPoint {
    /// Turns fail point `name` on at the server at `address` (`host:port`).
    ///
    /// # Errors
    /// [`Error::Command`] if the server doesn't know it or can't be reached.
    pub fn turn_on(address: &str, name: &str, mode: Bson, data: Document) -> Result<FailPoint, Error> {
        let reply = command::run(
            address,
            "admin",
            doc! { "configureFailPoint": name, "mode": mode, "data": data },
        )?;
        Ok(FailPoint {
            address: address.to_owned(),
            name: name.to_owned(),
            met: reply.get_i64("count").unwrap_or_default(),
        })
    }

    /// Waits until the server has met it once.
    ///
    /// # Errors
    /// [`Error::Command`] if that takes longer than a minute.
    pub fn wait_until_met(&self) -> Result<(), Error> {
        let wait = doc! { "waitForFailPoint": &self.name, "timesEntered": self.met + 1, "maxTimeMS": 60_000 };
        command::run(&self.address, "admin", wait)?;
        Ok(())
    }
}

impl Drop for FailPoint {
    fn drop(&mut self) {
        // A server that has been killed meanwhile has lost it anyway.
        let _ = command::run(
            &self.address,
            "admin",
            doc! { "configureFailPoint": &self.name, "mode": "off" },
        );
    }
}
