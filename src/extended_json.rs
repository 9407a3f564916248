//! Shows a value to people, as extended JSON.

use bson::spec::ElementType;
use bson::{Bson, RawBson, RawDocumentBuf};
use serde_json::{Map, Value};

use crate::constraint::Key;
use crate::raw::{Doc, Element};
use crate::server::type_name;

/// The value as extended JSON. Text in it that isn't UTF-8 is shown with replacement characters.
pub fn as_json(value: &RawBson) -> Value {
    let decoded = Bson::try_from(value.clone()).ok();
    let json = decoded.and_then(|value| serde_json::to_value(value).ok());
    json.unwrap_or_else(|| match value {
        RawBson::Document(document) => lossy(document.as_bytes(), ElementType::EmbeddedDocument),
        RawBson::Array(array) => lossy(array.as_bytes(), ElementType::Array),
        other => unreadable(other.element_type()),
    })
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
    use bson::rawdoc;

    use super::*;

    #[test]
    fn a_value_is_shown_as_extended_json() {
        let shown = |value: RawBson| as_json(&value).to_string();
        assert_eq!(shown(RawBson::Int32(1)), "1");
        assert_eq!(shown(RawBson::String("x".to_owned())), r#""x""#);
        assert_eq!(shown(RawBson::Document(rawdoc! { "a": 1 })), r#"{"a":1}"#);
        let id = bson::oid::ObjectId::from_bytes([1; 12]);
        assert_eq!(shown(RawBson::ObjectId(id)), r#"{"$oid":"010101010101010101010101"}"#);
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
            "{\"a\":[{\"b\":\"\u{fffd}x\"}],\"c\":\"ok\",\"n\":7}"
        );
    }
}
