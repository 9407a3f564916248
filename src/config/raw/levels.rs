//! Finds the level of the file to which a setting belongs that stands at another one.

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};

use super::{RawBackfill, RawConfig, RawConstraint, RawLimits, RawLog, RawTls, RawTraces};

/// The place of the setting `name`, by the level that knows it; `None` if no level does.
pub(super) fn place_of(name: &str) -> Option<String> {
    let levels = [
        ("the top of the file", field_names::<RawConfig>()),
        ("`tls`", field_names::<RawTls>()),
        ("`log`", field_names::<RawLog>()),
        ("`backfill`", field_names::<RawBackfill>()),
        ("`traces`", field_names::<RawTraces>()),
        ("`limits`", field_names::<RawLimits>()),
        ("each item of `constraints`", field_names::<RawConstraint>()),
    ];
    let known = levels.into_iter().filter(|(_, names)| names.contains(&name));
    let places: Vec<&str> = known.map(|(place, _)| place).collect();
    (!places.is_empty()).then(|| places.join(" or "))
}

/// The names under which the fields of a struct are read.
pub(super) fn field_names<T: for<'de> Deserialize<'de>>() -> Vec<&'static str> {
    let mut names = Vec::new();
    // Only the names are wanted, so the reading ends with an error.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

/// Collects the names of a struct's fields in place of their values.
struct FieldNames<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.extend(fields);
        Err(Self::Error::custom("only the names are wanted"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_knows_its_settings() {
        for (name, place) in [
            ("on_violation", "each item of `constraints`"),
            ("partialFilterExpression", "each item of `constraints`"),
            ("lease", "the top of the file"),
            ("mode", "`tls`"),
            ("level", "`log`"),
            ("sampling_ratio", "`traces`"),
            ("max_share", "`backfill`"),
            ("idle_timeout", "`limits`"),
            ("key", "`tls` or each item of `constraints`"),
        ] {
            assert_eq!(place_of(name).as_deref(), Some(place), "{name}");
        }
        assert_eq!(place_of("colour"), None);
    }
}
