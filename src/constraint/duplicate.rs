//! Builds the server's duplicate key error (E11000) for a key that is taken.
//!
//! It turns a constraint and a key into the fields of the server's error, byte for byte. The text may be invalid UTF-8,
//! because long strings are cut by bytes, as the server cuts them. This module doesn't build whole replies.
//! Source: mongodb/mongo `src/mongo/db/storage/index_entry_comparison.cpp` (`buildDupKeyErrorStatus`); measured on
//! 6.0.5.

use bson::{RawBson, RawDocument, rawdoc, spec::ElementType};

use super::{Constraint, Key, canonical::string_bytes, rewrite, text};
use crate::namespace::Namespace;
use crate::raw::{Builder, Doc};
use crate::server::{code, reply::append_command_error};

/// A duplicate key error, ready to be put into a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuplicateKey {
    errmsg: Vec<u8>,
    key_pattern: Vec<u8>,
    key_value: Vec<u8>,
    /// For each field, whether its value is given in hexadecimal; absent if none is.
    hex_encoded: Option<Vec<bool>>,
    /// The index's collation; absent if it is simple.
    collation: Option<Vec<u8>>,
}

impl DuplicateKey {
    /// The error of a document whose `key` is taken. If the constraint has a collation, `sort_key` gives the sort key
    /// that the error shows for a string.
    pub(super) fn new(constraint: &Constraint, key: &Key, sort_key: rewrite::Replace<'_>) -> Self {
        let mut values = Builder::new();
        let collation = constraint.collation();
        for element in key.values().into_iter().flat_map(Doc::elements).flatten() {
            match collation {
                None => drop(values.element(&element)),
                Some(_) => rewrite::append_replaced(&mut values, element.name, &element, sort_key)
                    .expect("the values were copied, so they were well-formed"),
            }
        }
        let values = values.finish();
        Self::of(
            &constraint.namespace,
            &constraint.name,
            constraint.key_pattern.as_bytes(),
            Doc::new(&values).expect("the builder made a document"),
            collation,
        )
    }

    /// The error of a document whose `_id` is taken.
    pub fn of_id(namespace: &Namespace, id: &RawBson) -> Self {
        let key_pattern = rawdoc! { "_id": 1 };
        let values = rawdoc! { "_id": id.clone() };
        let values = Doc::new(values.as_bytes()).unwrap_or_else(|_| Doc::empty());
        Self::of(namespace, "_id_", key_pattern.as_bytes(), values, None)
    }

    fn of(
        namespace: &Namespace,
        index: &str,
        key_pattern: &[u8],
        values: Doc<'_>,
        collation: Option<&RawDocument>,
    ) -> Self {
        let mut shown = Builder::new();
        let mut key_value = Builder::new();
        let mut hex_encoded = Vec::new();
        for element in values.elements().flatten() {
            let binary = (element.kind == ElementType::String)
                .then(|| string_bytes(element.value).map_or(&[][..], |(text, _)| text))
                .filter(|text| collation.is_some() || !text::is_utf_8_to_the_server(text));
            hex_encoded.push(binary.is_some());
            if let Some(bytes) = binary {
                let digits = text::hex(bytes, false);
                let name = String::from_utf8_lossy(element.name);
                shown.string(&name, format!("0x{digits}").as_bytes());
                key_value.string(&name, digits.as_bytes());
            } else {
                shown.element(&element);
                key_value.element(&element);
            }
        }
        let mut errmsg = format!("E11000 duplicate key error collection: {namespace} index: {index} ").into_bytes();
        if let Some(collation) = collation {
            errmsg.extend_from_slice(b"collation: ");
            let collation = Doc::new(collation.as_bytes()).and_then(text::document);
            errmsg.extend(collation.unwrap_or_default());
            errmsg.push(b' ');
        }
        errmsg.extend_from_slice(b"dup key: ");
        let shown = shown.finish();
        errmsg.extend(Doc::new(&shown).and_then(text::document).unwrap_or_default());
        DuplicateKey {
            errmsg,
            key_pattern: key_pattern.to_vec(),
            key_value: key_value.finish(),
            hex_encoded: hex_encoded.contains(&true).then_some(hex_encoded),
            collation: collation.map(|collation| collation.as_bytes().to_vec()),
        }
    }

    /// The text, which may be invalid UTF-8.
    pub fn errmsg(&self) -> &[u8] {
        &self.errmsg
    }

    /// The index's key pattern, as the operator wrote it.
    pub fn key_pattern(&self) -> Doc<'_> {
        Doc::new(&self.key_pattern).expect("it was a document when it was copied")
    }

    /// The new document's values for the key.
    pub fn key_value(&self) -> Doc<'_> {
        Doc::new(&self.key_value).expect("the builder made a document")
    }

    /// Appends what follows `index` in an entry of `writeErrors`.
    pub fn append_to_write_error(&self, entry: &mut Builder) {
        entry.int32("code", code::DUPLICATE_KEY).string("errmsg", &self.errmsg);
        self.append_extra(entry);
    }

    /// Appends all fields of a command's error: `ok`, `errmsg` (with `prefix` before the text), `code`, `codeName` and
    /// the rest. A findAndModify has the prefix `Plan executor error during findAndModify :: caused by :: `.
    pub fn append_to_command_error(&self, prefix: &str, reply: &mut Builder) {
        let errmsg = [prefix.as_bytes(), &self.errmsg].concat();
        append_command_error(reply, &errmsg, code::DUPLICATE_KEY);
        self.append_extra(reply);
    }

    fn append_extra(&self, entry: &mut Builder) {
        entry.document("keyPattern", self.key_pattern());
        entry.document("keyValue", self.key_value());
        if let Some(flags) = &self.hex_encoded {
            entry.open(ElementType::Array, b"hexEncoded");
            for (index, flag) in flags.iter().enumerate() {
                entry.boolean(&index.to_string(), *flag);
            }
            entry.close();
        }
        if let Some(collation) = &self.collation {
            entry.append(ElementType::EmbeddedDocument, b"collation", collation);
        }
    }
}
