//! Sequences that once differed, each as short as it became, and those that no generator would hit upon.

use bson::{Bson, Document, doc};

use crate::every_write::generate::Step;
use crate::every_write::{Schema, start};

/// Runs the steps on a collection of their own with `indexes`.
fn same(name: &str, indexes: &[Document], steps: Vec<Step>) {
    let named = indexes.iter().map(|key| {
        let name: Vec<String> = key.iter().map(|(path, order)| format!("{path}_{order}")).collect();
        doc! { "key": key.clone(), "name": name.join("_") }
    });
    same_with(name, named.collect(), steps);
}

/// The same with the whole definitions of the indexes.
fn same_with(name: &str, indexes: Vec<Document>, steps: Vec<Step>) {
    let schema = Schema::new("found", name, indexes);
    let keyward = start(std::slice::from_ref(&schema));
    let mut pair = schema.pair([&keyward, &keyward]);
    if let Err(difference) = pair.run(&steps) {
        panic!("{difference}");
    }
}

fn insert(name: &str, documents: Vec<Document>) -> Document {
    doc! { "insert": name, "documents": documents }
}

fn update(name: &str, query: Document, update: Document) -> Document {
    doc! { "update": name, "updates": [{ "q": query, "u": update }] }
}

fn committed(commands: Vec<Document>) -> Step {
    let commit = true;
    Step::Transaction { commands, commit }
}

fn at(id: i32, a: i32) -> Document {
    doc! { "_id": id, "region": crate::every_write::generate::region(id), "a": a }
}

/// Seed 3383576786116321: the third document's duplicate was told, too.
#[test]
fn an_ordered_insert_tells_its_first_error_only() {
    let name = "ordered";
    let steps = vec![
        Step::Command(insert(name, vec![at(2, 1), at(3, 2)])),
        Step::Command(insert(name, vec![at(2, 5), at(8, 6), at(13, 2)])),
        Step::Command(insert(name, vec![at(8, 6)])),
    ];
    same(name, &[doc! { "a": 1 }], steps);
}

/// It was tried again until its time was over: who holds the key doesn't match the rest of the query.
#[test]
fn an_upsert_that_asks_for_more_than_the_key_tells_the_duplicate() {
    let name = "upsert";
    let upsert = |query: Document, id: i32| {
        let statement = doc! { "q": query, "u": { "$setOnInsert": { "_id": id }, "$set": { "n": 1 } }, "upsert": true };
        doc! { "update": name, "updates": [statement], "maxTimeMS": 20_000 }
    };
    let steps = vec![
        Step::Command(insert(name, vec![at(1, 1)])),
        Step::Command(upsert(doc! { "a": 1, "region": "a" }, 2)),
        Step::Command(upsert(doc! { "a": 2, "region": "a" }, 2)),
    ];
    same(name, &[doc! { "a": 1 }], steps);
}

/// The second statement met an aborted transaction, and that was told instead of the first one's error.
#[test]
fn an_unordered_command_in_a_transaction_ends_at_its_first_error() {
    let name = "unordered";
    let updates = vec![
        doc! { "q": { "_id": 1 }, "u": { "$set": { "a": 2 } } },
        doc! { "q": { "_id": 2 }, "u": { "$set": { "a": 3 } } },
    ];
    let steps = vec![
        Step::Command(insert(name, vec![at(1, 1), at(2, 2)])),
        committed(vec![doc! { "update": name, "updates": updates, "ordered": false }]),
    ];
    same(name, &[doc! { "a": 1 }], steps);
}

/// It was called transient, for ever: after the abort nobody held the key.
#[test]
fn a_transaction_sees_the_duplicates_of_what_it_wrote_itself() {
    let name = "own";
    let steps = vec![
        committed(vec![insert(name, vec![at(1, 1)]), insert(name, vec![at(2, 1)])]),
        committed(vec![
            insert(name, vec![at(1, 1), at(2, 2)]),
            update(name, doc! { "_id": 2, "region": "a" }, doc! { "$set": { "a": 1 } }),
        ]),
        committed(vec![insert(name, vec![at(1, 1), at(2, 2), at(3, 2)])]),
        // What it gave up itself it may take again.
        committed(vec![
            insert(name, vec![at(1, 1)]),
            doc! { "delete": name, "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] },
            insert(name, vec![at(2, 1)]),
        ]),
    ];
    same(name, &[doc! { "a": 1 }], steps);
}

/// Seed 1704448934213641: the second document's duplicate was told before the first one's `_id`.
#[test]
fn an_insert_in_a_transaction_fails_at_the_first_document_that_does() {
    let name = "first";
    let steps = vec![
        Step::Command(insert(name, vec![at(10, 1), at(11, 2)])),
        committed(vec![insert(name, vec![at(10, 3), at(3, 2)])]),
        committed(vec![insert(name, vec![at(4, 4), at(3, 2), at(10, 5)])]),
        committed(vec![insert(name, vec![at(4, 4), at(10, 1)])]),
    ];
    same(name, &[doc! { "a": 1 }], steps);
}

/// Seed 224666086417329: the documents of the other shard were counted, though they were undone.
#[test]
fn an_update_of_many_that_is_undone_counts_nothing() {
    let name = "undone";
    let of_many = doc! { "q": {}, "u": { "$inc": { "a": 5 } }, "multi": true, "hint": { "_id": 1 } };
    let text = doc! { "_id": 3, "region": "z", "a": "text" };
    let steps = vec![
        Step::Command(insert(name, vec![at(2, 1), text])),
        committed(vec![doc! { "update": name, "updates": [of_many] }]),
    ];
    same(name, &[doc! { "a": 1 }], steps);
}

/// The reservations' routes move along: the look at what is left compares them.
#[test]
fn a_document_that_moves_to_another_shard_keeps_its_keys() {
    let name = "moved";
    let to = |id: i32, region: &str| {
        let mut command = update(
            name,
            doc! { "_id": id, "region": crate::every_write::generate::region(id) },
            doc! {
                "$set": { "region": region }
            },
        );
        command.insert("txnNumber", 1_i64);
        command
    };
    let steps = vec![
        Step::Command(insert(name, vec![at(1, 1), at(2, 2)])),
        Step::Command(to(2, "z")),
        Step::Command(insert(name, vec![at(4, 2)])),
        committed(vec![update(
            name,
            doc! { "_id": 1, "region": "z" },
            doc! {
                "$set": { "region": "a", "a": 3 }
            },
        )]),
        Step::Command(insert(name, vec![at(6, 1), at(8, 3)])),
    ];
    same(name, &[doc! { "a": 1 }], steps);
}

/// It was let by: each element that the server makes on the way to the position gives the key null.
#[test]
fn what_is_set_behind_the_end_of_an_array_may_be_a_duplicate() {
    let name = "behind";
    let holding =
        |id: i32, x: &str| doc! { "_id": id, "region": crate::every_write::generate::region(id), "i": [{ "x": x }] };
    let set = |id: i32, operators: Document| {
        let query = doc! { "_id": id, "region": crate::every_write::generate::region(id) };
        Step::Command(update(name, query, operators))
    };
    let modify = |id: i32, update: Document| {
        let query = doc! { "_id": id, "region": crate::every_write::generate::region(id) };
        Step::Command(doc! { "findAndModify": name, "query": query, "update": update })
    };
    let steps = vec![
        Step::Command(insert(name, vec![holding(1, "x"), holding(2, "y"), holding(3, "z")])),
        set(2, doc! { "$set": { "i.0.y": 4 } }),
        set(1, doc! { "$set": { "i.1.y": 5 } }),
        set(2, doc! { "$set": { "i.1.y": 5 } }),
        set(2, doc! { "$inc": { "i.3.y": 5 }, "$set": { "i.0.x": "w" } }),
        modify(3, doc! { "$push": { "i.2.y": 5 } }),
        modify(3, doc! { "$unset": { "i.2.y": 1 } }),
        set(1, doc! { "$pop": { "i": 1 } }),
        modify(3, doc! { "$push": { "i.2.y": 5 } }),
    ];
    same(name, &[doc! { "i.x": 1 }], steps);
}

/// It was let through: a pipeline makes documents of an array's scalars, and only in those there is something missing.
#[test]
fn a_pipeline_that_makes_documents_of_scalars_may_move_one_into_a_filter() {
    let outside = || bson::bson!([5]);
    let filters = [
        doc! { "t.b": Bson::Null },
        doc! { "t.b": { "$lte": Bson::Null } },
        doc! { "t": { "$type": "object" } },
    ];
    for (number, filter) in filters.into_iter().enumerate() {
        let name = &format!("into_a_filter_{number}");
        let at = |id: i32| doc! { "_id": id, "region": crate::every_write::generate::region(id) };
        let holding = |id: i32, a: i32, t: Bson| {
            let mut document = at(id);
            document.extend(doc! { "a": a, "t": t });
            document
        };
        let inside = || doc! {};
        let by = |id: i32, stage: Document| {
            Step::Command(doc! { "update": name, "updates": [{ "q": at(id), "u": [stage] }] })
        };
        let modify = |id: i32, stage: Document| {
            Step::Command(doc! { "findAndModify": name, "query": at(id), "update": [stage] })
        };
        let steps = vec![
            Step::Command(insert(
                name,
                vec![holding(1, 1, outside()), holding(2, 1, inside().into())],
            )),
            by(1, doc! { "$set": { "t.c": 1 } }),
            by(1, doc! { "$addFields": { "t.c.d.e": 1 } }),
            modify(1, doc! { "$set": { "t.c": 1 } }),
            by(1, doc! { "$unset": "t.c" }),
            // The first one goes in, and is in the way of the others.
            Step::Command(insert(name, vec![holding(3, 2, outside()), holding(4, 2, outside())])),
            by(3, doc! { "$set": { "t.c.d": 1 } }),
            modify(4, doc! { "$set": { "t.c.d": 1 } }),
            Step::Command(insert(name, vec![holding(6, 2, inside().into())])),
        ];
        let index = doc! { "key": { "a": 1 }, "name": "a_1", "partialFilterExpression": filter };
        same_with(name, vec![index], steps);
    }
}
