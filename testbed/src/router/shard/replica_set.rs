//! One replica set: its members as far as they are known, and which of them is the primary.
//!
//! The primary is asked for (`hello` to every member) when it isn't known, and forgotten on the first sign that it is
//! none any more. Asking ends at a limit, as a `mongos` does.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bson::doc;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::connection::Pools;
use crate::router::message::Outgoing;
use crate::router::raw::Doc;
use crate::router::reply::{Reply, encode};

/// How long a primary is looked for before a command fails (`mongos`: 15 s).
const SELECTION_LIMIT: Duration = Duration::from_secs(15);
const SELECTION_PAUSE: Duration = Duration::from_millis(100);
const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// Which members a command may go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// The primary only.
    Primary,
    /// A secondary; the primary if there is none.
    SecondaryPreferred,
    /// A secondary only.
    Secondary,
}

impl Preference {
    /// Reads `$readPreference`; where tags or staleness would choose further, any member of the mode is taken.
    pub fn from_command(read_preference: Option<Doc<'_>>) -> Self {
        let mode = read_preference.and_then(|preference| preference.get("mode").ok().flatten());
        match mode.and_then(|mode| mode.as_str()) {
            Some("secondary") => Preference::Secondary,
            Some("secondaryPreferred") => Preference::SecondaryPreferred,
            _ => Preference::Primary,
        }
    }
}

#[derive(Debug, Default, Clone)]
struct Known {
    members: Vec<String>,
    primary: Option<String>,
    secondaries: Vec<String>,
}

/// A shard, or the config server.
#[derive(Debug)]
pub struct ReplicaSet {
    /// The shard's name.
    pub name: String,
    known: RwLock<Known>,
}

impl ReplicaSet {
    /// A set with the members of `set/host:port,…` (or just `host:port,…`).
    pub fn new(name: &str, connection_string: &str) -> Self {
        let set = ReplicaSet {
            name: name.to_owned(),
            known: RwLock::default(),
        };
        set.learn_members(connection_string);
        set
    }

    /// Takes over the members of a connection string.
    pub fn learn_members(&self, connection_string: &str) {
        let hosts = connection_string
            .split_once('/')
            .map_or(connection_string, |(_, hosts)| hosts);
        let members = hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned);
        self.write().members = members.collect();
    }

    /// `set/host:port,…`, as `config.shards` and the `raw` part of replies name it.
    pub fn connection_string(&self) -> String {
        format!("{}/{}", self.name, self.members().join(","))
    }

    /// The members.
    pub fn members(&self) -> Vec<String> {
        self.read().members.clone()
    }

    /// Forgets that `host` is the primary, if it was taken for it.
    pub fn forget_primary(&self, host: &str) {
        let mut known = self.write();
        if known.primary.as_deref() == Some(host) {
            known.primary = None;
        }
        known.secondaries.retain(|secondary| secondary != host);
    }

    /// A member that fits the preference, looked for until `deadline` or a limit of its own.
    pub async fn select(&self, pools: &Pools, preference: Preference, deadline: Option<Instant>) -> Option<String> {
        let limit = Instant::now() + SELECTION_LIMIT;
        let limit = deadline.map_or(limit, |deadline| deadline.min(limit));
        loop {
            if let Some(host) = self.fitting(preference) {
                return Some(host);
            }
            self.ask_members(pools).await;
            if let Some(host) = self.fitting(preference) {
                return Some(host);
            }
            if Instant::now() >= limit {
                return None;
            }
            sleep(SELECTION_PAUSE).await;
        }
    }

    fn fitting(&self, preference: Preference) -> Option<String> {
        let known = self.read();
        let secondary = || known.secondaries.first().cloned();
        match preference {
            Preference::Primary => known.primary.clone(),
            Preference::Secondary => secondary(),
            Preference::SecondaryPreferred => secondary().or_else(|| known.primary.clone()),
        }
    }

    async fn ask_members(&self, pools: &Pools) {
        let hello = Outgoing {
            body: encode(&doc! { "hello": 1, "$db": "admin" }),
            sequence: None,
        };
        let members = self.members();
        let asked = members
            .iter()
            .map(|host| timeout(HELLO_LIMIT, pools.call(host, &hello, None)));
        let answers = join_all(asked).await;
        let mut primary = None;
        let mut secondaries = Vec::new();
        for (host, answer) in members.into_iter().zip(answers) {
            let Ok(Ok(answer)) = answer else { continue };
            self.learn_from_hello(&answer);
            if answer.get("isWritablePrimary").is_some_and(|flag| flag.is_truthy()) {
                primary = Some(host);
            } else if answer.get("secondary").is_some_and(|flag| flag.is_truthy()) {
                secondaries.push(host);
            }
        }
        let mut known = self.write();
        known.primary = primary;
        known.secondaries = secondaries;
    }

    fn learn_from_hello(&self, answer: &Reply) {
        let Some(hosts) = answer.nested("hosts") else { return };
        let hosts = hosts
            .elements()
            .flatten()
            .filter_map(|host| host.as_str().map(str::to_owned));
        let mut known = self.write();
        for host in hosts {
            if !known.members.contains(&host) {
                known.members.push(host);
            }
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}
