//! Composes the reply to a `dropDatabase` that was carried out.

use super::Times;
use crate::raw::Builder;

/// The reply's body, fields in the server's order.
pub fn dropped_database(database: &[u8], times: &Times) -> Vec<u8> {
    let mut reply = Builder::new();
    reply.double("ok", 1.0).string("dropped", database);
    times.append_to(&mut reply);
    reply.finish()
}
