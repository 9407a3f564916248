//! A query as a tree of conditions, put in order as `mongos` does before it looks for a shard key.
//!
//! Source: mongodb/mongo `MatchExpression::optimize`. An `$and` or `$or` of one condition is that condition, one in another of
//! its kind joins it, and an `$or` of one field's values is an `$in`. Only what can tell something about a shard key is read.

use bson::spec::ElementType;

use super::order::compare_elements;
use crate::router::raw::{Doc, Element};

/// A condition on a document.
#[derive(Debug, Clone)]
pub enum Condition<'a> {
    /// True, or false, whatever the document.
    Always(bool),
    /// Each of them.
    All(Vec<Condition<'a>>),
    /// One of them at least.
    Any(Vec<Condition<'a>>),
    /// About one field.
    Field {
        /// Its path.
        path: &'a [u8],
        /// What its value must be.
        test: Test<'a>,
        /// It is the opposite that must be.
        negated: bool,
    },
    /// The opposite of several conditions, which tells nothing unless it is always the same.
    Not(Box<Condition<'a>>),
    /// Anything else: it tells nothing.
    Other,
}

/// What a value must be.
#[derive(Debug, Clone)]
pub enum Test<'a> {
    /// Equal, or an array with an equal element.
    Equal(Element<'a>),
    /// Equal in an aggregation expression: whole values, no elements.
    ExpressionEqual(Element<'a>),
    /// Beyond a bound.
    Bounded {
        /// The bound.
        by: Element<'a>,
        /// Upwards or downwards.
        is_upwards: bool,
        /// The bound itself, too.
        is_inclusive: bool,
        /// In an aggregation expression, which compares values of different types, too.
        in_expression: bool,
    },
    /// Equal to one of several, or matched by one of those that are regular expressions.
    In(Vec<Element<'a>>),
    /// Of one of these types.
    OfType(Vec<ElementType>),
    /// Anything, but there.
    Exists,
}

impl<'a> Condition<'a> {
    /// Reads a query.
    pub fn new(query: Doc<'a>) -> Self {
        all(query.elements().flatten().map(read).collect())
    }

    /// Whether the condition holds for every document, or for none.
    ///
    /// The newest `mongos` puts such a truth in the place of the condition before it looks for a shard key (mongodb/mongo
    /// `src/mongo/db/query/compiler/rewrites/matcher/expression_optimizer.cpp`). 6.0 doesn't.
    pub fn truth(&self) -> Option<bool> {
        let is = |truth: bool| move |condition: &Condition<'_>| condition.truth() == Some(truth);
        match self {
            Condition::Always(truth) => Some(*truth),
            Condition::Not(condition) => condition.truth().map(|truth| !truth),
            Condition::All(conditions) if conditions.iter().any(is(false)) => Some(false),
            Condition::All(conditions) if conditions.iter().all(is(true)) => Some(true),
            Condition::Any(conditions) if conditions.iter().any(is(true)) => Some(true),
            Condition::Any(conditions) if conditions.iter().all(is(false)) => Some(false),
            Condition::Field {
                test: Test::In(values),
                negated,
                ..
            } if values.is_empty() => Some(*negated),
            _ => None,
        }
    }

    /// What an equality says: the path and the value.
    pub fn equality(&self) -> Option<(&'a [u8], Element<'a>)> {
        match self {
            Condition::Field {
                path,
                test: Test::Equal(value),
                negated: false,
            } => Some((path, *value)),
            _ => None,
        }
    }

    /// The conditions that must all hold.
    pub fn conjuncts(&self) -> &[Condition<'a>] {
        match self {
            Condition::All(conditions) => conditions,
            _ => std::slice::from_ref(self),
        }
    }
}

fn read<'a>(element: Element<'a>) -> Condition<'a> {
    match element.name {
        b"$and" => all(clauses(&element)),
        b"$or" => any(clauses(&element)),
        b"$nor" => not(any(clauses(&element))),
        b"$expr" => expression(&element),
        b"$alwaysFalse" => Condition::Always(false),
        b"$alwaysTrue" | b"$comment" => Condition::Always(true),
        name if name.starts_with(b"$") => Condition::Other,
        path if is_operators(&element) => all(elements_of(&element)
            .map(|operator| operator_on(path, &operator))
            .collect()),
        path => equal(path, element),
    }
}

fn clauses<'a>(list: &Element<'a>) -> Vec<Condition<'a>> {
    let clauses = elements_of(list);
    let clauses = clauses.filter_map(|clause| clause.as_document_or_array().ok().flatten());
    clauses.map(Condition::new).collect()
}

fn elements_of<'a>(element: &Element<'a>) -> impl Iterator<Item = Element<'a>> + use<'a> {
    let document = element.as_document_or_array().ok().flatten();
    document.into_iter().flat_map(Doc::elements).flatten()
}

/// Whether a value is `{$op: …}` rather than a document to compare with.
fn is_operators(element: &Element<'_>) -> bool {
    let first = || elements_of(element).next();
    element.kind == ElementType::EmbeddedDocument
        && first().is_some_and(|first| first.name.starts_with(b"$") && !matches!(first.name, b"$ref" | b"$id" | b"$db"))
}

fn equal<'a>(path: &'a [u8], value: Element<'a>) -> Condition<'a> {
    match value.kind {
        ElementType::RegularExpression => on(path, Test::In(vec![value])),
        ElementType::Undefined => Condition::Other,
        _ => on(path, Test::Equal(value)),
    }
}

fn on<'a>(path: &'a [u8], test: Test<'a>) -> Condition<'a> {
    Condition::Field {
        path,
        test,
        negated: false,
    }
}

fn operator_on<'a>(path: &'a [u8], operator: &Element<'a>) -> Condition<'a> {
    let bounded = |is_upwards, is_inclusive| bounded(path, *operator, is_upwards, is_inclusive, false);
    match operator.name {
        b"$eq" => equal(path, *operator),
        b"$ne" => not(equal(path, *operator)),
        b"$in" => one_of(path, operator),
        b"$nin" => not(one_of(path, operator)),
        b"$gt" => bounded(true, false),
        b"$gte" => bounded(true, true),
        b"$lt" => bounded(false, false),
        b"$lte" => bounded(false, true),
        b"$all" => all(elements_of(operator).map(|value| member(path, value)).collect()),
        b"$mod" => on(path, Test::OfType(vec![ElementType::Double])),
        b"$type" => of_type(path, operator).unwrap_or(Condition::Other),
        b"$exists" if operator.is_truthy() => on(path, Test::Exists),
        b"$exists" => not(on(path, Test::Exists)),
        b"$not" if operator.kind == ElementType::EmbeddedDocument => {
            let negated = elements_of(operator).map(|operator| operator_on(path, &operator));
            not(all(negated.collect()))
        }
        _ => Condition::Other,
    }
}

fn bounded<'a>(
    path: &'a [u8],
    by: Element<'a>,
    is_upwards: bool,
    is_inclusive: bool,
    in_expression: bool,
) -> Condition<'a> {
    match by.kind {
        ElementType::RegularExpression | ElementType::Undefined => Condition::Other,
        _ => on(
            path,
            Test::Bounded {
                by,
                is_upwards,
                is_inclusive,
                in_expression,
            },
        ),
    }
}

/// One value of an `$all`.
fn member<'a>(path: &'a [u8], value: Element<'a>) -> Condition<'a> {
    match is_operators(&value) {
        true => Condition::Other,
        false => equal(path, value),
    }
}

/// By the names of the types that a shard key often has.
fn of_type<'a>(path: &'a [u8], names: &Element<'a>) -> Option<Condition<'a>> {
    let names = match names.kind {
        ElementType::Array => elements_of(names).collect(),
        _ => vec![*names],
    };
    let kind = |name: &Element<'_>| match name.as_str()? {
        "number" | "double" | "int" | "long" | "decimal" => Some(ElementType::Double),
        "string" => Some(ElementType::String),
        "null" => Some(ElementType::Null),
        "objectId" => Some(ElementType::ObjectId),
        "date" => Some(ElementType::DateTime),
        "bool" => Some(ElementType::Boolean),
        _ => None,
    };
    let kinds = names.iter().map(kind).collect::<Option<_>>()?;
    Some(on(path, Test::OfType(kinds)))
}

fn one_of<'a>(path: &'a [u8], list: &Element<'a>) -> Condition<'a> {
    let mut values: Vec<_> = elements_of(list).collect();
    values.sort_by(compare_elements);
    values.dedup_by(|left, right| compare_elements(left, right).is_eq());
    match values.as_slice() {
        _ if values.iter().any(|value| value.kind == ElementType::Undefined) => Condition::Other,
        [only] => equal(path, *only),
        _ => on(path, Test::In(values)),
    }
}

fn not(condition: Condition<'_>) -> Condition<'_> {
    match condition {
        Condition::Always(truth) => Condition::Always(!truth),
        Condition::Field {
            path,
            test,
            negated: false,
        } => Condition::Field {
            path,
            test,
            negated: true,
        },
        condition => Condition::Not(Box::new(condition)),
    }
}

fn all(conditions: Vec<Condition<'_>>) -> Condition<'_> {
    let mut flat = Vec::new();
    for condition in conditions {
        match condition {
            Condition::All(inner) => flat.extend(inner),
            condition => flat.push(condition),
        }
    }
    match flat.len() {
        1 => flat.remove(0),
        _ => Condition::All(flat),
    }
}

fn any(conditions: Vec<Condition<'_>>) -> Condition<'_> {
    let mut flat = Vec::new();
    for condition in conditions {
        match condition {
            Condition::Any(inner) => flat.extend(inner),
            condition => flat.push(condition),
        }
    }
    let equalities: Option<Vec<_>> = flat.iter().map(Condition::equality).collect();
    match equalities.as_deref() {
        _ if flat.len() == 1 => flat.remove(0),
        // Several values of one field are an `$in`.
        Some([(path, first), others @ ..]) if others.iter().all(|(other, _)| other == path) => {
            let others = others.iter().map(|(_, value)| *value);
            on(path, Test::In(std::iter::once(*first).chain(others).collect()))
        }
        _ => Condition::Any(flat),
    }
}

/// An aggregation expression as a condition: constants, and comparisons of a field with a constant.
fn expression<'a>(element: &Element<'a>) -> Condition<'a> {
    match element.kind {
        ElementType::EmbeddedDocument => operation(element),
        ElementType::Array => Condition::Always(true),
        ElementType::String if element.as_str().is_none_or(|text| text.starts_with('$')) => Condition::Other,
        _ => Condition::Always(element.is_truthy()),
    }
}

fn operation<'a>(element: &Element<'a>) -> Condition<'a> {
    let Some(operator) = elements_of(element).next() else {
        return Condition::Always(true);
    };
    let operands = || elements_of(&operator).collect::<Vec<_>>();
    let conditions = || operands().iter().map(expression).collect();
    match operator.name {
        b"$literal" | b"$const" => Condition::Always(operator.is_truthy()),
        b"$and" => all(conditions()),
        b"$or" => any(conditions()),
        b"$eq" | b"$gt" | b"$gte" | b"$lt" | b"$lte" => match operands().as_slice() {
            [left, right] => comparison(operator.name, left, right).unwrap_or(Condition::Other),
            _ => Condition::Other,
        },
        _ => Condition::Other,
    }
}

/// The expression itself tells nothing beside what the comparison does.
fn comparison<'a>(name: &[u8], left: &Element<'a>, right: &Element<'a>) -> Option<Condition<'a>> {
    let path = left.as_str()?.strip_prefix('$').filter(|path| !path.starts_with('$'))?;
    let path = path.as_bytes();
    let value = literal(right)?;
    Some(match name {
        b"$eq" => on(path, Test::ExpressionEqual(value)),
        b"$gt" => bounded(path, value, true, false, true),
        b"$gte" => bounded(path, value, true, true, true),
        b"$lt" => bounded(path, value, false, false, true),
        _ => bounded(path, value, false, true, true),
    })
}

/// A constant operand that can be looked up.
fn literal<'a>(operand: &Element<'a>) -> Option<Element<'a>> {
    let value = match operand.kind {
        ElementType::EmbeddedDocument => {
            let inner = elements_of(operand).next()?;
            Some(inner).filter(|inner| matches!(inner.name, b"$literal" | b"$const"))?
        }
        ElementType::String if operand.as_str().is_none_or(|text| text.starts_with('$')) => return None,
        _ => *operand,
    };
    let is_comparable = !matches!(
        value.kind,
        ElementType::Array | ElementType::Undefined | ElementType::RegularExpression
    );
    is_comparable.then_some(value)
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn a_condition_that_is_false_by_itself_is_recognised() {
        let truth = |query: &Document| Condition::new(Doc::new(&query.to_vec().unwrap()).unwrap()).truth();
        for never in [
            doc! { "_id": 1, "$expr": { "$and": [false] } },
            doc! { "_id": 1, "$expr": false },
            doc! { "_id": 1, "$nor": [{}] },
            doc! { "_id": 1, "$nor": [{ "a": 1 }, { "$alwaysTrue": 1 }] },
            doc! { "a": { "$in": [] }, "_id": 1 },
            doc! { "$and": [{ "_id": 1 }, { "$or": [{ "a": { "$in": [] } }, { "$alwaysFalse": 1 }] }] },
            doc! { "$expr": { "$and": ["$a", { "$literal": 0 }] } },
        ] {
            assert_eq!(truth(&never), Some(false), "{never}");
        }
        for unknown in [
            doc! { "_id": 1 },
            doc! { "$expr": { "$eq": [{ "$type": "$_id" }, "missing"] } },
            doc! { "$expr": { "$and": ["$a", true] } },
            doc! { "$nor": [{ "a": 1 }] },
            doc! { "$or": [{ "a": { "$in": [] } }, { "a": 1 }] },
            doc! { "a": { "$in": [1] } },
        ] {
            assert_eq!(truth(&unknown), None, "{unknown}");
        }
        for always in [doc! {}, doc! { "$expr": true }, doc! { "a": { "$nin": [] } }] {
            assert_eq!(truth(&always), Some(true), "{always}");
        }
    }
}
