//! Index specifications: one to three fields, some sparse, some with a partial filter.

use bson::{Bson, Document, doc};
use keyward::constraint::IndexSpec;
use keyward::raw::Builder;
use rand::Rng;

use super::{Generator, PATHS};

impl Generator {
    pub fn index_spec(&mut self) -> IndexSpec {
        let mut key = Document::new();
        for _ in 0..self.pick(&[1, 1, 1, 2, 2, 3]) {
            let direction = match self.random.random_range(0..8) {
                0 => Bson::Int64(-1),
                1 => Bson::Double(-2.5),
                2 => Bson::Double(1.0),
                3 => Bson::Decimal128("-1".parse().unwrap()),
                4 => Bson::Int32(-1),
                _ => Bson::Int32(1),
            };
            key.insert(self.pick(&PATHS), direction);
        }
        if key.len() == 1 && key.contains_key("_id") {
            key.insert("a", 1);
        }
        let kind = self.random.random_range(0..8);
        IndexSpec {
            key,
            name: Some("unique_0".to_owned()),
            sparse: kind < 2,
            partial_filter_expression: (kind >= 5).then(|| self.filter(0)),
            ..Default::default()
        }
    }

    /// An index with a collation; half of them with a locale's defaults but for the strength.
    pub fn collated_index_spec(&mut self) -> IndexSpec {
        let mut collation = doc! {
            "locale": self.pick(&["en", "en", "de", "fr", "fr_CA", "sv", "tr", "th", "vi", "ja", "de@collation=phonebook"]),
        };
        let strength = self.pick(&[1, 2, 2, 3, 4, 5]);
        collation.insert("strength", if strength == 1 { self.pick(&[1, 2]) } else { strength });
        if self.chance(2) {
            for flag in ["numericOrdering", "normalization", "caseLevel"] {
                if self.chance(3) {
                    collation.insert(flag, self.chance(2));
                }
            }
            if self.chance(3) {
                collation.insert("alternate", self.pick(&["shifted", "non-ignorable"]));
                collation.insert("maxVariable", self.pick(&["space", "punct"]));
            }
            if self.chance(3) && strength > 2 {
                collation.insert("caseFirst", self.pick(&["upper", "lower", "off"]));
            }
            if self.chance(4) {
                collation.insert("backwards", true);
            }
        } else if strength == 1 {
            collation.insert("strength", 1);
            collation.insert("backwards", false);
        }
        self.words = true;
        IndexSpec {
            collation: Some(collation),
            ..self.index_spec()
        }
    }

    fn filter(&mut self, depth: usize) -> Document {
        let mut filter = Document::new();
        for _ in 0..self.pick(&[1, 1, 1, 2]) {
            if depth < 2 && self.chance(4) {
                let operator = self.pick(&["$and", "$or"]);
                let parts: Vec<_> = (0..self.pick(&[1, 2])).map(|_| self.filter(depth + 1)).collect();
                filter.insert(operator, parts);
            } else {
                let path = self.pick(&PATHS);
                let condition = self.condition();
                filter.insert(path, condition);
            }
        }
        filter
    }

    fn condition(&mut self) -> Bson {
        let types = [
            "string",
            "number",
            "array",
            "object",
            "null",
            "int",
            "double",
            "bool",
            "minKey",
            "undefined",
        ];
        match self.random.random_range(0..14) {
            0 => self.operand(),
            1 => doc! { "$exists": true }.into(),
            2 => doc! { "$type": self.pick(&types) }.into(),
            3 => doc! { "$type": [self.pick(&types), self.pick(&[1, 2, 3, 4, 8, 10, 16, 18, -1, 127])] }.into(),
            4 => {
                let choices: Vec<_> = (0..self.random.random_range(0..4))
                    .map(|_| self.operand_but_a_regex())
                    .collect();
                doc! { "$in": choices }.into()
            }
            5 => doc! { "$all": [self.operand_but_a_regex()] }.into(),
            6 => doc! { "$gte": self.operand_but_a_regex(), "$lt": self.operand_but_a_regex() }.into(),
            7 => doc! { "$eq": self.operand() }.into(),
            _ => {
                let operator = self.pick(&["$gt", "$gte", "$lt", "$lte"]);
                doc! { operator: self.operand_but_a_regex() }.into()
            }
        }
    }

    /// A value that a filter may hold and that isn't taken for a list of operators.
    fn operand(&mut self) -> Bson {
        loop {
            let mut builder = Builder::new();
            self.value(&mut builder, b"v", 2);
            let bytes = builder.finish();
            let Ok(mut document) = bson::deserialize_from_slice::<Document>(&bytes) else {
                continue;
            };
            match document.remove("v").unwrap() {
                Bson::Undefined | Bson::JavaScriptCodeWithScope(_) => {}
                Bson::Document(nested) if nested.keys().next().is_some_and(|name| name.starts_with('$')) => {}
                operand => return operand,
            }
        }
    }

    fn operand_but_a_regex(&mut self) -> Bson {
        loop {
            match self.operand() {
                Bson::RegularExpression(_) => {}
                operand => return operand,
            }
        }
    }
}
