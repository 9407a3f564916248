//! What a query says about a shard key: one point, or ranges of points outside of which nothing can match.
//!
//! Source: mongodb/mongo `ShardKeyPattern::extractShardKeyFromQuery` and `flattenBounds`, `ChunkManager::getShardIdsForQuery`.

use std::sync::Arc;

use bson::spec::ElementType;

use super::bounds::Planner;
use super::condition::Condition;
use super::interval::{Interval, Intervals};
use super::shard_key::{Field, Found, KeyValue, ShardKey, find_path, key_value};
use super::table::Collection;
use crate::router::raw::{Doc, Element};

/// From one point to another, both inclusive, one value for each field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The lower end.
    pub min: Vec<KeyValue<'static>>,
    /// The upper end.
    pub max: Vec<KeyValue<'static>>,
}

/// Whether no document can meet the query, as its text alone tells.
pub fn is_never_met(query: Doc<'_>) -> bool {
    Condition::new(query).truth() == Some(false)
}

/// The shards that own, or owned at a cluster time, what the query can match; at least one.
pub fn shards_for(collection: &Collection, query: Doc<'_>, simple_collation: bool, at: Option<u64>) -> Vec<Arc<str>> {
    let exact = exact_point(&collection.key, query);
    if let Some(Ok(chunk)) = exact.map(|point| collection.chunk_for(&point, simple_collation)) {
        return vec![Arc::clone(chunk.owner(at))];
    }
    let shards = collection.shards_in(&key_ranges(&collection.key, query, simple_collation), at);
    match shards.is_empty() {
        true => vec![Arc::clone(collection.chunks[0].owner(at))],
        false => shards,
    }
}

/// The ranges that a query can match in.
fn key_ranges(key: &ShardKey, query: Doc<'_>, simple_collation: bool) -> Vec<KeyRange> {
    let planner = Planner {
        fields: &key.fields,
        simple_collation,
    };
    let everything = || vec![Intervals::everything(); key.fields.len()];
    flatten(&planner.bounds(&Condition::new(query)).unwrap_or_else(everything))
}

/// The one point that a query's equalities name, if they name every field of the key.
pub fn exact_point(key: &ShardKey, query: Doc<'_>) -> Option<Vec<KeyValue<'static>>> {
    let condition = Condition::new(query);
    let equalities: Vec<_> = condition.conjuncts().iter().filter_map(Condition::equality).collect();
    let value = |field: &Field| {
        let value = value_of(&equalities, field.path.as_bytes())?;
        Some(key_value(&value, field.hashed).into_owned())
    };
    key.fields.iter().map(value).collect()
}

/// The one `_id` that the query names.
pub fn exact_id(query: Doc<'_>) -> Option<KeyValue<'static>> {
    let condition = Condition::new(query);
    let equalities: Vec<_> = condition.conjuncts().iter().filter_map(Condition::equality).collect();
    value_of(&equalities, b"_id").map(|id| KeyValue::from_element(&id).into_owned())
}

/// The value that the equalities give a path: of their own, or within the document that they give a parent of it.
fn value_of<'a>(equalities: &[(&'a [u8], Element<'a>)], path: &[u8]) -> Option<Element<'a>> {
    let mut related = equalities.iter().filter(|(other, _)| {
        let longer = if other.len() > path.len() { other } else { path };
        let shorter = if other.len() > path.len() { path } else { other };
        matches!(longer.strip_prefix(shorter), Some([] | [b'.', ..]))
    });
    let (named, value) = related.next()?;
    // Named twice, it isn't known.
    if related.next().is_some() {
        return None;
    }
    let rest = path.strip_prefix(*named)?;
    let value = match rest {
        [] => *value,
        _ if value.kind != ElementType::EmbeddedDocument => return None,
        [_, rest @ ..] => match find_path(Doc::new(value.value).ok()?, std::str::from_utf8(rest).ok()?).ok()? {
            Found::Value(value) => value,
            Found::Missing | Found::Array => return None,
        },
    };
    let can_be_key = !matches!(
        value.kind,
        ElementType::Array | ElementType::RegularExpression | ElementType::Undefined
    );
    can_be_key.then_some(value)
}

/// The bounds of single fields as ranges of the whole key. Only the first field with several values, or with a range of them,
/// makes several ranges; what follows it widens each.
fn flatten(bounds: &[Intervals]) -> Vec<KeyRange> {
    if bounds.iter().any(|field| field.list().is_empty()) {
        return Vec::new();
    }
    let mut ranges = vec![KeyRange {
        min: Vec::new(),
        max: Vec::new(),
    }];
    let mut is_one_point = true;
    for field in bounds.iter().map(Intervals::list) {
        let single = matches!(field, [only] if only.is_point());
        if is_one_point && !single {
            ranges = ranges
                .iter()
                .flat_map(|range| field.iter().map(|interval| longer(range, interval, interval)))
                .collect();
            is_one_point = false;
        } else if let [first, .., last] | [first @ last] = field {
            ranges = ranges.iter().map(|range| longer(range, first, last)).collect();
        }
    }
    ranges
}

fn longer(range: &KeyRange, first: &Interval, last: &Interval) -> KeyRange {
    let with = |point: &[KeyValue<'static>], value: &KeyValue<'static>| {
        let mut point = point.to_vec();
        point.push(value.clone());
        point
    };
    KeyRange {
        min: with(&range.min, &first.start),
        max: with(&range.max, &last.end),
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, doc};

    use super::*;

    fn key(pattern: Document) -> ShardKey {
        ShardKey::new(Doc::new(&pattern.to_vec().unwrap()).unwrap()).unwrap()
    }

    fn value(value: impl Into<Bson>) -> KeyValue<'static> {
        let bytes = doc! { "v": value.into() }.to_vec().unwrap();
        KeyValue::from_element(&Doc::new(&bytes).unwrap().get("v").unwrap().unwrap()).into_owned()
    }

    fn range(min: Vec<Bson>, max: Vec<Bson>) -> KeyRange {
        let point = |values: Vec<Bson>| values.into_iter().map(value).collect();
        KeyRange {
            min: point(min),
            max: point(max),
        }
    }

    fn ranges(pattern: Document, query: Document) -> Vec<KeyRange> {
        key_ranges(&key(pattern), Doc::new(&query.to_vec().unwrap()).unwrap(), true)
    }

    #[test]
    fn the_first_field_of_several_values_makes_several_ranges() {
        let query = doc! { "a": 1, "b": { "$in": [2, 3] }, "c": { "$in": [4, 6] } };
        let whole = ranges(doc! { "a": 1, "b": 1, "c": 1 }, query.clone());
        let point = |b: i32, c: i32| vec![Bson::Int32(1), Bson::Int32(b), Bson::Int32(c)];
        assert_eq!(
            whole,
            [range(point(2, 4), point(2, 6)), range(point(3, 4), point(3, 6))]
        );
        let prefix = ranges(doc! { "a": 1, "d": 1 }, query.clone());
        let expected = range(vec![1.into(), Bson::MinKey], vec![1.into(), Bson::MaxKey]);
        assert_eq!(prefix, [expected]);
        let without_prefix = ranges(doc! { "d": 1, "a": 1 }, query);
        let everything = range(vec![Bson::MinKey; 2], vec![Bson::MaxKey; 2]);
        assert_eq!(without_prefix, [everything]);
    }

    #[test]
    fn ranges_meet_and_branches_join() {
        let of = |query| ranges(doc! { "a": 1 }, query);
        let both = of(doc! { "$and": [{ "a": { "$gt": 1 } }, { "a": { "$lte": 5 } }] });
        assert_eq!(both, [range(vec![1.into()], vec![5.into()])]);
        let either = of(doc! { "$or": [{ "a": 1, "b": 2 }, { "a": 7 }] });
        let point = |a: i32| range(vec![a.into()], vec![a.into()]);
        assert_eq!(either, [point(1), point(7)]);
        let beside = of(doc! { "$or": [{ "a": { "$gt": 1 }, "b": 2 }, { "a": 7 }], "a": { "$lt": 3 } });
        assert_eq!(beside, [range(vec![1.into()], vec![3.into()])]);
        let everything = [range(vec![Bson::MinKey], vec![Bson::MaxKey])];
        assert_eq!(of(doc! { "$or": [{ "a": 1 }, { "b": 7 }] }), everything);
        assert_eq!(of(doc! { "a": { "$in": [] } }), []);
    }

    #[test]
    fn a_comparison_holds_within_its_type() {
        let numbers = ranges(doc! { "a": 1 }, doc! { "a": { "$gt": 1 } });
        assert_eq!(numbers, [range(vec![1.into()], vec![f64::INFINITY.into()])]);
        let others = ranges(doc! { "a": 1 }, doc! { "a": { "$ne": 1 } });
        let below = range(vec![Bson::MinKey], vec![1.into()]);
        assert_eq!(others, [below, range(vec![1.into()], vec![Bson::MaxKey])]);
    }

    #[test]
    fn an_exact_point_needs_every_field_once() {
        let exact = |pattern: Document, query: Document| {
            exact_point(&key(pattern), Doc::new(&query.to_vec().unwrap()).unwrap())
        };
        assert_eq!(exact(doc! { "a.b": 1 }, doc! { "a": { "b": 1 } }), Some(vec![value(1)]));
        assert_eq!(
            exact(doc! { "a": 1 }, doc! { "a": Bson::Null }),
            Some(vec![KeyValue::NULL])
        );
        assert_eq!(exact(doc! { "a": 1, "b": 1 }, doc! { "a": 1 }), None);
        assert_eq!(exact(doc! { "a": 1 }, doc! { "a": { "$gt": 1 } }), None);
        assert_eq!(exact(doc! { "a": 1 }, doc! { "a": 1, "$and": [{ "a": 1 }] }), None);
        assert_eq!(exact(doc! { "a.b": 1 }, doc! { "a": { "c": 1 } }), None);
    }
}
