//! Messages of drivers, with things changed in them that no driver would change.

use bson::{Binary, Bson, Decimal128, Document, Regex, Timestamp, doc, oid::ObjectId, spec::BinarySubtype};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// The one ObjectId that no server made.
pub const OBJECT_ID: [u8; 12] = [7; 12];

/// One message about `users` of `database`.
pub fn message(database: &str, random: &mut StdRng) -> Vec<u8> {
    let (mut body, list) = command(random);
    body.insert("$db", database);
    if random.random_bool(0.3) {
        let bytes = random.random::<[u8; 16]>().to_vec();
        let subtype = BinarySubtype::Uuid;
        body.insert("lsid", doc! { "id": Binary { subtype, bytes } });
        body.insert("txnNumber", random.random_range(1_i64..9));
    }
    for _ in 0..random.random_range(0..4) {
        change(&mut body, random);
    }
    let flags = [1 << 1, 1 << 16][random.random_range(0..2)] * u32::from(random.random_bool(0.04));
    let batch = body.get_array(list).ok().cloned();
    let sequence = batch.filter(|_| random.random_bool(0.4)).and_then(|batch| {
        let documents = batch.iter().map(|document| document.as_document()?.to_vec().ok());
        let documents: Option<Vec<Vec<u8>>> = documents.collect();
        documents.map(|documents| (list, documents.concat()))
    });
    if sequence.is_some() && random.random_bool(0.95) {
        body.remove(list);
    }
    let sequences: Vec<(&str, Vec<u8>)> = sequence.into_iter().collect();
    let mut message = op_msg(&body.to_vec().unwrap(), &sequences, flags, 1);
    if random.random_bool(0.25) {
        garble(&mut message, random);
    }
    message
}

/// A whole OP_MSG.
pub fn op_msg(body: &[u8], sequences: &[(&str, Vec<u8>)], flags: u32, request_id: i32) -> Vec<u8> {
    let mut message = Vec::new();
    for field in [0, request_id, 0, 2013] {
        message.extend(field.to_le_bytes());
    }
    message.extend(flags.to_le_bytes());
    message.push(0);
    message.extend(body);
    for (name, documents) in sequences {
        message.push(1);
        let size = i32::try_from(4 + name.len() + 1 + documents.len()).unwrap();
        message.extend(size.to_le_bytes());
        message.extend(name.as_bytes());
        message.push(0);
        message.extend(documents);
    }
    state_length(&mut message);
    message
}

fn state_length(message: &mut [u8]) {
    let length = i32::try_from(message.len()).unwrap();
    message[..4].copy_from_slice(&length.to_le_bytes());
}

/// A command that a driver would send, and the name of its batch.
fn command(random: &mut StdRng) -> (Document, &'static str) {
    let id = random.random_range(0..9);
    let email = format!("{}@x", random.random_range(0..9));
    let update = match random.random_range(0..7) {
        0 => Bson::from(doc! { "$set": { "email": email.clone() } }),
        1 => doc! { "$set": { "x": 5 }, "$unset": { "email": 1 } }.into(),
        2 => doc! { "email": email.clone(), "x": 1 }.into(),
        3 => vec![doc! { "$set": { "email": { "$concat": ["$email", "y"] } } }].into(),
        4 => doc! { "$inc": { "x": 1 } }.into(),
        5 => doc! { "$push": { "list": 7 }, "$setOnInsert": { "email": email.clone() } }.into(),
        _ => doc! { "$rename": { "x": "email" } }.into(),
    };
    let one = doc! { "_id": id + 100, "email": email.clone(), "x": 1 };
    match random.random_range(0..8) {
        0 | 1 => {
            let other = doc! { "_id": id, "email": format!("{id}@x") };
            let ordered = random.random_bool(0.5);
            (
                doc! { "insert": "users", "documents": [one, other], "ordered": ordered },
                "documents",
            )
        }
        2 | 3 => {
            let upsert = random.random_bool(0.3);
            let statement = doc! { "q": { "_id": id }, "u": update, "upsert": upsert };
            (
                doc! { "update": "users", "updates": [statement], "ordered": true },
                "updates",
            )
        }
        4 => {
            let statement = doc! { "q": { "email": email }, "limit": 1 };
            (
                doc! { "delete": "users", "deletes": [statement, { "q": { "_id": id }, "limit": 0 }] },
                "deletes",
            )
        }
        5 => {
            let query = doc! { "_id": id };
            (
                doc! { "findAndModify": "users", "query": query, "update": update, "new": true, "upsert": false },
                "",
            )
        }
        6 => (
            doc! { "findAndModify": "users", "query": { "email": email }, "remove": true },
            "",
        ),
        _ => (
            doc! { "find": "users", "filter": { "email": email }, "sort": { "_id": 1 } },
            "",
        ),
    }
}

const NAMES: [&str; 36] = [
    "$db",
    "ordered",
    "q",
    "u",
    "limit",
    "multi",
    "upsert",
    "c",
    "hint",
    "collation",
    "arrayFilters",
    "new",
    "remove",
    "fields",
    "sort",
    "bypassDocumentValidation",
    "comment",
    "let",
    "stmtId",
    "stmtIds",
    "documents",
    "updates",
    "deletes",
    "query",
    "update",
    "_id",
    "email",
    "x",
    "$set",
    "$inc",
    "$readPreference",
    "writeConcern",
    "insert",
    "$expr",
    "apiVersion",
    "a.b",
];

fn value(random: &mut StdRng) -> Bson {
    match random.random_range(0..24) {
        0 => Bson::Null,
        1 => true.into(),
        2 => false.into(),
        3 => 0.into(),
        4 => 1.into(),
        5 => (-1).into(),
        6 => 2.5.into(),
        7 => f64::NAN.into(),
        8 => i64::MAX.into(),
        9 => "users".into(),
        10 => "$x".into(),
        11 => String::new().into(),
        12 => doc! {}.into(),
        13 => Bson::Array(Vec::new()),
        14 => doc! { "email": "3@x" }.into(),
        15 => vec![doc! { "$set": { "email": "new@x" } }].into(),
        16 => vec![1, 2].into(),
        17 => ObjectId::from_bytes(OBJECT_ID).into(),
        18 => Bson::Timestamp(Timestamp { time: 5, increment: 1 }),
        19 => Bson::RegularExpression(Regex {
            pattern: "x".try_into().unwrap(),
            options: "".try_into().unwrap(),
        }),
        20 => ["1.5", "0", "-0E+3"][random.random_range(0..3)]
            .parse::<Decimal128>()
            .unwrap()
            .into(),
        21 => Bson::Undefined,
        22 => Bson::MinKey,
        _ => doc! { "w": 1 }.into(),
    }
}

/// Changes one thing, somewhere in the document.
fn change(document: &mut Document, random: &mut StdRng) {
    let names: Vec<String> = document.keys().cloned().collect();
    let Some(name) = names.choose(random) else {
        document.insert(*NAMES.choose(random).unwrap(), value(random));
        return;
    };
    if random.random_bool(0.6) {
        match document.get_mut(name) {
            Some(Bson::Document(inner)) => return change(inner, random),
            Some(Bson::Array(elements)) if !elements.is_empty() => {
                let at = random.random_range(0..elements.len());
                match &mut elements[at] {
                    Bson::Document(inner) => change(inner, random),
                    other => *other = value(random),
                }
                return;
            }
            _ => {}
        }
    }
    match random.random_range(0..5) {
        0 => drop(document.insert(name.clone(), value(random))),
        1 => drop(document.remove(name)),
        2 => {
            let held = document.remove(name).unwrap();
            document.insert(*NAMES.choose(random).unwrap(), held);
        }
        3 => {
            // Another one may come to be first, and with it another command.
            let held = document.remove(name).unwrap();
            document.insert(name.clone(), held);
        }
        _ => drop(document.insert(*NAMES.choose(random).unwrap(), value(random))),
    }
}

/// Changes bytes after the header, whatever they mean.
fn garble(message: &mut Vec<u8>, random: &mut StdRng) {
    for _ in 0..random.random_range(1..3) {
        let at = random.random_range(20..message.len());
        match random.random_range(0..4) {
            0 => message[at] ^= 1 << random.random_range(0..8),
            1 => message[at] = random.random(),
            2 => drop(message.remove(at)),
            _ => message.insert(at, random.random()),
        }
    }
    state_length(message);
}
