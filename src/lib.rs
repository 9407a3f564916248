//! Keeps unique constraints across every shard of MongoDB.
//!
//! The modules are listed in groups, in the order in which a message passes through these. The modules about the process come last.

// A function's length is limited (clippy.toml); a test may be a long list of cases.
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod counted;
pub mod haste;
pub mod limits;
pub mod namespace;
mod namespace_map;
pub mod raw;
pub mod server;
pub mod stream;
pub mod tls;
pub mod wire;

pub mod listener;
pub mod session;

pub mod classify;
pub mod hello;
pub mod upstream;

pub mod catalog;
pub mod constraint;
pub mod default_collations;
pub mod encrypted_fields;
pub mod reservation;

pub mod command;

pub mod authorization;
pub mod claims;
pub mod merge;
pub mod proxy_collection;
pub mod reply;
pub mod route;
pub mod write;

pub mod audit;
pub mod backfill_share;
pub mod client_constraints;
pub mod current_op;
pub mod extended_json;
pub mod fleet;
pub mod hiding;
pub mod indexes;
pub mod known_constraints;
pub mod prepare;
pub mod shard;
pub mod sweep;
pub mod verify;

pub mod admin;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod instance;
pub mod metrics;
pub mod progress;
pub mod readiness;
pub mod reload;
pub mod status;
pub mod telemetry;
pub mod traces;
