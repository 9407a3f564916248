//! Decides from the driver's monitoring which servers clients' connections may use.
//!
//! A sharded deployment offers all its known `mongos`, a replica set its primary alone. Keyward publishes what the driver
//! reports, and judges no server itself.

use mongodb::event::sdam::SdamEvent;
use mongodb::options::ServerAddress;
use mongodb::{ServerType, TopologyType};
use tokio::sync::watch;
use tracing::{error, info};

/// The oldest version of the wire protocol that a server may speak: that of MongoDB 6.0. Older routers drop `retriedStmtIds`, on
/// which it rests that a retry gives nothing back that its first try has used.
pub const WIRE_VERSION_MIN: i32 = 17;

/// The servers that a client's connection may go to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    addresses: Vec<ServerAddress>,
    /// Whether a connection is of use only as long as its server is the primary.
    follows_primary: bool,
}

impl Targets {
    /// Their addresses, in a fixed order; empty while none is known.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    /// Whether a connection to `address` must end, because another server is known to be the primary now.
    ///
    /// While no primary is known, connections stay: the server at their end says itself what it can't do.
    pub fn has_moved_from(&self, address: &ServerAddress) -> bool {
        self.follows_primary && !self.addresses.is_empty() && !self.addresses.contains(address)
    }
}

/// Publishes what `event` changes.
pub fn follow(publish: &watch::Sender<Targets>, event: SdamEvent) {
    let SdamEvent::TopologyDescriptionChanged(event) = event else {
        return;
    };
    let topology = &event.new_description;
    for (address, server) in topology.servers() {
        if let Some(version) = server.max_wire_version().filter(|version| *version < WIRE_VERSION_MIN) {
            error!(%address, version, "this server is older than MongoDB 6.0; no client is connected to it");
        }
    }
    let mut addresses: Vec<_> = topology
        .servers()
        .into_values()
        .filter(|server| {
            let is_new_enough = server
                .max_wire_version()
                .is_none_or(|version| version >= WIRE_VERSION_MIN);
            let takes_writes = matches!(
                server.server_type(),
                ServerType::Mongos | ServerType::RsPrimary | ServerType::Standalone
            );
            is_new_enough && takes_writes
        })
        .map(|server| server.address().clone())
        .collect();
    addresses.sort_by_key(ToString::to_string);
    let targets = Targets {
        addresses,
        follows_primary: matches!(
            topology.topology_type(),
            TopologyType::ReplicaSetWithPrimary | TopologyType::ReplicaSetNoPrimary
        ),
    };
    publish.send_if_modified(|current| {
        let is_new = *current != targets;
        if is_new {
            info!(targets = ?targets.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), "upstream changed");
            *current = targets;
        }
        is_new
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(addresses: &[&str], follows_primary: bool) -> Targets {
        Targets {
            addresses: addresses
                .iter()
                .map(|text| ServerAddress::parse(text).unwrap())
                .collect(),
            follows_primary,
        }
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
