//! Adds to a command on the client's connection the cluster time that Keyward learned when it reserved keys.
//!
//! Keyward reserves keys on its own connections, perhaps through another router. The client's router, and the shard that it
//! writes to, may lag behind. Then the document could get an earlier time than its reservation. Without this, a snapshot between
//! both times could show two documents with one key. So every command that Keyward sends after it holds keys carries the
//! time that Keyward learned when it reserved them. If the client knows a later time, the command carries that.

use crate::catalog::Protected;
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::Times;
use crate::upstream::Connection;

/// The field's name.
const CLUSTER_TIME: &str = "$clusterTime";

/// The latest time that Keyward learned when it read and wrote reservations, if the client may repeat that time.
pub fn known_times(protected: &Protected, upstream: &Connection) -> Times {
    let times = protected.times();
    match times.is_signed() || !has_logged_in(upstream) {
        true => times,
        // Keyward's user may advance the clock, and so learned the time without a signature; the server believes no other user.
        false => Times::default(),
    }
}

/// The later of [`known_times`] and the time that the client's command `body` carries.
pub fn latest(protected: &Protected, body: Doc<'_>, upstream: &Connection) -> Result<Times, Malformed> {
    let mut latest = Times::default();
    if let Some(carried) = body.get(CLUSTER_TIME)? {
        latest.take(&carried);
    }
    latest.advance(known_times(protected, upstream));
    Ok(latest)
}

/// Appends the later of the `$clusterTime` that `body` carries and the time of `times`.
pub fn append(times: &Times, body: Doc<'_>, command: &mut Builder) -> Result<(), Malformed> {
    let carried = body.get(CLUSTER_TIME)?;
    if let Some(later) = times.later_than(carried.as_ref()) {
        command.document(CLUSTER_TIME, later);
    } else if let Some(carried) = carried {
        command.element(&carried);
    }
    Ok(())
}

fn has_logged_in(upstream: &Connection) -> bool {
    let users = Doc::new(upstream.users()).and_then(|users| users.nested("authenticatedUsers"));
    users.is_ok_and(|users| users.is_some_and(|users| !users.is_empty()))
}
