//! Turns a value into its canonical form: bytes that compare as a server index compares the values.
//!
//! Two values have equal bytes exactly if the server calls them equal. The form serves three purposes:
//! - Identity: it decides which documents compete for a key.
//! - Spreading: it decides the key's bucket.
//! - Order: it decides which of several violated keys is reported.
//!
//! Its layout follows the idea of the server's own `KeyString`: a byte for the type's rank, then bytes that order
//! values within the type. Variable parts end in a zero, and zeros within them are escaped. So no form is another
//! form's prefix.
//!
//! The form can't be turned back into a value. It omits all details that equality ignores: int32 or double, string or
//! symbol, the names inside an array.

use std::cmp::Ordering;

use bson::spec::ElementType;
use bson::{RawBson, rawdoc};

use super::collation::{Collation, Icu, Uncollatable};
use super::number::Number;
use crate::raw::{Doc, Element, Malformed, NESTED_DOCUMENTS_MAX};

/// How the strings among the values are compared.
#[derive(Debug, Clone, Copy)]
pub(super) enum Strings<'c> {
    /// Byte by byte.
    Simple,
    /// By their sort keys.
    Collated(&'c Icu),
    /// The strings are already sort keys in hexadecimal, as a reservation holds them.
    SortKeys,
}

/// Why a value has no canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Uncomparable {
    /// It isn't BSON.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Keyward can't compare its strings as the server would.
    #[error(transparent)]
    Uncollatable(#[from] Uncollatable),
}

impl<'c> From<&'c Collation> for Strings<'c> {
    fn from(collation: &'c Collation) -> Self {
        match collation {
            Collation::Simple => Strings::Simple,
            Collation::Icu(icu) => Strings::Collated(icu),
        }
    }
}

/// Bytes that are equal for two `_id`s if the index on `_id` calls them equal, without a collation: 1 equals 1.0.
pub fn id_identity(id: &RawBson) -> Vec<u8> {
    let document = rawdoc! { "_id": id.clone() };
    let mut identity = Vec::new();
    let element = Doc::new(document.as_bytes()).and_then(|document| document.get("_id"));
    let written = match &element {
        Ok(Some(element)) => Canonical::for_index(&mut identity, Strings::Simple).append(element, false),
        _ => return document.into_bytes(),
    };
    match written {
        Ok(()) => identity,
        Err(_) => document.into_bytes(),
    }
}

/// Compares two values as the server's `$min` and `$max` do without a collation. `None` if either isn't BSON.
pub fn compare(one: &Element<'_>, other: &Element<'_>) -> Option<Ordering> {
    let ordered = |element| {
        let mut ordered = Vec::new();
        let written = Canonical::for_query(&mut ordered, Strings::Simple).append(element, false);
        written.is_ok().then_some(ordered)
    };
    Some(ordered(one)?.cmp(&ordered(other)?))
}

/// Writes canonical forms one after another into one buffer.
pub(super) struct Canonical<'b> {
    out: &'b mut Vec<u8>,
    strings: Strings<'b>,
    /// Whether a query's operator compares the values, not an index. A query compares the names inside an array and
    /// collates symbols; an index does neither.
    is_query: bool,
    /// How many documents and arrays are open around what is written.
    depth: usize,
    deepest: usize,
}

impl<'b> Canonical<'b> {
    /// For the values of an index.
    pub(super) fn for_index(out: &'b mut Vec<u8>, strings: Strings<'b>) -> Self {
        Canonical {
            out,
            strings,
            is_query: false,
            depth: 0,
            deepest: 0,
        }
    }

    /// For values that a query's operator compares.
    pub(super) fn for_query(out: &'b mut Vec<u8>, strings: Strings<'b>) -> Self {
        Canonical {
            is_query: true,
            ..Canonical::for_index(out, strings)
        }
    }

    /// The nesting depth of the deepest value written so far; a value without parts has depth 0.
    pub(super) fn deepest(&self) -> usize {
        self.deepest
    }

    /// Appends the value of `element` without its name; `descending` reverses its order.
    pub(super) fn append(&mut self, element: &Element<'_>, descending: bool) -> Result<(), Uncomparable> {
        let start = self.out.len();
        self.value(element)?;
        if descending {
            self.out[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok(())
    }

    fn value(&mut self, element: &Element<'_>) -> Result<(), Uncomparable> {
        self.out.push(rank(element.kind));
        self.body(element)
    }

    fn body(&mut self, element: &Element<'_>) -> Result<(), Uncomparable> {
        let value = element.value;
        match element.kind {
            ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
                Number::of(element)
                    .ok_or(Malformed::Length(value.len() as i64))?
                    .append_ordered(self.out);
            }
            ElementType::String | ElementType::Symbol => {
                self.string(string_bytes(value)?.0, element.kind == ElementType::Symbol)?;
            }
            ElementType::JavaScriptCode => self.escaped(string_bytes(value)?.0),
            ElementType::EmbeddedDocument => self.nested(Doc::new(value)?, true)?,
            ElementType::Array => self.nested(Doc::new(value)?, self.is_query)?,
            ElementType::Binary => self.binary(value)?,
            ElementType::Boolean => self.out.push(u8::from(value != [0])),
            ElementType::DateTime => {
                let time = i64::from_le_bytes(*value.first_chunk().ok_or(Malformed::Unterminated)?);
                self.out.extend_from_slice(&(time ^ i64::MIN).to_be_bytes());
            }
            ElementType::Timestamp => {
                let time = u64::from_le_bytes(*value.first_chunk().ok_or(Malformed::Unterminated)?);
                self.out.extend_from_slice(&time.to_be_bytes());
            }
            // Pattern and options, each with the zero that ends it.
            ElementType::ObjectId | ElementType::RegularExpression => self.out.extend_from_slice(value),
            ElementType::DbPointer => {
                let (namespace, id) = db_pointer(value)?;
                self.out.extend_from_slice(&(namespace.len() as u32).to_be_bytes());
                self.out.extend_from_slice(namespace);
                self.out.extend_from_slice(id);
            }
            ElementType::JavaScriptCodeWithScope => {
                let (code, scope) = code_with_scope(value)?;
                self.escaped(code);
                // The server compares strings in a scope byte by byte, whatever the collation.
                let strings = std::mem::replace(&mut self.strings, Strings::Simple);
                let result = self.nested(scope, true);
                self.strings = strings;
                result?;
            }
            ElementType::MinKey | ElementType::MaxKey | ElementType::Null | ElementType::Undefined => {}
        }
        Ok(())
    }

    fn string(&mut self, text: &[u8], is_symbol: bool) -> Result<(), Uncomparable> {
        match self.strings {
            Strings::Simple => self.escaped(text),
            Strings::Collated(_) if is_symbol && !self.is_query => return Err(Uncollatable::Symbol.into()),
            Strings::Collated(icu) => self.escaped(&icu.sort_key(text)?),
            Strings::SortKeys => {
                self.escaped(&super::text::bytes_of_hex(text).ok_or(Malformed::Length(text.len() as i64))?)
            }
        }
        Ok(())
    }

    /// The elements of a document (with their names) or of an array (by position).
    fn nested(&mut self, document: Doc<'_>, named: bool) -> Result<(), Uncomparable> {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        if self.depth > NESTED_DOCUMENTS_MAX {
            return Err(Malformed::TooDeep.into());
        }
        for element in document.elements() {
            let element = element?;
            self.out.push(rank(element.kind));
            if named {
                self.out.extend_from_slice(element.name);
                self.out.push(0);
            }
            self.body(&element)?;
        }
        self.out.push(0);
        self.depth -= 1;
        Ok(())
    }

    /// Appends `bytes` with a final zero that sorts before any continuation.
    fn escaped(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == 0) {
            self.out.extend_from_slice(part);
            if part.ends_with(&[0]) {
                self.out.push(0xff);
            }
        }
        self.out.push(0);
    }

    fn binary(&mut self, value: &[u8]) -> Result<(), Malformed> {
        let (_, subtype_and_bytes) = value.split_first_chunk::<4>().ok_or(Malformed::Unterminated)?;
        self.out
            .extend_from_slice(&((subtype_and_bytes.len() - 1) as u32).to_be_bytes());
        self.out.extend_from_slice(subtype_and_bytes);
        Ok(())
    }
}

/// The type's rank in the server's order of types. Types whose values may be equal share a rank. A rank is never zero.
pub(super) fn rank(kind: ElementType) -> u8 {
    match kind {
        ElementType::MinKey => 10,
        ElementType::Undefined => 15,
        ElementType::Null => 20,
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => 30,
        ElementType::String | ElementType::Symbol => 60,
        ElementType::EmbeddedDocument => 70,
        ElementType::Array => 80,
        ElementType::Binary => 90,
        ElementType::ObjectId => 100,
        ElementType::Boolean => 110,
        ElementType::DateTime => 120,
        ElementType::Timestamp => 130,
        ElementType::RegularExpression => 140,
        ElementType::DbPointer => 150,
        ElementType::JavaScriptCode => 160,
        ElementType::JavaScriptCodeWithScope => 170,
        ElementType::MaxKey => 240,
    }
}

/// A string without its length field and its final zero, and what follows it.
pub(super) fn string_bytes(value: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (length, rest) = value.split_first_chunk::<4>().ok_or(Malformed::Unterminated)?;
    let length = i32::from_le_bytes(*length);
    let size = usize::try_from(length).map_err(|_| Malformed::Length(length.into()))?;
    let (text, rest) = rest.split_at_checked(size).ok_or(Malformed::Length(length.into()))?;
    match text.split_last() {
        Some((0, text)) => Ok((text, rest)),
        _ => Err(Malformed::Unterminated),
    }
}

/// A DBPointer's namespace and id. The server reads the namespace as C does, up to the first zero.
pub(super) fn db_pointer(value: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (namespace, id) = string_bytes(value)?;
    Ok((until_zero(namespace), id))
}

/// The bytes before the first zero byte.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A CodeWScope's code and scope.
pub(super) fn code_with_scope(value: &[u8]) -> Result<(&[u8], Doc<'_>), Malformed> {
    let (_, rest) = value.split_first_chunk::<4>().ok_or(Malformed::Unterminated)?;
    let (code, scope) = string_bytes(rest)?;
    Ok((code, Doc::new(scope)?))
}
