//! Reads write commands and rewrites their statements, from the message alone: without asking a server.

pub mod affected_keys;
pub mod arithmetic;
pub mod batch;
pub mod bulk;
pub mod decimal;
pub mod filter_rewriting;
pub mod kept_place;
pub mod key_update;
pub mod plain_upsert;
pub mod running;
pub mod shape;
pub mod statement;
