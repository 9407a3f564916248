//! Collections and `$merge` stages that often meet: few documents, few values, every mode.

use bson::{Bson, Document, bson, doc};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

/// A merge, and the documents before it.
#[derive(Debug, Clone)]
pub struct Case {
    pub source: Vec<Document>,
    pub target: Vec<Document>,
    pub command: Document,
}

impl Case {
    /// A router refuses to match by fields without the shard key, `_id`.
    pub fn match_by_shard_key(&mut self) {
        let pipeline = self.command.get_array_mut("pipeline").unwrap();
        let last = pipeline.last_mut().unwrap().as_document_mut().unwrap();
        let stage = last.get_document_mut("$merge").unwrap();
        if stage.get("on").is_some_and(|on| on.to_string().contains("email")) {
            stage.remove("on");
        }
    }

    /// Gives all documents a field inside `place`, and matches by it and the `_id`. A document's `_id` decides the field's value, so
    /// that no two documents have the same `_id`.
    pub fn match_by_nested_shard_key(&mut self) {
        for document in self.source.iter_mut().chain(&mut self.target) {
            let id = document.get("_id").unwrap().to_string();
            let is_even = id.bytes().map(u32::from).sum::<u32>() % 2 == 0;
            document.insert("place", doc! { "n": 1, "region": if is_even { "a" } else { "z" } });
        }
        let pipeline = self.command.get_array_mut("pipeline").unwrap();
        let last = pipeline.last_mut().unwrap().as_document_mut().unwrap();
        let stage = last.get_document_mut("$merge").unwrap();
        stage.insert("on", ["_id", "place.region"]);
        // A router refuses to change the shard key in this way.
        if stage.to_string().contains("$replaceWith") {
            stage.insert("whenMatched", "merge");
            stage.remove("let");
        }
        // Keyward refuses it beside stated fields.
        self.command.remove("collation");
    }
}

/// A case whose collections are `source` and `users`.
pub fn case(random: &mut StdRng) -> Case {
    Case {
        source: source(random),
        target: target(random),
        command: command(random),
    }
}

fn ids(random: &mut StdRng, count: usize) -> Vec<Bson> {
    let mut ids: Vec<Bson> = (1..6).map(Bson::from).collect();
    ids.extend([bson!("a"), bson!("b"), bson!({ "x": 1 })]);
    ids.shuffle(random);
    ids.truncate(count);
    ids
}

fn source(random: &mut StdRng) -> Vec<Document> {
    let count = random.random_range(0..6);
    let emails = [
        bson!("a"),
        bson!("b"),
        bson!("c"),
        bson!("d"),
        bson!(7),
        bson!(7.0),
        Bson::Null,
        bson!(["a", "e"]),
    ];
    let documents = ids(random, count).into_iter().enumerate().map(|(position, id)| {
        let mut document = doc! { "_id": id, "n": i32::try_from(position).unwrap() };
        if random.random_bool(0.9) {
            // Most merges get past the documents that can't be matched by their e-mail.
            let choice = match random.random_bool(0.8) {
                true => &emails[..6],
                false => &emails[..],
            };
            document.insert("email", choice.choose(random).unwrap().clone());
        }
        document
    });
    documents.collect()
}

fn target(random: &mut StdRng) -> Vec<Document> {
    let count = random.random_range(0..5);
    let mut emails = vec![bson!("a"), bson!("b"), bson!("c"), bson!("e"), bson!(7)];
    emails.shuffle(random);
    let documents = ids(random, count).into_iter().zip(emails);
    documents
        .map(|(id, email)| doc! { "_id": id, "email": email, "old": true })
        .collect()
}

fn command(random: &mut StdRng) -> Document {
    let before = match random.random_range(0..8) {
        0 => vec![doc! { "$unset": "_id" }],
        1 => vec![doc! { "$set": { "email": "same" } }],
        2 => vec![doc! { "$project": { "email": 1 } }],
        3 => vec![
            doc! { "$group": { "_id": "$email", "email": { "$first": "$email" } } },
            doc! { "$sort": { "_id": 1 } },
        ],
        4 => vec![
            doc! { "$match": { "n": { "$gt": 0 } } },
            doc! { "$set": { "s": "$$g" } },
        ],
        _ => vec![],
    };
    let mut pipeline = before;
    let stage = stage(random);
    // Keyward refuses the two together.
    let may_state_collation = !stage.contains_key("on");
    pipeline.push(doc! { "$merge": stage });
    let mut command = doc! { "aggregate": "source", "pipeline": pipeline, "cursor": {}, "let": { "g": "global" } };
    if random.random_bool(0.1) {
        command.insert("bypassDocumentValidation", true);
    }
    if random.random_bool(0.2) && may_state_collation {
        command.insert("collation", doc! { "locale": "en" });
    }
    if random.random_bool(0.2) {
        command.insert("cursor", doc! { "batchSize": 2 });
    }
    command
}

fn stage(random: &mut StdRng) -> Document {
    let mut stage = doc! { "into": "users" };
    let on = [
        bson!("_id"),
        bson!(["_id"]),
        bson!("email"),
        bson!("email"),
        bson!(["email"]),
        bson!("n"),
        bson!(["email", "_id"]),
        bson!(["email", "email"]),
    ];
    if random.random_bool(0.6) {
        stage.insert("on", on.choose(random).unwrap().clone());
    }
    let pipelines = [
        bson!([{ "$set": { "email": "$$new.email", "from": "$email" } }]),
        bson!([{ "$set": { "email": { "$concat": ["$email", "x"] } } }, { "$unset": "old" }]),
        bson!([{ "$replaceWith": { "$mergeObjects": ["$$new", { "g": "$$g" }] } }]),
        bson!([{ "$set": { "v": "$$v" } }]),
        bson!([{ "$set": { "email": "$$w" } }]),
        bson!([]),
        bson!([{ "$match": {} }]),
    ];
    let matched = ["replace", "keepExisting", "merge", "fail", "other"];
    match random.random_range(0..10) {
        0..6 => drop(stage.insert("whenMatched", *matched[..4].choose(random).unwrap())),
        6..9 => {
            stage.insert("whenMatched", pipelines.choose(random).unwrap().clone());
            let variables = [
                doc! { "v": "$n" },
                doc! { "new": "$$ROOT", "v": { "$add": ["$n", 1] }, "w": "$email" },
                doc! { "w": { "$toString": "$n" }, "v": "$missing" },
                doc! {},
            ];
            if random.random_bool(0.6) {
                stage.insert("let", variables.choose(random).unwrap().clone());
            }
        }
        _ => {}
    }
    if random.random_bool(0.02) {
        stage.insert("whenMatched", matched[4]);
    }
    if random.random_bool(0.7) {
        stage.insert("whenNotMatched", *["insert", "discard", "fail"].choose(random).unwrap());
    }
    stage
}
