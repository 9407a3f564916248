//! Keyward in an operator's hands: its command line, configuration, restarts, pages, packages and documents.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod authorization;
mod chapters;
mod check;
mod created;
mod demo;
mod dependencies;
mod doctor;
mod documentation;
mod hidden;
mod many_connections;
mod operated;
mod packaging;
mod run;
mod srv;
mod status_page;
mod sweep;
mod telemetry;
mod tls;
mod traces;
mod verify;
