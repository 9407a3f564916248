//! The two strategies, as trials need them.

use std::sync::LazyLock;
use std::time::Duration;

use bson::doc;
use testbed::Cluster;

use crate::trial;

/// Of several constraints one that asks for strict mode makes all strict.
pub const PHONE: &str = "  - { collection: DB.users, key: { phone: 1 }, sparse: true }\n";

/// How a trial's constraints are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    Compensating,
    Strict,
}

impl Strategy {
    pub const fn is_strict(self) -> bool {
        matches!(self, Strategy::Strict)
    }

    /// The constraint on `users.email`.
    pub const fn email(self) -> &'static str {
        match self {
            Strategy::Compensating => "  - { collection: DB.users, key: { email: 1 } }\n",
            Strategy::Strict => "  - { collection: DB.users, key: { email: 1 }, strategy: transaction }\n",
        }
    }

    /// How long a transaction may be open that nobody goes on with: the server looks for such from time to time.
    pub fn abandoned_for(self) -> Duration {
        match self {
            Strategy::Compensating => Duration::ZERO,
            Strategy::Strict => Duration::from_secs(40),
        }
    }

    /// A trial's database with this strategy: the other's has another one.
    pub fn database(self, name: &'static str) -> &'static str {
        match self {
            Strategy::Compensating => name,
            Strategy::Strict => format!("{name}_strict").leak(),
        }
    }

    /// `users` of a database of its own, on two shards: regions below `m` on one, the others on the other.
    pub fn users(self, database: &str) -> &'static Cluster {
        match self {
            Strategy::Compensating => trial::users(database),
            Strategy::Strict => trial::users_on(short_transactions(), database),
        }
    }
}

/// A cluster on which a transaction lives as long as a Keyward may be stopped with it open, and not much longer.
pub fn short_transactions() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
        let cluster = Cluster::start().unwrap();
        let limit = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 20 };
        for shard in cluster.shards() {
            shard.run("admin", limit.clone()).unwrap();
        }
        cluster
    });
    &CLUSTER
}
