//! Which shard owns what: chunks, shard-key values in the server's order, and what a query says about them.

mod bounds;
mod catalog;
mod condition;
mod hash;
mod interval;
mod number;
mod order;
mod query;
mod shard_key;
mod table;

pub use catalog::{CONFIG, Catalog, Database, Link};
pub use order::compare_elements;
pub use query::{exact_id, exact_point, is_never_met, shards_for};
pub use shard_key::{Field, KeyValue, value_at};
pub use table::{Chunk, Collection, Routing, Version};
