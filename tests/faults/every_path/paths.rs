//! The ways that a write can take, each as a write about documents of its own: those with the `_id`s from `base` to
//! `base + 9`.

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};

/// A way.
pub struct Path {
    pub name: &'static str,
    /// What is to be sent, one command after the other.
    pub write: fn(i32) -> Vec<Document>,
    pub kind: Kind,
}

/// Who sends it again when its Keyward has died, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The driver: the same command with the same number.
    Retryable,
    /// The application: it may find that a part was done.
    Plain,
    /// The driver: the same command with the same number. A server of this version doesn't know the command, only those that
    /// it stands for.
    Bulk,
    /// The driver's `withTransaction`: the commit is asked for again; everything else begins anew.
    Transaction,
}

/// The documents that are there before the write: that of most ways, and another one.
pub fn there(base: i32) -> Vec<Document> {
    vec![
        doc! { "_id": base, "region": "a", "email": old(base), "group": base, "count": 0 },
        doc! { "_id": base + 5, "region": "z", "email": format!("other{base}@x"), "count": 0 },
    ]
}

/// Both of them, with `change` in each of the statements.
fn both_there(base: i32, change: impl Fn(String) -> Document) -> Vec<Document> {
    let statement = |(query, email): (Document, String)| {
        let mut statement = doc! { "q": query };
        statement.extend(change(email));
        statement
    };
    let others = doc! { "_id": base + 5, "region": "z" };
    let both = [
        (doc! { "_id": base, "region": "a" }, new(base)),
        (others, format!("more{base}@x")),
    ];
    both.map(statement).to_vec()
}

pub fn old(base: i32) -> String {
    format!("old{base}@x")
}

pub fn new(base: i32) -> String {
    format!("new{base}@x")
}

fn update(base: i32, update: impl Into<Bson>) -> Document {
    let one = doc! { "q": { "_id": base, "region": "a" }, "u": update.into() };
    doc! { "update": "users", "updates": [one] }
}

fn find_and_modify(base: i32, update: impl Into<Bson>) -> Document {
    doc! { "findAndModify": "users", "query": { "_id": base, "region": "a" }, "update": update.into(), "new": true }
}

fn insert(base: i32, documents: Vec<Document>, ordered: bool) -> Document {
    let number = |(offset, mut document): (i32, Document)| {
        document.insert("_id", base + offset);
        document
    };
    let documents: Vec<Document> = (1..).zip(documents).map(number).collect();
    doc! { "insert": "users", "documents": documents, "ordered": ordered }
}

fn set_and_count(base: i32) -> Document {
    doc! { "$set": { "email": new(base) }, "$inc": { "count": 1 } }
}

fn retryable(mut command: Document) -> Vec<Document> {
    command.insert("lsid", session());
    command.insert("txnNumber", 1_i64);
    vec![command]
}

fn session() -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } }
}

const fn retried(name: &'static str, write: fn(i32) -> Vec<Document>) -> Path {
    Path {
        name,
        write,
        kind: Kind::Retryable,
    }
}

pub const PATHS: [Path; 27] = [
    retried("insert", |base| {
        retryable(insert(base, vec![doc! { "region": "z", "email": new(base) }], true))
    }),
    retried("insert of several, ordered", |base| {
        let more = doc! { "region": "a", "email": format!("more{base}@x") };
        retryable(insert(
            base,
            vec![doc! { "region": "z", "email": new(base) }, more],
            true,
        ))
    }),
    retried("insert of several, unordered", |base| {
        let more = doc! { "region": "a", "email": format!("more{base}@x") };
        retryable(insert(
            base,
            vec![doc! { "region": "z", "email": new(base) }, more],
            false,
        ))
    }),
    retried("insert with keys of two constraints", |base| {
        let both = doc! { "region": "z", "email": new(base), "phone": base };
        retryable(insert(base, vec![both], true))
    }),
    retried("update that sets a value", |base| {
        retryable(update(base, set_and_count(base)))
    }),
    retried("update of two statements", |base| {
        let one = |email: String| {
            let set = doc! { "$set": { "email": email }, "$inc": { "count": 1 } };
            doc! { "q": { "_id": base, "region": "a" }, "u": set }
        };
        let both = [one(format!("between{base}@x")), one(new(base))];
        retryable(doc! { "update": "users", "updates": both.to_vec() })
    }),
    retried("update of two documents", |base| {
        let change = |email| doc! { "u": { "$set": { "email": email }, "$inc": { "count": 1 } } };
        retryable(doc! { "update": "users", "updates": both_there(base, change) })
    }),
    retried("update of two documents by _id", |base| {
        let change = |email| doc! { "u": { "$set": { "email": email }, "$inc": { "count": 1 } } };
        let mut statements = both_there(base, change);
        for statement in &mut statements {
            statement.get_document_mut("q").unwrap().remove("region");
        }
        retryable(doc! { "update": "users", "updates": statements })
    }),
    retried("delete of two documents", |base| {
        retryable(doc! { "delete": "users", "deletes": both_there(base, |_| doc! { "limit": 1 }) })
    }),
    // Its numbers are no other document's, nor twice those.
    retried("update that computes a value", |base| {
        let change = doc! { "$inc": { "phone": base + 1, "count": 1 }, "$set": { "email": new(base) } };
        retryable(update(base, change))
    }),
    retried("update of two statements that compute", |base| {
        let one = |email: String, phone: i32| {
            let change = doc! { "$inc": { "phone": phone, "count": 1 }, "$set": { "email": email } };
            doc! { "q": { "_id": base, "region": "a" }, "u": change }
        };
        let both = [one(format!("between{base}@x"), base + 1), one(new(base), 2)];
        retryable(doc! { "update": "users", "updates": both.to_vec() })
    }),
    retried("replacement", |base| {
        retryable(update(base, doc! { "region": "a", "email": new(base), "count": 7 }))
    }),
    retried("update by a pipeline", |base| {
        let stage = doc! { "$set": { "email": { "$concat": [new(base), ""] }, "count": { "$add": ["$count", 1] } } };
        retryable(update(base, vec![stage]))
    }),
    retried("update that moves the document to another shard", |base| {
        let moved = doc! { "$set": { "region": "z", "email": new(base) }, "$inc": { "count": 1 } };
        retryable(update(base, moved))
    }),
    retried("upsert", |base| {
        let one = doc! { "q": { "_id": base + 1, "region": "z" }, "u": set_and_count(base), "upsert": true };
        retryable(doc! { "update": "users", "updates": [one] })
    }),
    retried("upsert of an existing document", |base| {
        let one = doc! { "q": { "_id": base, "region": "a" }, "u": set_and_count(base), "upsert": true };
        retryable(doc! { "update": "users", "updates": [one] })
    }),
    retried("upsert by a pipeline", |base| {
        let stage = doc! { "$set": { "email": new(base), "count": { "$add": [{ "$ifNull": ["$count", 0] }, 1] } } };
        let one = doc! { "q": { "_id": base + 1, "region": "z" }, "u": [stage], "upsert": true };
        retryable(doc! { "update": "users", "updates": [one] })
    }),
    retried("findAndModify that upserts", |base| {
        let query = doc! { "_id": base + 1, "region": "z" };
        retryable(
            doc! { "findAndModify": "users", "query": query, "update": set_and_count(base), "upsert": true, "new": true },
        )
    }),
    retried("delete", |base| {
        retryable(doc! { "delete": "users", "deletes": [{ "q": { "_id": base, "region": "a" }, "limit": 1 }] })
    }),
    Path {
        name: "delete of many",
        write: |base| vec![doc! { "delete": "users", "deletes": [{ "q": { "group": base }, "limit": 0 }] }],
        kind: Kind::Plain,
    },
    retried("findAndModify that sets a value", |base| {
        retryable(find_and_modify(base, set_and_count(base)))
    }),
    retried("findAndModify by a pipeline", |base| {
        let stage = doc! { "$set": { "email": new(base), "count": { "$add": ["$count", 1] } } };
        retryable(find_and_modify(base, vec![stage]))
    }),
    retried("findAndModify that removes", |base| {
        retryable(doc! { "findAndModify": "users", "query": { "_id": base, "region": "a" }, "remove": true })
    }),
    Path {
        name: "bulkWrite",
        write: |base| {
            let inserted = doc! { "_id": base + 1, "region": "z", "email": new(base) };
            let change = doc! { "$set": { "email": format!("more{base}@x") }, "$inc": { "count": 1 } };
            let ops = [
                doc! { "insert": 0, "document": inserted },
                doc! { "update": 0, "filter": { "_id": base, "region": "a" }, "updateMods": change },
            ];
            retryable(doc! { "bulkWrite": 1, "ops": ops.to_vec(), "nsInfo": [{ "ns": "DB.users" }] })
        },
        kind: Kind::Bulk,
    },
    Path {
        name: "insert without retries",
        write: |base| vec![insert(base, vec![doc! { "region": "z", "email": new(base) }], true)],
        kind: Kind::Plain,
    },
    Path {
        name: "update without retries",
        write: |base| vec![update(base, set_and_count(base))],
        kind: Kind::Plain,
    },
    Path {
        name: "transaction of the client's",
        write: |base| {
            let mut update = update(base, set_and_count(base));
            let more = doc! { "region": "z", "email": format!("more{base}@x") };
            let mut insert = insert(base, vec![more], true);
            let mut commit = doc! { "commitTransaction": 1 };
            let lsid = session();
            for command in [&mut update, &mut insert, &mut commit] {
                command.extend(doc! { "lsid": lsid.clone(), "txnNumber": 1_i64, "autocommit": false });
            }
            update.insert("startTransaction", true);
            vec![update, insert, commit]
        },
        kind: Kind::Transaction,
    },
];

/// The command with its first `count` statements only; the last one of these alone where it is written as a command of its
/// own. None if it has fewer.
pub fn first_statements(command: &Document, count: usize) -> Option<Document> {
    if let Ok(ops) = command.get_array("ops") {
        let op = ops.get(count.checked_sub(1)?)?.as_document().unwrap();
        return Some(match op.get("document") {
            Some(document) => doc! { "insert": "users", "documents": [document] },
            None => {
                let [query, change] = ["filter", "updateMods"].map(|field| op.get(field).unwrap());
                doc! { "update": "users", "updates": [{ "q": query, "u": change }] }
            }
        });
    }
    let mut command = command.clone();
    let list = ["documents", "updates", "deletes"]
        .into_iter()
        .find(|list| command.contains_key(list));
    match list {
        Some(list) => {
            let statements = command.get_array_mut(list).unwrap();
            if count > statements.len() {
                return None;
            }
            statements.truncate(count);
        }
        None if count > 1 => return None,
        None => {}
    }
    Some(command)
}
