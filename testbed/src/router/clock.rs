//! The cluster's logical time as this router knows it: the highest `$clusterTime` that any shard, config server or
//! client has told, gossiped on in every request and reply.

use std::sync::{Mutex, PoisonError};

use bson::spec::ElementType;
use bytes::Bytes;

use super::raw::{Builder, Doc, Element};
use super::reply::timestamp_value;

#[derive(Debug, Clone, Default)]
struct Latest {
    /// The timestamp as a number, seconds in the upper half.
    time: u64,
    /// The whole `$clusterTime` document, with its signature.
    document: Bytes,
}

/// The highest cluster time seen.
#[derive(Debug, Default)]
pub struct Clock(Mutex<Latest>);

impl Clock {
    /// Moves forward to the `$clusterTime` of a request or a reply.
    pub fn observe(&self, message: Doc<'_>) {
        if let Ok(Some(element)) = message.get("$clusterTime") {
            self.observe_element(&element);
        }
    }

    fn observe_element(&self, element: &Element<'_>) {
        let Ok(Some(document)) = element.as_document_or_array() else {
            return;
        };
        let Some(time) = timestamp_value(document.get("clusterTime").ok().flatten()) else {
            return;
        };
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if time > latest.time {
            *latest = Latest {
                time,
                document: Bytes::copy_from_slice(document.bytes()),
            };
        }
    }

    /// The highest time, 0 before the first.
    pub fn now(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).time
    }

    /// Appends `$clusterTime`, if one is known.
    pub fn append(&self, message: &mut Builder) {
        let document = self.0.lock().unwrap_or_else(PoisonError::into_inner).document.clone();
        if !document.is_empty() {
            message.append(ElementType::EmbeddedDocument, b"$clusterTime", &document);
        }
    }
}
