//! Shows a value to people, as relaxed extended JSON: the form that MongoDB's own tools print and read.
//!
//! The order of fields is kept, because an embedded document with another order is another `_id`.

use bson::spec::ElementType;
use bson::{Bson, RawBson, RawDocumentBuf};
use serde_json::{Map, Value, json};

use crate::constraint::Key;
use crate::raw::{Doc, Element};
use crate::server::type_name;

/// The largest whole number that a double, and so a shell that reads JSON, can tell from its neighbours.
const EXACT_MAX: u64 = 1 << 53;

/// The value as extended JSON. Text in it that isn't UTF-8 is shown with replacement characters.
pub fn as_json(value: &RawBson) -> Value {
    match Bson::try_from(value.clone()) {
        Ok(value) => relaxed(value),
        Err(_) => match value {
            RawBson::Document(document) => lossy(document.as_bytes(), ElementType::EmbeddedDocument),
            RawBson::Array(array) => lossy(array.as_bytes(), ElementType::Array),
            other => unreadable(other.element_type()),
        },
    }
}

/// The relaxed form, but whole numbers that a shell would round keep their type.
fn relaxed(value: Bson) -> Value {
    match value {
        Bson::Document(document) => Value::Object(
            document
                .into_iter()
                .map(|(name, value)| (name, relaxed(value)))
                .collect(),
        ),
        Bson::Array(items) => items.into_iter().map(relaxed).collect(),
        Bson::Int64(number) if number.unsigned_abs() > EXACT_MAX => json!({ "$numberLong": number.to_string() }),
        // Extended JSON knows no sign of it.
        Bson::Double(number) if number.is_nan() => json!({ "$numberDouble": "NaN" }),
        other => other.into_relaxed_extjson(),
    }
}

/// The key as a document with the constraint's paths; with sort keys in the place of strings if only those are known.
pub fn key_as_json(key: &Key) -> Value {
    let document = match key.values() {
        Some(values) => RawDocumentBuf::from_bytes(values.bytes().to_vec())
            .ok()
            .map(RawBson::Document),
        None => key.reservation_id().get("k").ok().flatten().map(RawBson::from),
    };
    document.map_or(Value::Null, |document| as_json(&document))
}

/// A document or an array that can't be decoded as a whole, field by field.
fn lossy(bytes: &[u8], kind: ElementType) -> Value {
    let elements = Doc::new(bytes)
        .ok()
        .and_then(|doc| doc.elements().collect::<Result<Vec<_>, _>>().ok());
    let Some(elements) = elements else {
        return unreadable(kind);
    };
    match kind {
        ElementType::Array => elements.iter().map(lossy_value).collect(),
        _ => {
            let field = |element: &Element<'_>| {
                let name = String::from_utf8_lossy(element.name).into_owned();
                (name, lossy_value(element))
            };
            Value::Object(elements.iter().map(field).collect::<Map<_, _>>())
        }
    }
}

fn lossy_value(element: &Element<'_>) -> Value {
    match element.kind {
        ElementType::EmbeddedDocument | ElementType::Array => lossy(element.value, element.kind),
        ElementType::String => match element.as_string_bytes() {
            Some(text) => String::from_utf8_lossy(text).into(),
            None => unreadable(element.kind),
        },
        kind => match element.to_raw_bson() {
            Some(value) => as_json(&value),
            None => unreadable(kind),
        },
    }
}

fn unreadable(kind: ElementType) -> Value {
    format!("(a value of type {} that can't be decoded)", type_name(kind)).into()
}

#[cfg(test)]
mod tests {
    use bson::oid::ObjectId;
    use bson::spec::BinarySubtype;
    use bson::{Binary, DateTime, JavaScriptCodeWithScope, Regex, Timestamp, Uuid, bson, cstr, doc, rawdoc};

    use super::*;

    #[test]
    fn a_value_of_each_type_is_shown_as_extended_json_and_read_back() {
        for (value, expected) in [
            (Bson::Double(1.0), "1.0"),
            (Bson::Double(-0.5), "-0.5"),
            (Bson::Double(f64::NAN), r#"{"$numberDouble":"NaN"}"#),
            (Bson::Double(-f64::NAN), r#"{"$numberDouble":"NaN"}"#),
            (Bson::Double(f64::NEG_INFINITY), r#"{"$numberDouble":"-Infinity"}"#),
            (Bson::String("x".to_owned()), r#""x""#),
            (
                Bson::Document(doc! { "b": 1, "a": { "d": 1, "c": 2 } }),
                r#"{"b":1,"a":{"d":1,"c":2}}"#,
            ),
            (bson!([1, "x"]), r#"[1,"x"]"#),
            (
                Bson::from(Binary {
                    subtype: BinarySubtype::Generic,
                    bytes: vec![1, 2],
                }),
                r#"{"$binary":{"base64":"AQI=","subType":"00"}}"#,
            ),
            (
                Bson::from(Uuid::from_bytes([1; 16])),
                r#"{"$binary":{"base64":"AQEBAQEBAQEBAQEBAQEBAQ==","subType":"04"}}"#,
            ),
            (Bson::Undefined, r#"{"$undefined":true}"#),
            (
                Bson::ObjectId(ObjectId::from_bytes([1; 12])),
                r#"{"$oid":"010101010101010101010101"}"#,
            ),
            (Bson::Boolean(true), "true"),
            (
                Bson::DateTime(DateTime::from_millis(1)),
                r#"{"$date":"1970-01-01T00:00:00.001Z"}"#,
            ),
            (
                Bson::DateTime(DateTime::from_millis(-1)),
                r#"{"$date":{"$numberLong":"-1"}}"#,
            ),
            (Bson::Null, "null"),
            (
                Bson::RegularExpression(Regex {
                    pattern: cstr!("^a").into(),
                    options: cstr!("i").into(),
                }),
                r#"{"$regularExpression":{"pattern":"^a","options":"i"}}"#,
            ),
            (Bson::JavaScriptCode("f()".to_owned()), r#"{"$code":"f()"}"#),
            (
                Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope {
                    code: "f()".to_owned(),
                    scope: doc! { "b": 1, "a": 2 },
                }),
                r#"{"$code":"f()","$scope":{"b":1,"a":2}}"#,
            ),
            (Bson::Symbol("s".to_owned()), r#"{"$symbol":"s"}"#),
            (Bson::Int32(1), "1"),
            (
                Bson::Timestamp(Timestamp { time: 1, increment: 2 }),
                r#"{"$timestamp":{"t":1,"i":2}}"#,
            ),
            (Bson::Int64(1 << 53), "9007199254740992"),
            (Bson::Int64(-(1 << 53) - 1), r#"{"$numberLong":"-9007199254740993"}"#),
            (
                Bson::Decimal128("0.10".parse().unwrap()),
                r#"{"$numberDecimal":"0.10"}"#,
            ),
            (Bson::MinKey, r#"{"$minKey":1}"#),
            (Bson::MaxKey, r#"{"$maxKey":1}"#),
        ] {
            let shown = as_json(&RawBson::try_from(value.clone()).unwrap());
            assert_eq!(shown.to_string(), expected);
            let again = Bson::try_from(shown).unwrap();
            let is_nan = |value: &Bson| value.as_f64().is_some_and(f64::is_nan);
            assert!(
                again == value || is_nan(&again) && is_nan(&value),
                "{again} for {value}"
            );
        }
    }

    #[test]
    fn text_that_isnt_utf_8_is_shown_without_debug_output() {
        let mut bytes = rawdoc! { "a": [{ "b": "xx" }], "n": 7_i64, "c": "ok" }
            .as_bytes()
            .to_vec();
        let place = bytes.windows(3).position(|window| window == b"xx\0").unwrap();
        bytes[place] = 0xff;
        let broken = RawDocumentBuf::from_bytes(bytes).unwrap();
        assert_eq!(
            as_json(&RawBson::Document(broken)).to_string(),
            "{\"a\":[{\"b\":\"\u{fffd}x\"}],\"n\":7,\"c\":\"ok\"}"
        );
    }
}
