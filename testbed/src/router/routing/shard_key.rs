//! A collection's shard key: its fields, and how a document's values of them become a point among the chunks.

use std::borrow::Cow;
use std::cmp::Ordering;

use bson::spec::ElementType;

use super::hash::hash64;
use super::order::compare_elements;
use crate::router::raw::{Doc, Element, Malformed};

/// One value of a shard key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue<'a> {
    kind: ElementType,
    value: Cow<'a, [u8]>,
}

impl<'a> KeyValue<'a> {
    /// Below every value.
    pub const MIN: KeyValue<'static> = KeyValue {
        kind: ElementType::MinKey,
        value: Cow::Borrowed(&[]),
    };
    /// Above every value.
    pub const MAX: KeyValue<'static> = KeyValue {
        kind: ElementType::MaxKey,
        value: Cow::Borrowed(&[]),
    };
    /// What a missing field counts as.
    pub const NULL: KeyValue<'static> = KeyValue {
        kind: ElementType::Null,
        value: Cow::Borrowed(&[]),
    };
    /// Below null; matched by a query for null.
    pub const UNDEFINED: KeyValue<'static> = KeyValue {
        kind: ElementType::Undefined,
        value: Cow::Borrowed(&[]),
    };

    /// A value of a type, by its bytes.
    pub fn new(kind: ElementType, bytes: Vec<u8>) -> KeyValue<'static> {
        KeyValue {
            kind,
            value: Cow::Owned(bytes),
        }
    }

    /// An element's value.
    pub fn from_element(element: &Element<'a>) -> Self {
        KeyValue {
            kind: element.kind,
            value: Cow::Borrowed(element.value),
        }
    }

    /// The hash of an element's value, itself a value.
    pub fn hashed(element: &Element<'_>) -> KeyValue<'static> {
        KeyValue {
            kind: ElementType::Int64,
            value: Cow::Owned(hash64(element).to_le_bytes().to_vec()),
        }
    }

    /// The same value, on its own.
    pub fn into_owned(self) -> KeyValue<'static> {
        KeyValue {
            kind: self.kind,
            value: Cow::Owned(self.value.into_owned()),
        }
    }

    /// Whether a collation has a say in how the value compares.
    pub fn is_collatable(&self) -> bool {
        is_collatable(self.kind)
    }

    /// The value as an element without a name.
    pub fn as_element(&self) -> Element<'_> {
        Element {
            kind: self.kind,
            name: b"",
            value: &self.value,
        }
    }
}

/// Whether a collation has a say in how values of the type compare.
pub fn is_collatable(kind: ElementType) -> bool {
    matches!(
        kind,
        ElementType::String | ElementType::Symbol | ElementType::EmbeddedDocument | ElementType::Array
    )
}

/// Compares two points, or a point and a prefix of one.
pub fn compare_points(left: &[KeyValue<'_>], right: &[KeyValue<'_>]) -> Ordering {
    left.iter()
        .zip(right)
        .map(|(left, right)| compare_elements(&left.as_element(), &right.as_element()))
        .find(|order| *order != Ordering::Equal)
        .unwrap_or(Ordering::Equal)
}

/// One field of a shard key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its path, dots included.
    pub path: String,
    /// The chunks are bounded by hashes of its values.
    pub hashed: bool,
}

/// A shard key.
#[derive(Debug, Clone)]
pub struct ShardKey {
    /// Its fields in order.
    pub fields: Vec<Field>,
    /// As `config.collections` holds it.
    pub pattern: Vec<u8>,
}

impl ShardKey {
    /// Reads `config.collections`' `key`.
    ///
    /// # Errors
    /// [`Malformed`] bytes.
    pub fn new(pattern: Doc<'_>) -> Result<Self, Malformed> {
        let mut fields = Vec::new();
        for element in pattern.elements() {
            let element = element?;
            fields.push(Field {
                path: String::from_utf8_lossy(element.name).into_owned(),
                hashed: element.as_str() == Some("hashed"),
            });
        }
        Ok(ShardKey {
            fields,
            pattern: pattern.bytes().to_vec(),
        })
    }

    /// Where a document lies; `None` if a value is an array or stands below one, which no shard key may.
    ///
    /// # Errors
    /// [`Malformed`] bytes.
    pub fn point<'a>(&self, document: Doc<'a>) -> Result<Option<Vec<KeyValue<'a>>>, Malformed> {
        let mut point = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            match find_path(document, &field.path)? {
                Found::Value(element) => point.push(key_value(&element, field.hashed)),
                Found::Missing => point.push(missing(field.hashed)),
                Found::Array => return Ok(None),
            }
        }
        Ok(Some(point))
    }

    /// A bound of a chunk: one value for each field, hashes already as such.
    ///
    /// # Errors
    /// [`Malformed`] bytes.
    pub fn bound(&self, bound: Doc<'_>) -> Result<Vec<KeyValue<'static>>, Malformed> {
        let values = bound
            .elements()
            .map(|element| Ok(KeyValue::from_element(&element?).into_owned()));
        values.collect()
    }
}

/// The value that counts for an element in a (hashed) field.
pub fn key_value<'a>(element: &Element<'a>, hashed: bool) -> KeyValue<'a> {
    match hashed {
        true => KeyValue::hashed(element),
        false => KeyValue::from_element(element),
    }
}

/// The value that counts for a missing field.
pub fn missing(hashed: bool) -> KeyValue<'static> {
    match hashed {
        true => KeyValue::hashed(&KeyValue::NULL.as_element()),
        false => KeyValue::NULL,
    }
}

/// The value at a dotted path, if there is one and no array on the way.
pub fn value_at<'a>(document: Doc<'a>, path: &str) -> Option<Element<'a>> {
    match find_path(document, path) {
        Ok(Found::Value(value)) => Some(value),
        _ => None,
    }
}

/// What stands at a dotted path.
#[derive(Debug)]
pub enum Found<'a> {
    /// A value, no array.
    Value(Element<'a>),
    /// Nothing.
    Missing,
    /// An array, there or on the way.
    Array,
}

/// Walks a dotted path.
///
/// # Errors
/// [`Malformed`] bytes.
pub fn find_path<'a>(document: Doc<'a>, path: &str) -> Result<Found<'a>, Malformed> {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    let Some(element) = document.get(name)? else {
        return Ok(Found::Missing);
    };
    match (element.kind, rest) {
        (ElementType::Array, _) => Ok(Found::Array),
        (_, None) => Ok(Found::Value(element)),
        (ElementType::EmbeddedDocument, Some(rest)) => find_path(Doc::new(element.value)?, rest),
        (_, Some(_)) => Ok(Found::Missing),
    }
}
