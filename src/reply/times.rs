//! The cluster times that a reply carries, so that a client's causal session goes on through Keyward's own replies.

use bson::{Document, RawDocument, Timestamp};

use crate::raw::{Builder, Doc};

/// The latest times that the deployment told.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// `operationTime`.
    pub operation: Option<Timestamp>,
    /// `$clusterTime`, signed by the deployment.
    pub cluster: Option<Document>,
}

impl Times {
    /// The times that a reply of the server carries.
    pub fn of(reply: &Document) -> Times {
        Times {
            operation: reply.get_timestamp("operationTime").ok(),
            cluster: reply.get_document("$clusterTime").ok().cloned(),
        }
    }

    /// The same for a reply in bytes.
    pub fn of_raw(reply: &RawDocument) -> Times {
        Times {
            operation: reply.get_timestamp("operationTime").ok(),
            cluster: reply
                .get_document("$clusterTime")
                .ok()
                .and_then(|time| time.try_into().ok()),
        }
    }

    /// Keeps whichever is later, of each.
    pub fn advance(&mut self, later: Times) {
        if later.operation > self.operation {
            self.operation = later.operation;
        }
        if later.cluster_timestamp() > self.cluster_timestamp() {
            self.cluster = later.cluster;
        }
    }

    fn cluster_timestamp(&self) -> Option<Timestamp> {
        self.cluster.as_ref()?.get_timestamp("clusterTime").ok()
    }

    /// Appends `$clusterTime` and `operationTime`, the last fields of every reply.
    pub fn append_to(&self, reply: &mut Builder) {
        if let Some(bytes) = self.cluster.as_ref().and_then(|cluster| cluster.to_vec().ok())
            && let Ok(cluster) = Doc::new(&bytes)
        {
            reply.document("$clusterTime", cluster);
        }
        if let Some(time) = self.operation {
            let value = (u64::from(time.time) << 32) | u64::from(time.increment);
            reply.append(
                bson::spec::ElementType::Timestamp,
                b"operationTime",
                &value.to_le_bytes(),
            );
        }
    }
}
