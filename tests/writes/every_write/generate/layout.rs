//! How a collection is laid out: its shard key, the values of that, and its default collation.

use bson::{Bson, Document, doc};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Where documents lie, and how their text compares.
#[derive(Debug, Clone)]
pub struct Layout {
    pub key: ShardKey,
    pub regions: Regions,
    /// The default collation.
    pub collation: Option<Document>,
}

impl Layout {
    pub fn of(schema: u64) -> Layout {
        // Other numbers than those that the indexes are drawn from.
        let mut rng = StdRng::seed_from_u64(!schema);
        let key = match rng.random_range(0..10) {
            0..6 => ShardKey::Region,
            6 | 7 => ShardKey::HashedIdRegion,
            8 => ShardKey::HashedRegion,
            _ => ShardKey::RegionHashedId,
        };
        let collation = rng.random_bool(0.35).then(|| collation(&mut rng));
        let regions = match Regions::of(schema) {
            // A router targets no text where a collation says how it compares.
            Regions::Words if collation.is_some() => Regions::Numbers,
            regions => regions,
        };
        Layout {
            key,
            regions,
            collation,
        }
    }

    /// By `region`, with these values, and without a collation.
    pub fn by(regions: Regions) -> Layout {
        Layout {
            key: ShardKey::Region,
            regions,
            collation: None,
        }
    }

    /// Where the second shard begins, unless the server spreads the collection itself.
    pub fn split(&self) -> Document {
        let mut split = match self.regions {
            Regions::Words => doc! { "region": "m" },
            Regions::Numbers | Regions::Missing => doc! { "region": 2 },
        };
        if self.key == ShardKey::RegionHashedId {
            split.insert("_id", Bson::MinKey);
        }
        split
    }
}

/// The fields by which the collection is sharded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardKey {
    /// The only one by whose ranges a router finds a shard.
    Region,
    HashedRegion,
    /// Even documents of one region lie on both shards.
    HashedIdRegion,
    RegionHashedId,
}

impl ShardKey {
    pub fn pattern(self) -> Document {
        match self {
            ShardKey::Region => doc! { "region": 1 },
            ShardKey::HashedRegion => doc! { "region": "hashed" },
            ShardKey::HashedIdRegion => doc! { "_id": "hashed", "region": 1 },
            ShardKey::RegionHashedId => doc! { "region": 1, "_id": "hashed" },
        }
    }

    /// Whether the server makes chunks on all shards, because the first field is hashed.
    pub fn is_spread(self) -> bool {
        matches!(self, ShardKey::HashedRegion | ShardKey::HashedIdRegion)
    }

    /// Whether a statement about one document must name its `_id`: a router needs the whole shard key for a `findAndModify` or an
    /// upsert.
    pub fn has_id(self) -> bool {
        matches!(self, ShardKey::HashedIdRegion | ShardKey::RegionHashedId)
    }
}

/// The values of the shard key: the commands are generated with words, and get the others later. The hashes of the first value and of the
/// second one have different signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regions {
    Words,
    /// 1 and 3, of all types.
    Numbers,
    /// None, null, and 3.
    Missing,
}

impl Regions {
    fn of(schema: u64) -> Regions {
        match schema / 3 % 4 {
            0 | 1 => Regions::Words,
            2 => Regions::Numbers,
            _ => Regions::Missing,
        }
    }
}

/// One by which text of different bytes is equal.
pub(super) fn collation(rng: &mut StdRng) -> Document {
    let collations = [
        doc! { "locale": "en", "strength": 1 },
        doc! { "locale": "en", "strength": 2 },
        doc! { "locale": "en", "strength": 2 },
        doc! { "locale": "en", "strength": 3 },
        doc! { "locale": "en", "strength": 1, "caseLevel": true },
        doc! { "locale": "en", "strength": 2, "numericOrdering": true },
    ];
    collations.choose(rng).unwrap().clone()
}
