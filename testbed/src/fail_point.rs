//! The server's own fault injection: a fail point that is on while a value lives.

use bson::{Bson, Document, doc};

use crate::Error;
use crate::command;

/// A fail point that is on at one server; dropping this turns it off.
#[derive(Debug)]
pub struct FailPoint {
    address: String,
    name: String,
}

impl FailPoint {
    /// Turns fail point `name` on at the server at `address` (`host:port`).
    ///
    /// # Errors
    /// [`Error::Command`] if the server doesn't know it or can't be reached.
    pub fn turn_on(address: &str, name: &str, mode: Bson, data: Document) -> Result<FailPoint, Error> {
        command::run(
            address,
            "admin",
            doc! { "configureFailPoint": name, "mode": mode, "data": data },
        )?;
        Ok(FailPoint {
            address: address.to_owned(),
            name: name.to_owned(),
        })
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
