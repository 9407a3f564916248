//! Values without parts, of every type, many of them equal to another one of another type or nearly so.

use bson::{Decimal128, oid::ObjectId, spec::ElementType};
use keyward::raw::Builder;
use rand::Rng;

use super::{Generator, NAMES};

impl Generator {
    pub(super) fn scalar(&mut self, builder: &mut Builder, name: &[u8], top_level: bool) {
        match self.random.random_range(0..16 * self.richness) {
            0..=5 => self.small_number(builder, name),
            6..=8 => self.text(builder, name),
            _ if self.words && self.chance(2) => self.text(builder, name),
            9 => drop(builder.append(ElementType::Null, name, b"")),
            10 => drop(builder.append(ElementType::Undefined, name, b"")),
            11 => drop(builder.append(ElementType::Boolean, name, &[self.pick(&[0, 1])])),
            12..=18 => self.odd_number(builder, name),
            19 | 20 => {
                let text = self.pick(&[
                    &b"a"[..],
                    b"a\0b",
                    b"a\0",
                    b"\xff\xfe",
                    b"\xed\xa0\x80",
                    b"\xf4\x90\x80\x80",
                    b"\xc3\xa9",
                    b"say \"hi\"\n",
                ]);
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

    /// Words close to each other: in case, accents, forms, punctuation, digits, in what one ICU knows and another doesn't.
    pub fn word(&mut self) -> String {
        const PARTS: [&str; 84] = [
            "a",
            "A",
            "a",
            "b",
            "B",
            "e",
            "é",
            "E\u{301}",
            "É",
            "e\u{323}\u{302}",
            "ệ",
            "ê\u{323}",
            "ss",
            "ß",
            "ẞ",
            "SS",
            "ae",
            "æ",
            "Æ",
            "ä",
            "Ä",
            "å",
            "aa",
            "Å",
            "\u{212b}",
            "o\u{308}",
            "ö",
            "oe",
            "ø",
            "i",
            "I",
            "ı",
            "İ",
            "i\u{307}",
            "v",
            "w",
            "W",
            "y",
            "ü",
            "ue",
            "-",
            " ",
            "\u{a0}",
            "'",
            "’",
            "\"",
            "”",
            ".",
            "_",
            "1",
            "01",
            "10",
            "2",
            "²",
            "１",
            "٢",
            "٣",
            "3",
            "\0",
            "\u{ad}",
            "\u{200d}",
            "\u{fe0f}",
            "\u{feff}",
            "ａ",
            "Ａ",
            "ﬁ",
            "fi",
            "ℵ",
            "א",
            "カ",
            "か",
            "ｶ",
            "가",
            "\u{1100}\u{1161}",
            "漢",
            "字",
            "🦄",
            "🤣",
            "🥲",
            "\u{1e900}",
            "\u{1e922}",
            "\u{ffff}",
            "\u{e000}",
            "\u{301}",
        ];
        let mut word = String::new();
        for _ in 0..self.pick(&[0, 1, 1, 1, 2, 2, 3]) {
            word.push_str(self.pick(&PARTS));
        }
        word
    }

    fn text(&mut self, builder: &mut Builder, name: &[u8]) {
        if self.words {
            let word = self.word();
            return self.string(builder, name, word.as_bytes());
        }
        let text = self.pick(&[&b""[..], b"a", b"b", b"A", b"ab"]);
        self.string(builder, name, text);
    }

    fn string(&mut self, builder: &mut Builder, name: &[u8], text: &[u8]) {
        // Under a collation Keyward refuses symbols.
        let kind = if self.chance(if self.words { 50 } else { 5 }) {
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
