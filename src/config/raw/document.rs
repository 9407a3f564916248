//! Turns a YAML mapping into the BSON document that the same text would mean in the shell.
//!
//! Whole numbers become int32 if they fit, otherwise int64. Numbers with a point become doubles. Extended JSON
//! (`{$date: …}`, `{$numberLong: …}`, …) becomes the type that it names. The order of fields is kept.

use bson::{Bson, Document};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_yaml::{Mapping, Value};

/// The wrappers of extended JSON for one value of a type that YAML doesn't have, each with an example.
const EXTENDED_JSON: [(&str, &str); 14] = [
    ("$oid", "{ $oid: \"0123456789abcdef01234567\" }"),
    ("$date", "{ $date: \"2026-01-31T12:00:00Z\" }"),
    ("$numberInt", "{ $numberInt: \"1\" }"),
    ("$numberLong", "{ $numberLong: \"1\" }"),
    ("$numberDouble", "{ $numberDouble: \"1.5\" }"),
    ("$numberDecimal", "{ $numberDecimal: \"1.50\" }"),
    ("$binary", "{ $binary: { base64: \"AQI=\", subType: \"00\" } }"),
    ("$uuid", "{ $uuid: \"01234567-89ab-cdef-0123-456789abcdef\" }"),
    ("$timestamp", "{ $timestamp: { t: 1, i: 1 } }"),
    (
        "$regularExpression",
        "{ $regularExpression: { pattern: \"^a\", options: \"i\" } }",
    ),
    ("$symbol", "{ $symbol: \"x\" }"),
    ("$minKey", "{ $minKey: 1 }"),
    ("$maxKey", "{ $maxKey: 1 }"),
    ("$undefined", "{ $undefined: true }"),
];

/// Why a YAML value has no BSON counterpart.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NotBson {
    #[error("field names must be text: put {0} in quotes")]
    NameNotText(String),
    #[error("<< would be taken for a field's name: write out what it stands for")]
    Merge,
    #[error("{0} fits no BSON integer")]
    TooLarge(u64),
    #[error("YAML tags such as {0} have no counterpart in BSON")]
    Tag(String),
    #[error("{name} is not valid extended JSON; it is written as {example}")]
    ExtendedJson { name: &'static str, example: &'static str },
    #[error("{name} must be the only field: {{ {name}: … }} stands for one value")]
    NotAlone { name: &'static str },
}

/// Reads a mapping as a document; for `#[serde(deserialize_with)]`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Document>, D::Error> {
    Option::<Mapping>::deserialize(deserializer)?
        .map(|mapping| document(&mapping).map_err(D::Error::custom))
        .transpose()
}

fn document(mapping: &Mapping) -> Result<Document, NotBson> {
    mapping
        .iter()
        .map(|(name, value)| match name {
            Value::String(name) if name == "<<" => Err(NotBson::Merge),
            Value::String(name) => Ok((name.clone(), bson(value)?)),
            other => Err(NotBson::NameNotText(plain(other))),
        })
        .collect()
}

fn bson(value: &Value) -> Result<Bson, NotBson> {
    Ok(match value {
        Value::Null => Bson::Null,
        Value::Bool(flag) => Bson::Boolean(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(whole), _, _) => i32::try_from(whole).map_or(Bson::Int64(whole), Bson::Int32),
            (None, Some(whole), _) => return Err(NotBson::TooLarge(whole)),
            (None, None, double) => Bson::Double(double.unwrap_or(f64::NAN)),
        },
        Value::String(text) => Bson::String(text.clone()),
        Value::Sequence(items) => Bson::Array(items.iter().map(bson).collect::<Result<_, _>>()?),
        Value::Mapping(mapping) => match extended_name(mapping) {
            Some(name) => extended(name, mapping)?,
            None => Bson::Document(document(mapping)?),
        },
        Value::Tagged(tagged) => return Err(NotBson::Tag(tagged.tag.to_string())),
    })
}

fn extended_name(mapping: &Mapping) -> Option<(&'static str, &'static str)> {
    let known = |name: &str| EXTENDED_JSON.into_iter().find(|(known, _)| *known == name);
    mapping.keys().filter_map(Value::as_str).find_map(known)
}

fn extended((name, example): (&'static str, &'static str), mapping: &Mapping) -> Result<Bson, NotBson> {
    if mapping.len() > 1 {
        return Err(NotBson::NotAlone { name });
    }
    // The error is in the words of the reader's own types.
    let read = Bson::deserialize(&Value::Mapping(mapping.clone()));
    read.map_err(|_: serde_yaml::Error| NotBson::ExtendedJson { name, example })
}

/// A value in the place of text, as short text for a message.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
        Value::Tagged(tagged) => tagged.tag.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, Decimal128, doc, oid::ObjectId};

    use super::*;

    fn read(text: &str) -> Result<Document, NotBson> {
        document(&serde_yaml::from_str(text).unwrap())
    }

    #[test]
    fn numbers_have_the_types_that_the_shell_gives_them() {
        assert_eq!(
            read("{ a: 1, b: -1, c: 2147483648, d: 1.0, e: -0.5, f: 1e3 }"),
            Ok(doc! { "a": 1, "b": -1, "c": 2_147_483_648_i64, "d": 1.0, "e": -0.5, "f": 1000.0 })
        );
        assert_eq!(read("{ a: 9223372036854775808 }"), Err(NotBson::TooLarge(1 << 63)));
    }

    #[test]
    fn fields_keep_their_order_and_nest() {
        let read = read("{ z: 1, a: { y: null, b: [x, true] }, 'm.n': -1 }").unwrap();
        let written = doc! { "z": 1, "a": { "y": null, "b": ["x", true] }, "m.n": -1 };
        assert_eq!(read.to_vec().unwrap(), written.to_vec().unwrap());
    }

    #[test]
    fn extended_json_gives_the_type_it_names() {
        assert_eq!(
            read(
                "at: { $gte: { $date: 2024-01-01T00:00:00Z } }\nlong: { $numberLong: '5' }\n\
                 price: { $numberDecimal: '1.50' }\nid: { $oid: 0123456789abcdef01234567 }\n"
            ),
            Ok(doc! {
                "at": { "$gte": DateTime::from_millis(1_704_067_200_000) },
                "long": 5_i64,
                "price": "1.50".parse::<Decimal128>().unwrap(),
                "id": ObjectId::parse_str("0123456789abcdef01234567").unwrap(),
            })
        );
        assert_eq!(
            read("{ at: { $date: { $numberLong: '7' } } }"),
            Ok(doc! { "at": DateTime::from_millis(7) })
        );
    }

    #[test]
    fn the_examples_of_extended_json_are_valid() {
        for (name, example) in EXTENDED_JSON {
            let read = read(&format!("a: {example}"));
            let is_document = read
                .as_ref()
                .is_ok_and(|read| matches!(read.get("a"), Some(Bson::Document(_))));
            assert!(
                example.contains(name) && read.is_ok() && !is_document,
                "{example}: {read:?}"
            );
        }
    }

    #[test]
    fn operators_stay_what_they_are() {
        let filter = "{ $and: [ { age: { $gt: 17 } }, { email: { $exists: true, $type: string } } ] }";
        assert_eq!(
            read(filter),
            Ok(doc! { "$and": [ { "age": { "$gt": 17 } }, { "email": { "$exists": true, "$type": "string" } } ] })
        );
    }

    #[test]
    fn yaml_that_bson_cannot_represent_is_refused() {
        assert_eq!(read("{ '<<': { a: 1 } }"), Err(NotBson::Merge));
        assert_eq!(read("{ 1: 1 }"), Err(NotBson::NameNotText("1".to_owned())));
        assert_eq!(
            read("{ a: !!binary x }").map(|_| ()),
            Ok(()),
            "a core tag is read as the text it is"
        );
        assert_eq!(read("{ a: !thing x }"), Err(NotBson::Tag("!thing".to_owned())));
        assert!(matches!(
            read("{ a: { $date: soon } }"),
            Err(NotBson::ExtendedJson { .. })
        ));
        assert!(matches!(
            read("{ a: { $oid: x, b: 1 } }"),
            Err(NotBson::NotAlone { name: "$oid" })
        ));
    }
}
