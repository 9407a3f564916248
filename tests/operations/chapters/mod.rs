//! Every command of the documents, run: chapter by chapter, block by block, as somebody would who follows them. A command that
//! is changed there is another test here; one that can't be run says so beside itself, and tests/operations/documentation checks what
//! can be checked of it.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod place;
mod reader;

use std::collections::BTreeSet;

use crate::documentation::markdown::{Run, pages};
use bson::doc;
use place::Place;
use testbed::{Cluster, ReplicaSet};

#[test]
fn the_readme() {
    let cluster = Cluster::start().unwrap();
    reader::follow("README.md", Place::at(cluster.router_address()));
}

#[test]
fn start() {
    let cluster = Cluster::start().unwrap();
    reader::follow("docs/start.md", Place::at(cluster.router_address()));
}

#[test]
fn operations() {
    let cluster = Cluster::start().unwrap();
    let place = after_the_start(&cluster);
    // The procedures add a constraint on the phone, which these two violate.
    let shared = |id: i32, email: &str| doc! { "_id": id, "email": email, "phone": "555-0100" };
    let documents = [shared(2, "bob@example.com"), shared(3, "cid@example.com")];
    let insert = doc! { "insert": "users", "documents": documents.to_vec() };
    cluster.run("shop", insert).unwrap();
    reader::follow("docs/operations.md", place);
}

#[test]
fn restore() {
    let cluster = Cluster::start().unwrap();
    let place = after_the_start(&cluster);
    place.keyward(&["backfill"]);
    reader::follow("docs/restore.md", place);
}

/// Whoever operates Keyward has followed the chapter on starting: there is a configuration, and a document.
fn after_the_start(cluster: &Cluster) -> Place {
    let key = doc! { "name": "hashed" };
    cluster.shard_collection("shop.users", key, false).unwrap();
    let insert = doc! { "insert": "users", "documents": [{ "_id": 1, "email": "ann@example.com" }] };
    cluster.run("shop", insert).unwrap();
    let place = Place::at(cluster.router_address());
    place.write_file_of("docs/start.md", "keyward.yaml");
    place
}

#[test]
fn security() {
    let secured = ReplicaSet::builder("chapters")
        .root_user("root", "root")
        .start()
        .unwrap();
    reader::follow("docs/security.md", Place::with_users(&secured));
}

#[test]
fn every_document_with_commands_is_followed() {
    let with_commands = pages().into_iter().filter(|page| {
        let mut commands = page
            .blocks()
            .into_iter()
            .filter(|block| ["sh", "js"].contains(&&*block.language));
        commands.any(|block| !matches!(block.run, Run::Not(_) | Run::Stop(_)))
    });
    let with_commands: BTreeSet<String> = with_commands.map(|page| page.path).collect();
    let chapters = ["start", "operations", "restore", "security"].map(|name| format!("docs/{name}.md"));
    let followed = BTreeSet::from_iter(chapters)
        .into_iter()
        .chain(["README.md".to_owned()]);
    assert_eq!(with_commands, followed.collect());
}
