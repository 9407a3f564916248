//! What becomes of keys when things go wrong: Keywards that die, replies that get lost, shards that refuse, clients that
//! get in each other's way. Whatever happens, documents and reservations agree once it is quiet, and a driver that sends
//! its write again writes once.

#![allow(clippy::unwrap_used)]

mod abandoned;
mod collated;
mod crash;
mod failing;
mod forwarder;
#[path = "../native_index/generate/mod.rs"]
#[allow(dead_code)]
mod generate;
mod half_committed;
mod large;
mod leaping_clock;
mod meanwhile;
mod moved_since;
mod namesakes;
mod near_the_limit;
mod odd_values;
mod open_transaction;
mod opposites;
mod other_types;
mod refused_again;
mod reservations;
mod retries;
#[path = "../native_index/server.rs"]
#[allow(dead_code)]
mod server;
mod set_values;
mod side_by_side;
#[path = "../support/mod.rs"]
mod support;
mod taken_in;
mod told_time;
mod trial;
mod unfinished;
mod waiting;

use trial::{assert_agreement, insert, keyward, reservations, users, write_errors};

const EMAIL: &str = "  - { collection: DB.users, key: { email: 1 } }\n";
const IS_STRICT: bool = false;
/// How long a transaction may be open that nobody goes on with: there is none here.
const ABANDONED_FOR: std::time::Duration = std::time::Duration::ZERO;
const PHONE: &str = "  - { collection: DB.users, key: { phone: 1 }, sparse: true }\n";
