//! Lists the default collations with which a protected collection may be created.
//!
//! A constraint that states no collation uses its collection's, and so do the `_id`s of its documents. Keyward looks up
//! both when it prepares the constraints. Suppose that the collection is then dropped and created with another
//! collation. Keyward would still apply the old one, and the next start would refuse a constraint of the file. A collation that
//! can't be compared counts as another one.

use bson::{Document, RawDocument, RawDocumentBuf, doc};

use crate::classify::{ConstraintRemoval, OtherCollation};
use crate::constraint::{Constraint, resolved_collation};
use crate::raw::Element;

/// Each collation with all its fields, none for the simple one. Empty if the existing one can't be compared with any
/// other.
#[derive(Debug, Clone, Default)]
pub struct DefaultCollations(Vec<Option<RawDocumentBuf>>);

impl DefaultCollations {
    /// For an existing collection: its collation.
    pub fn of_existing(default: Option<&Document>) -> Self {
        DefaultCollations(resolved_collation(default).into_iter().collect())
    }

    /// For a collection that doesn't exist yet: none, or the one that all its constraints state. Keys are made with
    /// that one in both cases.
    pub fn of_absent<'a>(constraints: impl Iterator<Item = &'a Constraint>) -> Self {
        let mut stated: Vec<Option<&RawDocument>> = constraints.map(Constraint::collation).collect();
        stated.dedup();
        let common = match stated[..] {
            [Some(common)] => Some(Some(common.to_owned())),
            _ => None,
        };
        DefaultCollations([None].into_iter().chain(common).collect())
    }

    /// Whether one of them isn't the simple collation.
    pub fn has_any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// The constraint that doesn't fit a collection with this value of `collation`, if there is one.
    pub fn mismatch<'a>(
        &self,
        collation: Option<&Element<'_>>,
        constraints: impl Iterator<Item = &'a Constraint>,
    ) -> Option<OtherCollation> {
        let asked = match collation {
            None => Some(None),
            Some(element) if element.is_nothing() => Some(None),
            Some(element) => {
                let specification = element.to_document();
                specification.and_then(|specification| resolved_collation(Some(&specification)).ok())
            }
        };
        if asked.is_some_and(|asked| self.0.contains(&asked)) {
            return None;
        }
        let first = self.0.first();
        let constraints: Vec<&Constraint> = constraints.collect();
        let is_affected =
            |constraint: &&&Constraint| first.is_some_and(|first| first.as_deref() == constraint.collation());
        let affected = constraints.iter().find(is_affected);
        Some(OtherCollation {
            constraint: affected
                .or(constraints.first())
                .map(|constraint| constraint.name().to_owned())
                .unwrap_or_default(),
            had: match first {
                Some(Some(had)) => Document::try_from(&**had).map_or_else(|_| String::new(), |had| had.to_string()),
                Some(None) => doc! { "locale": "simple" }.to_string(),
                None => "one that can't be compared with any other".to_owned(),
            },
            removal: ConstraintRemoval::of(constraints),
        })
    }
}

#[cfg(test)]
mod tests {
    use bson::spec::ElementType;

    use super::*;
    use crate::constraint::IndexSpec;
    use crate::namespace::Namespace;
    use crate::raw::Doc;

    fn constraint(collation: Option<Document>) -> Constraint {
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            collation,
            ..IndexSpec::default()
        };
        Constraint::new(Namespace::new("shop", "users"), spec).unwrap()
    }

    fn takes(collations: &DefaultCollations, command: Document) -> bool {
        let bytes = command.to_vec().unwrap();
        let element = Doc::new(&bytes).unwrap().get("collation").unwrap();
        let constraint = constraint(None);
        let mismatch = collations.mismatch(element.as_ref(), [&constraint].into_iter());
        if let Some(mismatch) = &mismatch {
            assert_eq!(mismatch.constraint, "email_1");
        }
        mismatch.is_none()
    }

    fn en(strength: impl Into<bson::Bson>) -> Document {
        doc! { "collation": { "locale": "en", "strength": strength.into() } }
    }

    #[test]
    fn the_one_that_is_there_is_taken_however_it_is_written() {
        let shown = doc! {
            "locale": "en", "caseLevel": false, "caseFirst": "off", "strength": 2, "numericOrdering": false,
            "alternate": "non-ignorable", "maxVariable": "punct", "normalization": false, "backwards": false, "version": "57.1",
        };
        let collated = DefaultCollations::of_existing(Some(&shown));
        for command in [en(2), en(2_i64), en(2.9), doc! { "collation": shown }] {
            assert!(takes(&collated, command.clone()), "{command}");
        }
        for command in [
            en(3),
            doc! {},
            doc! { "collation": { "locale": "simple" } },
            doc! { "collation": { "locale": "de", "strength": 2 } },
        ] {
            assert!(!takes(&collated, command.clone()), "{command}");
        }
    }

    #[test]
    fn without_one_nothing_and_the_simple_one_are_the_same() {
        let plain = DefaultCollations::of_existing(None);
        for command in [
            doc! {},
            doc! { "collation": bson::Bson::Null },
            doc! { "collation": { "locale": "simple" } },
        ] {
            assert!(takes(&plain, command.clone()), "{command}");
        }
        // Also collations that no server accepts.
        for command in [
            en(2),
            doc! { "collation": {} },
            doc! { "collation": 1 },
            doc! { "collation": { "locale": "xx" } },
        ] {
            assert!(!takes(&plain, command.clone()), "{command}");
        }
        assert!(!plain.has_any());
    }

    #[test]
    fn an_absent_collection_may_have_the_collation_that_all_its_constraints_state() {
        let stated = |strengths: &[i32]| -> Vec<Constraint> {
            let collation = |strength: &i32| constraint(Some(doc! { "locale": "en", "strength": strength }));
            strengths.iter().map(collation).collect()
        };
        let absent = DefaultCollations::of_absent(stated(&[2, 2]).iter());
        assert!(absent.has_any() && takes(&absent, en(2)) && takes(&absent, doc! {}) && !takes(&absent, en(1)));
        let two = DefaultCollations::of_absent(stated(&[2, 1, 2]).iter());
        assert!(!two.has_any() && !takes(&two, en(2)) && takes(&two, doc! {}));
        let one_unstated = DefaultCollations::of_absent([&stated(&[2])[0], &constraint(None)].into_iter());
        assert!(!takes(&one_unstated, en(2)) && takes(&one_unstated, doc! {}));
    }

    #[test]
    fn a_collation_nested_too_deep_is_a_mismatch() {
        let mut nested = vec![5, 0, 0, 0, 0];
        for _ in 0..10_000 {
            let length = i32::try_from(nested.len() + 8).unwrap();
            nested = [&length.to_le_bytes()[..], b"\x03a\0", &nested, b"\0"].concat();
        }
        let element = Element {
            kind: ElementType::EmbeddedDocument,
            name: b"collation",
            value: &nested,
        };
        let constraint = constraint(None);
        let plain = DefaultCollations::of_existing(None);
        assert!(plain.mismatch(Some(&element), [&constraint].into_iter()).is_some());
    }

    #[test]
    fn an_unknown_default_collation_is_comparable_with_nothing() {
        let unknown = DefaultCollations::of_existing(Some(&doc! { "locale": "da", "strength": 3 }));
        for command in [doc! {}, doc! { "collation": { "locale": "da", "strength": 3 } }] {
            assert!(!takes(&unknown, command.clone()), "{command}");
        }
    }
}
