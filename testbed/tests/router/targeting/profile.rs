//! The profilers of a cluster's shards: which shard was asked under which comment.

use std::collections::BTreeMap;

use bson::{Document, doc};
use testbed::Cluster;
use testbed::command::Connection;

/// Room for everything that a test sends, in bytes.
const SIZE: i32 = 256 << 20;
/// `StaleConfig`: the shard did nothing, and the router asks again.
const STALE: i32 = 13388;

/// The profilers of all shards for one database.
pub struct Profile<'a> {
    cluster: &'a Cluster,
    database: &'a str,
}

impl<'a> Profile<'a> {
    /// Has every shard record every command from now on.
    pub fn start(cluster: &'a Cluster, database: &'a str) -> Self {
        for shard in cluster.shards() {
            let create = doc! { "create": "system.profile", "capped": true, "size": SIZE };
            shard.run(database, create).unwrap();
            shard.run(database, doc! { "profile": 2 }).unwrap();
        }
        Profile { cluster, database }
    }

    /// The names of the shards that were asked, by comment.
    pub fn asked(&self) -> BTreeMap<String, Vec<String>> {
        let mut asked: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for shard in self.cluster.shards() {
            let mut connection = Connection::open(&shard.primary().unwrap().address()).unwrap();
            connection.run(self.database, doc! { "profile": 0 }).unwrap();
            for comment in self.comments(&mut connection) {
                asked.entry(comment).or_default().push(shard.name().to_owned());
            }
        }
        asked
    }

    fn comments(&self, connection: &mut Connection) -> Vec<String> {
        let by_comment = doc! { "$group": { "_id": "$command.comment" } };
        let of_statements =
            doc! { "$match": { "command.comment": { "$type": "string" }, "errCode": { "$ne": STALE } } };
        let batch = doc! { "batchSize": i32::MAX };
        let aggregate =
            doc! { "aggregate": "system.profile", "pipeline": [of_statements, by_comment], "cursor": batch };
        let reply = connection.run(self.database, aggregate).unwrap();
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let comment = |found: &Document| found.get_str("_id").unwrap().to_owned();
        batch
            .iter()
            .map(|found| comment(found.as_document().unwrap()))
            .collect()
    }
}
