//! Lists all checks in the order of their lines, with what each assumes and what is at risk otherwise.

use super::check::{Check, CheckOutcome, Group, Needs};
use super::{change_streams, clocks, errors, privileges, reads, retries, sharding, transactions, versions};

/// The two lines that come before the others.
pub fn of_connection() -> [Check; 2] {
    let check = |name, assumption, at_risk| Check {
        group: Group::Connection,
        name,
        assumption,
        at_risk,
        needs: Needs::Deployment,
        run: |_| Box::pin(std::future::ready(Ok(CheckOutcome::passed()))),
    };
    [
        check(
            "deployment answers",
            "The deployment answers the user of the connection string, and is a replica set or a mongos.",
            "no client can be served",
        ),
        check(
            "scratch database",
            "The user may create a database for this examination, and drop it.",
            "the checks that need it are skipped",
        ),
    ]
}

/// All others.
pub fn checks() -> Vec<Check> {
    CHECKS.to_vec()
}

/// Makes the list of checks from rows: the group, the check's needs, its name, its assumption, the effect at risk, and the check.
macro_rules! checks {
    ($($group:ident, $needs:ident, $name:literal, $assumption:literal, $at_risk:literal, $run:path;)*) => {
        &[$(Check {
            group: Group::$group,
            name: $name,
            assumption: $assumption,
            at_risk: $at_risk,
            needs: Needs::$needs,
            run: |scratch| Box::pin($run(scratch)),
        }),*]
    };
}

const CHECKS: &[Check] = checks! {
    Versions, Deployment, "wire version",
        "Each server speaks the wire version of MongoDB 6.0 or a newer one.",
        "a retry may release keys that its first try has used", versions::wire;
    Versions, Deployment, "release",
        "The server states its release.",
        "nothing", versions::release;
    Versions, Deployment, "feature version",
        "The feature version is 6.0 or newer.",
        "newer commands are refused", versions::features;
    Privileges, Deployment, "role",
        "The user has the privileges that docs/security.md lists for these constraints.",
        "a start waits until they are granted", privileges::role;
    Sharding, Cluster, "moved statement memory",
        "A chunk that moves takes the memory of retryable writes along.",
        "a retry after a move may take effect twice", sharding::moved_chunk;
    Sharding, Scratch, "equal numbers",
        "Equal numbers of different types meet on one shard, and count as one key.",
        "two documents may hold one key", sharding::equal_numbers;
    Sharding, Cluster, "balancer",
        "The balancer, draining shards and zones are as the operator expects.",
        "nothing", sharding::balancer;
    Transactions, TwoPlaces, "snapshot over shards",
        "A transaction reads all shards as of one moment, commits on all, and can be committed again.",
        "in strict mode, two documents may hold one key", transactions::snapshot;
    Transactions, TwoPlaces, "commit of an aborted transaction",
        "The commit of an aborted transaction fails with TransientTransactionError.",
        "a write that left nothing may be reported as done", transactions::aborted;
    Transactions, TwoPlaces, "commit of an unknown transaction",
        "The commit of a transaction that the servers don't know fails with NoSuchTransaction.",
        "a write that left nothing may be reported as done", transactions::forgotten;
    Transactions, TwoPlaces, "placeholder and insert",
        "Of a takeover and a late insert of the owner, only one commits, in whatever order they run.",
        "in strict mode, two documents may hold one key", transactions::conflict;
    Transactions, Deployment, "transaction lifetime",
        "The servers end an open transaction within a minute.",
        "keys of a killed process stay taken for longer", transactions::lifetime;
    Retries, TwoPlaces, "retried statements",
        "The reply to a retry names the statements that its first try has carried out (retriedStmtIds).",
        "a retry may release keys that its first try has used", retries::insert;
    Retries, TwoPlaces, "retried findAndModify",
        "A repeated findAndModify gives the document of its first try, and says so (retriedStmtId).",
        "a retry may release keys that its first try has used", retries::find_and_modify;
    Retries, TwoPlaces, "probe that matches nothing",
        "A router sends a statement whose query can't match to the shards that the query names.",
        "a retry isn't recognised, and may take effect twice", retries::probe;
    Reads, TwoPlaces, "linearizable read",
        "A linearizable read over several shards shows every acknowledged document.",
        "a key may be taken from a document that holds it", reads::linearizable;
    Reads, Deployment, "default read concern",
        "The cluster's default read concern isn't `available`.",
        "clients see documents that a moved chunk has left behind", reads::default_read;
    Reads, Deployment, "default write concern",
        "The cluster's default write concern is majority.",
        "a rollback undoes clients' writes, and leaves their reservations", reads::default_write;
    Errors, Scratch, "duplicate of a unique index",
        "E11000 of a unique index has keyPattern, keyValue and the index's name.",
        "drivers get other errors than from a native index", errors::duplicate;
    Errors, Scratch, "duplicate of an _id",
        "E11000 of an embedded _id has keyPattern, keyValue and the index's name.",
        "a taken key isn't recognised", errors::duplicate_id;
    Errors, TwoPlaces, "majority write",
        "A majority of each shard's members acknowledges a write within ten seconds.",
        "no reservation can be made", errors::majority;
    Errors, TwoPlaces, "write concern timeout",
        "A write that too few members acknowledge in time is counted, with a writeConcernError.",
        "a write that may be rolled back counts as acknowledged", errors::unacknowledged;
    ChangeStreams, TwoPlaces, "events of all shards",
        "A change stream shows the inserts of all shards.",
        "clients' change streams miss events", change_streams::events;
    Clocks, Deployment, "cluster time",
        "Replies state the cluster time.",
        "the age of reservations is unknown", clocks::stated;
    Clocks, TwoPlaces, "cluster time of all shards",
        "A reply's cluster time isn't before the time of any shard that took part.",
        "in strict mode, two documents may hold one key", clocks::gossip;
    Clocks, Deployment, "clock spread",
        "The servers' clocks differ by less than a quarter of the lease.",
        "nothing; times in logs can't be compared", clocks::spread;
};
