//! Decides from the driver's monitoring which servers clients' connections may use.
//!
//! A sharded deployment offers all its known `mongos`, a replica set its primary alone. Keyward publishes what the driver
//! reports, and judges no server itself.

use mongodb::event::sdam::SdamEvent;
use mongodb::options::ServerAddress;
use mongodb::{ServerInfo, ServerType, TopologyType};
use tokio::sync::watch;
use tracing::{debug, error, info};

use crate::server::driver;

/// The oldest version of the wire protocol that a server may speak: that of MongoDB 6.0. Older routers drop `retriedStmtIds`, on
/// which it rests that a retry gives nothing back that its first try has used.
pub const WIRE_VERSION_MIN: i32 = 17;

/// The servers that a client's connection may go to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    addresses: Vec<ServerAddress>,
    /// The servers of the deployment that don't answer the driver at present. They may be of use again.
    silent: Vec<ServerAddress>,
    /// Whether a connection is of use only as long as its server is the primary.
    follows_primary: bool,
}

impl Targets {
    #[cfg(test)]
    pub(super) fn of(addresses: &[ServerAddress], silent: &[ServerAddress], follows_primary: bool) -> Targets {
        Targets {
            addresses: addresses.to_vec(),
            silent: silent.to_vec(),
            follows_primary,
        }
    }

    /// Whether this server is of the deployment, and doesn't answer the driver at present.
    pub(super) fn is_silent(&self, address: &ServerAddress) -> bool {
        self.silent.contains(address)
    }

    /// Their addresses, in a fixed order; empty while none is known.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    /// Whether a connection is of use only as long as its server is the primary.
    pub fn follows_primary(&self) -> bool {
        self.follows_primary
    }

    /// Whether a connection to `address` must end, because another server is known to be the primary now.
    ///
    /// While no primary is known, connections stay: the server at their end says itself what it can't do.
    pub fn has_moved_from(&self, address: &ServerAddress) -> bool {
        self.follows_primary && !self.addresses.is_empty() && !self.addresses.contains(address)
    }
}

/// Publishes what `event` changes: the servers that may be used, and why the others may not.
pub fn follow(publish: &watch::Sender<Targets>, publish_reasons: &watch::Sender<Vec<String>>, event: SdamEvent) {
    let SdamEvent::TopologyDescriptionChanged(event) = event else {
        return;
    };
    let topology = &event.new_description;
    let (mut addresses, mut silent, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for (address, server) in topology.servers() {
        if server.error().is_some() || server.server_type() == ServerType::Unknown {
            silent.push(address.clone());
        }
        match why_unusable(&server) {
            Some(reason) => reasons.push(format!("{address}: {reason}")),
            None => addresses.push(address.clone()),
        }
        if let Some(version) = too_old(&server) {
            error!(%address, version, "this server is older than MongoDB 6.0; no client is connected to it");
        }
    }
    reasons.sort_unstable();
    publish_reasons.send_replace(reasons);
    addresses.sort_by_key(ToString::to_string);
    silent.sort_by_key(ToString::to_string);
    let targets = Targets {
        addresses,
        silent,
        follows_primary: matches!(
            topology.topology_type(),
            TopologyType::ReplicaSetWithPrimary | TopologyType::ReplicaSetNoPrimary
        ),
    };
    publish.send_if_modified(|current| {
        let is_new = *current != targets;
        if is_new {
            let names: Vec<String> = targets.addresses.iter().map(ToString::to_string).collect();
            // Where none is left, `instance/reachability.rs` warns once that lasts.
            match current.addresses.is_empty() {
                _ if names.is_empty() || current.addresses == targets.addresses => {}
                true => debug!(targets = names.join(", "), "upstream found"),
                false => info!(targets = names.join(", "), "upstream changed"),
            }
            *current = targets;
        }
        is_new
    });
}

fn too_old(server: &ServerInfo<'_>) -> Option<i32> {
    server.max_wire_version().filter(|version| *version < WIRE_VERSION_MIN)
}

/// Why no client's connection may go to `server`; `None` if one may.
fn why_unusable(server: &ServerInfo<'_>) -> Option<String> {
    if let Some(error) = server.error() {
        return Some(driver::in_words(error));
    }
    if too_old(server).is_some() {
        return Some("it is older than MongoDB 6.0".to_owned());
    }
    match server.server_type() {
        ServerType::Mongos | ServerType::RsPrimary | ServerType::Standalone | ServerType::LoadBalancer => None,
        ServerType::Unknown => Some("it has not answered yet".to_owned()),
        _ => Some("it is not the primary".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(addresses: &[&str], follows_primary: bool) -> Targets {
        let addresses = addresses.iter().map(|text| ServerAddress::parse(text).unwrap());
        Targets::of(&addresses.collect::<Vec<_>>(), &[], follows_primary)
    }

    #[test]
    fn a_connection_ends_only_when_another_primary_is_known() {
        let here = ServerAddress::parse("a:1").unwrap();
        assert!(targets(&["b:1"], true).has_moved_from(&here));
        assert!(!targets(&["a:1"], true).has_moved_from(&here));
        assert!(!targets(&[], true).has_moved_from(&here));
        assert!(!targets(&["b:1", "c:1"], false).has_moved_from(&here));
    }
}
