//! Trials that only strict mode stands (a Keyward that is stopped with an insert in its hands), its group commit, and the default on a
//! single replica set.

mod clock_ahead;
mod contention;
mod cost;
mod group_commit;
mod killed_group;
mod lost_commits;
mod one_replica_set;
mod orders;
mod stopped;
mod unknown_commits;

use testbed::Cluster;

use crate::strategy::{self, Strategy};
pub use crate::trial::{assert_agreement, insert, keyward, write_errors};

const EMAIL: &str = Strategy::Strict.email();

fn users(database: &str) -> &'static Cluster {
    Strategy::Strict.users(database)
}

fn cluster() -> &'static Cluster {
    strategy::short_transactions()
}
