//! Lists the locales for which ICU4X calls the same strings equal as the server's ICU 57.1.
//!
//! Each locale was measured at strengths 1 to 3, on these strings:
//! - Every assigned character of the BMP (ideographs and syllables sampled), and its decompositions.
//! - Pairs and triples of Latin letters with marks.
//! - All pairs within the locale's own script.
//!
//! Left out because they differ: `da`, `haw`, `he`, `hy`, `kl`, `lkt`, `ln`, `lt`, `lv`, `se`,
//! `smn`, `yi`, `sv@collation=standard`, `ln@collation=phonetic`, and all `search` collations.

use super::settings::CaseFirst;

/// A locale with a collation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Locale {
    /// The server's name for it.
    pub(super) name: &'static str,
}

/// The names of all supported locales, sorted.
pub(super) const LOCALES: &[&str] = &[
    "af",
    "am",
    "ar",
    "ar@collation=compat",
    "as",
    "az",
    "be",
    "bg",
    "bn",
    "bn@collation=traditional",
    "bo",
    "bs",
    "bs_Cyrl",
    "ca",
    "chr",
    "cs",
    "cy",
    "de",
    "de@collation=eor",
    "de@collation=phonebook",
    "de_AT",
    "dsb",
    "dz",
    "ee",
    "el",
    "en",
    "en@collation=emoji",
    "en_US",
    "en_US_POSIX",
    "eo",
    "es",
    "es@collation=traditional",
    "et",
    "fa",
    "fa_AF",
    "fi",
    "fi@collation=traditional",
    "fil",
    "fo",
    "fr",
    "fr_CA",
    "ga",
    "gl",
    "gu",
    "ha",
    "hi",
    "hr",
    "hsb",
    "hu",
    "id",
    "ig",
    "is",
    "it",
    "ja",
    "ja@collation=unihan",
    "ka",
    "kk",
    "km",
    "kn",
    "kn@collation=traditional",
    "ko",
    "ko@collation=unihan",
    "kok",
    "ky",
    "lb",
    "lo",
    "mk",
    "ml",
    "mn",
    "mr",
    "ms",
    "mt",
    "my",
    "nb",
    "ne",
    "nl",
    "nn",
    "om",
    "or",
    "pa",
    "pl",
    "ps",
    "pt",
    "ro",
    "ru",
    "si",
    "si@collation=dictionary",
    "sk",
    "sl",
    "sq",
    "sr",
    "sr_Latn",
    "sv",
    "sw",
    "ta",
    "te",
    "th",
    "to",
    "tr",
    "ug",
    "uk",
    "ur",
    "vi",
    "vi@collation=traditional",
    "wae",
    "yo",
    "zh",
    "zh@collation=unihan",
    "zh@collation=zhuyin",
    "zh_Hant",
    "zu",
];

/// The locales whose collation has `normalization: true` by default: it puts combining marks in order.
const NORMALIZING: [&str; 22] = [
    "as", "bn", "el", "fa", "fa_AF", "gu", "hi", "ig", "km", "kn", "kok", "mr", "my", "or", "pa", "ps", "si", "ta",
    "te", "th", "vi", "yo",
];

impl Locale {
    /// The locale with this name on the server.
    pub(super) fn named(name: &str) -> Option<Locale> {
        let name = LOCALES.iter().find(|known| **known == name)?;
        Some(Locale { name })
    }

    /// Its name in the form that ICU4X reads.
    pub(super) fn bcp_47(self) -> String {
        let (locale, collation) = self.name.split_once("@collation=").unwrap_or((self.name, ""));
        let locale = match locale {
            "en_US_POSIX" => "en-US-u-va-posix".to_owned(),
            _ => locale.replace('_', "-"),
        };
        match collation {
            "" => locale,
            "phonebook" => locale + "-u-co-phonebk",
            "traditional" => locale + "-u-co-trad",
            "dictionary" => locale + "-u-co-dict",
            _ => locale + "-u-co-" + collation,
        }
    }

    pub(super) fn normalizes(self) -> bool {
        let language = self.name.split('@').next().unwrap_or(self.name);
        NORMALIZING.contains(&language)
    }

    pub(super) fn case_first(self) -> CaseFirst {
        match self.name {
            "mt" => CaseFirst::Upper,
            _ => CaseFirst::Off,
        }
    }

    pub(super) fn is_backwards(self) -> bool {
        self.name == "fr_CA"
    }

    pub(super) fn is_shifted(self) -> bool {
        self.name == "th"
    }
}
