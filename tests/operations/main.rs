//! Keyward in an operator's hands: its command line, configuration, restarts, pages, packages and documents.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod audited;
mod authorization;
mod chapters;
mod check;
mod check_connected;
mod constraints;
mod created;
mod demo;
mod dependencies;
mod doctor;
mod documentation;
mod hidden;
mod many_connections;
mod named_clients;
mod operated;
mod packaging;
mod plain_words;
mod reservations_dropped;
mod run;
mod sharded;
mod srv;
mod status_page;
mod status_shown;
mod sweep;
mod telemetry;
mod tls;
mod traces;
mod upstream_lost;
mod verify;
