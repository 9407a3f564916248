//! Compares strings as a constraint does: byte by byte, or under a collation.
//!
//! A collation, in the form that `createIndex` reads, gives each string a sort key. Two strings have equal sort keys
//! exactly if the server calls them equal. The server uses ICU 57.1. Keyward uses ICU4X, with the data of a later
//! Unicode. Their differences about equality were measured: `icu_57.rs` compensates for them or refuses the string. The
//! order of the sort keys isn't the server's order of strings.

mod icu_57;
mod locale;
mod settings;

use std::fmt;
use std::sync::Arc;

use bson::{Document, RawDocumentBuf};
use icu_collator::{CollatorBorrowed, CollatorPreferences, options, preferences};
use icu_locale_core::Locale;

use self::settings::{CaseFirst, CollationSettings};
use super::SpecError;

pub use self::icu_57::Uncollatable;
pub use self::settings::COLLATION_FIELDS;

/// The libraries that make the sort keys, and their data. Reservations made with other versions must not be mixed with
/// these. A test compares the versions with `Cargo.lock`.
pub(super) const SORT_KEYS: &str = "icu_collator 2.4.0, icu_collator_data 2.4.0, icu_normalizer_data 2.4.0";

/// How strings are compared.
#[derive(Debug, Clone)]
pub(super) enum Collation {
    /// Byte by byte.
    Simple,
    /// By their sort keys.
    Icu(Arc<Icu>),
}

/// A collation that isn't simple, ready for use.
pub(super) struct Icu {
    collator: CollatorBorrowed<'static>,
    normalizes: bool,
    /// All its fields, as the server shows them.
    resolved: RawDocumentBuf,
}

/// All fields of the collation that `specification` asks for, as the server shows them; none for the simple one.
///
/// # Errors
/// [`SpecError`] if the server refuses it, or if Keyward doesn't know it and so can't compare it with another
/// collation.
pub fn resolved_collation(specification: Option<&Document>) -> Result<Option<RawDocumentBuf>, SpecError> {
    let settings = specification.map(CollationSettings::of).transpose()?.flatten();
    settings.map(|settings| settings.to_raw()).transpose()
}

impl Collation {
    /// The collation that `specification` asks for.
    ///
    /// # Errors
    /// [`SpecError`], with the server's code and text if the server also refuses it.
    pub(super) fn new(specification: Option<&Document>) -> Result<Self, SpecError> {
        let Some(settings) = specification.map(CollationSettings::of).transpose()?.flatten() else {
            return Ok(Collation::Simple);
        };
        let unsupported = || SpecError::CollationUnsupported {
            locale: settings.locale.name.to_owned(),
        };
        let locale: Locale = settings.locale.bcp_47().parse().map_err(|_| unsupported())?;
        let mut preferences = CollatorPreferences::from(&locale);
        preferences.case_first = Some(match settings.case_first {
            CaseFirst::Off => preferences::CollationCaseFirst::False,
            CaseFirst::Upper => preferences::CollationCaseFirst::Upper,
            CaseFirst::Lower => preferences::CollationCaseFirst::Lower,
        });
        preferences.numeric_ordering = Some(match settings.numeric_ordering {
            true => preferences::CollationNumericOrdering::True,
            false => preferences::CollationNumericOrdering::False,
        });
        let collator = CollatorBorrowed::try_new(preferences, settings.options()).map_err(|_| unsupported())?;
        let resolved = settings.to_raw()?;
        Ok(Collation::Icu(Arc::new(Icu {
            collator,
            normalizes: settings.normalization,
            resolved,
        })))
    }

    /// All its fields as the server shows them in an index and in errors; none for the simple one.
    pub(super) fn resolved(&self) -> Option<&RawDocumentBuf> {
        match self {
            Collation::Simple => None,
            Collation::Icu(icu) => Some(&icu.resolved),
        }
    }
}

impl CollationSettings {
    fn to_raw(&self) -> Result<RawDocumentBuf, SpecError> {
        super::raw_document(&self.resolved())
    }

    fn options(&self) -> options::CollatorOptions {
        let mut chosen = options::CollatorOptions::default();
        chosen.strength = Some(match self.strength {
            1 => options::Strength::Primary,
            2 => options::Strength::Secondary,
            3 => options::Strength::Tertiary,
            4 => options::Strength::Quaternary,
            _ => options::Strength::Identical,
        });
        chosen.case_level = Some(match self.case_level {
            true => options::CaseLevel::On,
            false => options::CaseLevel::Off,
        });
        chosen.alternate_handling = Some(match self.is_shifted {
            true => options::AlternateHandling::Shifted,
            false => options::AlternateHandling::NonIgnorable,
        });
        chosen.max_variable = Some(match self.is_space_only {
            true => options::MaxVariable::Space,
            false => options::MaxVariable::Punctuation,
        });
        // ICU4X has no `backwards` option. It isn't needed: `backwards` reverses the order of accents, not their
        // equality.
        chosen
    }
}

impl fmt::Debug for Icu {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The collator would print all its tables.
        self.resolved.fmt(formatter)
    }
}

impl Icu {
    /// The bytes by which `text` is compared.
    ///
    /// # Errors
    /// [`Uncollatable`] if the server might compare the text differently.
    pub(super) fn sort_key(&self, text: &[u8]) -> Result<Vec<u8>, Uncollatable> {
        let text = icu_57::as_icu_57_reads(text, self.normalizes)?;
        let mut key = Vec::with_capacity(text.len() + 8);
        let Ok(()) = self.collator.write_sort_key_to(&text, &mut key);
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn icu(specification: Document) -> Arc<Icu> {
        match Collation::new(Some(&specification)).unwrap() {
            Collation::Icu(icu) => icu,
            Collation::Simple => panic!("{specification} is simple"),
        }
    }

    #[test]
    fn the_recorded_version_is_the_one_in_use() {
        let lock = include_str!("../../../Cargo.lock");
        for part in SORT_KEYS.split(", ") {
            let (name, version) = part.split_once(' ').unwrap();
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"");
            assert!(lock.contains(&entry), "{part} isn't in Cargo.lock");
        }
    }

    #[test]
    fn every_locale_has_its_own_collation_data() {
        for locale in locale::LOCALES {
            icu(doc! { "locale": *locale });
        }
    }

    #[test]
    fn equal_is_what_the_strength_says() {
        let equal = |specification: &Document, a: &str, b: &str| {
            let icu = icu(specification.clone());
            icu.sort_key(a.as_bytes()) == icu.sort_key(b.as_bytes())
        };
        let strength = |strength: i32| doc! { "locale": "en", "strength": strength };
        assert!(equal(&strength(1), "a", "Á") && !equal(&strength(1), "it's", "it’s"));
        assert!(equal(&strength(2), "a", "A") && !equal(&strength(2), "a", "á"));
        assert!(equal(&strength(3), "\u{e9}", "e\u{301}") && !equal(&strength(3), "a", "A"));
        assert!(equal(&strength(3), "a\0b", "ab") && !equal(&strength(5), "a\0b", "ab"));
        let numeric = doc! { "locale": "en", "numericOrdering": true };
        assert!(equal(&numeric, "a01", "a1") && !equal(&strength(1), "a01", "a1"));
    }
}
