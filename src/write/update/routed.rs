//! Reads where the document of a statement by a key lies, so that Keyward reads it on one shard.

use crate::command::statement::Statement;
use crate::raw::Malformed;
use crate::route::{AskedFor, pinned};
use crate::write::operation::WriteOp;

/// The query of a statement by a key, for the document that has the key's reservation.
pub struct AtOwner {
    /// The query.
    pub query: Vec<u8>,
    constraint: usize,
}

impl AtOwner {
    /// Reads the reservation. `None` if the statement isn't by a key, or if the key has no usable reservation.
    pub async fn of(statement: Statement<'_>, op: &WriteOp<'_>) -> Result<Option<AtOwner>, Malformed> {
        let Some(AskedFor { constraint, key }) = AskedFor::by_statement(statement, op.protected) else {
            return Ok(None);
        };
        let proxy = &op.protected.constraints[constraint];
        let query = match (proxy.reserved_owner(&key).await, statement.query()?) {
            (Some(owner), Some(query)) => pinned(query, &owner, op.protected)?,
            _ => None,
        };
        if query.is_none() {
            proxy.metrics.routed_misses.inc();
        }
        Ok(query.map(|query| AtOwner { query, constraint }))
    }

    /// Counts whether the document was found at the place that the key's reservation names. If not, it may be on any shard.
    pub fn note(&self, is_found: bool, op: &WriteOp<'_>) {
        let metrics = &op.protected.constraints[self.constraint].metrics;
        match is_found {
            true => metrics.routed_hits.inc(),
            false => metrics.routed_fell_back.inc(),
        }
    }
}
