//! Queries, each of which names the shard key or an `_id`.

use bson::{Bson, Document, doc};
use rand::Rng;

use super::{Generator, region};

/// The shard key of what the query names, by itself or by an `_id`.
pub(super) fn region_of(query: &Document) -> Bson {
    match query.get("region") {
        Some(Bson::Document(equal)) => equal.get("$eq").cloned().unwrap_or(Bson::Null),
        Some(region) => region.clone(),
        None => Bson::String(region(query.get_i32("_id").unwrap_or(0)).to_owned()),
    }
}

impl Generator {
    pub(super) fn query_of_one(&mut self) -> Document {
        match self.rng.random_range(0..10) {
            0 | 1 => doc! { "_id": self.id() },
            _ => self.routed_query(),
        }
    }

    /// Names the shard key, and whatever else.
    pub(super) fn routed_query(&mut self) -> Document {
        if self.needs_id {
            return self.placed_query();
        }
        let id = self.id();
        match self.rng.random_range(0..10) {
            0..=4 => doc! { "_id": id, "region": region(id) },
            5 => doc! { "region": region(id), "a": self.scalar() },
            6 => doc! { "_id": { "$gte": id }, "region": region(id) },
            7 => doc! { "region": region(id), "n": { "$gte": self.rng.random_range(0..3) } },
            8 => doc! { "$or": [{ "_id": id }, { "a": self.scalar() }], "region": region(id) },
            _ => doc! { "_id": { "$in": [id, id + 2] }, "region": { "$eq": region(id) } },
        }
    }

    /// What an upsert can make a document of.
    pub(super) fn exact_query(&mut self) -> Document {
        if self.needs_id {
            return self.placed_query();
        }
        let id = self.id();
        match self.rng.random_range(0..8) {
            0 | 1 => doc! { "_id": id, "region": region(id) },
            2 => doc! { "_id": id, "region": region(id), "b": self.scalar() },
            3 => doc! { "region": region(id), "c.d": self.scalar(), "$and": [{ "_id": id }, { "n": 1 }] },
            4 => doc! { "_id": id, "region": region(id), "b": { "$in": [self.scalar()] } },
            5 => doc! { "_id": { "$eq": id }, "region": region(id), "c.d": self.scalar(), "n": { "$gte": 0 } },
            _ => doc! { "region": region(id), "a": self.scalar() },
        }
    }

    /// Names the `_id` and the region, and whatever else. An upsert can make a document of it.
    fn placed_query(&mut self) -> Document {
        let id = self.id();
        match self.rng.random_range(0..8) {
            0..=3 => doc! { "_id": id, "region": region(id) },
            4 => doc! { "_id": id, "region": region(id), "b": self.scalar() },
            5 => doc! { "region": region(id), "_id": { "$eq": id }, "c.d": self.scalar() },
            6 => doc! { "_id": id, "region": { "$eq": region(id) }, "n": { "$gte": self.rng.random_range(0..3) } },
            _ => doc! { "_id": id, "region": region(id), "a": self.scalar() },
        }
    }

    pub(super) fn query_of_many(&mut self) -> Document {
        let id = self.id();
        match self.rng.random_range(0..8) {
            0 => doc! {},
            1 => doc! { "region": region(id) },
            2 => doc! { "a": self.scalar() },
            3 => doc! { "n": self.rng.random_range(0..3) },
            4 => doc! { "_id": { "$in": [id, self.id(), self.id()] } },
            5 => doc! { "_id": { "$gt": id } },
            6 => doc! { "s": "on", "region": region(id) },
            _ => doc! { "t": { "$exists": true } },
        }
    }
}
