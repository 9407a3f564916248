//! Shows a value to people, as extended JSON.

use bson::{Bson, RawBson};
use serde_json::Value;

/// The value as extended JSON; as Rust would print it where it can't be (text that isn't UTF-8, say).
pub fn as_json(value: &RawBson) -> Value {
    let decoded = Bson::try_from(value.clone()).ok();
    let json = decoded.and_then(|value| serde_json::to_value(value).ok());
    json.unwrap_or_else(|| format!("{value:?}").into())
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
}
