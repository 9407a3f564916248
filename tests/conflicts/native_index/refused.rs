//! Index specifications that the server refuses.

use bson::{Bson, Document, doc};
use keyward::constraint::IndexSpec;

/// Specifications that the server refuses, and Keyward with the same code and text.
pub fn refused_specs() -> Vec<IndexSpec> {
    let on = |key: Document| IndexSpec {
        key,
        name: Some("n".to_owned()),
        ..Default::default()
    };
    let a = || on(doc! { "a": 1 });
    let mut specs: Vec<IndexSpec> = [
        doc! {},
        doc! { "a": 0 },
        doc! { "a": -0.0 },
        doc! { "a": f64::NAN },
        doc! { "a": true },
        doc! { "a": Bson::Null },
        doc! { "a": {} },
        doc! { "a": [] },
        doc! { "a": "" },
        doc! { "a": "x" },
        doc! { "a": "hashed" },
        doc! { "a": 1, "b": "hashed" },
        doc! { "a": "geoHaystack" },
        doc! { "$**": 1 },
        doc! { "a.$**": 1 },
        doc! { "": 1 },
        doc! { "a.": 1 },
        doc! { ".a": 1 },
        doc! { "a..b": 1 },
        doc! { "$a": 1 },
        doc! { "a.$b": 1 },
        doc! { "$id": 1 },
        doc! { "x".repeat(3000): 1 },
        (0..33).map(|i| (format!("f{i}"), Bson::Int32(1))).collect(),
    ]
    .into_iter()
    .map(on)
    .collect();
    for name in ["", "*", "x\0y", "_id_"] {
        specs.push(IndexSpec {
            name: Some(name.to_owned()),
            ..a()
        });
    }
    specs.push(IndexSpec {
        sparse: true,
        partial_filter_expression: Some(doc! { "a": 1 }),
        ..a()
    });
    let en = |field: &str, value: Bson| doc! { "locale": "en", field: value };
    for collation in [
        doc! {},
        doc! { "locale": 1 },
        doc! { "locale": Bson::Null },
        doc! { "strength": 1 },
        doc! { "locale": "" },
        doc! { "locale": "simple", "x": 1 },
        en("strength", 0.into()),
        en("strength", 6.into()),
        en("strength", (-1).into()),
        en("strength", "2".into()),
        en("strength", true.into()),
        en("caseLevel", 1.into()),
        en("caseFirst", "x".into()),
        en("caseFirst", 1.into()),
        en("numericOrdering", "true".into()),
        en("alternate", "x".into()),
        en("maxVariable", "symbol".into()),
        en("normalization", 0.into()),
        en("backwards", 1.into()),
        en("backwards", Bson::Null),
        en("version", "58.1".into()),
        en("version", 57.1.into()),
        en("Strength", 2.into()),
        doc! { "locale": "en", "strength": 2, "caseFirst": "upper" },
        doc! { "locale": "en", "strength": 1, "backwards": true },
        doc! { "locale": "fr_CA", "strength": 1 },
        doc! { "locale": "mt", "strength": 2 },
    ] {
        specs.push(IndexSpec {
            collation: Some(collation),
            ..a()
        });
    }
    let nested =
        |inner: Document| doc! { "$or": [{ "$and": [{ "$or": [inner, { "x": 1 }] }, { "y": 1 }] }, { "z": 1 }] };
    for filter in [
        doc! { "a": { "$exists": false } },
        doc! { "a": { "$exists": 0 } },
        doc! { "a": { "$exists": Bson::Null } },
        doc! { "a": { "$ne": 1 } },
        doc! { "a": { "$nin": [1] } },
        doc! { "a": { "$not": { "$gt": 1 } } },
        doc! { "$nor": [{ "a": 1 }] },
        doc! { "a": { "$regex": "x" } },
        doc! { "a": { "$elemMatch": { "b": 1 } } },
        doc! { "a": { "$size": 1 } },
        doc! { "a": { "$mod": [2, 1] } },
        doc! { "$alwaysTrue": 1 },
        doc! { "$alwaysFalse": 1 },
        doc! { "$expr": { "$eq": ["$a", 1] } },
        doc! { "$where": "1" },
        doc! { "$text": { "$search": "x" } },
        doc! { "$jsonSchema": {} },
        doc! { "a": { "$comment": "x" } },
        doc! { "$and": [] },
        doc! { "$and": {} },
        doc! { "$and": [1] },
        doc! { "$or": [] },
        doc! { "$xor": [{ "a": 1 }] },
        doc! { "a": { "$foo": 1 } },
        doc! { "a": { "$gt": 1, "b": 2 } },
        doc! { "a": { "$id": 1 } },
        doc! { "a": { "$ref": 1 } },
        doc! { "a": { "$in": 1 } },
        doc! { "a": { "$in": [{ "$x": 1 }] } },
        doc! { "a": { "$in": [Bson::Undefined] } },
        doc! { "a": { "$all": 1 } },
        doc! { "a": { "$all": [] } },
        doc! { "a": { "$all": [{ "$elemMatch": { "b": 1 } }] } },
        doc! { "a": { "$type": 2.5 } },
        doc! { "a": { "$type": [] } },
        doc! { "a": { "$type": "foo" } },
        doc! { "a": { "$type": 0 } },
        doc! { "a": { "$type": 77 } },
        doc! { "a": { "$type": 255 } },
        doc! { "a": { "$type": "missing" } },
        doc! { "a": { "$type": true } },
        doc! { "a": { "$options": "i" } },
        doc! { "a": { "$near": [1, 1] } },
        doc! { "a": { "$bitsAllSet": 1 } },
        doc! { "a": Bson::Undefined },
        doc! { "a": { "$gt": Bson::Undefined } },
        nested(doc! { "$and": [{ "a": 1 }, { "b": 2 }] }),
        nested(doc! { "a": 1, "b": 2 }),
        nested(doc! { "a": { "$gt": 1, "$lt": 5 } }),
        nested(doc! { "a": { "$all": [1] } }),
        nested(nested(doc! { "a": 1 })),
    ] {
        specs.push(IndexSpec {
            partial_filter_expression: Some(filter),
            ..a()
        });
    }
    specs
}
