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
    [
        of_versions_and_privileges(),
        of_sharding(),
        of_transactions(),
        of_retries_and_reads(),
        of_errors(),
        of_streams_and_clocks(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_versions_and_privileges() -> Vec<Check> {
    vec![
        Check {
            group: Group::Versions,
            name: "wire version",
            assumption: "Each server speaks the wire version of MongoDB 6.0 or a newer one.",
            at_risk: "a retry may release keys that its first try has used",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(versions::wire(scratch)),
        },
        Check {
            group: Group::Versions,
            name: "release",
            assumption: "The server states its release.",
            at_risk: "nothing",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(versions::release(scratch)),
        },
        Check {
            group: Group::Versions,
            name: "feature version",
            assumption: "The feature version is 6.0 or newer.",
            at_risk: "newer commands are refused",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(versions::features(scratch)),
        },
        Check {
            group: Group::Privileges,
            name: "role",
            assumption: "The user has the privileges that docs/security.md lists for these constraints.",
            at_risk: "a start waits until they are granted",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(privileges::role(scratch)),
        },
    ]
}

fn of_sharding() -> Vec<Check> {
    vec![
        Check {
            group: Group::Sharding,
            name: "moved statement memory",
            assumption: "A chunk that moves takes the memory of retryable writes along.",
            at_risk: "a retry after a move may take effect twice",
            needs: Needs::Cluster,
            run: |scratch| Box::pin(sharding::moved_chunk(scratch)),
        },
        Check {
            group: Group::Sharding,
            name: "equal numbers",
            assumption: "Equal numbers of different types meet on one shard, and count as one key.",
            at_risk: "two documents may hold one key",
            needs: Needs::Scratch,
            run: |scratch| Box::pin(sharding::equal_numbers(scratch)),
        },
        Check {
            group: Group::Sharding,
            name: "balancer",
            assumption: "The balancer, draining shards and zones are as the operator expects.",
            at_risk: "nothing; a start waits for chunks under way",
            needs: Needs::Cluster,
            run: |scratch| Box::pin(sharding::balancer(scratch)),
        },
    ]
}

fn of_transactions() -> Vec<Check> {
    vec![
        Check {
            group: Group::Transactions,
            name: "snapshot over shards",
            assumption: "A transaction reads all shards as of one moment, commits on all, and can be committed again.",
            at_risk: "in strict mode, two documents may hold one key",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(transactions::snapshot(scratch)),
        },
        Check {
            group: Group::Transactions,
            name: "commit of an aborted transaction",
            assumption: "The commit of an aborted transaction fails with TransientTransactionError.",
            at_risk: "a write that left nothing may be reported as done",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(transactions::aborted(scratch)),
        },
        Check {
            group: Group::Transactions,
            name: "commit of an unknown transaction",
            assumption: "The commit of a transaction that the servers don't know fails with NoSuchTransaction.",
            at_risk: "a write that left nothing may be reported as done",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(transactions::forgotten(scratch)),
        },
        Check {
            group: Group::Transactions,
            name: "placeholder and insert",
            assumption: "Of a takeover and a late insert of the owner, only one commits, in whatever order they run.",
            at_risk: "in strict mode, two documents may hold one key",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(transactions::conflict(scratch)),
        },
        Check {
            group: Group::Transactions,
            name: "transaction lifetime",
            assumption: "The servers end an open transaction within a minute.",
            at_risk: "keys of a killed process stay taken for longer",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(transactions::lifetime(scratch)),
        },
    ]
}

fn of_retries_and_reads() -> Vec<Check> {
    vec![
        Check {
            group: Group::Retries,
            name: "retried statements",
            assumption: "The reply to a retry names the statements that its first try has carried out (retriedStmtIds).",
            at_risk: "a retry may release keys that its first try has used",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(retries::insert(scratch)),
        },
        Check {
            group: Group::Retries,
            name: "retried findAndModify",
            assumption: "A repeated findAndModify gives the document of its first try, and says so (retriedStmtId).",
            at_risk: "a retry may release keys that its first try has used",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(retries::find_and_modify(scratch)),
        },
        Check {
            group: Group::Retries,
            name: "probe that matches nothing",
            assumption: "A router sends a statement whose query can't match to the shards that the query names.",
            at_risk: "a retry isn't recognised, and may take effect twice",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(retries::probe(scratch)),
        },
        Check {
            group: Group::Reads,
            name: "linearizable read",
            assumption: "A linearizable read over several shards shows every acknowledged document.",
            at_risk: "a key may be taken from a document that holds it",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(reads::linearizable(scratch)),
        },
        Check {
            group: Group::Reads,
            name: "default read concern",
            assumption: "The cluster's default read concern isn't `available`.",
            at_risk: "clients see documents that a moved chunk has left behind",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(reads::default_read(scratch)),
        },
        Check {
            group: Group::Reads,
            name: "default write concern",
            assumption: "The cluster's default write concern is majority.",
            at_risk: "a rollback undoes clients' writes, and leaves their reservations",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(reads::default_write(scratch)),
        },
    ]
}

fn of_errors() -> Vec<Check> {
    vec![
        Check {
            group: Group::Errors,
            name: "duplicate of a unique index",
            assumption: "E11000 of a unique index has keyPattern, keyValue and the index's name.",
            at_risk: "drivers get other errors than from a native index",
            needs: Needs::Scratch,
            run: |scratch| Box::pin(errors::duplicate(scratch)),
        },
        Check {
            group: Group::Errors,
            name: "duplicate of an _id",
            assumption: "E11000 of an embedded _id has keyPattern, keyValue and the index's name.",
            at_risk: "a taken key isn't recognised",
            needs: Needs::Scratch,
            run: |scratch| Box::pin(errors::duplicate_id(scratch)),
        },
        Check {
            group: Group::Errors,
            name: "majority write",
            assumption: "A majority of each shard's members acknowledges a write within ten seconds.",
            at_risk: "no reservation can be made",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(errors::majority(scratch)),
        },
        Check {
            group: Group::Errors,
            name: "write concern timeout",
            assumption: "A write that too few members acknowledge in time is counted, with a writeConcernError.",
            at_risk: "a write that may be rolled back counts as acknowledged",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(errors::unacknowledged(scratch)),
        },
    ]
}

fn of_streams_and_clocks() -> Vec<Check> {
    vec![
        Check {
            group: Group::ChangeStreams,
            name: "events of all shards",
            assumption: "A change stream shows the inserts of all shards.",
            at_risk: "clients' change streams miss events",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(change_streams::events(scratch)),
        },
        Check {
            group: Group::Clocks,
            name: "cluster time",
            assumption: "Replies state the cluster time.",
            at_risk: "the age of reservations is unknown",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(clocks::stated(scratch)),
        },
        Check {
            group: Group::Clocks,
            name: "cluster time of all shards",
            assumption: "A reply's cluster time isn't before the time of any shard that took part.",
            at_risk: "in strict mode, two documents may hold one key",
            needs: Needs::TwoPlaces,
            run: |scratch| Box::pin(clocks::gossip(scratch)),
        },
        Check {
            group: Group::Clocks,
            name: "clock spread",
            assumption: "The servers' clocks differ by less than a quarter of the lease.",
            at_risk: "nothing; times in logs can't be compared",
            needs: Needs::Deployment,
            run: |scratch| Box::pin(clocks::spread(scratch)),
        },
    ]
}
