//! Finds the collections that a command names, in every reading of the names that a server may use.
//!
//! Names are compared byte for byte. If a name contains a zero byte, Keyward also considers a reader that stops there.

use bson::spec::ElementType;

use super::Protection;
use crate::namespace::Namespace;
use crate::raw::{Doc, Element, Malformed, NESTED_DOCUMENTS_MAX};

/// A collection that a command names, with unchanged bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target<'a> {
    /// The database.
    pub database: &'a [u8],
    /// The collection.
    pub collection: &'a [u8],
}

/// Why a target matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// A constraint holds on it.
    Protected,
    /// Keyward keeps it: it contains a constraint's reservations, or is the register.
    KeywardsOwn,
}

impl<'a> Target<'a> {
    /// Its names as text; none if one isn't UTF-8: no server has such a collection.
    pub fn namespace(self) -> Option<Namespace> {
        let names = (
            str::from_utf8(self.database).ok()?,
            str::from_utf8(self.collection).ok()?,
        );
        Some(Namespace::new(names.0, names.1))
    }

    /// The target's kind in the catalog.
    pub fn kind(self, protection: &impl Protection) -> Option<TargetKind> {
        if protection.protects(self.database, self.collection) {
            Some(TargetKind::Protected)
        } else if protection.is_keywards_own(self.database, self.collection) {
            Some(TargetKind::KeywardsOwn)
        } else {
            None
        }
    }

    /// The first of `targets` that is in the catalog.
    pub fn find(
        targets: impl IntoIterator<Item = Target<'a>>,
        protection: &impl Protection,
    ) -> Option<(Target<'a>, TargetKind)> {
        targets
            .into_iter()
            .find_map(|target| Some((target, target.kind(protection)?)))
    }

    /// The same for a command that writes to none of them.
    pub fn find_unwritten(
        targets: impl IntoIterator<Item = Target<'a>>,
        protection: &impl Protection,
    ) -> Option<(Target<'a>, TargetKind)> {
        targets.into_iter().find_map(|target| {
            let Target { database, collection } = target;
            match protection.has_constraints(database, collection) {
                true => Some((target, TargetKind::Protected)),
                false => protection
                    .is_keywards_own(database, collection)
                    .then_some((target, TargetKind::KeywardsOwn)),
            }
        })
    }

    /// `collection` in `database`.
    pub fn in_database(database: &'a [u8], collection: &Element<'a>) -> impl Iterator<Item = Self> + use<'a> {
        Self::readings(collection).map(move |collection| Target { database, collection })
    }

    /// A whole namespace, `database.collection`.
    pub fn whole(namespace: &Element<'a>) -> impl Iterator<Item = Self> + use<'a> {
        Self::readings(namespace).filter_map(|text| {
            let dot = text.iter().position(|byte| *byte == b'.')?;
            Some(Target {
                database: &text[..dot],
                collection: &text[dot + 1..],
            })
        })
    }

    /// The readings of a name: whole, and up to its first zero byte. The server treats a symbol as a string.
    pub fn readings(element: &Element<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let text = match element.kind {
            ElementType::String | ElementType::Symbol => element.as_string_bytes(),
            _ => None,
        };
        let cut = text.and_then(|text| Some(&text[..text.iter().position(|byte| *byte == 0)?]));
        text.into_iter().chain(cut)
    }

    /// `database.collection`, readable in a message to the client.
    pub fn display(self) -> String {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        format!("{}.{}", text(self.database), text(self.collection))
    }
}

/// Calls `visit` for each element of `document` at any depth, outer ones first.
///
/// # Errors
/// [`Malformed`] if a part isn't BSON or is nested deeper than the server accepts.
pub fn visit_all<'a>(document: Doc<'a>, mut visit: impl FnMut(&Element<'a>)) -> Result<(), Malformed> {
    let mut open = vec![document.elements()];
    while let Some(innermost) = open.last_mut() {
        let Some(element) = innermost.next().transpose()? else {
            open.pop();
            continue;
        };
        visit(&element);
        if let Some(nested) = element.as_document_or_array()? {
            if open.len() > NESTED_DOCUMENTS_MAX {
                return Err(Malformed::TooDeep);
            }
            open.push(nested.elements());
        }
    }
    Ok(())
}

/// The name in a string, unless it contains a zero byte.
pub fn plain_name<'a>(element: &Element<'a>) -> Option<&'a [u8]> {
    let string = Some(element).filter(|element| element.kind == ElementType::String)?;
    string.as_string_bytes().filter(|name| !name.contains(&0))
}
