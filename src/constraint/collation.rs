//! How a constraint compares strings.
//!
//! It turns a collation as `createIndex` takes it into the bytes that a string contributes to a key. Only the simple
//! binary comparison is here; any other collation is refused, never approximated.

use bson::{Bson, Document};

use super::SpecError;

/// How strings are compared: byte by byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Collation;

impl Collation {
    /// The collation that `specification` asks for.
    ///
    /// # Errors
    /// [`SpecError`] for every collation but `{locale: "simple"}`.
    pub(super) fn new(specification: Option<&Document>) -> Result<Self, SpecError> {
        let Some(specification) = specification else {
            return Ok(Collation);
        };
        if specification.is_empty() {
            return Err(SpecError::refused(
                2,
                "The field 'collation' cannot be an empty object.",
            ));
        }
        match specification.get("locale") {
            Some(Bson::String(locale)) if locale == "simple" => Ok(Collation),
            Some(Bson::String(locale)) => Err(SpecError::CollationUnsupported { locale: locale.clone() }),
            _ => Err(SpecError::refused(2, "The field 'collation.locale' must be a string")),
        }
    }

    /// The bytes by which `text` is compared.
    pub(super) fn comparison_bytes(self, text: &[u8]) -> &[u8] {
        text
    }
}
