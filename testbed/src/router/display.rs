//! A document as the server prints it in error texts: `{ a: 1, b: "x" }`.

use bson::spec::ElementType;

use super::raw::{Doc, Element};

/// Prints a document.
pub fn display(document: Doc<'_>) -> String {
    list(document, ["{}", "{ ", " }"], |element| {
        format!("{}: {}", String::from_utf8_lossy(element.name), value(element))
    })
}

fn list(document: Doc<'_>, marks: [&str; 3], item: impl Fn(&Element<'_>) -> String) -> String {
    let items: Vec<_> = document.elements().flatten().map(|element| item(&element)).collect();
    match items.is_empty() {
        true => marks[0].to_owned(),
        false => format!("{}{}{}", marks[1], items.join(", "), marks[2]),
    }
}

fn value(element: &Element<'_>) -> String {
    let bytes8 = || element.value.first_chunk::<8>().copied().unwrap_or_default();
    match element.kind {
        ElementType::Int32 | ElementType::Int64 => element.as_whole_number().unwrap_or(0).to_string(),
        ElementType::Double => double(f64::from_le_bytes(bytes8())),
        ElementType::String | ElementType::Symbol => {
            format!(
                "\"{}\"",
                String::from_utf8_lossy(element.as_string_bytes().unwrap_or_default())
            )
        }
        ElementType::EmbeddedDocument => Doc::new(element.value).map(display).unwrap_or_default(),
        ElementType::Array => match Doc::new(element.value) {
            Ok(array) => list(array, ["[]", "[ ", " ]"], value),
            Err(_) => String::new(),
        },
        ElementType::ObjectId => format!("ObjectId('{}')", hex(element.value)),
        ElementType::Boolean => element.is_truthy().to_string(),
        ElementType::Null => "null".to_owned(),
        ElementType::Undefined => "undefined".to_owned(),
        ElementType::DateTime => format!("new Date({})", i64::from_le_bytes(bytes8())),
        ElementType::Timestamp => {
            let time = u64::from_le_bytes(bytes8());
            format!("Timestamp({}, {})", time >> 32, time as u32)
        }
        ElementType::Decimal128 => match element.value.first_chunk::<16>() {
            Some(bytes) => bson::Decimal128::from_bytes(*bytes).to_string(),
            None => String::new(),
        },
        ElementType::RegularExpression => {
            let text = String::from_utf8_lossy(element.value);
            let (pattern, options) = text.split_once('\0').unwrap_or((&text, ""));
            format!("/{pattern}/{}", options.trim_end_matches('\0'))
        }
        ElementType::MinKey => "MinKey".to_owned(),
        ElementType::MaxKey => "MaxKey".to_owned(),
        kind => format!("{kind:?}"),
    }
}

fn double(number: f64) -> String {
    match number.fract() == 0.0 && number.abs() < 1e15 {
        true => format!("{number:.1}"),
        false if number.is_nan() => "nan.0".to_owned(),
        false => number.to_string(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::*;

    #[test]
    fn prints_as_the_server_does() {
        let document = doc! { "q": { "a": 1.0, "s": "x" }, "l": [1, Bson::Null], "e": {}, "t": true };
        let bytes = document.to_vec().unwrap();
        let text = "{ q: { a: 1.0, s: \"x\" }, l: [ 1, null ], e: {}, t: true }";
        assert_eq!(display(Doc::new(&bytes).unwrap()), text);
    }
}
