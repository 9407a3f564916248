//! Updates' operators and pipelines, and the values of fields.

use bson::{Bson, Document, doc};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::Generator;

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse().unwrap())
}

impl Generator {
    /// Operators, their array filters, and what a query must ask for beside.
    pub(super) fn operators(&mut self) -> (Document, Option<Vec<Document>>, Option<Document>) {
        let path = self.path();
        let value = self.value();
        let number = self.operand();
        let scalar = self.scalar();
        let plain = |update: Document| (update, None, None);
        match self.rng.random_range(0..37) {
            0..=5 => plain(doc! { "$set": { path: value } }),
            6 => plain(doc! { "$set": { path: value, "s": self.status(), "n": self.rng.random_range(-1..3) } }),
            7 => plain(doc! { "$set": { "n": self.rng.random_range(-1..3) } }),
            8 => plain(doc! { "$set": { "s": self.status() } }),
            9 | 10 => plain(doc! { "$unset": { path: "" } }),
            11 | 12 => plain(doc! { "$inc": { path: number } }),
            13 => plain(doc! { "$mul": { path: number } }),
            14 => plain(doc! { "$min": { path: scalar } }),
            15 => plain(doc! { "$max": { path: scalar } }),
            16 | 17 => {
                let renames = [
                    doc! { "a": "b" },
                    doc! { "b": "a" },
                    doc! { "a": "c.d" },
                    doc! { "n": "a" },
                    doc! { "t": "q" },
                ];
                plain(doc! { "$rename": renames.choose(&mut self.rng).unwrap().clone() })
            }
            18 => plain(doc! { "$push": { "t": scalar } }),
            19 => plain(doc! { "$push": { "t": { "$each": [scalar, self.scalar()], "$slice": -3 } } }),
            20 => plain(doc! { "$push": { "i": self.item() } }),
            21 => plain(doc! { "$addToSet": { "t": scalar } }),
            22 => plain(doc! { "$pull": { "t": scalar } }),
            23 => plain(doc! { "$pull": { "i": { "x": scalar } } }),
            24 => plain(doc! { "$pop": { if self.rng.random_bool(0.5) { "t" } else { "i" }: 1 } }),
            25 => (
                doc! { "$set": { "t.$": self.scalar() } },
                None,
                Some(doc! { "t": scalar }),
            ),
            26 => (
                doc! { "$set": { "i.$.x": self.scalar() } },
                None,
                Some(doc! { "i.x": scalar }),
            ),
            27 => {
                let filters = vec![doc! { "e": scalar }];
                (doc! { "$set": { "t.$[e]": self.scalar() } }, Some(filters), None)
            }
            28 => {
                let filters = vec![doc! { "e.x": scalar }];
                (doc! { "$set": { "i.$[e].y": self.scalar() } }, Some(filters), None)
            }
            29 => plain(doc! { "$inc": { "t.$[]": number } }),
            _ => plain(self.computation()),
        }
    }

    /// Operators whose new value comes of the old one.
    fn computation(&mut self) -> Document {
        let path = *["a", "a", "a", "b", "c.d", "n"].choose(&mut self.rng).unwrap();
        let other = if path == "b" { "a" } else { "b" };
        match self.rng.random_range(0..8) {
            0..=2 => doc! { "$inc": { path: self.operand() } },
            3 | 4 => doc! { "$mul": { path: self.operand() } },
            5 => doc! { "$inc": { path: self.operand() }, "$set": { other: self.value() } },
            6 => doc! { "$min": { path: self.value() }, "$inc": { other: self.operand() } },
            _ => doc! { "$max": { path: self.value() } },
        }
    }

    /// A number to compute with, of any type.
    pub(super) fn operand(&mut self) -> Bson {
        let number = self.rng.random_range(-1..3);
        match self.rng.random_range(0..16) {
            0..=6 => Bson::Int32(number),
            7 | 8 => Bson::Int64(number.into()),
            9 | 10 => Bson::Double(number.into()),
            11 => Bson::Double(0.5),
            12 => decimal("0.50"),
            13 => decimal("1"),
            14 => Bson::Int32(i32::MAX),
            _ => Bson::Int64(i64::MAX - 1),
        }
    }

    pub(super) fn pipeline(&mut self) -> Vec<Document> {
        match self.rng.random_range(0..12) {
            0 => vec![doc! { "$set": { "a": "$b" } }],
            1 => vec![doc! { "$set": { "a": { "$cond": [{ "$isNumber": "$a" }, { "$add": ["$a", 1] }, 1] } } }],
            2 => vec![doc! { "$unset": "a" }, doc! { "$set": { "b": "$$v" } }],
            3 => vec![doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "c": { "d": "$$v" } }] } }],
            4 => vec![doc! { "$set": { "n": { "$literal": 2 } } }],
            5 => vec![
                doc! { "$set": { "t": { "$concatArrays": [{ "$cond": [{ "$isArray": "$t" }, "$t", []] }, ["$$v"]] } } },
            ],
            6 => vec![doc! { "$set": { self.below_a_parent(): "$$v" } }],
            7 => vec![doc! { "$addFields": { self.below_a_parent(): { "w": "$n" }, "n": 1 } }],
            8 => vec![doc! { "$unset": ["t.w", "c.d"] }],
            9 => vec![doc! { "$project": { "c.e": 0, "t.u": 0 } }],
            10 => vec![doc! { "$replaceRoot": { "newRoot": { "$mergeObjects": ["$$ROOT", { "t": ["$$v", "$b"] }] } } }],
            _ => vec![doc! { "$set": { "a": "$$v" } }],
        }
    }

    /// A field whose parents a pipeline makes: of what is missing, of a scalar, of an array's scalars.
    pub(super) fn below_a_parent(&mut self) -> &'static str {
        ["t.w", "t.w", "t.u.w", "c.e", "c.e.f", "i.z", "b.k"]
            .choose(&mut self.rng)
            .unwrap()
    }

    pub(super) fn fields(&mut self) -> Document {
        let mut fields = Document::new();
        for name in ["a", "b"] {
            if self.rng.random_bool(0.7) {
                let value = self.value();
                fields.insert(name, value);
            }
        }
        if self.rng.random_bool(0.6) {
            fields.insert(
                "c",
                if self.rng.random_bool(0.9) {
                    doc! { "d": self.scalar() }
                } else {
                    doc! {}
                },
            );
        }
        if self.rng.random_bool(0.5) {
            let count = self.rng.random_range(0..3);
            fields.insert("t", (0..count).map(|_| self.scalar()).collect::<Vec<Bson>>());
        }
        if self.rng.random_bool(0.5) {
            let count = self.rng.random_range(0..3);
            fields.insert("i", (0..count).map(|_| self.item()).collect::<Vec<Document>>());
        }
        if self.rng.random_bool(0.6) {
            fields.insert("s", self.status());
        }
        fields.insert("n", self.rng.random_range(0..3));
        fields
    }

    pub(super) fn path(&mut self) -> &'static str {
        [
            "a", "a", "a", "b", "c.d", "c", "t", "i", "t.0", "i.0.x", "i.1.y", "i.2.y",
        ]
        .choose(&mut self.rng)
        .unwrap()
    }

    pub(super) fn item(&mut self) -> Document {
        match self.rng.random_bool(0.8) {
            true => doc! { "x": self.scalar(), "y": self.scalar() },
            false => doc! { "x": self.scalar() },
        }
    }

    pub(super) fn status(&mut self) -> &'static str {
        match self.rng.random_bool(0.6) {
            true if self.is_collated && self.rng.random_bool(0.3) => "ON",
            true => "on",
            false => "off",
        }
    }

    pub(super) fn value(&mut self) -> Bson {
        match self.rng.random_range(0..20) {
            0 => Bson::Array(vec![self.scalar(), self.scalar()]),
            1 => Bson::Array(Vec::new()),
            2 => Bson::Document(doc! { "k": self.scalar() }),
            _ => self.scalar(),
        }
    }

    /// Text that is equal to another one under one of the collations.
    fn collated_text(&mut self) -> Bson {
        let texts = ["x", "X", "\u{ff38}", "e", "é", "E\u{301}", "10", "010"];
        Bson::String((*texts.choose(&mut self.rng).unwrap()).to_owned())
    }

    pub(super) fn scalar(&mut self) -> Bson {
        if self.is_collated && self.rng.random_bool(0.3) {
            return self.collated_text();
        }
        match self.rng.random_range(0..15) {
            0..=2 => Bson::Int32(1),
            3 | 4 => Bson::Int32(2),
            5 | 6 => Bson::Int32(3),
            7 => Bson::Double(1.0),
            8 => Bson::Int64(2),
            9 if self.rng.random_bool(0.5) => decimal("2.5"),
            9 => Bson::Double(2.5),
            // Some of them are equal under a collation.
            10..=12 => Bson::String((*["x", "X", "y", "é", "E\u{301}"].choose(&mut self.rng).unwrap()).to_owned()),
            13 => Bson::Int32(4),
            _ => Bson::Null,
        }
    }

    pub(super) fn id(&mut self) -> i32 {
        self.rng.random_range(0..16)
    }

    /// An `_id` that lies where the query looks.
    pub(super) fn id_in(&mut self, query: &Document) -> i32 {
        let id = self.rng.random_range(0..10) * 2;
        if query.get_str("region").ok() == Some("z") {
            id + 1
        } else {
            id
        }
    }
}
