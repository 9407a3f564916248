//! What a query says about a shard key: ranges of points outside of which nothing can match.
//!
//! Reads equality, `$eq`, `$in`, `$gt`, `$gte`, `$lt`, `$lte`, `$and` and `$or`; whatever else a query holds only makes the
//! ranges wider than they need be. Under a collation that isn't simple, strings say nothing.

use bson::spec::ElementType;

use super::shard_key::{Field, Found, KeyValue, ShardKey, compare_points, find_path, key_value, missing};
use crate::router::raw::{Doc, Element};

/// More combinations than this are not listed point by point.
const POINTS_MAX: usize = 10_000;

/// From one point to another, both inclusive, one value for each field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The lower end.
    pub min: Vec<KeyValue<'static>>,
    /// The upper end.
    pub max: Vec<KeyValue<'static>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Interval {
    min: KeyValue<'static>,
    max: KeyValue<'static>,
}

impl Interval {
    fn point(value: KeyValue<'static>) -> Self {
        Interval {
            min: value.clone(),
            max: value,
        }
    }

    fn is_point(&self) -> bool {
        self.min == self.max
    }
}

/// The ranges that a query can match in.
pub fn key_ranges(key: &ShardKey, query: Doc<'_>, simple_collation: bool) -> Vec<KeyRange> {
    let reader = Reader { simple_collation };
    let constraints: Vec<_> = key.fields.iter().map(|field| reader.field(query, field)).collect();
    if constraints.first().is_some_and(Option::is_none)
        && let Some(ranges) = branches(key, query, simple_collation)
    {
        return ranges;
    }
    combine(constraints)
}

/// The one point that a query's equalities name, if they name every field of the key.
pub fn exact_point(key: &ShardKey, query: Doc<'_>, simple_collation: bool) -> Option<Vec<KeyValue<'static>>> {
    let reader = Reader { simple_collation };
    key.fields
        .iter()
        .map(|field| match reader.field(query, field)?.as_slice() {
            [only] if only.is_point() => Some(only.min.clone()),
            // Null also matches undefined, but a document is only ever inserted with the former.
            [null, _] if !field.hashed && null.min == KeyValue::NULL => Some(KeyValue::NULL),
            [null, _] if field.hashed && null.min == missing(true) => Some(null.min.clone()),
            _ => None,
        })
        .collect()
}

/// Whether the query names one `_id` exactly.
pub fn has_exact_id(query: Doc<'_>, simple_collation: bool) -> bool {
    let field = Field {
        path: "_id".to_owned(),
        hashed: false,
    };
    let reader = Reader { simple_collation };
    let intervals = reader.field(query, &field);
    intervals.is_some_and(|intervals| match intervals.as_slice() {
        [only] => only.is_point(),
        [null, _] => null.min == KeyValue::NULL,
        _ => false,
    })
}

/// The union of what each branch of `$or` allows.
fn branches(key: &ShardKey, query: Doc<'_>, simple_collation: bool) -> Option<Vec<KeyRange>> {
    let branches = query.get("$or").ok()??.as_document_or_array().ok()??;
    let mut ranges = Vec::new();
    for branch in branches.elements() {
        let branch = branch.ok()?.as_document_or_array().ok()??;
        ranges.extend(key_ranges(key, branch, simple_collation));
    }
    (ranges.len() <= POINTS_MAX && !ranges.is_empty()).then_some(ranges)
}

fn combine(constraints: Vec<Option<Vec<Interval>>>) -> Vec<KeyRange> {
    let fields = constraints.len();
    let mut prefixes: Vec<Vec<KeyValue<'static>>> = vec![Vec::new()];
    for constraint in constraints {
        let intervals = constraint.unwrap_or_else(|| vec![everything()]);
        let points = intervals.iter().all(Interval::is_point);
        if !points || prefixes.len() * intervals.len() > POINTS_MAX {
            return prefixes
                .iter()
                .flat_map(|prefix| intervals.iter().map(|interval| range(prefix, interval, fields)))
                .collect();
        }
        prefixes = prefixes
            .iter()
            .flat_map(|prefix| {
                intervals.iter().map(|interval| {
                    let mut longer = prefix.clone();
                    longer.push(interval.min.clone());
                    longer
                })
            })
            .collect();
    }
    let point = |point: Vec<KeyValue<'static>>| KeyRange {
        min: point.clone(),
        max: point,
    };
    prefixes.into_iter().map(point).collect()
}

fn range(prefix: &[KeyValue<'static>], interval: &Interval, fields: usize) -> KeyRange {
    let end = |value: &KeyValue<'static>, filler: KeyValue<'static>| {
        let mut point = prefix.to_vec();
        point.push(value.clone());
        point.resize(fields, filler);
        point
    };
    KeyRange {
        min: end(&interval.min, KeyValue::MIN),
        max: end(&interval.max, KeyValue::MAX),
    }
}

fn everything() -> Interval {
    Interval {
        min: KeyValue::MIN,
        max: KeyValue::MAX,
    }
}

struct Reader {
    simple_collation: bool,
}

impl Reader {
    /// What the query allows for a field; `None` if that is everything.
    fn field(&self, query: Doc<'_>, field: &Field) -> Option<Vec<Interval>> {
        let mut allowed: Option<Vec<Interval>> = None;
        for element in query.elements().flatten() {
            let found = match element.name {
                b"$and" => self.all_of(&element, field),
                b"$or" => self.only_branch(&element, field),
                name if name == field.path.as_bytes() => self.predicate(&element, field),
                name => self.parent(name, &element, field),
            };
            allowed = intersect(allowed, found);
        }
        allowed
    }

    fn all_of(&self, clauses: &Element<'_>, field: &Field) -> Option<Vec<Interval>> {
        let clauses = clauses.as_document_or_array().ok()??;
        let mut allowed = None;
        for clause in clauses.elements().flatten() {
            if let Ok(Some(clause)) = clause.as_document_or_array() {
                allowed = intersect(allowed, self.field(clause, field));
            }
        }
        allowed
    }

    fn only_branch(&self, branches: &Element<'_>, field: &Field) -> Option<Vec<Interval>> {
        let mut branches = branches.as_document_or_array().ok()??.elements();
        let only = branches.next()?.ok()?.as_document_or_array().ok()??;
        match branches.next() {
            None => self.field(only, field),
            Some(_) => None,
        }
    }

    /// Equality of a whole document says what its fields are: `{a: {b: 1}}` for the key field `a.b`.
    fn parent(&self, name: &[u8], element: &Element<'_>, field: &Field) -> Option<Vec<Interval>> {
        let rest = field.path.as_bytes().strip_prefix(name)?.strip_prefix(b".")?;
        let rest = std::str::from_utf8(rest).ok()?;
        if element.kind != ElementType::EmbeddedDocument || is_operators(element) {
            return None;
        }
        match find_path(Doc::new(element.value).ok()?, rest).ok()? {
            Found::Value(value) => self.equal_to(&value, field),
            Found::Missing => Some(vec![Interval::point(missing(field.hashed))]),
            Found::Array => None,
        }
    }

    fn predicate(&self, element: &Element<'_>, field: &Field) -> Option<Vec<Interval>> {
        if element.kind != ElementType::EmbeddedDocument || !is_operators(element) {
            return self.equal_to(element, field);
        }
        let mut allowed = None;
        for operator in Doc::new(element.value).ok()?.elements().flatten() {
            allowed = intersect(allowed, self.operator(&operator, field));
        }
        allowed
    }

    fn operator(&self, operator: &Element<'_>, field: &Field) -> Option<Vec<Interval>> {
        match operator.name {
            b"$eq" => self.equal_to(operator, field),
            b"$in" => {
                let mut points = Vec::new();
                for value in operator.as_document_or_array().ok()??.elements().flatten() {
                    points.extend(self.equal_to(&value, field)?);
                }
                Some(points)
            }
            b"$gt" | b"$gte" => self.bounded(operator, field, |value| Interval {
                min: value,
                max: KeyValue::MAX,
            }),
            b"$lt" | b"$lte" => self.bounded(operator, field, |value| Interval {
                min: KeyValue::MIN,
                max: value,
            }),
            _ => None,
        }
    }

    fn bounded(
        &self,
        value: &Element<'_>,
        field: &Field,
        interval: impl Fn(KeyValue<'static>) -> Interval,
    ) -> Option<Vec<Interval>> {
        if field.hashed || !self.is_telling(value) {
            return None;
        }
        Some(vec![interval(KeyValue::from_element(value).into_owned())])
    }

    fn equal_to(&self, value: &Element<'_>, field: &Field) -> Option<Vec<Interval>> {
        if !self.is_telling(value) {
            return None;
        }
        let point = |value: &Element<'_>| Interval::point(key_value(value, field.hashed).into_owned());
        let mut points = vec![point(value)];
        if value.kind == ElementType::Null {
            points.push(point(&KeyValue::UNDEFINED.as_element()));
        }
        Some(points)
    }

    /// Whether the value can be compared with shard-key values as it stands.
    fn is_telling(&self, value: &Element<'_>) -> bool {
        match value.kind {
            ElementType::RegularExpression | ElementType::Array | ElementType::Undefined => false,
            ElementType::String | ElementType::Symbol | ElementType::EmbeddedDocument => self.simple_collation,
            _ => true,
        }
    }
}

/// Whether a document is `{$op: …}` rather than a value.
fn is_operators(element: &Element<'_>) -> bool {
    let first = Doc::new(element.value)
        .ok()
        .and_then(|document| document.elements().next());
    matches!(first, Some(Ok(first)) if first.name.starts_with(b"$") && !matches!(first.name, b"$ref" | b"$id" | b"$db"))
}

/// Both at once: exactly for two single ranges, else the one that is made of points, else either.
fn intersect(left: Option<Vec<Interval>>, right: Option<Vec<Interval>>) -> Option<Vec<Interval>> {
    let (left, right) = match (left, right) {
        (left, None) => return left,
        (None, right) => return right,
        (Some(left), Some(right)) => (left, right),
    };
    let points = |intervals: &[Interval]| intervals.iter().all(Interval::is_point);
    match (left.as_slice(), right.as_slice()) {
        ([left], [right]) if !left.is_point() && !right.is_point() => {
            let one = std::slice::from_ref::<KeyValue<'static>>;
            let min_is_left = compare_points(one(&left.min), one(&right.min)).is_ge();
            let max_is_left = compare_points(one(&left.max), one(&right.max)).is_le();
            Some(vec![Interval {
                min: if min_is_left { &left.min } else { &right.min }.clone(),
                max: if max_is_left { &left.max } else { &right.max }.clone(),
            }])
        }
        _ if points(&left) && (!points(&right) || left.len() <= right.len()) => Some(left),
        _ => Some(right),
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

    fn ranges(pattern: Document, query: Document) -> Vec<KeyRange> {
        key_ranges(&key(pattern), Doc::new(&query.to_vec().unwrap()).unwrap(), true)
    }

    #[test]
    fn equality_is_a_point_and_a_prefix_a_range() {
        let query = doc! { "a": 1, "b": { "$in": [2, 3] }, "c": "other" };
        let points = ranges(doc! { "a": 1, "b": 1 }, query.clone());
        let point = |b: i32| KeyRange {
            min: vec![value(1), value(b)],
            max: vec![value(1), value(b)],
        };
        assert_eq!(points, [point(2), point(3)]);
        let prefix = ranges(doc! { "a": 1, "d": 1 }, query);
        assert_eq!(
            prefix,
            [KeyRange {
                min: vec![value(1), KeyValue::MIN],
                max: vec![value(1), KeyValue::MAX]
            }]
        );
    }

    #[test]
    fn ranges_meet_and_branches_join() {
        let both = ranges(
            doc! { "a": 1 },
            doc! { "$and": [{ "a": { "$gt": 1 } }, { "a": { "$lte": 5 } }] },
        );
        assert_eq!(
            both,
            [KeyRange {
                min: vec![value(1)],
                max: vec![value(5)]
            }]
        );
        let either = ranges(doc! { "a": 1 }, doc! { "$or": [{ "a": 1 }, { "a": 7 }] });
        assert_eq!(either.len(), 2);
        let open = ranges(doc! { "a": 1 }, doc! { "$or": [{ "a": 1 }, { "b": 7 }] });
        assert!(open.contains(&KeyRange {
            min: vec![KeyValue::MIN],
            max: vec![KeyValue::MAX]
        }));
    }

    #[test]
    fn what_says_nothing_leaves_everything() {
        let all = [KeyRange {
            min: vec![KeyValue::MIN],
            max: vec![KeyValue::MAX],
        }];
        for query in [
            doc! {},
            doc! { "a": { "$ne": 1 } },
            doc! { "a": [1] },
            doc! { "a": { "$gt": [1] } },
        ] {
            assert_eq!(ranges(doc! { "a": 1 }, query.clone()), all, "{query}");
        }
        let query = doc! { "a": "x" }.to_vec().unwrap();
        assert_eq!(key_ranges(&key(doc! { "a": 1 }), Doc::new(&query).unwrap(), false), all);
    }

    #[test]
    fn an_exact_point_needs_every_field() {
        let exact = |pattern: Document, query: Document| {
            exact_point(&key(pattern), Doc::new(&query.to_vec().unwrap()).unwrap(), true)
        };
        assert_eq!(exact(doc! { "a.b": 1 }, doc! { "a": { "b": 1 } }), Some(vec![value(1)]));
        assert_eq!(
            exact(doc! { "a": 1 }, doc! { "a": Bson::Null }),
            Some(vec![KeyValue::NULL])
        );
        assert_eq!(exact(doc! { "a": 1, "b": 1 }, doc! { "a": 1 }), None);
        assert_eq!(exact(doc! { "a": 1 }, doc! { "a": { "$gt": 1 } }), None);
    }
}
