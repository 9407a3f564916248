//! Collects the cluster times of replies, so that a client's causal session continues through Keyward's own replies.

use bson::spec::ElementType;
use bson::{Document, RawDocument, RawDocumentBuf, Timestamp};

use crate::raw::{Builder, Doc, Element};

/// The latest times that the deployment reported. Kept as unchanged bytes: every write of every client reads, stores and
/// repeats them.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// `operationTime`.
    pub operation: Option<Timestamp>,
    /// `$clusterTime`, signed by the deployment.
    pub cluster: Option<RawDocumentBuf>,
}

impl Times {
    /// The times of a server's reply; none if it isn't BSON.
    pub fn of_reply(reply: &[u8]) -> Times {
        RawDocument::from_bytes(reply).map(Times::of_raw).unwrap_or_default()
    }

    /// The times of a server's reply.
    pub fn of_raw(reply: &RawDocument) -> Times {
        Times {
            operation: reply.get_timestamp("operationTime").ok(),
            cluster: reply.get_document("$clusterTime").ok().map(RawDocument::to_owned),
        }
    }

    /// Takes a field of a reply if it is one of the two times; returns whether it is.
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

    /// Keeps the later of each time.
    pub fn advance(&mut self, later: Times) {
        if later.operation > self.operation {
            self.operation = later.operation;
        }
        if later.cluster_timestamp() > self.cluster_timestamp() {
            self.cluster = later.cluster;
        }
    }

    /// Keeps the later `$clusterTime`.
    pub fn advance_cluster(&mut self, cluster_time: &Document) {
        if cluster_time.get_timestamp("clusterTime").ok() > self.cluster_timestamp() {
            self.cluster = RawDocumentBuf::try_from(cluster_time).ok();
        }
    }

    /// The `$clusterTime`, if it is later than the one that a command carries, or if the command has none. The server checks a
    /// carried value that isn't a time.
    pub fn later_than(&self, carried: Option<&Element<'_>>) -> Option<Doc<'_>> {
        let own = self.cluster_timestamp()?;
        if let Some(carried) = carried {
            let carried = carried.as_document_or_array().ok()??.get("clusterTime").ok()??;
            if timestamp_of(&carried)? >= own {
                return None;
            }
        }
        self.cluster_doc()
    }

    /// Whether `$clusterTime` is signed by the deployment. Without authentication it never is. A user who may advance the clock
    /// gets it unsigned, and no other user may send it unsigned.
    pub fn is_signed(&self) -> bool {
        let key = self
            .cluster_doc()
            .and_then(|time| time.value_at("signature.keyId").ok()?);
        key.and_then(|key| key.as_whole_number()).is_some_and(|key| key != 0)
    }

    fn cluster_doc(&self) -> Option<Doc<'_>> {
        Doc::new(self.cluster.as_ref()?.as_bytes()).ok()
    }

    fn cluster_timestamp(&self) -> Option<Timestamp> {
        timestamp_of(&self.cluster_doc()?.get("clusterTime").ok()??)
    }

    /// Appends `$clusterTime`; a command may carry it, too.
    pub fn append_cluster_to(&self, message: &mut Builder) {
        if let Some(cluster) = self.cluster_doc() {
            message.document("$clusterTime", cluster);
        }
    }

    /// Appends `$clusterTime` and `operationTime`, the last fields of every reply.
    pub fn append_to(&self, reply: &mut Builder) {
        self.append_cluster_to(reply);
        if let Some(time) = self.operation {
            let value = (u64::from(time.time) << 32) | u64::from(time.increment);
            reply.timestamp("operationTime", value);
        }
    }
}

/// The element's value, if it is a timestamp.
pub fn timestamp_of(element: &Element<'_>) -> Option<Timestamp> {
    timestamp(element.value).filter(|_| element.kind == ElementType::Timestamp)
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

    #[test]
    fn a_command_carries_the_later_time() {
        let time = |time| Timestamp { time, increment: 7 };
        let known = |time: bson::RawBson| rawdoc! { "$clusterTime": { "clusterTime": time } };
        let mut times = Times::default();
        let later = |times: &Times, carried: Option<RawDocumentBuf>| {
            let carried = carried.as_ref().map(|carried| Doc::new(carried.as_bytes()).unwrap());
            let carried = carried.map(|carried| carried.get("$clusterTime").unwrap().unwrap());
            times.later_than(carried.as_ref()).is_some()
        };
        assert!(!later(&times, None));
        times.advance_cluster(&doc! { "clusterTime": time(5), "signature": { "keyId": 1_i64 } });
        times.advance_cluster(&doc! { "clusterTime": time(4), "signature": { "keyId": 0_i64 } });
        assert!(times.is_signed());
        assert!(later(&times, None));
        assert!(later(
            &times,
            Some(rawdoc! { "$clusterTime": { "clusterTime": time(4) } })
        ));
        for known in [known(time(5).into()), known(time(6).into()), known("x".into())] {
            assert!(!later(&times, Some(known)));
        }
        assert!(!later(&times, Some(rawdoc! { "$clusterTime": 1 })));
        times.advance_cluster(&doc! { "clusterTime": time(9), "signature": { "keyId": 0_i64 } });
        assert!(!times.is_signed());
    }
}
