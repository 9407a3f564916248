//! Finds the key that a query asks for, if every document that matches the query holds that key.
//!
//! A read or a write by such a query can go to the shard of the key's owner. The server compares a query with values, and an
//! index with keys. So only values count for which both are the same: no null (it also matches missing fields), no NaN, no
//! array, document or regular expression, and no collation.

use bson::spec::ElementType;

use super::collation::Collation;
use super::filter::is_position;
use super::key::KeyDraft;
use super::number::Number;
use super::{Constraint, Key};
use crate::raw::{Doc, Element, Malformed};

/// Operators whose result depends on chance or on a program, or that only stand at certain places of a query.
const UNROUTABLE: [&[u8]; 9] = [
    b"$where",
    b"$text",
    b"$near",
    b"$nearSphere",
    b"$geoNear",
    b"$sampleRate",
    b"$rand",
    b"$function",
    b"$accumulator",
];
/// How deep `$and`s are searched for conditions.
const DEPTH_MAX: usize = 4;

impl Constraint {
    /// Whether the operator wants queries by its key to go to the key's shard.
    pub fn routes(&self) -> bool {
        self.spec.route
    }

    /// Why no query by its key can ever be routed, if that is so.
    pub fn unroutable(&self) -> Option<&'static str> {
        if self.collation.resolved().is_some() {
            return Some("a router doesn't find the shard of a query under a collation");
        }
        if self.fields.iter().any(|field| field.path.split('.').any(is_position)) {
            return Some("a query by an array's position also matches a field with a number as its name");
        }
        let mut roots: Vec<&str> = self.fields.iter().map(|field| root_of(&field.path)).collect();
        roots.sort_unstable();
        roots.dedup();
        (roots.len() < self.fields.len())
            .then_some("two of its fields are in one document, of which there may be an array: a document then matches without the key")
    }

    /// The key that every document matching `query` holds under the simple collation, if the query shows it.
    pub fn key_asked_for(&self, query: Doc<'_>) -> Option<Key> {
        if self.unroutable().is_some() || query.mentions(&UNROUTABLE).ok()? {
            return None;
        }
        let equal = values_asked_for(query).ok()?;
        if let Some(filter) = &self.filter
            && !filter.is_implied_by(&equal)
        {
            return None;
        }
        let value = |path: &str| equal.iter().find(|value| value.name == path.as_bytes()).copied();
        let values: Option<Vec<Element<'_>>> = self.fields.iter().map(|field| value(&field.path)).collect();
        let draft = KeyDraft::new(self, &mut values?.into_iter()).ok()?;
        assert!(
            matches!(self.collation, Collation::Simple),
            "a collated key is a sort key, which only the server computes"
        );
        Some(draft.finish())
    }
}

/// The values that the conditions of `query` require at a path, each under its path as a name.
pub fn values_asked_for(query: Doc<'_>) -> Result<Vec<Element<'_>>, Malformed> {
    let mut equal = Vec::new();
    equalities(query, DEPTH_MAX, &mut equal)?;
    Ok(equal)
}

fn equalities<'a>(query: Doc<'a>, depth: usize, equal: &mut Vec<Element<'a>>) -> Result<(), Malformed> {
    for condition in query.elements() {
        let condition = condition?;
        match (condition.name, condition.as_document_or_array()?) {
            (b"$and", Some(all)) if depth > 0 && condition.kind == ElementType::Array => {
                for one in all.elements() {
                    if let Some(one) = one?.as_document_or_array()? {
                        equalities(one, depth - 1, equal)?;
                    }
                }
            }
            ([b'$', ..], _) => {}
            (name, Some(operators)) if condition.kind == ElementType::EmbeddedDocument => {
                let first = operators.elements().next().transpose()?;
                let are_operators = first.is_some_and(|first| first.name.starts_with(b"$"));
                let value = operators.get("$eq")?.filter(|_| are_operators);
                equal.extend(value.filter(is_plain).map(|value| Element { name, ..value }));
            }
            _ if is_plain(&condition) => equal.push(condition),
            _ => {}
        }
    }
    Ok(())
}

/// Whether the server's index finds for this value exactly the documents that a query for it matches.
fn is_plain(value: &Element<'_>) -> bool {
    match value.kind {
        ElementType::String
        | ElementType::Binary
        | ElementType::ObjectId
        | ElementType::Boolean
        | ElementType::DateTime
        | ElementType::Int32
        | ElementType::Int64
        | ElementType::Timestamp => true,
        ElementType::Double | ElementType::Decimal128 => Number::of(value) != Some(Number::Nan),
        _ => false,
    }
}

/// Whether a value equal to one of this kind always has this kind.
pub(super) fn is_alone_in_its_kind(kind: ElementType) -> bool {
    matches!(
        kind,
        ElementType::Binary
            | ElementType::ObjectId
            | ElementType::Boolean
            | ElementType::DateTime
            | ElementType::Timestamp
    )
}

/// The top-level field of `path`.
pub fn root_of(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, Regex, doc, oid::ObjectId};

    use super::super::IndexSpec;
    use super::*;
    use crate::namespace::Namespace;

    fn constraint(key: Document, with: impl FnOnce(&mut IndexSpec)) -> Constraint {
        let mut spec = IndexSpec {
            key,
            route: true,
            ..IndexSpec::default()
        };
        with(&mut spec);
        Constraint::new(Namespace::new("db", "c"), spec).unwrap()
    }

    /// Whether the query asks for a key; if so, it is the key of the document with the same values.
    fn asks(constraint: &Constraint, query: Document, document: Option<Document>) -> bool {
        let bytes = query.to_vec().unwrap();
        let asked = constraint.key_asked_for(Doc::new(&bytes).unwrap());
        if let (Some(asked), Some(document)) = (&asked, document) {
            let document = document.to_vec().unwrap();
            assert!(
                constraint.keys(Doc::new(&document).unwrap()).unwrap().contains(asked),
                "{query}"
            );
        }
        asked.is_some()
    }

    #[test]
    fn an_equality_on_every_field_asks_for_a_key() {
        let email = constraint(doc! { "email": 1 }, |_| {});
        let id = ObjectId::new();
        for value in [Bson::from("a"), 1.into(), 1.5.into(), true.into(), id.into()] {
            let document = || Some(doc! { "email": &value });
            assert!(asks(&email, doc! { "email": &value }, document()));
            assert!(asks(
                &email,
                doc! { "x": { "$gt": 1 }, "email": { "$eq": &value } },
                document()
            ));
            assert!(asks(
                &email,
                doc! { "$and": [{ "x": 1 }, { "email": &value }] },
                document()
            ));
            assert!(asks(
                &email,
                doc! { "email": &value },
                Some(doc! { "email": [7, &value] })
            ));
        }
        let both = constraint(doc! { "a": 1, "b.c": -1 }, |_| {});
        assert!(asks(
            &both,
            doc! { "b.c": 2, "a": 1 },
            Some(doc! { "a": 1, "b": { "c": 2 } })
        ));
        assert!(!asks(&both, doc! { "a": 1 }, None));
        assert!(!asks(&both, doc! { "a": 1, "b": { "c": 2 } }, None));
    }

    #[test]
    fn a_query_that_its_key_alone_does_not_decide_asks_for_none() {
        let email = constraint(doc! { "email": 1 }, |_| {});
        for query in [
            doc! {},
            doc! { "email": Bson::Null },
            doc! { "email": Bson::Undefined },
            doc! { "email": f64::NAN },
            doc! { "email": Regex { pattern: "a".try_into().unwrap(), options: "".try_into().unwrap() } },
            doc! { "email": ["a"] },
            doc! { "email": { "$eq": ["a"] } },
            doc! { "email": { "a": 1 } },
            doc! { "email": { "$eq": { "a": 1 } } },
            doc! { "email": { "a": 1, "$eq": 1 } },
            doc! { "email": { "$gte": "a" } },
            doc! { "email": { "$in": ["a"] } },
            doc! { "email": { "$not": { "$eq": "a" } } },
            doc! { "$or": [{ "email": "a" }] },
            doc! { "$nor": [{ "email": "a" }] },
            doc! { "email": "a", "$where": "true" },
            doc! { "email": "a", "$or": [{ "$text": { "$search": "x" } }] },
            doc! { "email": "a", "at": { "$near": [1, 2] } },
            doc! { "email": "a", "$expr": { "$lt": [{ "$rand": {} }, 0.5] } },
        ] {
            assert!(!asks(&email, query.clone(), None), "{query}");
        }
    }

    #[test]
    fn a_partial_constraint_needs_a_query_that_implies_its_filter() {
        let partial = |filter: Document| {
            constraint(doc! { "email": 1 }, |spec| {
                spec.partial_filter_expression = Some(filter)
            })
        };
        let active = partial(doc! { "active": true });
        assert!(asks(
            &active,
            doc! { "email": "a", "active": true },
            Some(doc! { "email": "a", "active": true })
        ));
        assert!(!asks(&active, doc! { "email": "a" }, None));
        assert!(!asks(&active, doc! { "email": "a", "active": { "$ne": false } }, None));
        let not_empty = partial(doc! { "email": { "$gt": "" } });
        assert!(asks(&not_empty, doc! { "email": "a" }, Some(doc! { "email": "a" })));
        assert!(!asks(&not_empty, doc! { "email": "" }, None));
        assert!(!asks(&not_empty, doc! { "email": 1 }, None));
        assert!(asks(
            &partial(doc! { "email": { "$exists": true } }),
            doc! { "email": 1 },
            None
        ));
        // A symbol equals a string, but the filter leaves it out.
        assert!(!asks(
            &partial(doc! { "email": { "$type": "string" } }),
            doc! { "email": "a" },
            None
        ));
        let object_id = doc! { "email": ObjectId::new() };
        assert!(asks(
            &partial(doc! { "email": { "$type": "objectId" } }),
            object_id,
            None
        ));
    }

    #[test]
    fn a_sparse_constraint_has_a_key_for_every_value_that_is_asked_for() {
        let sparse = constraint(doc! { "email": 1 }, |spec| spec.sparse = true);
        assert!(asks(&sparse, doc! { "email": "a" }, Some(doc! { "email": "a" })));
        assert!(!asks(&sparse, doc! { "email": Bson::Null }, None));
    }

    #[test]
    fn constraints_whose_keys_no_query_shows_are_never_routed() {
        let unroutable = |key, with: fn(&mut IndexSpec)| constraint(key, with).unroutable().is_some();
        // {a: [{b: 1, c: 0}, {b: 0, c: 2}]} matches {a.b: 1, a.c: 2} without holding that key.
        assert!(unroutable(doc! { "a.b": 1, "a.c": 1 }, |_| {}));
        assert!(unroutable(doc! { "a.0": 1 }, |_| {}));
        assert!(unroutable(doc! { "a": 1 }, |spec| spec.collation = Some(doc! { "locale": "en" })));
        assert!(!unroutable(doc! { "a": 1 }, |spec| spec.collation =
            Some(doc! { "locale": "simple" })));
        assert!(!unroutable(doc! { "a.b": 1, "c": 1 }, |_| {}));
    }
}
