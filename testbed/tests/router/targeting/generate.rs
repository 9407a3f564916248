//! Random statements on a sharded collection, most of them about its shard key.

use bson::{Bson, Document, doc};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::Statement;
use super::collections::Sharded;

/// Makes statements.
pub struct Generator {
    random: StdRng,
    inserted: i32,
    has_expressions: bool,
    has_branches: bool,
}

impl Generator {
    /// One that makes the same statements for the same seed.
    pub fn new(random: StdRng) -> Self {
        Generator {
            random,
            inserted: 0,
            has_expressions: true,
            has_branches: false,
        }
    }

    /// A statement on a collection.
    pub fn statement(&mut self, collection: &Sharded) -> Statement {
        let name = collection.name;
        let both = |inside, outside, rest| Statement::both(inside, outside, name, rest);
        let collation = self.collation();
        match self.random.random_range(0..20) {
            0..3 => both(
                "clusterFind",
                "find",
                with(doc! { "filter": self.filter(collection) }, collation),
            ),
            3..5 => {
                let pipeline = vec![doc! { "$match": self.filter(collection) }];
                both(
                    "clusterAggregate",
                    "aggregate",
                    with(doc! { "pipeline": pipeline, "cursor": {} }, collation),
                )
            }
            5..8 => {
                let q = self.filter(collection);
                let statement = doc! { "q": q, "limit": self.random.random_range(0..2) };
                both(
                    "clusterDelete",
                    "delete",
                    doc! { "deletes": [with(statement, collation)] },
                )
            }
            8..13 => {
                let statement = self.update(collection);
                both(
                    "clusterUpdate",
                    "update",
                    doc! { "updates": [with(statement, collation)] },
                )
            }
            13..15 => both(
                "clusterInsert",
                "insert",
                doc! { "documents": [self.document(collection)] },
            ),
            15..17 => {
                let query = self.filter(collection);
                let outside = if self.random.random() {
                    doc! { "count": name, "query": query.clone() }
                } else {
                    doc! { "distinct": name, "key": "x", "query": query.clone() }
                };
                let inside = doc! { "clusterFind": name, "filter": query };
                Statement {
                    inside: with(inside, collation.clone()),
                    outside: with(outside, collation),
                    is_find_and_modify: false,
                }
            }
            _ => self.find_and_modify(collection, collation),
        }
    }

    fn update(&mut self, collection: &Sharded) -> Document {
        let mut statement = doc! { "q": self.filter(collection), "u": { "$set": { "x": 1 } } };
        match self.random.random_range(0..6) {
            0 => drop(statement.insert("multi", true)),
            1 => drop(statement.insert("upsert", true)),
            2 => drop(statement.insert("u", self.replacement(collection))),
            3 => drop(statement.insert("u", vec![doc! { "$set": { "x": 2 } }])),
            4 => {
                statement.insert("u", self.replacement(collection));
                statement.insert("upsert", true);
            }
            _ => (),
        }
        statement
    }

    fn find_and_modify(&mut self, collection: &Sharded, collation: Option<Document>) -> Statement {
        // An upsert may have no `$expr`.
        self.has_expressions = false;
        let query = self.filter(collection);
        self.has_expressions = true;
        let update = doc! { "$set": { "x": 1 } };
        let upsert = doc! { "q": query.clone(), "u": update.clone(), "upsert": true };
        let inside = doc! { "clusterUpdate": collection.name, "updates": [with(upsert, collation.clone())] };
        let mut outside = doc! { "findAndModify": collection.name, "query": query };
        if self.random.random() {
            outside.insert("remove", true);
        } else {
            outside.insert("update", update);
            outside.insert("upsert", self.random.random::<bool>());
        }
        Statement {
            inside,
            outside: with(outside, collation),
            is_find_and_modify: true,
        }
    }

    fn document(&mut self, collection: &Sharded) -> Document {
        let mut document = self.replacement(collection);
        if !document.contains_key("_id") {
            self.inserted += 1;
            document.insert("_id", format!("inserted {}", self.inserted));
        }
        document
    }

    fn replacement(&mut self, collection: &Sharded) -> Document {
        let mut document = doc! {};
        for path in &collection.paths {
            if self.random.random_ratio(1, 6) {
                continue;
            }
            let value = self.value();
            match path.split_once('.') {
                Some((parent, child)) => {
                    let inner = document.entry(parent.to_owned()).or_insert_with(|| doc! {}.into());
                    if let Bson::Document(inner) = inner {
                        inner.insert(child, value);
                    }
                }
                None => drop(document.insert(path, value)),
            }
        }
        document
    }

    fn collation(&mut self) -> Option<Document> {
        match self.random.random_range(0..8) {
            0 => Some(doc! { "locale": "en", "strength": 2 }),
            1 => Some(doc! { "locale": "simple" }),
            2 => Some(doc! {}),
            _ => None,
        }
    }

    fn filter(&mut self, collection: &Sharded) -> Document {
        self.has_branches = false;
        let mut filter = doc! {};
        // Often the whole shard key by equality: that is what most writes need.
        if self.random.random_ratio(1, 3) {
            for path in &collection.paths {
                filter.insert(path, self.value());
            }
        }
        for _ in 0..self.random.random_range(0..3) {
            let (name, condition) = self.condition(collection, 2);
            filter.insert(name, condition);
        }
        filter
    }

    fn condition(&mut self, collection: &Sharded, depth: u32) -> (String, Bson) {
        let branches = if depth > 0 { 12 } else { 8 };
        match self.random.random_range(0..branches) {
            0 => ("_id".to_owned(), self.predicate()),
            1 => ("x".to_owned(), self.predicate()),
            2 if collection.paths[0].contains('.') => self.about_parent(collection),
            3 if self.has_expressions => ("$expr".to_owned(), self.expression(collection)),
            8 => ("$and".to_owned(), self.clauses(collection, depth)),
            // One is enough: which of several the server reads depends on its choice of plan.
            9 | 10 if !self.has_branches => {
                self.has_branches = true;
                ("$or".to_owned(), self.clauses(collection, depth))
            }
            11 => ("$nor".to_owned(), self.clauses(collection, depth)),
            _ => (self.path(collection), self.predicate()),
        }
    }

    fn path(&mut self, collection: &Sharded) -> String {
        collection.paths.choose(&mut self.random).unwrap().clone()
    }

    /// A condition on the parent of a nested field, or on its child.
    fn about_parent(&mut self, collection: &Sharded) -> (String, Bson) {
        let path = self.path(collection);
        let (parent, child) = path.split_once('.').unwrap();
        let value = self.value();
        match self.random.random_range(0..5) {
            0 => (parent.to_owned(), doc! { child: value }.into()),
            1 => (parent.to_owned(), doc! { child: value, "y": 1 }.into()),
            2 => (parent.to_owned(), doc! { "$eq": { child: value } }.into()),
            3 => (parent.to_owned(), self.predicate()),
            _ => (format!("{path}.x"), self.predicate()),
        }
    }

    fn clauses(&mut self, collection: &Sharded, depth: u32) -> Bson {
        let count = self.random.random_range(1..4);
        let clause = |_| {
            let conditions = self.random.random_range(1..3);
            (0..conditions)
                .map(|_| self.condition(collection, depth - 1))
                .collect::<Document>()
        };
        (0..count).map(clause).collect::<Vec<_>>().into()
    }

    fn expression(&mut self, collection: &Sharded) -> Bson {
        let field = format!("${}", self.path(collection));
        let value = doc! { "$literal": self.value() };
        match self.random.random_range(0..6) {
            0 => true.into(),
            1 => false.into(),
            2 => doc! { "$gt": [field, value] }.into(),
            3 => doc! { "$and": [{ "$eq": [field, value] }, { "$gt": ["$x", 1] }] }.into(),
            _ => doc! { "$eq": [field, value] }.into(),
        }
    }

    fn predicate(&mut self) -> Bson {
        let value = self.value();
        match self.random.random_range(0..19) {
            0..5 => value,
            5 => doc! { "$eq": value }.into(),
            6..9 => {
                let count = self.random.random_range(0..4);
                doc! { "$in": (0..count).map(|_| self.value()).collect::<Vec<_>>() }.into()
            }
            9 => doc! { "$gte": self.bound(), "$lt": self.bound() }.into(),
            10 => doc! { "$gt": self.bound() }.into(),
            11 => doc! { "$lte": self.bound() }.into(),
            12 => doc! { "$exists": self.random.random::<bool>() }.into(),
            13 => doc! { "$ne": value }.into(),
            14 => doc! { "$not": { "$gt": self.bound() } }.into(),
            15 => doc! { "$nin": [value, self.value()] }.into(),
            16 => doc! { "$all": [value] }.into(),
            17 => self.unordered(),
            _ => doc! { "$eq": value, "$gte": self.bound() }.into(),
        }
    }

    /// What isn't a comparison.
    fn unordered(&mut self) -> Bson {
        let pattern = |text: &bson::raw::CStr| bson::Regex {
            pattern: text.into(),
            options: bson::cstr!("").into(),
        };
        let unordered: [Bson; 7] = [
            doc! { "$mod": [2, 0] }.into(),
            doc! { "$type": "number" }.into(),
            doc! { "$type": ["string", "null"] }.into(),
            pattern(bson::cstr!("^a")).into(),
            pattern(bson::cstr!("a.*")).into(),
            doc! { "$size": 1 }.into(),
            doc! { "$in": [5, pattern(bson::cstr!("^b"))] }.into(),
        ];
        unordered.choose(&mut self.random).unwrap().clone()
    }

    /// No array: how the planner combines that with other bounds depends on its choice of plan.
    fn bound(&mut self) -> Bson {
        loop {
            let bound = self.value();
            if !matches!(bound, Bson::Array(_)) {
                return bound;
            }
        }
    }

    fn value(&mut self) -> Bson {
        values().choose(&mut self.random).unwrap().clone()
    }
}

/// Around the bounds of the chunks.
fn values() -> Vec<Bson> {
    let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
    vec![
        Bson::Null,
        Bson::MinKey,
        Bson::MaxKey,
        Bson::Int32(-1),
        Bson::Int32(0),
        Bson::Int32(5),
        Bson::Int32(10),
        Bson::Int64(10),
        Bson::Double(10.0),
        decimal("10.0"),
        Bson::Double(9.5),
        decimal("10.5"),
        Bson::Int32(15),
        Bson::Int64(20),
        Bson::Int64(25),
        Bson::Double(f64::NAN),
        Bson::String(String::new()),
        Bson::String("A".into()),
        Bson::String("a".into()),
        Bson::String("ab".into()),
        Bson::String("b".into()),
        doc! {}.into(),
        doc! { "x": 1 }.into(),
        doc! { "x": 1, "y": 1 }.into(),
        doc! { "x": 3 }.into(),
        Bson::Array(vec![]),
        Bson::Array(vec![Bson::Int32(5)]),
        Bson::Array(vec![Bson::Int32(5), Bson::Int32(25)]),
        Bson::Boolean(false),
        Bson::Boolean(true),
        Bson::DateTime(bson::DateTime::from_millis(-5)),
        Bson::DateTime(bson::DateTime::from_millis(5)),
        Bson::ObjectId(bson::oid::ObjectId::from_bytes([7; 12])),
    ]
}

/// The statement with the collation, if there is one.
fn with(mut statement: Document, collation: Option<Document>) -> Document {
    if let Some(collation) = collation {
        statement.insert("collation", collation);
    }
    statement
}
