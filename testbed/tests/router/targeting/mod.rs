//! The stand-in sends each statement to the shards to which MongoDB's own router sends it, and refuses what that refuses.
//!
//! A shard of 6.0 has the router's code in it, under commands of its own: `clusterFind`, `clusterAggregate`, `clusterInsert`,
//! `clusterUpdate` and `clusterDelete`. Each statement runs through those of shard0 and through the stand-in, with a comment of
//! its own. The shards' profilers then show which of them were asked. `KEYWARD_SEED` replays a run, `KEYWARD_STATEMENTS` is the
//! number of statements.
//!
//! There is no such form of `count`, `distinct` and `findAndModify`. A router targets `count` and `distinct` as a find with the
//! same query, and `findAndModify` by the rule of an upsert: the query must name the whole shard key.

mod cases;
mod collections;
mod generate;
mod profile;

use std::collections::BTreeMap;

use bson::{Document, doc};
use rand::{Rng, SeedableRng, rngs::StdRng};
use testbed::Cluster;
use testbed::command::{CommandError, Connection};

use collections::Sharded;
use generate::Generator;
use profile::Profile;

const DATABASE: &str = "targeting";
const STATEMENTS: u64 = 3000;

/// A statement in the form for a shard's router and in the form for the stand-in.
#[derive(Debug)]
pub struct Statement {
    /// The command for the router inside a shard.
    pub inside: Document,
    /// The command for the stand-in.
    pub outside: Document,
    /// The first form is that of an upsert, the second that of a `findAndModify`, which refuses in other words.
    pub is_find_and_modify: bool,
}

impl Statement {
    /// The same but for the command's name.
    pub fn both(inside: &str, outside: &str, collection: &str, rest: Document) -> Self {
        let command = |name: &str| {
            let name = (name.to_owned(), collection.into());
            std::iter::once(name).chain(rest.clone()).collect()
        };
        Statement {
            inside: command(inside),
            outside: command(outside),
            is_find_and_modify: false,
        }
    }
}

/// What became of a statement.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// The shards that were asked.
    shards: Vec<String>,
    /// The router's own refusal. After a shard was asked, an error is that shard's business.
    refusal: Option<(i32, String)>,
}

#[test]
fn statements_go_where_the_servers_own_router_sends_them() {
    let seed = number("KEYWARD_SEED").unwrap_or_else(|| rand::rng().random());
    println!("KEYWARD_SEED={seed}");
    let cluster = Cluster::builder().shards(3).start().unwrap();
    let collections = collections::create(&cluster);
    let mut generator = Generator::new(StdRng::seed_from_u64(seed));
    let generated = 0..number("KEYWARD_STATEMENTS").unwrap_or(STATEMENTS);
    let mut statements = cases::all();
    statements.extend(generated.map(|number| {
        let collection = &collections[number as usize % collections.len()];
        generator.statement(collection)
    }));
    compare(&cluster, &collections, &statements);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn compare(cluster: &Cluster, collections: &[Sharded], statements: &[Statement]) {
    let inside = cluster.shards()[0].primary().unwrap().address();
    // Where a `mongos` is installed, too, it is the stand-in that is judged.
    let stand_in = cluster.another_router().unwrap();
    stand_in.fold_falsehoods(false);
    let outside = stand_in.address();
    for (address, find) in [(&inside, "clusterFind"), (&outside, "find")] {
        let mut connection = Connection::open(address).unwrap();
        for collection in collections {
            // A router that knows the chunks asks no shard in vain.
            connection.run(DATABASE, doc! { find: collection.name }).unwrap();
        }
    }
    let profile = Profile::start(cluster, DATABASE);
    let mut connections = [&inside, &outside].map(|address| Connection::open(address).unwrap());
    let mut refusals = BTreeMap::new();
    for (number, statement) in statements.iter().enumerate() {
        for (side, command) in [&statement.inside, &statement.outside].into_iter().enumerate() {
            let comment = comment(number, side);
            let mut command = command.clone();
            command.insert("comment", comment.as_str());
            if let Some(refusal) = refusal(connections[side].run(DATABASE, command)) {
                refusals.insert(comment, refusal);
            }
        }
    }
    let asked = profile.asked();
    let mut different = 0;
    for (number, statement) in statements.iter().enumerate() {
        let outcome = |side| {
            let comment = comment(number, side);
            let shards = asked.get(&comment).cloned().unwrap_or_default();
            let refusal = refusals.get(&comment).filter(|_| shards.is_empty()).cloned();
            Outcome { shards, refusal }
        };
        let (mut expected, got) = (outcome(0), outcome(1));
        if let (Some((_, text)), true) = (&mut expected.refusal, statement.is_find_and_modify) {
            *text = refusal_of_find_and_modify(text);
        }
        if expected != got {
            different += 1;
            println!(
                "{}\n{}\n  router   {expected:?}\n  stand-in {got:?}",
                statement.inside, statement.outside
            );
        }
    }
    assert_eq!(different, 0, "of {} statements", statements.len());
}

fn comment(number: usize, side: usize) -> String {
    format!("{number}.{side}")
}

fn refusal_of_find_and_modify(text: &str) -> String {
    match text.strip_prefix("Failed to target upsert by query :: caused by :: ") {
        Some(reason) => reason.to_owned(),
        None => "Query for sharded findAndModify must contain the shard key".to_owned(),
    }
}

fn refusal(reply: Result<Document, CommandError>) -> Option<(i32, String)> {
    match reply {
        Ok(_) => None,
        Err(CommandError::Refused { code, message, .. }) => Some((code, message)),
        Err(other) => panic!("{other}"),
    }
}
