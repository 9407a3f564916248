//! Strict mode: the trials of `conflicts` again with `strategy: transaction`, those that only it can stand (a Keyward that
//! is stopped with an insert in its hands), and the default on a single replica set.

#![allow(clippy::unwrap_used)]

#[path = "../conflicts/abandoned.rs"]
mod abandoned;
mod cost;
#[path = "../conflicts/crash.rs"]
mod crash;
mod crowd;
#[path = "../conflicts/forwarder.rs"]
mod forwarder;
mod group_commit;
mod lost_commits;
#[path = "../conflicts/near_the_limit.rs"]
mod near_the_limit;
mod one_replica_set;
#[path = "../conflicts/opposites.rs"]
mod opposites;
mod orders;
#[path = "../conflicts/retries.rs"]
mod retries;
mod stopped;
#[path = "../support/mod.rs"]
mod support;
#[path = "../conflicts/trial.rs"]
mod trial;
mod unknown_commits;

use trial::{assert_agreement, insert, keyward, reservations, users, write_errors};

const IS_STRICT: bool = true;
/// How long a transaction may be open that nobody goes on with: the server looks for such from time to time.
const ABANDONED_FOR: std::time::Duration = std::time::Duration::from_secs(40);
const EMAIL: &str = "  - { collection: DB.users, key: { email: 1 }, strategy: transaction }\n";
/// Of several constraints one that asks for it makes all strict.
const PHONE: &str = "  - { collection: DB.users, key: { phone: 1 }, sparse: true }\n";
