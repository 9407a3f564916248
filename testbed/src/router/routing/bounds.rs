//! Which values of a shard key's field a condition allows, as the server's planner would bound the scan of an index on the
//! shard key.
//!
//! Source: mongodb/mongo `IndexBoundsBuilder`, `getIndexBoundsForQuery`. A comparison holds for values of one type only.

use bson::spec::ElementType;

use super::condition::{Condition, Test};
use super::interval::{Interval, Intervals};
use super::number::Number;
use super::order::canonical_type;
use super::shard_key::{Field, KeyValue, is_collatable, key_value};
use crate::router::raw::Element;

/// Reads the bounds of a shard key's fields.
pub struct Planner<'k> {
    /// The fields of the shard key.
    pub fields: &'k [Field],
    /// Strings compare by their bytes.
    pub simple_collation: bool,
}

impl Planner<'_> {
    /// The bounds of each field; `None` if an index on the shard key would be of no use.
    pub fn bounds(&self, condition: &Condition<'_>) -> Option<Vec<Intervals>> {
        match condition {
            Condition::Any(branches) => self.any(branches, &[]),
            condition => self.all(condition.conjuncts()),
        }
    }

    fn all(&self, conditions: &[Condition<'_>]) -> Option<Vec<Intervals>> {
        let (branching, plain): (Vec<_>, Vec<_>) = conditions
            .iter()
            .cloned()
            .partition(|condition| matches!(condition, Condition::Any(_)));
        for branches in &branching {
            if let Condition::Any(branches) = branches
                && let Some(bounds) = self.any(branches, &plain)
            {
                return Some(bounds);
            }
        }
        self.plain(&plain)
    }

    /// Field by field, what any of the branches allows together with the conditions that hold for all of them.
    fn any(&self, branches: &[Condition<'_>], beside: &[Condition<'_>]) -> Option<Vec<Intervals>> {
        let mut joined: Option<Vec<Intervals>> = None;
        for branch in branches {
            let own = branch.conjuncts();
            if !own.iter().any(|condition| self.is_about_key(condition)) {
                return None;
            }
            let together: Vec<_> = own.iter().chain(beside).cloned().collect();
            let bounds = self.all(&together)?;
            joined = Some(match joined {
                None => bounds,
                Some(joined) => joined
                    .into_iter()
                    .zip(bounds)
                    .map(|(left, right)| left.union(right))
                    .collect(),
            });
        }
        joined
    }

    fn is_about_key(&self, condition: &Condition<'_>) -> bool {
        match condition {
            Condition::Any(branches) => branches
                .iter()
                .all(|branch| branch.conjuncts().iter().any(|condition| self.is_about_key(condition))),
            condition => self.fields.iter().any(|field| self.field(condition, field).is_some()),
        }
    }

    fn plain(&self, conditions: &[Condition<'_>]) -> Option<Vec<Intervals>> {
        let of_field = |field: &Field| {
            let bounds = conditions.iter().filter_map(|condition| self.field(condition, field));
            bounds.reduce(|left, right| left.intersection(&right))
        };
        let mut bounds: Vec<_> = self.fields.iter().map(of_field).collect();
        bounds.first()?.as_ref()?;
        let everything = |bounds: Option<Intervals>| bounds.unwrap_or_else(Intervals::everything);
        Some(bounds.drain(..).map(everything).collect())
    }

    fn field(&self, condition: &Condition<'_>, field: &Field) -> Option<Intervals> {
        let Condition::Field { path, test, negated } = condition else {
            return None;
        };
        if *path != field.path.as_bytes() || !self.is_readable(test, *negated, field.hashed) {
            return None;
        }
        let bounds = self.test(test, field.hashed);
        Some(match (negated, test) {
            (false, _) => bounds,
            (true, Test::Exists) => {
                Intervals::new([Interval::point(key_value(&KeyValue::NULL.as_element(), field.hashed))])
            }
            (true, _) => bounds.complement(),
        })
    }

    /// Whether the index on the shard key can serve the test.
    fn is_readable(&self, test: &Test<'_>, negated: bool, hashed: bool) -> bool {
        let is_comparable = |value: &Element<'_>| self.simple_collation || !is_collatable(value.kind);
        let is_array = |value: &Element<'_>| value.kind == ElementType::Array;
        match test {
            Test::Equal(value) => is_comparable(value) && !(negated && (hashed || is_array(value))),
            // The expression stands beside its comparison, and the server reads no opposite of two conditions.
            Test::ExpressionEqual(_)
            | Test::Bounded {
                in_expression: true, ..
            } if negated => false,
            Test::ExpressionEqual(value) => is_comparable(value),
            Test::In(values) => {
                let has = |kind| values.iter().any(|value| value.kind == kind);
                let has_pattern = has(ElementType::RegularExpression);
                let is_wide = hashed || has_pattern || has(ElementType::Array);
                values.iter().all(is_comparable) && !(negated && is_wide) && !(hashed && has_pattern)
            }
            Test::OfType(_) => !hashed && !negated,
            Test::Bounded { by, .. } => is_comparable(by) && !hashed && !is_array(by),
            Test::Exists => true,
        }
    }

    fn test(&self, test: &Test<'_>, hashed: bool) -> Intervals {
        match test {
            Test::Equal(value) => Intervals::new(equal_to(value, hashed)),
            Test::In(values) => Intervals::new(values.iter().flat_map(|value| equal_to(value, hashed))),
            Test::ExpressionEqual(value) => Intervals::new(equal_to(value, hashed)),
            Test::OfType(kinds) => Intervals::new(kinds.iter().map(|kind| whole_type(*kind))),
            // Null is at least null and at most null, as it is equal to it.
            Test::Bounded {
                by,
                is_inclusive: true,
                in_expression: false,
                ..
            } if by.kind == ElementType::Null => Intervals::new(equal_to(by, hashed)),
            Test::Bounded {
                by,
                is_upwards,
                is_inclusive,
                in_expression,
            } => Intervals::new([bounded(by, *is_upwards, *is_inclusive, *in_expression)]),
            Test::Exists => Intervals::everything(),
        }
    }
}

/// Null also equals undefined. An array equals itself, and is looked up by its first element, too: not hashed, even where the
/// key is, which finds nothing.
fn equal_to(value: &Element<'_>, hashed: bool) -> Vec<Interval> {
    let point = |value: &Element<'_>| Interval::point(key_value(value, hashed).into_owned());
    let mut points = vec![point(value)];
    match value.kind {
        ElementType::Null => points.push(point(&KeyValue::UNDEFINED.as_element())),
        ElementType::RegularExpression => points.push(matched_by(value)),
        ElementType::Array => {
            let elements = value.as_document_or_array().ok().flatten();
            let first = elements.and_then(|elements| elements.elements().next()?.ok());
            let first = first.map(|first| KeyValue::from_element(&first).into_owned());
            points.push(Interval::point(first.unwrap_or(KeyValue::UNDEFINED)));
        }
        _ => {}
    }
    points
}

/// The strings that a regular expression can match: those with the prefix that it names, if it names one.
fn matched_by(pattern: &Element<'_>) -> Interval {
    let strings = of_type(ElementType::String);
    let mut parts = pattern.value.split(|byte| *byte == 0);
    let (text, options) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_prefix = |text: &&[u8]| options.is_empty() && text.iter().all(u8::is_ascii_alphanumeric);
    let Some(prefix) = text.strip_prefix(b"^").filter(is_prefix) else {
        return strings;
    };
    let [others @ .., last] = prefix else {
        return strings;
    };
    let string = |text: &[u8]| {
        let length = text.len() as i32 + 1;
        KeyValue::new(ElementType::String, [&length.to_le_bytes(), text, &[0]].concat())
    };
    Interval {
        start: string(prefix),
        has_start: true,
        end: string(&[others, &[last + 1]].concat()),
        has_end: false,
    }
}

fn bounded(by: &Element<'_>, is_upwards: bool, is_inclusive: bool, in_expression: bool) -> Interval {
    let value = KeyValue::from_element(by).into_owned();
    // Only NaN is at least or at most NaN, and nothing is beyond it.
    if !in_expression && matches!(Number::from_element(by), Some(Number::NaN)) {
        return Interval {
            has_start: is_inclusive,
            ..Interval::point(value)
        };
    }
    let others = match by.kind {
        ElementType::MinKey | ElementType::MaxKey => everything(),
        _ if in_expression => everything(),
        kind => of_type(kind),
    };
    match is_upwards {
        true => Interval {
            start: value,
            has_start: is_inclusive,
            ..others
        },
        false => Interval {
            end: value,
            has_end: is_inclusive,
            ..others
        },
    }
}

fn everything() -> Interval {
    Interval::closed(KeyValue::MIN, KeyValue::MAX)
}

/// Every value of a type: NaN is a number, too, though no comparison with another number finds it.
fn whole_type(kind: ElementType) -> Interval {
    let all = of_type(kind);
    match canonical_type(kind) == canonical_type(ElementType::Double) {
        true => Interval {
            start: KeyValue::new(ElementType::Double, f64::NAN.to_le_bytes().to_vec()),
            ..all
        },
        false => all,
    }
}

/// From the lowest to the highest value that a comparison finds in a type.
fn of_type(kind: ElementType) -> Interval {
    let value = |kind, bytes: &[u8]| KeyValue::new(kind, bytes.to_vec());
    let closed = |lowest: &[u8], highest: &[u8]| Interval::closed(value(kind, lowest), value(kind, highest));
    let before = |start, end| Interval {
        has_end: false,
        ..Interval::closed(start, end)
    };
    let double = |number: f64| value(ElementType::Double, &number.to_le_bytes());
    let empty = |kind| value(kind, &[5, 0, 0, 0, 0]);
    let empty_binary = || value(ElementType::Binary, &[0; 5]);
    match kind {
        _ if canonical_type(kind) == canonical_type(ElementType::Double) => {
            Interval::closed(double(f64::NEG_INFINITY), double(f64::INFINITY))
        }
        ElementType::String | ElementType::Symbol => {
            let lowest = value(ElementType::String, &[1, 0, 0, 0, 0]);
            before(lowest, empty(ElementType::EmbeddedDocument))
        }
        ElementType::EmbeddedDocument => before(empty(kind), empty(ElementType::Array)),
        ElementType::Array => before(empty(kind), empty_binary()),
        ElementType::Binary => before(empty_binary(), value(ElementType::ObjectId, &[0; 12])),
        ElementType::ObjectId => closed(&[0; 12], &[0xff; 12]),
        ElementType::Boolean => closed(&[0], &[1]),
        ElementType::DateTime => closed(&i64::MIN.to_le_bytes(), &i64::MAX.to_le_bytes()),
        ElementType::Timestamp => closed(&[0; 8], &[0xff; 8]),
        ElementType::Null => Interval::point(KeyValue::NULL),
        _ => everything(),
    }
}
