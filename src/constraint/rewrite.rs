//! Copies values, changes the names inside them, and drops the details that an index doesn't keep.
//!
//! The server can restore a value from its index entry, except for these details:
//! - The names inside an array become positions.
//! - Every NaN becomes the plain NaN.
//! - A Decimal128 of more than 34 digits becomes a zero.
//! - A DBPointer's namespace ends at its first zero byte.
//!
//! The server's errors and Keyward's reservations show values without these details. Copying a copy changes nothing
//! more.

use std::borrow::Cow;

use bson::spec::ElementType;

use super::canonical::{code_with_scope, db_pointer, string_bytes};
use crate::raw::{Builder, Doc, Element, Malformed, length_field};

/// How a copy changes the names of the fields inside documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// Keeps them.
    Keep,
    /// Puts a `%` before each name that starts with `$` or `%`: inside an `_id` the server refuses names that start
    /// with `$`.
    Escape,
    /// Removes that `%`.
    Unescape,
}

/// Gives the bytes that replace a string among the values. Strings in a scope are kept.
pub(super) type Replace<'f> = &'f mut dyn FnMut(&[u8]) -> Vec<u8>;

const ESCAPE: u8 = b'%';

impl Names {
    fn apply(self, name: &[u8]) -> Cow<'_, [u8]> {
        match (self, name) {
            (Names::Escape, [b'$' | b'%', ..]) => [&[ESCAPE], name].concat().into(),
            (Names::Unescape, [b'%', rest @ ..]) => rest.into(),
            _ => name.into(),
        }
    }
}

/// Appends a copy of `element` to `builder` under `name`, which isn't changed itself.
pub(super) fn append(builder: &mut Builder, name: &[u8], element: &Element<'_>, names: Names) -> Result<(), Malformed> {
    let value = element.value;
    match element.kind {
        ElementType::EmbeddedDocument => {
            builder.open(element.kind, name);
            append_fields(builder, Doc::new(value)?, names)?;
            builder.close();
        }
        ElementType::Array => {
            builder.open(element.kind, name);
            let mut position = PositionName::default();
            for element in Doc::new(value)?.elements() {
                append(builder, position.next(), &element?, names)?;
            }
            builder.close();
        }
        ElementType::JavaScriptCodeWithScope => {
            let (code, scope) = code_with_scope(value)?;
            let mut copy = Builder::new();
            append_fields(&mut copy, scope, names)?;
            let scope = copy.finish();
            let mut value = Vec::with_capacity(code.len() + scope.len() + 9);
            value.extend_from_slice(&length_field(code.len() + scope.len() + 9));
            value.extend_from_slice(&length_field(code.len() + 1));
            value.extend_from_slice(code);
            value.push(0);
            value.extend_from_slice(&scope);
            builder.append(element.kind, name, &value);
        }
        ElementType::DbPointer => {
            let (namespace, id) = db_pointer(value)?;
            let value = [&length_field(namespace.len() + 1)[..], namespace, b"\0", id].concat();
            builder.append(element.kind, name, &value);
        }
        _ => {
            builder.append(element.kind, name, &plain(element));
        }
    }
    Ok(())
}

fn append_fields(builder: &mut Builder, document: Doc<'_>, names: Names) -> Result<(), Malformed> {
    for element in document.elements() {
        let element = element?;
        append(builder, &names.apply(element.name), &element, names)?;
    }
    Ok(())
}

/// A value without parts, as the server restores it from an index.
fn plain<'a>(element: &Element<'a>) -> Cow<'a, [u8]> {
    match (element.kind, element.value.len()) {
        (ElementType::Double, 8) => {
            let number = f64::from_le_bytes(element.value.try_into().unwrap_or_default());
            if number.is_nan() {
                f64::NAN.to_le_bytes().to_vec().into()
            } else {
                element.value.into()
            }
        }
        (ElementType::Decimal128, 16) => {
            let bits = u128::from_le_bytes(element.value.try_into().unwrap_or_default());
            super::number::plain_decimal(bits).to_le_bytes().to_vec().into()
        }
        _ => element.value.into(),
    }
}

/// The names of an array's elements: 0, 1, 2 and so on. They share one allocation.
#[derive(Debug, Default)]
struct PositionName {
    next: usize,
    text: String,
}

impl PositionName {
    fn next(&mut self) -> &[u8] {
        use std::fmt::Write;
        self.text.clear();
        write!(self.text, "{}", self.next).expect("writing to a string doesn't fail");
        self.next += 1;
        self.text.as_bytes()
    }
}

/// Appends a copy of `element` with its names kept and its strings replaced.
pub(super) fn append_replaced(
    builder: &mut Builder,
    name: &[u8],
    element: &Element<'_>,
    replace: Replace<'_>,
) -> Result<(), Malformed> {
    match element.kind {
        ElementType::EmbeddedDocument | ElementType::Array => {
            builder.open(element.kind, name);
            for element in Doc::new(element.value)?.elements() {
                let element = element?;
                append_replaced(builder, element.name, &element, replace)?;
            }
            builder.close();
        }
        ElementType::String => {
            let text = replace(string_bytes(element.value)?.0);
            let value = [&length_field(text.len() + 1)[..], &text, b"\0"].concat();
            builder.append(element.kind, name, &value);
        }
        _ => {
            builder.append(element.kind, name, element.value);
        }
    }
    Ok(())
}
