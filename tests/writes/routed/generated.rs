//! Generated documents, filters and options: the reply through Keyward is the router's own.

use bson::{Bson, Document, doc};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::given;
use testkit::wire::Connection;

use super::{REGIONS, direct, outcomes, start};

const DATABASE: &str = "routed_generated";
const DOCUMENTS: usize = 150;
const READS: usize = 600;

fn value(rng: &mut StdRng) -> Bson {
    let number = rng.random_range(0..40);
    match rng.random_range(0..12) {
        0..3 => format!("v{number}").into(),
        3..5 => Bson::Int32(number),
        5 => Bson::Double(f64::from(number)),
        6 => Bson::Int64(number.into()),
        7 => Bson::Double(f64::from(number) + 0.5),
        8 => Bson::Null,
        9 => doc! { "b": number }.into(),
        10 => Bson::Array(
            (0..rng.random_range(0..3))
                .map(|_| Bson::Int32(rng.random_range(0..40)))
                .collect(),
        ),
        _ => Bson::DateTime(bson::DateTime::from_millis(number.into())),
    }
}

fn document(rng: &mut StdRng, id: i32) -> Document {
    let mut document = doc! { "_id": id, "region": *REGIONS.choose(rng).unwrap(), "n": rng.random_range(0..4) };
    for field in ["email", "a", "c"] {
        if rng.random_bool(0.8) {
            document.insert(field, value(rng));
        }
    }
    if rng.random_bool(0.5) {
        let nested: Vec<Document> = (0..2).map(|_| doc! { "b": value(rng) }).collect();
        document.insert(
            "deep",
            if rng.random_bool(0.5) {
                Bson::from(nested[0].clone())
            } else {
                nested.into()
            },
        );
    }
    document
}

fn condition(rng: &mut StdRng) -> Bson {
    let value = value(rng);
    match rng.random_range(0..6) {
        0 => doc! { "$eq": value }.into(),
        1 => doc! { "$gte": value }.into(),
        _ => value,
    }
}

fn filter(rng: &mut StdRng) -> Document {
    let mut filter = match rng.random_range(0..4) {
        0 => doc! { "email": condition(rng) },
        1 => doc! { "a": condition(rng), "c": condition(rng) },
        2 => doc! { "deep.b": condition(rng) },
        _ => doc! { "_id": rng.random_range(0..200) },
    };
    if rng.random_bool(0.3) {
        filter.insert("n", doc! { "$lt": rng.random_range(0..5) });
    }
    match rng.random_bool(0.2) {
        true => doc! { "$and": [filter, {}] },
        false => filter,
    }
}

fn read(rng: &mut StdRng) -> Document {
    let filter = filter(rng);
    match rng.random_range(0..5) {
        0 => doc! { "count": "users", "query": filter },
        1 => doc! { "distinct": "users", "key": *["_id", "email", "n"].choose(rng).unwrap(), "query": filter },
        2 => {
            let group = doc! { "$group": { "_id": "$n", "n": { "$sum": 1 } } };
            let rest = [
                doc! { "$sort": { "_id": 1 } },
                group,
                doc! { "$count": "all" },
                doc! { "$unwind": "$email" },
            ];
            let stages = vec![
                doc! { "$match": filter },
                rest.choose(rng).unwrap().clone(),
                doc! { "$sort": { "_id": 1 } },
            ];
            doc! { "aggregate": "users", "pipeline": stages, "cursor": {} }
        }
        _ => {
            let mut find = doc! { "find": "users", "filter": filter, "sort": { "_id": 1 }, "batchSize": 1000 };
            if rng.random_bool(0.3) {
                find.insert("limit", rng.random_range(0..3));
            }
            if rng.random_bool(0.1) {
                find.insert("skip", rng.random_range(0..3));
            }
            find
        }
    }
}

#[test]
fn every_read_has_the_reply_of_a_broadcast() {
    let seed = given::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let constraints = [
        "key: { email: 1 }",
        "key: { a: 1, c: -1 }, partialFilterExpression: { a: { $exists: true } }",
        "key: { deep.b: 1 }, sparse: true",
        "key: { _id: 1 }",
    ];
    let keyward = start(DATABASE, &constraints);
    let (mut client, mut direct) = (Connection::greeted(&keyward.address), direct());
    let mut inserted = 0;
    for id in 0..DOCUMENTS as i32 {
        let document = document(&mut rng, id);
        let reply = client.run(DATABASE, &doc! { "insert": "users", "documents": [document] });
        inserted += reply.get_i32("n").unwrap_or(0);
    }
    assert!(inserted > 20, "{inserted}");
    let plain = |mut reply: Document| {
        if let Ok(values) = reply.get_array_mut("values") {
            values.sort_by_key(ToString::to_string);
        }
        testkit::in_one_order(reply)
    };
    for _ in 0..READS {
        let read = read(&mut rng);
        let (routed, broadcast) = (client.run(DATABASE, &read), direct.run(DATABASE, &read));
        assert_eq!(
            plain(routed.clone()),
            plain(broadcast.clone()),
            "{read}\n{routed}\n{broadcast}"
        );
    }
    let hits: u64 = ["email_1", "a_1_c_-1", "deep.b_1", "_id_"]
        .map(|name| outcomes(&keyward, &format!("{DATABASE}.users.{name}"))[0])
        .iter()
        .sum();
    assert!(hits > 20, "only {hits} reads were routed");
}
