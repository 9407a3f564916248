//! Checks the fields of a collation as the server checks them, and adds the locale's defaults.
//!
//! Source: mongodb/mongo `src/mongo/db/basic_types.idl` (Collation), `collator_factory_icu.cpp`; measured on 6.0.5.

use bson::{Bson, Document, doc};

use super::locale::Locale;
use crate::constraint::{SpecError, raw_document, text};
use crate::raw::Doc;
use crate::server::code::{
    BAD_VALUE, INCOMPATIBLE_COLLATION_VERSION, MISSING_FIELD, OUT_OF_BOUNDS, TYPE_MISMATCH, UNKNOWN_FIELD,
};

/// The server's ICU; every version of MongoDB has had this one.
const ICU_VERSION: &str = "57.1";

/// The fields of a collation.
pub const COLLATION_FIELDS: [&str; 10] = [
    "locale",
    "strength",
    "caseLevel",
    "caseFirst",
    "numericOrdering",
    "alternate",
    "maxVariable",
    "normalization",
    "backwards",
    "version",
];

/// Which case comes first. It also decides whether case counts by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaseFirst {
    Off,
    Upper,
    Lower,
}

/// A collation that isn't simple, with all its defaults.
#[derive(Debug, Clone)]
pub(super) struct CollationSettings {
    pub(super) locale: Locale,
    /// From 1 to 5.
    pub(super) strength: i32,
    pub(super) case_level: bool,
    pub(super) case_first: CaseFirst,
    pub(super) numeric_ordering: bool,
    /// `alternate: "shifted"`.
    pub(super) is_shifted: bool,
    /// `maxVariable: "space"`.
    pub(super) is_space_only: bool,
    pub(super) normalization: bool,
    pub(super) backwards: bool,
}

/// The fields as they were written, their types checked.
#[derive(Debug, Default)]
struct Written {
    locale: Option<String>,
    strength: Option<i32>,
    case_level: Option<bool>,
    case_first: Option<CaseFirst>,
    numeric_ordering: Option<bool>,
    is_shifted: Option<bool>,
    is_space_only: Option<bool>,
    normalization: Option<bool>,
    backwards: Option<bool>,
    version: Option<String>,
}

impl CollationSettings {
    /// The settings that `specification` asks for; `None` for the simple collation.
    pub(super) fn of(specification: &Document) -> Result<Option<CollationSettings>, SpecError> {
        if specification.is_empty() {
            let message = "The field 'collation' cannot be an empty object.";
            return Err(SpecError::refused(BAD_VALUE, message));
        }
        let written = Written::of(specification)?;
        let name = written.locale.unwrap_or_default();
        if name == "simple" {
            return Ok(None);
        }
        let refused = |message: &str| {
            Err(SpecError::refused(
                BAD_VALUE,
                format!("{message}{}", shown(specification)),
            ))
        };
        if name.contains('\0') {
            return refused("Field 'locale' cannot contain null byte. Collation spec: ");
        }
        if name.is_empty() {
            return refused("Field 'locale' cannot be the empty string in: ");
        }
        let Some(locale) = Locale::named(&name) else {
            return Err(SpecError::CollationUnsupported { locale: name });
        };
        if let Some(version) = written.version.filter(|version| version != ICU_VERSION) {
            let message = format!(
                "Requested collation version {version} but the only available collator version was {ICU_VERSION}. \
                 Requested collation spec: {}",
                shown(specification)
            );
            return Err(SpecError::refused(INCOMPATIBLE_COLLATION_VERSION, message));
        }
        let settings = CollationSettings {
            locale,
            strength: written.strength.unwrap_or(3),
            case_level: written.case_level.unwrap_or(false),
            case_first: written.case_first.unwrap_or(locale.case_first()),
            numeric_ordering: written.numeric_ordering.unwrap_or(false),
            is_shifted: written.is_shifted.unwrap_or(locale.is_shifted()),
            is_space_only: written.is_space_only.unwrap_or(false),
            normalization: written.normalization.unwrap_or(locale.normalizes()),
            backwards: written.backwards.unwrap_or(locale.is_backwards()),
        };
        if settings.case_first != CaseFirst::Off && !settings.case_level && settings.strength < 3 {
            return refused("'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2 in: ");
        }
        if settings.backwards && settings.strength == 1 {
            return refused("'backwards' is invalid with 'strength' of 1 in: ");
        }
        Ok(Some(settings))
    }

    /// All fields, as the server shows them.
    pub(super) fn resolved(&self) -> Document {
        doc! {
            "locale": self.locale.name,
            "caseLevel": self.case_level,
            "caseFirst": match self.case_first {
                CaseFirst::Off => "off",
                CaseFirst::Upper => "upper",
                CaseFirst::Lower => "lower",
            },
            "strength": self.strength,
            "numericOrdering": self.numeric_ordering,
            "alternate": if self.is_shifted { "shifted" } else { "non-ignorable" },
            "maxVariable": if self.is_space_only { "space" } else { "punct" },
            "normalization": self.normalization,
            "backwards": self.backwards,
            "version": ICU_VERSION,
        }
    }
}

impl Written {
    fn of(specification: &Document) -> Result<Written, SpecError> {
        let mut written = Written::default();
        for (name, value) in specification {
            // The server reads null as an absent field, except for this field.
            if name == "backwards" {
                let Bson::Boolean(flag) = value else {
                    let message = format!(
                        "Field 'backwards' should be a boolean value, but found: {}",
                        type_name(value)
                    );
                    return Err(SpecError::refused(TYPE_MISMATCH, message));
                };
                written.backwards = Some(*flag);
                continue;
            }
            match name.as_str() {
                _ if *value == Bson::Null => {}
                "locale" => written.locale = Some(string(name, value)?.to_owned()),
                "version" => written.version = Some(string(name, value)?.to_owned()),
                "strength" => written.strength = Some(strength(value)?),
                "caseLevel" => written.case_level = Some(flag(name, value)?),
                "numericOrdering" => written.numeric_ordering = Some(flag(name, value)?),
                "normalization" => written.normalization = Some(flag(name, value)?),
                "caseFirst" => {
                    let choices = [
                        ("off", CaseFirst::Off),
                        ("upper", CaseFirst::Upper),
                        ("lower", CaseFirst::Lower),
                    ];
                    written.case_first = Some(choice(name, value, &choices)?);
                }
                "alternate" => {
                    written.is_shifted = Some(choice(name, value, &[("shifted", true), ("non-ignorable", false)])?);
                }
                "maxVariable" => {
                    written.is_space_only = Some(choice(name, value, &[("space", true), ("punct", false)])?);
                }
                _ => {
                    let message = format!("BSON field 'collation.{name}' is an unknown field.");
                    return Err(SpecError::refused(UNKNOWN_FIELD, message));
                }
            }
        }
        match written.locale {
            Some(_) => Ok(written),
            None => {
                let message = "BSON field 'collation.locale' is missing but a required field";
                Err(SpecError::refused(MISSING_FIELD, message))
            }
        }
    }
}

fn wrong_type(name: &str, value: &Bson, expected: &str) -> SpecError {
    let found = type_name(value);
    let message = format!("BSON field 'collation.{name}' is the wrong type '{found}', expected {expected}");
    SpecError::refused(TYPE_MISMATCH, message)
}

fn string<'v>(name: &str, value: &'v Bson) -> Result<&'v str, SpecError> {
    value.as_str().ok_or_else(|| wrong_type(name, value, "type 'string'"))
}

fn flag(name: &str, value: &Bson) -> Result<bool, SpecError> {
    value.as_bool().ok_or_else(|| wrong_type(name, value, "type 'bool'"))
}

fn choice<T: Copy>(name: &str, value: &Bson, choices: &[(&str, T)]) -> Result<T, SpecError> {
    let text = string(name, value)?;
    match choices.iter().find(|(choice, _)| *choice == text) {
        Some((_, chosen)) => Ok(*chosen),
        None => Err(invalid(name, text)),
    }
}

fn invalid(name: &str, value: &str) -> SpecError {
    let message = format!("Enumeration value '{value}' for field 'collation.{name}' is not a valid value.");
    SpecError::refused(BAD_VALUE, message)
}

/// Reads a number of any type, cut to a whole number.
fn strength(value: &Bson) -> Result<i32, SpecError> {
    let number = match value {
        Bson::Int32(number) => f64::from(*number),
        Bson::Int64(number) => *number as f64,
        Bson::Double(number) => *number,
        Bson::Decimal128(number) => number.to_string().parse().unwrap_or(f64::NAN),
        _ => return Err(wrong_type("strength", value, "types '[long, int, decimal, double']")),
    };
    // The cast saturates and turns NaN into 0, as the server's does.
    let whole = number as i32;
    match whole {
        1..=5 => Ok(whole),
        0 => Err(invalid("strength", "0")),
        _ => {
            let bound = if whole < 0 { ">= 0" } else { "<= 5" };
            let message = format!("BSON field 'strength' value must be {bound}, actual value '{whole}'");
            Err(SpecError::refused(OUT_OF_BOUNDS, message))
        }
    }
}

fn type_name(value: &Bson) -> &'static str {
    crate::server::type_name(value.element_type())
}

/// A specification as the server prints it.
fn shown(specification: &Document) -> String {
    let text = raw_document(specification)
        .ok()
        .and_then(|raw| Doc::new(raw.as_bytes()).and_then(text::document).ok());
    String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_that_are_read() {
        let is_unknown = |name: &str| {
            let refused = Written::of(&doc! { "locale": "da", name: [] });
            matches!(
                refused,
                Err(SpecError::Refused {
                    code: UNKNOWN_FIELD,
                    ..
                })
            )
        };
        assert!(is_unknown("strenght"));
        assert!(COLLATION_FIELDS.into_iter().all(|name| !is_unknown(name)));
    }
}
