//! What every write does that is protected: the reply that a client gets, and what is reserved afterwards. A native unique index is
//! the judge.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod absent_collection;
mod arithmetic;
mod bulk_write;
mod commands_sent;
mod drop;
mod every_write;
mod large_batch;
mod long_batch;
mod matched_position;
mod merged;
mod own_reads;
mod partly_failed;
mod plain_upsert;
mod prepared_together;
mod protected_insert;
mod proxy_layout;
mod refusals;
mod refused_statement;
mod refused_whole;
mod routed;
mod same_id_in_another_form;
mod statement_options;
mod time_limit;
mod unindexable;
mod unique_id;
mod within_a_partition;
mod write_concern;
