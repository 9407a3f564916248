//! Statements that the stand-in once sent elsewhere, or refused in other words.

use bson::{Bson, Document, doc};

use super::Statement;

/// All of them.
pub fn all() -> Vec<Statement> {
    let found = reads().into_iter().map(|(collection, filter)| {
        let find = doc! { "filter": filter };
        Statement::both("clusterFind", "find", collection, find)
    });
    let updated = updates().into_iter().map(|(collection, statement)| {
        let update = doc! { "updates": [statement] };
        Statement::both("clusterUpdate", "update", collection, update)
    });
    let deleted = deletes().into_iter().map(|(collection, statement)| {
        let delete = doc! { "deletes": [statement] };
        Statement::both("clusterDelete", "delete", collection, delete)
    });
    found.chain(updated).chain(deleted).collect()
}

fn reads() -> Vec<(&'static str, Document)> {
    let nan = f64::NAN;
    vec![
        // A comparison holds for one type only.
        ("by_k", doc! { "k": { "$gt": 5 } }),
        ("by_k", doc! { "k": { "$lt": "b" } }),
        ("by_k", doc! { "k": { "$gte": true } }),
        ("by_k", doc! { "k": { "$lte": Bson::Null } }),
        ("by_k", doc! { "k": { "$gt": nan } }),
        ("by_k", doc! { "k": { "$in": [10, Bson::MaxKey] } }),
        ("by_k", doc! { "k": Bson::MaxKey }),
        ("by_k", doc! { "k": { "$ne": 10 } }),
        ("by_k", doc! { "k": { "$not": { "$gt": 10 } } }),
        ("by_k", doc! { "k": { "$exists": false } }),
        ("by_k", doc! { "k": [5, 25] }),
        ("by_k", doc! { "k": { "$mod": [2, 0] } }),
        ("by_k", doc! { "k": { "$type": ["string", "null"] } }),
        (
            "by_k",
            doc! { "$and": [{ "k": { "$type": "int" } }, { "k": { "$in": [nan, []] } }] },
        ),
        (
            "by_k",
            doc! { "$and": [{ "k": { "$mod": [2, 0] } }, { "k": { "$in": [nan, Bson::Null] } }] },
        ),
        (
            "by_k",
            doc! { "$and": [{ "k": { "$lt": 5 } }, { "k": { "$in": [nan, []] } }] },
        ),
        (
            "by_k",
            doc! { "$nor": [{ "k": { "$in": [10] } }], "k": { "$in": [10, 15, 25] } },
        ),
        ("by_k", doc! { "$expr": { "$gt": ["$k", { "$literal": "a" }] } }),
        (
            "by_k",
            doc! { "k": { "$in": ["A", "c"] }, "$nor": [{ "$expr": { "$gt": ["$k", { "$literal": "0" }] } }] },
        ),
        (
            "by_id",
            doc! { "$expr": { "$eq": ["$_id", { "$literal": Bson::Null }] } },
        ),
        ("by_id", doc! { "_id": true, "$expr": false }),
        ("by_id", doc! { "_id": { "$in": [] } }),
        ("by_hash", doc! { "k": [5] }),
        ("by_hash", doc! { "k": { "$exists": false } }),
        (
            "by_id_hash",
            doc! { "$expr": { "$eq": ["$_id", 25] }, "$or": [{ "_id": 10 }, { "_id": 10.0 }] },
        ),
        ("by_nested", doc! { "a.b": { "$all": [25] } }),
        ("by_nested", doc! { "a": { "c": 5 } }),
        // Only the first field of several values makes several ranges.
        ("by_two", doc! { "a": { "$in": [5, 25] }, "b": { "$in": [1, "c"] } }),
        ("by_two", doc! { "$or": [{ "a": 5, "b": 1 }, { "a": 25, "b": "c" }] }),
        ("by_two", doc! { "a": 5, "$or": [{ "b": 1 }, { "b": "c" }] }),
    ]
}

fn updates() -> Vec<(&'static str, Document)> {
    let set = || doc! { "$set": { "x": 1 } };
    let collation = || doc! { "locale": "en", "strength": 2 };
    vec![
        ("by_k", doc! { "q": { "_id": 25, "k": { "$lte": 0 } }, "u": set() }),
        ("by_k", doc! { "q": { "x": f64::NAN }, "u": set(), "hint": { "x": 1 } }),
        ("by_k", doc! { "q": { "k": Bson::MaxKey }, "u": set(), "upsert": true }),
        (
            "by_k",
            doc! { "q": { "k": "a" }, "u": set(), "upsert": true, "collation": collation() },
        ),
        (
            "by_k",
            doc! { "q": { "k": 5, "$and": [{ "k": 5 }] }, "u": set(), "upsert": true },
        ),
        (
            "by_k",
            doc! { "q": { "k": 5, "x": { "$in": [] } }, "u": set(), "upsert": true },
        ),
        (
            "by_hash",
            doc! { "q": { "k": 25 }, "u": set(), "upsert": true, "collation": collation() },
        ),
        (
            "by_nested",
            doc! { "q": { "a.b": 5, "a.b.x": 1 }, "u": set(), "upsert": true },
        ),
        (
            "by_nested",
            doc! { "q": { "a": { "c": 5 } }, "u": set(), "upsert": true },
        ),
        ("by_nested_hash", doc! { "q": { "_id": { "h": [], "y": 1 } }, "u": {} }),
        ("by_id", doc! { "q": { "_id": "A" }, "u": {}, "collation": collation() }),
        ("by_k_collated", doc! { "q": { "_id": "ab" }, "u": set() }),
        (
            "by_k_collated",
            doc! { "q": { "_id": "ab" }, "u": set(), "collation": collation() },
        ),
        (
            "by_k_collated",
            doc! { "q": { "_id": "ab" }, "u": set(), "collation": { "locale": "simple" } },
        ),
    ]
}

fn deletes() -> Vec<(&'static str, Document)> {
    vec![
        ("by_k", doc! { "q": { "k": Bson::MaxKey }, "limit": 1 }),
        (
            "by_k",
            doc! { "q": { "x": bson::Regex { pattern: bson::cstr!("^a").into(), options: bson::cstr!("i").into() } }, "limit": 1 },
        ),
        ("by_id_hash", doc! { "q": { "_id": { "$in": [10, 10.0] } }, "limit": 1 }),
        ("by_id_hash", doc! { "q": { "$expr": false }, "limit": 1 }),
    ]
}
