//! The cluster times that a reply carries, so that a client's causal session goes on through Keyward's own replies.

use bson::spec::ElementType;
use bson::{RawDocument, RawDocumentBuf, Timestamp};

use crate::raw::{Builder, Doc, Element};

/// The latest times that the deployment told. In bytes, as they came: every write of every client reads, keeps and repeats them.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// `operationTime`.
    pub operation: Option<Timestamp>,
    /// `$clusterTime`, signed by the deployment.
    pub cluster: Option<RawDocumentBuf>,
}

impl Times {
    /// The times that a reply of the server carries.
    pub fn of_raw(reply: &RawDocument) -> Times {
        Times {
            operation: reply.get_timestamp("operationTime").ok(),
            cluster: reply.get_document("$clusterTime").ok().map(RawDocument::to_owned),
        }
    }

    /// Takes a field of a reply for what it is; says whether it is one of the two.
    pub fn take(&mut self, field: &Element<'_>) -> bool {
        match (field.name, field.kind) {
            (b"$clusterTime", ElementType::EmbeddedDocument) => {
                self.cluster = RawDocumentBuf::from_bytes(field.value.to_vec()).ok();
            }
            (b"operationTime", ElementType::Timestamp) => self.operation = timestamp(field.value),
            (b"$clusterTime" | b"operationTime", _) => {}
            _ => return false,
        }
        true
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
        if let Some(cluster) = &self.cluster
            && let Ok(cluster) = Doc::new(cluster.as_bytes())
        {
            reply.document("$clusterTime", cluster);
        }
        if let Some(time) = self.operation {
            let value = (u64::from(time.time) << 32) | u64::from(time.increment);
            reply.timestamp("operationTime", value);
        }
    }
}

/// The increment comes first, then the seconds.
fn timestamp(value: &[u8]) -> Option<Timestamp> {
    let value = u64::from_le_bytes(value.try_into().ok()?);
    Some(Timestamp {
        time: (value >> 32) as u32,
        increment: value as u32,
    })
}

#[cfg(test)]
mod tests {
    use bson::{doc, rawdoc};

    use super::*;

    fn taken(reply: &RawDocument) -> Times {
        let mut times = Times::default();
        for field in Doc::new(reply.as_bytes()).unwrap().elements() {
            times.take(&field.unwrap());
        }
        times
    }

    #[test]
    fn the_later_of_each_time_is_repeated() {
        let time = |time| Timestamp { time, increment: 7 };
        let reply = |cluster, operation| {
            let signed = rawdoc! { "clusterTime": time(cluster), "signature": { "keyId": 1_i64 } };
            rawdoc! { "n": 1, "$clusterTime": signed, "operationTime": time(operation) }
        };
        let mut times = taken(&reply(5, 2));
        times.advance(taken(&reply(4, 3)));
        times.advance(Times::of_raw(&reply(1, 1)));
        times.advance(taken(&rawdoc! { "$clusterTime": 1, "operationTime": "x" }));
        let mut repeated = Builder::new();
        times.append_to(&mut repeated);
        let signed = doc! { "clusterTime": time(5), "signature": { "keyId": 1_i64 } };
        let expected = doc! { "$clusterTime": signed, "operationTime": time(3) };
        assert_eq!(repeated.finish(), expected.to_vec().unwrap());
    }
}
