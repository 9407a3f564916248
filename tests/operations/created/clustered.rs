//! Clients' constraints and clustered collections with a default collation, in which a server misses documents by their text `_id`s.

use testkit::shard_clustered_and_collated_on_two;

use super::*;

/// The text of the refusals.
fn refusal(database: &str) -> String {
    format!("{database}.users is clustered and has a default collation")
}

/// A `createIndexes`, a `collMod` and a file that state a constraint on such a collection.
#[test]
fn a_clustered_collection_with_a_default_collation_gets_no_constraint() {
    const DATABASE: &str = "created_on_clustered";
    let cluster = Cluster::alone().unwrap();
    shard_clustered_and_collated_on_two(&cluster, &format!("{DATABASE}.users"));
    let keyward = start_at(&cluster);
    let refused = |command: &Document| {
        let refused = reply(&keyward, DATABASE, command);
        assert_eq!(refused.get_i32("code").ok(), Some(67), "{refused}");
        assert!(
            refused.get_str("errmsg").unwrap().contains(&refusal(DATABASE)),
            "{refused}"
        );
    };
    refused(&create([unique_email()]));
    assert_eq!(indexes(&keyward, DATABASE).len(), 2);
    let plain = doc! { "key": { "email": 1 }, "name": "email_1" };
    must(&reply(&keyward, DATABASE, &create([plain])));
    refused(&doc! { "collMod": "users", "index": { "name": "email_1", "unique": true } });

    let constraint = format!("[{{ collection: {DATABASE}.users, key: {{ email: 1 }} }}]");
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: {constraint}\n", cluster.uri());
    let reloaded = keyward.reload(&settings);
    assert_eq!(reloaded["outcome"], "refused", "{reloaded}");
    assert!(reloaded.to_string().contains(&refusal(DATABASE)), "{reloaded}");
    assert_eq!(insert_pair(&keyward, DATABASE, 1, "x"), [Ok(()), Ok(())]);
}

/// The constraint stops no start, and nothing is written that it doesn't protect.
#[test]
fn a_constraint_whose_collection_became_clustered_and_collated_lets_no_write_through() {
    const DATABASE: &str = "created_and_clustered";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let before = start_at(&cluster);
    must(&reply(&before, DATABASE, &create([unique_email()])));
    before
        .insert(DATABASE, doc! { "_id": "A", "region": "a", "email": "x" })
        .unwrap();
    before.stop();
    // Past Keyward.
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_clustered_and_collated_on_two(&cluster, &format!("{DATABASE}.users"));

    let after = start_at(&cluster);
    assert_eq!(
        after.insert(DATABASE, doc! { "_id": "B", "region": "z", "email": "y" }),
        Err(115)
    );
    let statement = |statement: Document| {
        let reply = reply(&after, DATABASE, &statement);
        reply.get_i32("code").ok()
    };
    let update = doc! { "q": { "_id": "A" }, "u": { "$set": { "email": "y" } } };
    assert_eq!(statement(doc! { "update": "users", "updates": [update] }), Some(115));
    let delete = doc! { "q": { "_id": "A", "region": "a" }, "limit": 1 };
    assert_eq!(statement(doc! { "delete": "users", "deletes": [delete] }), Some(115));
    let warning = "a client made a unique constraint on a collection that is clustered and has a default collation now";
    assert!(after.log().contains(warning), "{}", after.log());
    // The server has no such index, so it answers with an error.
    reply(&after, DATABASE, &doc! { "dropIndexes": "users", "index": "email_1" });
    until_no_constraint(&after, DATABASE);
}
