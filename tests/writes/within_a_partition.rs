//! Uniqueness within a partition: keys that begin with the tenant, as many constraints on one collection and as many
//! paths in one as an index may have, sparse or not.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use bson::{Document, doc};
use keyward::constraint::{Constraint, IndexSpec};
use keyward::namespace::Namespace;
use keyward::raw::Doc;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, assert_documents_and_reservations_agree, assert_same_answer, run, shard_on_two};

/// More constraints than ten.
const CONSTRAINTS: usize = 12;

/// Fields `f0`, `f1`, … of a tenant: one constraint each, every second one sparse.
fn of_single_fields() -> Vec<Document> {
    let index = |number: usize| {
        let field = format!("f{number}");
        doc! {
            "key": { "company_id": 1, &field: 1 },
            "name": format!("company_id_1_{field}_1"),
            "sparse": number % 2 == 1,
        }
    };
    (0..CONSTRAINTS).map(index).collect()
}

/// One constraint on the tenant and as many more paths as make `paths` in all.
fn of_paths(paths: usize) -> Document {
    let more = (1..paths).map(|number| (format!("p.f{number}"), 1.into()));
    let key: Document = std::iter::once(("company_id".to_owned(), 1.into()))
        .chain(more)
        .collect();
    doc! { "key": key, "name": format!("of_{paths}"), "sparse": true }
}

/// `members`, on two shards behind a Keyward with these constraints, and natively with these indexes.
async fn prepare(database: &str, indexes: &[Document]) -> Keyward {
    let namespace = format!("{database}.members");
    let (key, at) = (doc! { "region": 1 }, doc! { "region": "m" });
    shard_on_two(Cluster::shared(), &namespace, key, at);
    let native = ReplicaSet::shared().client();
    let mut constraints = String::new();
    for index in indexes {
        let mut constraint = doc! { "collection": &namespace };
        constraint.extend(index.clone());
        // A document's text is JSON, and so YAML.
        constraints += &format!("  - {constraint}\n");
        let mut index = index.clone();
        index.insert("unique", true);
        let reply = run(
            &native,
            database,
            doc! { "createIndexes": "members", "indexes": [index] },
        )
        .await;
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    }
    Keyward::start(&Cluster::shared().uri(), &constraints)
}

async fn same_answers(keyward: &Keyward, database: &str, commands: Vec<Document>) {
    let (client, native) = (keyward.client_without_retries().await, ReplicaSet::shared().client());
    for command in commands {
        assert_same_answer([&native, &client], database, command).await;
    }
}

async fn assert_agreement(database: &str, indexes: &[Document]) {
    for index in indexes {
        let spec = IndexSpec {
            key: index.get_document("key").unwrap().clone(),
            name: Some(index.get_str("name").unwrap().to_owned()),
            sparse: index.get_bool("sparse").unwrap(),
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(Namespace::new(database, "members"), spec).unwrap();
        let keys = |document: &Document| {
            let bytes = document.to_vec().unwrap();
            let keys = constraint.keys(Doc::new(&bytes).unwrap()).unwrap();
            let reserved = keys.iter().map(|key| Document::try_from(key.reservation_id()).unwrap());
            reserved.map(|id| id.get_document("k").unwrap().clone()).collect()
        };
        assert_documents_and_reservations_agree(Cluster::shared(), database, "members", constraint.name(), keys).await;
    }
}

fn insert(documents: Vec<Document>) -> Document {
    doc! { "insert": "members", "documents": documents, "ordered": false }
}

fn update(q: Document, u: Document, multi: bool) -> Document {
    doc! { "update": "members", "updates": [{ "q": q, "u": u, "multi": multi }] }
}

#[tokio::test]
async fn twelve_constraints_on_one_collection() {
    let database = "twelve";
    let indexes = of_single_fields();
    let keyward = prepare(database, &indexes).await;
    // Every member has a value of its own in every field.
    let member = |id: i32, company: i32| {
        let mut member = doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "company_id": company };
        member.extend((0..CONSTRAINTS).map(|field| (format!("f{field}"), format!("{id}").into())));
        member
    };
    let with = |mut member: Document, field: usize, value: &str| {
        member.insert(format!("f{field}"), value);
        member
    };
    let mut commands = vec![insert(vec![member(1, 1), member(2, 1), member(3, 2)])];
    for field in 0..CONSTRAINTS {
        let id = 10 + i32::try_from(field).unwrap();
        commands.push(insert(vec![
            with(member(id, 1), field, "1"),
            with(member(id, 3), field, "1"),
        ]));
        let other = doc! { "$set": { format!("f{field}"): "2" } };
        commands.push(update(doc! { "_id": 1, "region": "z" }, other, false));
        commands.push(update(
            doc! { "_id": 1, "region": "z" },
            doc! { "$unset": { format!("f{field}"): 1 } },
            false,
        ));
    }
    // Of several violations, the first index's is told.
    commands.push(insert(vec![with(with(member(50, 1), 7, "2"), 3, "2")]));
    // With no field at all, and in no company: what is sparse lets both be.
    commands.push(insert(vec![
        doc! { "_id": 60, "region": "a" },
        doc! { "_id": 61, "region": "z" },
    ]));
    commands.push(update(
        doc! { "company_id": 3 },
        doc! { "$inc": { "company_id": 6 } },
        true,
    ));
    commands.push(doc! { "delete": "members", "deletes": [{ "q": { "_id": 2, "region": "a" }, "limit": 1 }] });
    commands.push(insert(vec![with(member(70, 1), 5, "2")]));
    same_answers(&keyward, database, commands).await;
    assert_agreement(database, &indexes).await;
}

#[tokio::test]
async fn seventeen_paths_in_one_constraint_and_as_many_as_an_index_may_have() {
    let database = "seventeen";
    let indexes = [of_paths(17), of_paths(32)];
    let keyward = prepare(database, &indexes).await;
    // Fields `f1` to `f31`, all alike but for one.
    let member = |id: i32, odd: usize, value: i32| {
        let fields = (1..32).map(|field| (format!("f{field}"), if field == odd { value.into() } else { 0.into() }));
        let fields: Document = fields.collect();
        doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "company_id": 1, "p": fields }
    };
    let mut commands = vec![insert(vec![member(0, 1, 0)])];
    for field in 1..32 {
        let id = 10 * i32::try_from(field).unwrap();
        commands.push(insert(vec![
            member(id, field, 1),
            member(id + 1, field, 1),
            member(id + 2, field, 2),
        ]));
    }
    commands.push(update(
        doc! { "_id": 0, "region": "a" },
        doc! { "$set": { "p.f16": 1 } },
        false,
    ));
    commands.push(update(
        doc! { "_id": 0, "region": "a" },
        doc! { "$set": { "p.f16": 3 } },
        false,
    ));
    commands.push(insert(vec![member(400, 0, 0)]));
    // An array in the middle: a key for each element.
    let array: Vec<Document> = (0..3).map(|value| doc! { "f1": value, "f31": 9 }).collect();
    let with_array = |id: i32, region: &str| doc! { "_id": id, "region": region, "company_id": 2, "p": array.clone() };
    commands.push(insert(vec![with_array(500, "a"), with_array(501, "z")]));
    // None of the fields: sparse.
    commands.push(insert(vec![
        doc! { "_id": 600, "region": "a" },
        doc! { "_id": 601, "region": "z" },
    ]));
    same_answers(&keyward, database, commands).await;
    assert_agreement(database, &indexes).await;
}

#[tokio::test]
async fn a_constraint_of_more_paths_than_an_index_may_have_is_refused() {
    let mut constraint = doc! { "collection": "thirty_three.members" };
    constraint.extend(of_paths(33));
    let Err(refused) = Keyward::try_start(&Cluster::shared().uri(), "10s", &format!("  - {constraint}\n")) else {
        panic!("it started");
    };
    assert!(refused.errors.contains("too many compound keys"), "{}", refused.errors);
    let native = ReplicaSet::shared().client();
    let mut index = of_paths(33);
    index.insert("unique", true);
    let reply = run(
        &native,
        "thirty_three",
        doc! { "createIndexes": "members", "indexes": [index] },
    )
    .await;
    assert!(
        reply.get_str("errmsg").unwrap().contains("too many compound keys"),
        "{reply}"
    );
}
