//! Prints values as the server prints them in an error message.
//!
//! It turns BSON into the text of the server's `BSONObj::toString`. The text isn't escaped, and long strings are cut by
//! bytes, so the result may be invalid UTF-8. It can't be parsed back into values.
//! Source: mongodb/mongo `src/mongo/bson/bsonelement.cpp`, `bsonobj.cpp`; measured on 6.0.5.

use std::io::Write;

use bson::{Decimal128, spec::ElementType};

use super::canonical::{code_with_scope, db_pointer, string_bytes, until_zero};
use crate::raw::{Doc, Element, Malformed};

/// Below this depth elements are printed as dots (`BSONObj::maxToStringRecursionDepth`).
const MAX_DEPTH: usize = 100;

/// `document` as the server prints it.
pub(super) fn document(document: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let mut text = Vec::new();
    append_document(&mut text, document, true, 0)?;
    Ok(text)
}

/// Appends the elements of a document (`named`) or of an array, which is `depth` documents below the outermost one.
fn append_document(out: &mut Vec<u8>, document: Doc<'_>, named: bool, depth: usize) -> Result<(), Malformed> {
    let [open, close] = if named { [b"{", b"}"] } else { [b"[", b"]"] };
    out.extend_from_slice(open);
    for (index, element) in document.elements().enumerate() {
        let element = element?;
        out.extend_from_slice(if index == 0 { b" " } else { b", " });
        if depth > MAX_DEPTH {
            out.extend_from_slice(b"...");
            continue;
        }
        if named {
            out.extend_from_slice(element.name);
            out.extend_from_slice(b": ");
        }
        append_value(out, &element, depth)?;
    }
    if !document.is_empty() {
        out.push(b' ');
    }
    out.extend_from_slice(close);
    Ok(())
}

/// Appends the value of `element`, which is `depth` documents below the outermost one.
fn append_value(out: &mut Vec<u8>, element: &Element<'_>, depth: usize) -> Result<(), Malformed> {
    let value = element.value;
    let long = || value.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes));
    let int = || value.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
    match element.kind {
        ElementType::EmbeddedDocument => append_document(out, Doc::new(value)?, true, depth + 1)?,
        ElementType::Array => append_document(out, Doc::new(value)?, false, depth + 1)?,
        ElementType::Double => out.extend_from_slice(double(f64::from_bits(long() as u64)).as_bytes()),
        ElementType::Int32 => print(out, format_args!("{}", int())),
        ElementType::Int64 => print(out, format_args!("{}", long())),
        ElementType::Decimal128 => {
            let bytes = *value.first_chunk().ok_or(Malformed::Unterminated)?;
            print(out, format_args!("{}", Decimal128::from_bytes(bytes)));
        }
        ElementType::String | ElementType::Symbol => {
            out.push(b'"');
            // The lengths that the server compares include the final zero.
            cut(out, string_bytes(value)?.0, 159, 150);
            out.push(b'"');
        }
        ElementType::JavaScriptCode => cut(out, string_bytes(value)?.0, 79, 70),
        ElementType::JavaScriptCodeWithScope => {
            let (code, scope) = code_with_scope(value)?;
            out.extend_from_slice(b"CodeWScope( ");
            out.extend_from_slice(until_zero(code));
            out.extend_from_slice(b", ");
            append_document(out, scope, true, 0)?;
            out.push(b')');
        }
        ElementType::Binary => append_binary(out, value),
        ElementType::Boolean => out.extend_from_slice(if value == [0] { b"false" } else { b"true" }),
        ElementType::Null => out.extend_from_slice(b"null"),
        ElementType::Undefined => out.extend_from_slice(b"undefined"),
        ElementType::MinKey => out.extend_from_slice(b"MinKey"),
        ElementType::MaxKey => out.extend_from_slice(b"MaxKey"),
        ElementType::ObjectId => print(out, format_args!("ObjectId('{}')", hex(value, false))),
        ElementType::DateTime => print(out, format_args!("new Date({})", long())),
        ElementType::Timestamp => print(
            out,
            format_args!("Timestamp({}, {})", long() as u64 >> 32, long() as u32),
        ),
        ElementType::RegularExpression => {
            let pattern = until_zero(value);
            out.push(b'/');
            out.extend_from_slice(pattern);
            out.push(b'/');
            out.extend_from_slice(until_zero(&value[pattern.len() + 1..]));
        }
        ElementType::DbPointer => {
            let (namespace, id) = db_pointer(value)?;
            out.extend_from_slice(b"DBRef('");
            out.extend_from_slice(namespace);
            print(out, format_args!("',{})", hex(id, false)));
        }
    }
    Ok(())
}

/// `printf`'s `%.16g`, and `.0` if the text has no dot and no `E`. It never has an `E`: exponents are small `e`s.
fn double(number: f64) -> String {
    let mut text = match number {
        _ if number.is_nan() => if number.is_sign_negative() { "-nan" } else { "nan" }.to_owned(),
        _ if number.is_infinite() => number.to_string(),
        _ => sixteen_digits(number),
    };
    if !text.contains('.') {
        text.push_str(".0");
    }
    text
}

fn sixteen_digits(number: f64) -> String {
    let scientific = format!("{number:.15e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |digits: &str| digits.trim_end_matches('0').trim_end_matches('.').to_owned();
    match exponent {
        -4..0 | 1..16 => {
            let text = format!("{number:.*}", (15 - exponent).unsigned_abs() as usize);
            if text.contains('.') { trimmed(&text) } else { text }
        }
        0 => trimmed(digits),
        _ => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
        }
    }
}

/// `text`, or its first `kept` bytes and three dots if it has more than `most`.
fn cut(out: &mut Vec<u8>, text: &[u8], most: usize, kept: usize) {
    if text.len() > most {
        out.extend_from_slice(&text[..kept]);
        out.extend_from_slice(b"...");
    } else {
        out.extend_from_slice(text);
    }
}

fn append_binary(out: &mut Vec<u8>, value: &[u8]) {
    let (subtype, mut bytes) = match value {
        [_, _, _, _, subtype, bytes @ ..] => (*subtype, bytes),
        _ => (0, &[][..]),
    };
    // The old binary subtype has a second length field inside.
    if subtype == 2 {
        bytes = bytes.get(4..).unwrap_or_default();
    }
    match bytes {
        _ if subtype == 4 && bytes.len() == 16 => {
            let digits = hex(bytes, false);
            let parts = [
                &digits[..8],
                &digits[8..12],
                &digits[12..16],
                &digits[16..20],
                &digits[20..],
            ];
            print(out, format_args!("UUID(\"{}\")", parts.join("-")));
        }
        _ if bytes.len() > 80 => print(out, format_args!("BinData({subtype}, {}...)", hex(&bytes[..70], true))),
        _ => print(out, format_args!("BinData({subtype}, {})", hex(bytes, true))),
    }
}

/// Two hexadecimal digits for each byte.
pub(super) fn hex(bytes: &[u8], upper_case: bool) -> String {
    let digits = if upper_case {
        b"0123456789ABCDEF"
    } else {
        b"0123456789abcdef"
    };
    let digit = |nibble: u8| char::from(digits[usize::from(nibble)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)])
        .collect()
}

fn print(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to memory doesn't fail");
}

/// The bytes of the hexadecimal `digits`, two digits for each byte.
pub(crate) fn bytes_of_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(nibble(*pair.first()?)? << 4 | nibble(*pair.get(1)?)?).ok();
    digits.chunks(2).map(byte).collect()
}

/// Whether the server accepts `text` as UTF-8. The server only counts the bytes of each character. So it also accepts
/// encoded surrogates, encodings longer than necessary, and characters past the last one.
///
/// Source: mongodb/mongo `src/mongo/util/text.cpp`; measured on 6.0.5.
pub(super) fn is_utf_8_to_the_server(text: &[u8]) -> bool {
    let mut left = 0;
    for byte in text {
        match (byte.leading_ones(), left) {
            (1, 1..) => left -= 1,
            (0, 0) => {}
            (ones @ 2..=4, 0) if !matches!(byte, 0xc0 | 0xc1 | 0xf5..) => left = ones - 1,
            _ => return false,
        }
    }
    left == 0
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::*;

    #[test]
    fn doubles_as_the_server_prints_them() {
        for (number, text) in [
            (5.0, "5.0"),
            (5.25, "5.25"),
            (0.1, "0.1"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e300, "1e+300.0"),
            (1e21, "1e+21.0"),
            (-0.0, "-0.0"),
            (f64::NAN, "nan.0"),
            (f64::INFINITY, "inf.0"),
            (f64::NEG_INFINITY, "-inf.0"),
            (1.5e300, "1.5e+300"),
            (1e-5, "1e-05.0"),
            (0.0001, "0.0001"),
            (123456789012345680.0, "1.234567890123457e+17"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16.0"),
            (9007199254740993.0, "9007199254740992.0"),
            (-1234.5, "-1234.5"),
            (10.0, "10.0"),
            (100.25, "100.25"),
        ] {
            assert_eq!(double(number), text);
        }
    }

    #[test]
    fn documents_as_the_server_prints_them() {
        let nested = doc! { "a": 1, "c": { "d": [1_i64, "s", { "e": Bson::Null }], "": {}, "f": [] }, "$x": true };
        let bytes = nested.to_vec().unwrap();
        let text = document(Doc::new(&bytes).unwrap()).unwrap();
        let expected = r#"{ a: 1, c: { d: [ 1, "s", { e: null } ], : {}, f: [] }, $x: true }"#;
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_string_of_160_bytes_is_cut_to_150() {
        for (size, printed) in [(159, 159), (160, 153)] {
            let bytes = doc! { "v": "x".repeat(size) }.to_vec().unwrap();
            let text = document(Doc::new(&bytes).unwrap()).unwrap();
            assert_eq!(text.len(), printed + r#"{ v: "" }"#.len());
        }
    }
}
