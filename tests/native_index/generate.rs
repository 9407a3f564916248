//! Index specifications and documents that collide often: few names, few values, each value in all its disguises.

use bson::{Bson, Decimal128, Document, doc, oid::ObjectId, spec::ElementType};
use keyward::constraint::IndexSpec;
use keyward::raw::Builder;
use rand::seq::IndexedRandom;
use rand::{Rng, rngs::StdRng};

const PATHS: [&str; 17] = [
    "a", "b", "c", "a.b", "a.c", "b.a", "a.b.c", "a.0", "a.1", "a.0.b", "a.b.0", "b.0", "a.0.0", "a.$id", "b.a.b",
    "_id", "a.%x",
];
const NAMES: [&[u8]; 9] = [b"a", b"b", b"c", b"0", b"$a", b"%a", b"%$a", b"", b"\xc3\xa9"];

/// How deep the values of a document nest, but for those that are made to be deep.
const DEPTH: u32 = 3;

/// Makes one index and the documents for it.
pub struct Generator {
    random: StdRng,
    /// Simpler documents make more conflicts, richer ones find odder cases: each index decides.
    richness: u32,
}

impl Generator {
    pub fn new(mut random: StdRng) -> Self {
        let richness = random.random_range(1..=3);
        Generator { random, richness }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_ratio(1, one_in)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.random).unwrap()
    }

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

    pub fn document(&mut self, id: usize) -> Vec<u8> {
        let mut builder = Builder::new();
        builder.int32("_id", id as i32);
        for name in [&b"a"[..], b"b", b"c"] {
            if !self.chance(4) {
                self.value(&mut builder, name, DEPTH);
            }
        }
        if self.chance(20) {
            self.value(&mut builder, b"a.b", 1);
        }
        builder.finish()
    }

    fn value(&mut self, builder: &mut Builder, name: &[u8], depth: u32) {
        let nests = depth > 0 && !self.chance(self.richness + 1);
        if !nests {
            return self.scalar(builder, name, depth == DEPTH);
        }
        if self.chance(2) {
            builder.open(ElementType::EmbeddedDocument, name);
            for _ in 0..self.pick(&[0, 1, 1, 1, 2, 3]) {
                let names = if self.chance(3) { &NAMES[..] } else { &NAMES[..4] };
                let name = self.pick(names);
                self.value(builder, name, depth - 1);
            }
        } else {
            builder.open(ElementType::Array, name);
            let first = if self.chance(10) { 5 } else { 0 };
            for position in 0..self.pick(&[0, 1, 1, 2, 2, 3]) {
                self.value(builder, (first + position).to_string().as_bytes(), depth - 1);
            }
        }
        builder.close();
    }

    fn scalar(&mut self, builder: &mut Builder, name: &[u8], top_level: bool) {
        match self.random.random_range(0..16 * self.richness) {
            0..=5 => self.small_number(builder, name),
            6..=8 => self.text(builder, name),
            9 => drop(builder.append(ElementType::Null, name, b"")),
            10 => drop(builder.append(ElementType::Undefined, name, b"")),
            11 => drop(builder.append(ElementType::Boolean, name, &[self.pick(&[0, 1])])),
            12..=18 => self.odd_number(builder, name),
            19 | 20 => {
                let text = self.pick(&[&b"a"[..], b"a\0b", b"a\0", b"\xff\xfe", b"\xc3\xa9", b"say \"hi\"\n"]);
                self.string(builder, name, text);
            }
            21 | 22 => {
                let size = self.pick(&[150, 158, 159, 160, 161, 300, 5000]);
                let text = self.pick(&["x", "é", "\0"]).repeat(size);
                let text = [
                    self.pick(&[&b""[..], b"a"]),
                    &text.as_bytes()[..size],
                    self.pick(&[&b""[..], b"b"]),
                ]
                .concat();
                self.string(builder, name, &text);
            }
            23..=28 => self.binary(builder, name),
            29 => drop(builder.append(ElementType::MinKey, name, b"")),
            30 => drop(builder.append(ElementType::MaxKey, name, b"")),
            31 => {
                let id = ObjectId::from_bytes([self.pick(&[0, 1, 255]); 12]);
                builder.append(ElementType::ObjectId, name, &id.bytes());
            }
            32..=34 => {
                let kind = self.pick(&[ElementType::DateTime, ElementType::Timestamp, ElementType::Int64]);
                // The server puts its own time in the place of Timestamp(0, 0) there.
                let filled_in = top_level && kind == ElementType::Timestamp;
                let number = self.pick(&[
                    i64::from(filled_in),
                    1,
                    -1,
                    5 << 32 | 6,
                    1_700_000_000_123,
                    i64::MIN,
                    i64::MAX,
                ]);
                builder.append(kind, name, &number.to_le_bytes());
            }
            35 | 36 => {
                let pattern = self.pick(&[&b"a"[..], b"", b"^a/b", b"\xff"]);
                let options = self.pick(&[&b""[..], b"i", b"im", b"mi"]);
                builder.append(
                    ElementType::RegularExpression,
                    name,
                    &[pattern, b"\0", options, b"\0"].concat(),
                );
            }
            37..=40 => self.code(builder, name),
            41 => {
                let namespace = self.pick(&[&b"db.c"[..], b"db.d", b"d", b"db.c\0x"]);
                let id = [self.pick(&[0, 1, 171]); 12];
                let value = [&((namespace.len() + 1) as i32).to_le_bytes()[..], namespace, b"\0", &id].concat();
                builder.append(ElementType::DbPointer, name, &value);
            }
            42 => {
                // A deep one: below a hundred levels the server prints dots, and reservations hold a digest.
                let depth = self.pick(&[98, 99, 100, 101, 102, 103, 150]);
                let kind = self.pick(&[ElementType::EmbeddedDocument, ElementType::Array]);
                for level in 0..depth {
                    builder.open(kind, if level == 0 { name } else { b"0" });
                }
                builder.int32("0", self.pick(&[1, 2]));
                for _ in 0..depth {
                    builder.close();
                }
            }
            _ => self.small_number(builder, name),
        }
    }

    /// One of few numbers, as one of the types that can hold it.
    fn small_number(&mut self, builder: &mut Builder, name: &[u8]) {
        let number: i32 = self.pick(&[0, 1, 1, 2, 2, 3]);
        match self.random.random_range(0..6) {
            0 | 1 => drop(builder.append(ElementType::Int32, name, &number.to_le_bytes())),
            2 => drop(builder.append(ElementType::Int64, name, &i64::from(number).to_le_bytes())),
            3 => drop(builder.append(ElementType::Double, name, &f64::from(number).to_le_bytes())),
            4 => decimal(builder, name, &number.to_string()),
            _ => decimal(builder, name, &format!("{number}.00")),
        }
    }

    fn odd_number(&mut self, builder: &mut Builder, name: &[u8]) {
        let double = self.pick(&[
            0.5,
            -0.0,
            0.1,
            1.5,
            3.75,
            -3.75,
            1e15,
            1e16,
            1e22,
            1e23,
            1e300,
            1e308,
            f64::MAX,
            f64::MIN_POSITIVE,
            f64::from_bits(1),
            f64::NAN,
            -f64::NAN,
            f64::from_bits(0x7ff0_0000_0000_0001),
            f64::INFINITY,
            f64::NEG_INFINITY,
            9007199254740992.0,
            9223372036854775808.0,
            -9223372036854775808.0,
            1.0 / 3.0,
            123456789.125,
        ]);
        let long = self.pick(&[
            9007199254740992_i64,
            9007199254740993,
            i64::MAX,
            i64::MIN,
            i64::MIN + 1,
            1_000_000_000_000_000,
            -1,
            9223372036854774784,
        ]);
        let text = self.pick(&[
            "0.5",
            "0.50",
            "-0",
            "0E+3",
            "0E-6176",
            "-0E+6111",
            "0.1",
            "0.1000000000000000055511151231257827",
            "1.5",
            "3.75",
            "-3.75",
            "-37500E-4",
            "1E+15",
            "1E+16",
            "1E+22",
            "1E+23",
            "1E+300",
            "1E+308",
            "NaN",
            "-NaN",
            "Infinity",
            "-Infinity",
            "9007199254740992",
            "9007199254740993",
            "9007199254740993.0",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808.00",
            "0.3333333333333333",
            "123456789.125",
            "123456789.1250",
            "9.999999999999999999999999999999999E+6144",
            "1E-6176",
            "1E+6144",
            "1234567890123",
            "0.00001234",
            "0.000001",
            "0.0000001",
            "1E-7",
            "12345678901234567890.12345678901234",
            "-99999999999999999999",
            "9223372036854774784",
        ]);
        match self.random.random_range(0..10) {
            0..=3 => drop(builder.append(ElementType::Double, name, &double.to_le_bytes())),
            4 | 5 => drop(builder.append(ElementType::Int64, name, &long.to_le_bytes())),
            6 => {
                // A double close to others, and its neighbours in decimal.
                let number = f64::from_bits(1.1_f64.to_bits() + self.random.random_range(0..3));
                builder.append(ElementType::Double, name, &number.to_le_bytes());
            }
            7 => {
                let number = f64::from_bits(1.1_f64.to_bits() + self.random.random_range(0..3));
                let digits = self.pick(&[16, 17, 20, 33]);
                decimal(builder, name, &format!("{number:.digits$}"));
            }
            _ => decimal(builder, name, text),
        }
    }

    fn text(&mut self, builder: &mut Builder, name: &[u8]) {
        let text = self.pick(&[&b""[..], b"a", b"b", b"A", b"ab"]);
        self.string(builder, name, text);
    }

    fn string(&mut self, builder: &mut Builder, name: &[u8], text: &[u8]) {
        let kind = if self.chance(5) {
            ElementType::Symbol
        } else {
            ElementType::String
        };
        builder.append(kind, name, &counted(text));
    }

    fn binary(&mut self, builder: &mut Builder, name: &[u8]) {
        let subtype = self.pick(&[0, 0, 2, 3, 4, 4, 5, 128]);
        let size = self.pick(&[0, 1, 3, 15, 16, 16, 80, 81, 90, 300]);
        let mut bytes = vec![self.pick(&[0, 7, 255]); size];
        if subtype == 2 {
            bytes = [&(size as i32).to_le_bytes()[..], &bytes].concat();
        }
        let value = [&(bytes.len() as i32).to_le_bytes()[..], &[subtype], &bytes].concat();
        builder.append(ElementType::Binary, name, &value);
    }

    fn code(&mut self, builder: &mut Builder, name: &[u8]) {
        let size = self.pick(&[0, 1, 1, 78, 79, 80, 81, 200]);
        let mut code = vec![b'f'; size];
        if self.chance(3) {
            code.extend_from_slice(b"\0x");
        }
        if self.chance(2) {
            builder.append(ElementType::JavaScriptCode, name, &counted(&code));
            return;
        }
        let mut scope = Builder::new();
        for _ in 0..self.pick(&[0, 1, 2]) {
            let name = self.pick(&NAMES);
            self.small_number(&mut scope, name);
        }
        let (code, scope) = (counted(&code), scope.finish());
        let value = [
            &((code.len() + scope.len() + 4) as i32).to_le_bytes()[..],
            &code,
            &scope,
        ]
        .concat();
        builder.append(ElementType::JavaScriptCodeWithScope, name, &value);
    }
}

fn decimal(builder: &mut Builder, name: &[u8], text: &str) {
    let number: Decimal128 = text.parse().unwrap();
    builder.append(ElementType::Decimal128, name, &number.bytes());
}

fn counted(text: &[u8]) -> Vec<u8> {
    [&((text.len() + 1) as i32).to_le_bytes()[..], text, b"\0"].concat()
}

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
    specs.push(IndexSpec {
        collation: Some(doc! {}),
        ..a()
    });
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
