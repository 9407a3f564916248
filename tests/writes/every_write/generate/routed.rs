//! Reads and statements by a unique field alone, which name no shard.

use bson::{Bson, Document, doc};
use rand::Rng;

use super::{Generator, Layout};

/// Whether reads and statements by the index's key go to one shard.
pub fn is_routed(index: &Document, layout: &Layout) -> bool {
    let key = index.get_document("key").unwrap();
    let has_one_root = key.keys().filter(|path| path.starts_with("i.")).count() > 1;
    index.get_str("route").is_ok() && !has_one_root && !index.contains_key("collation") && layout.collation.is_none()
}

/// The single field whose values every query by the key of this routed index names.
pub(super) fn routed_field(index: &Document) -> Option<&'static str> {
    let key = index.get_document("key").unwrap();
    let field = ["a", "c.d", "t", "i.x"]
        .into_iter()
        .find(|field| *key == doc! { *field: 1 });
    field.filter(|_| !index.contains_key("partialFilterExpression"))
}

impl Generator {
    /// A read or a statement by a key alone.
    pub(super) fn by_key(&mut self, field: &str) -> Document {
        let mut value = self.scalar();
        while value == Bson::Null {
            value = self.scalar();
        }
        let (query, name) = (doc! { field: value }, self.name.clone());
        match self.rng.random_range(0..6) {
            0 => doc! { "find": name, "filter": query },
            1 => doc! { "count": name, "query": query },
            2 => doc! { "delete": name, "deletes": [{ "q": query, "limit": 1 }] },
            3 => doc! { "findAndModify": name, "query": query, "update": { "$inc": { "n": 1 } }, "new": true },
            4 => doc! { "update": name, "updates": [{ "q": query, "u": { "$set": { field: self.scalar() } } }] },
            _ => doc! { "update": name, "updates": [{ "q": query, "u": { "$set": { "n": 2 } } }] },
        }
    }
}
