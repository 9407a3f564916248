//! Which shard owns what: chunks, shard-key values in the server's order, and what a query says about them.

mod catalog;
mod falsehood;
mod hash;
mod number;
mod order;
mod query;
mod shard_key;
mod table;

pub use catalog::{CONFIG, Catalog, Database, Link};
pub use falsehood::is_never_met;
pub use order::compare_elements;
pub use query::{exact_point, has_exact_id, key_ranges};
pub use shard_key::{Field, KeyValue, value_at};
pub use table::{Chunk, Collection, Routing, Version};
