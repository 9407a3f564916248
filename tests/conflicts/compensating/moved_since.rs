//! A statement that names its document by `_id` alone and is sent again after others have moved the document to another
//! shard, removed it, or put another one in its place, perhaps elsewhere. Side by side with an unsharded collection, whose
//! server remembers every statement that it carried out: generated statements, and what others do between the two tries.
//!
//! `KEYWARD_SEED` replays a run.

use bson::{Document, doc};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::both::retries::retryable;
use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users};
use testkit::wire::send;
use testkit::{comparable, natively_unique};

const DATABASE: &str = "gone_elsewhere";
const CASES_EACH: usize = 12;
/// The `_id` of the second document of a statement of two, and of who takes an address over, less those of the case.
const SECOND: i32 = 10_000;
const HEIR: i32 = 20_000;

/// A server with the native index, and Keyward.
struct Pair {
    native: String,
    keyward: String,
}

impl Pair {
    fn run(&self, command: &Document) -> [Document; 2] {
        [&self.native, &self.keyward].map(|address| send(address, DATABASE, command.clone()).unwrap())
    }

    /// All documents of a case, as both have them.
    fn documents(&self, id: i32) -> [Vec<bson::Bson>; 2] {
        let ids = doc! { "$in": [id, id + SECOND, id + HEIR] };
        self.run(&doc! { "find": "users", "filter": { "_id": ids }, "sort": { "_id": 1 } })
            .map(|reply| {
                let cursor = reply.get_document("cursor").unwrap();
                cursor.get_array("firstBatch").unwrap().clone()
            })
    }
}

/// The statements that are sent again, by name.
const KINDS: [&str; 11] = [
    "set",
    "unset",
    "two",
    "numbered",
    "pinned",
    "delete",
    "delete two",
    "pipeline",
    "modify",
    "modify new",
    "take",
];

fn command(kind: &str, id: i32) -> Document {
    let set = |id: i32| doc! { "$set": { "email": email(id, 'b') }, "$inc": { "times": 1 } };
    let update = |updates: Vec<Document>| doc! { "update": "users", "updates": updates };
    let delete = |ids: Vec<i32>| {
        let deletes: Vec<_> = ids
            .into_iter()
            .map(|id| doc! { "q": { "_id": id }, "limit": 1 })
            .collect();
        doc! { "delete": "users", "deletes": deletes, "ordered": false }
    };
    let two = || {
        vec![
            doc! { "q": { "_id": id }, "u": set(id) },
            doc! { "q": { "_id": id + SECOND }, "u": set(id + SECOND) },
        ]
    };
    let modify = |new: bool| doc! { "findAndModify": "users", "query": { "_id": id }, "update": set(id), "new": new };
    match kind {
        "set" => update(vec![doc! { "q": { "_id": id }, "u": set(id) }]),
        "unset" => update(vec![
            doc! { "q": { "_id": id }, "u": { "$unset": { "email": 1 }, "$inc": { "times": 1 } } },
        ]),
        "two" => update(two()),
        "numbered" => {
            let mut numbered = update(two());
            numbered.insert("stmtIds", vec![5, 3]);
            numbered
        }
        "pinned" => update(vec![doc! { "q": { "_id": id, "region": "a" }, "u": set(id) }]),
        "delete" => delete(vec![id]),
        "delete two" => delete(vec![id, id + SECOND]),
        "pipeline" => update(vec![doc! { "q": { "_id": id }, "u": [
            { "$set": { "email": { "$concat": ["$email", "b"] }, "times": { "$add": ["$times", 1] } } },
        ] }]),
        "modify" => modify(false),
        "modify new" => modify(true),
        "take" => doc! { "findAndModify": "users", "query": { "_id": id }, "remove": true },
        _ => unreachable!("{kind}"),
    }
}

fn email(id: i32, letter: char) -> String {
    format!("{id}{letter}")
}

fn user(id: i32, region: &str, letter: char) -> Document {
    doc! { "_id": id, "region": region, "email": email(id, letter), "times": 0 }
}

/// What somebody does to the document with this `_id`.
fn step(id: i32, random: &mut impl Rng) -> Vec<Document> {
    let region = *["a", "z"].choose(random).unwrap();
    let letter = *['a', 'b', 'c'].choose(random).unwrap();
    let set =
        |set: Document| vec![doc! { "update": "users", "updates": [{ "q": { "_id": id }, "u": { "$set": set } }] }];
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
    match random.random_range(0..6) {
        0 => set(doc! { "email": email(id, letter) }),
        1 => set(doc! { "region": region }),
        2 | 3 => set(doc! { "region": region, "email": email(id, letter) }),
        4 => vec![delete, insert(vec![user(id, region, letter)], true)],
        _ => {
            let heir = doc! { "_id": id + HEIR, "region": "z", "email": email(id, letter), "times": 0 };
            vec![insert(vec![heir], true)]
        }
    }
}

/// What of two replies must be the same. A retry that is answered from Keyward's own record isn't marked as one.
fn told(reply: Document, is_recorded: bool) -> Document {
    let mut told: Vec<_> = comparable(reply).into_iter().collect();
    told.retain(|(name, _)| !(is_recorded && name.starts_with("retriedStmtId")));
    told.sort_by(|(one, _), (other, _)| one.cmp(other));
    told.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_is_carried_out_once_wherever_its_document_has_gone() {
    let seed = testkit::given::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let cluster = users(DATABASE);
    let keyward = keyward(cluster, DATABASE, "60s", &[EMAIL]);
    let pair = Pair {
        native: natively_unique(DATABASE).await,
        keyward: keyward.address.clone(),
    };
    for (number, kind) in (0..).zip(std::iter::repeat_n(KINDS, CASES_EACH).flatten()) {
        let id = number + 1;
        let is_recorded = matches!(kind, "pipeline" | "modify" | "modify new" | "take");
        for reply in pair.run(&insert(vec![user(id, "a", 'a'), user(id + SECOND, "z", 'a')], true)) {
            assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
        }
        let retryable = retryable(command(kind, id), 1);
        let mut history = vec![retryable.clone()];
        let [native, keyward] = pair.run(&retryable);
        assert_eq!(told(keyward, false), told(native, false), "seed {seed}: {kind}");
        for _ in 0..random.random_range(1..4) {
            let which = if random.random_bool(0.8) { id } else { id + SECOND };
            for command in step(which, &mut random) {
                let [native, keyward] = pair.run(&command);
                assert_eq!(
                    keyward.get("n"),
                    native.get("n"),
                    "seed {seed}: {kind} {history:?} {command} {keyward}"
                );
                history.push(command);
            }
        }
        let [native, keyward] = pair.run(&retryable);
        let (native, keyward) = (told(native, is_recorded), told(keyward, is_recorded));
        assert_eq!(keyward, native, "seed {seed}: {kind} {history:#?}");
        let [native, keyward] = pair.documents(id);
        assert_eq!(keyward, native, "seed {seed}: {kind} {history:#?}");
        if kind == "unset" {
            // Only one can be without an address.
            pair.run(&doc! { "delete": "users", "deletes": [{ "q": { "_id": id }, "limit": 1 }] });
        }
    }
    assert_agreement(cluster, DATABASE, "email").await;
}
