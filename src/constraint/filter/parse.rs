//! Parses a `partialFilterExpression`.
//!
//! It accepts only operators that the server accepts in an index: equality, comparisons, `$type`, `$in`, `$all`,
//! `$exists: true`, `$and`, `$or`. Keyward refuses every other operator with the server's code and text. If the server
//! would accept the filter, but Keyward can't evaluate it exactly, the refusal gives Keyward's own reason.
//! Source: mongodb/mongo `src/mongo/db/matcher/expression_parser.cpp`; measured on 6.0.5.

use std::sync::Arc;

use bson::spec::ElementType;

use super::{Choices, Filter, Operand, Operator, Test, Types};
use crate::constraint::SpecError;
use crate::constraint::canonical::{Canonical, Strings, Uncomparable};
use crate::constraint::collation::Collation;
use crate::constraint::number::Number;
use crate::raw::{Doc, Element};
use crate::server::code::{
    BAD_VALUE, CANNOT_CREATE_INDEX, FAILED_TO_PARSE, NEAR_NOT_ALLOWED, QUERY_FEATURE_NOT_ALLOWED, TYPE_MISMATCH,
};

/// How many levels a filter may have (`internalPartialFilterExpressionMaxDepth`).
const MAX_DEPTH: usize = 4;

/// The operators that a filter may have.
pub const FILTER_OPERATORS: [&str; 11] = [
    "$eq", "$gt", "$gte", "$lt", "$lte", "$in", "$all", "$type", "$exists", "$and", "$or",
];

/// The filter that `expression` describes.
pub(super) fn filter(expression: Doc<'_>, collation: &Collation) -> Result<Filter, SpecError> {
    let root = document(expression, collation, 0)?;
    check_depth(&root, 1)?;
    Ok(root)
}

fn check_depth(filter: &Filter, depth: usize) -> Result<(), SpecError> {
    if depth > MAX_DEPTH {
        let message = format!("partialFilterExpression depth may not exceed {MAX_DEPTH}");
        return Err(SpecError::refused(CANNOT_CREATE_INDEX, message));
    }
    match filter {
        Filter::And(parts) | Filter::Or(parts) => parts.iter().try_for_each(|part| check_depth(part, depth + 1)),
        Filter::Test(..) => Ok(()),
    }
}

/// A document of conditions that must all hold.
fn document(expression: Doc<'_>, collation: &Collation, depth: usize) -> Result<Filter, SpecError> {
    // A bound on the recursion. A tree this deep would be refused anyway.
    if depth > 100 {
        return Err(SpecError::refused(BAD_VALUE, "exceeded maximum query tree depth"));
    }
    let mut parts = Vec::new();
    for element in elements(expression) {
        let element = element?;
        let name = name(&element)?;
        match name {
            "$comment" => {}
            "$and" => parts.push(Filter::And(list(&element, collation, name, depth)?)),
            "$or" => parts.push(Filter::Or(list(&element, collation, name, depth)?)),
            _ if name.starts_with('$') => return Err(top_level_operator(name)),
            _ => field(name, &element, collation, &mut parts)?,
        }
    }
    // As in the server, a single condition has no `and` around it, because the `and` would count in the depth.
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => Ok(Filter::And(parts)),
    }
}

/// The documents under `$and` or `$or`.
fn list(element: &Element<'_>, collation: &Collation, name: &str, depth: usize) -> Result<Vec<Filter>, SpecError> {
    let bad = |message: String| SpecError::refused(BAD_VALUE, message);
    if element.kind != ElementType::Array {
        return Err(bad(format!("{name} must be an array")));
    }
    let array = Doc::new(element.value).map_err(super::super::not_bson)?;
    if array.is_empty() {
        return Err(bad("$and/$or/$nor must be a nonempty array".to_owned()));
    }
    let mut parts = Vec::new();
    for element in elements(array) {
        let element = element?;
        if element.kind != ElementType::EmbeddedDocument {
            return Err(bad("$or/$and/$nor entries need to be full objects".to_owned()));
        }
        parts.push(document(
            Doc::new(element.value).map_err(super::super::not_bson)?,
            collation,
            depth + 1,
        )?);
    }
    Ok(parts)
}

fn top_level_operator(name: &str) -> SpecError {
    match name {
        "$nor" | "$alwaysTrue" | "$alwaysFalse" | "$sampleRate" => not_in_index(name),
        "$expr" | "$jsonSchema" => SpecError::refused(
            QUERY_FEATURE_NOT_ALLOWED,
            format!("{name} is not allowed in this context"),
        ),
        "$where" | "$text" => SpecError::refused(BAD_VALUE, format!("{name} is not allowed in this context")),
        _ => SpecError::refused(
            BAD_VALUE,
            format!(
                "unknown top level operator: {name}. If you have a field name that starts with a '$' symbol, consider \
                 using $getField or $setField."
            ),
        ),
    }
}

/// The conditions on one field.
fn field(path: &str, element: &Element<'_>, collation: &Collation, parts: &mut Vec<Filter>) -> Result<(), SpecError> {
    // The server doesn't read such a path in the same way everywhere.
    if path.split('.').any(str::is_empty) {
        return Err(SpecError::FilterUnsupported {
            what: format!("the path '{path}' with an empty component"),
        });
    }
    // All tests share it: a filter may have many tests of one long path.
    let path: &Arc<str> = &path.into();
    if element.kind == ElementType::RegularExpression {
        return Err(not_in_index(&format!("{path} regex")));
    }
    let Some(operators) = operators(element)? else {
        parts.push(Filter::Test(
            path.clone(),
            Test::Compare(Operator::Equal, operand(path, element, collation)?),
        ));
        return Ok(());
    };
    for element in elements(operators) {
        parts.push(operator(path, &element?, collation)?);
    }
    Ok(())
}

/// The operators on a field; `None` if the value itself is to be compared for equality.
fn operators<'a>(element: &Element<'a>) -> Result<Option<Doc<'a>>, SpecError> {
    if element.kind != ElementType::EmbeddedDocument {
        return Ok(None);
    }
    let document = Doc::new(element.value).map_err(super::super::not_bson)?;
    let Some(first) = document.elements().next().transpose().map_err(super::super::not_bson)? else {
        return Ok(None);
    };
    Ok((first.name.starts_with(b"$") && !is_dbref(document)).then_some(document))
}

fn is_dbref(document: Doc<'_>) -> bool {
    let has = |name| matches!(document.get(name), Ok(Some(_)));
    has("$ref") && has("$id")
}

fn operator(path: &Arc<str>, element: &Element<'_>, collation: &Collation) -> Result<Filter, SpecError> {
    let compare = |operator| Ok(Test::Compare(operator, operand(path, element, collation)?));
    let test = match name(element)? {
        "$eq" => compare(Operator::Equal),
        "$lt" => bounded(path, element, collation).and_then(|()| compare(Operator::Less)),
        "$lte" => bounded(path, element, collation).and_then(|()| compare(Operator::LessOrEqual)),
        "$gt" => bounded(path, element, collation).and_then(|()| compare(Operator::Greater)),
        "$gte" => bounded(path, element, collation).and_then(|()| compare(Operator::GreaterOrEqual)),
        "$in" => Ok(Test::In(choices(path, element, collation)?)),
        "$type" => Ok(Test::Type(types(path, element)?)),
        "$exists" if is_true(element) => Ok(Test::Exists),
        "$exists" => Err(not_in_index(&format!("$not\n    {path} exists\n"))),
        "$all" => return all(path, element, collation),
        "$not" | "$ne" | "$nin" => Err(not_in_index("$not")),
        "$regex" => Err(not_in_index(&format!("{path} regex"))),
        "$mod" => Err(not_in_index(&format!("{path} mod"))),
        name @ ("$elemMatch" | "$size") => Err(not_in_index(&format!("{path} {name}"))),
        name @ ("$bitsAllSet" | "$bitsAllClear" | "$bitsAnySet" | "$bitsAnyClear") => {
            Err(not_in_index(&format!("{path} {name}")))
        }
        "$options" => Err(SpecError::refused(BAD_VALUE, "$options needs a $regex")),
        "$near" | "$nearSphere" | "$geoNear" => {
            let message = "$geoNear, $near, and $nearSphere are not allowed in this context";
            Err(SpecError::refused(NEAR_NOT_ALLOWED, message))
        }
        name @ ("$geoWithin" | "$geoIntersects" | "$within") => {
            Err(SpecError::FilterUnsupported { what: name.to_owned() })
        }
        name if name.starts_with("$_internal") => Err(SpecError::FilterUnsupported { what: name.to_owned() }),
        name => Err(SpecError::refused(BAD_VALUE, format!("unknown operator: {name}"))),
    };
    Ok(Filter::Test(path.clone(), test?))
}

/// Refuses a regular expression in a comparison other than equality, and a bound whose order isn't definitely known.
fn bounded(path: &str, element: &Element<'_>, collation: &Collation) -> Result<(), SpecError> {
    if element.kind == ElementType::RegularExpression {
        let message = format!("Can't have RegEx as arg to predicate over field '{path}'.");
        return Err(SpecError::refused(BAD_VALUE, message));
    }
    let is_collated = matches!(collation, Collation::Icu(_));
    if is_collated && may_hold_strings(element.kind) {
        return Err(SpecError::FilterUnsupported {
            what: format!("a range of strings, documents or arrays under a collation (on '{path}')"),
        });
    }
    Ok(())
}

fn may_hold_strings(kind: ElementType) -> bool {
    matches!(
        kind,
        ElementType::String | ElementType::Symbol | ElementType::EmbeddedDocument | ElementType::Array
    )
}

fn operand(path: &str, element: &Element<'_>, collation: &Collation) -> Result<Operand, SpecError> {
    match element.kind {
        ElementType::Undefined => return Err(SpecError::refused(BAD_VALUE, "cannot compare to undefined")),
        ElementType::JavaScriptCodeWithScope => {
            return Err(SpecError::FilterUnsupported {
                what: format!("code with a scope (on '{path}')"),
            });
        }
        // A query also compares code under its collation.
        ElementType::JavaScriptCode if matches!(collation, Collation::Icu(_)) => {
            return Err(SpecError::FilterUnsupported {
                what: format!("code under a collation (on '{path}')"),
            });
        }
        _ => {}
    }
    let mut canonical = Vec::new();
    Canonical::for_query(&mut canonical, Strings::from(collation))
        .append(element, false)
        .map_err(|error| match error {
            Uncomparable::Malformed(malformed) => SpecError::refused(BAD_VALUE, malformed.to_string()),
            Uncomparable::Uncollatable(reason) => SpecError::FilterUnsupported {
                what: format!("a value whose strings can't be compared under the collation ({reason}, on '{path}')"),
            },
        })?;
    Ok(Operand {
        collation: collation.clone(),
        kind: element.kind,
        canonical,
        is_nan: Number::of(element) == Some(Number::Nan),
    })
}

/// The values of an `$in`.
fn choices(path: &str, element: &Element<'_>, collation: &Collation) -> Result<Choices, SpecError> {
    let mut operands = Vec::new();
    for element in array(element, "$in needs an array")? {
        match element.kind {
            ElementType::RegularExpression => {
                return Err(SpecError::FilterUnsupported {
                    what: format!("a regular expression in $in (on '{path}')"),
                });
            }
            ElementType::Undefined => {
                return Err(SpecError::refused(
                    BAD_VALUE,
                    "InMatchExpression equality cannot be undefined",
                ));
            }
            _ if operators(&element)?.is_some() => {
                return Err(SpecError::refused(BAD_VALUE, "cannot nest $ under $in"));
            }
            _ => operands.push(operand(path, &element, collation)?),
        }
    }
    Ok(Choices::of(operands, collation))
}

/// `$all`: an equality with each of its values.
fn all(path: &Arc<str>, element: &Element<'_>, collation: &Collation) -> Result<Filter, SpecError> {
    let mut parts = Vec::new();
    for element in array(element, "$all needs an array")? {
        let has_elem_match =
            operators(&element)?.is_some_and(|operators| matches!(operators.get("$elemMatch"), Ok(Some(_))));
        if element.kind == ElementType::RegularExpression || has_elem_match {
            return Err(not_in_index(&format!(
                "{path} {}",
                if has_elem_match { "$elemMatch" } else { "regex" }
            )));
        }
        parts.push(Filter::Test(
            path.clone(),
            Test::Compare(Operator::Equal, operand(path, &element, collation)?),
        ));
    }
    match parts.is_empty() {
        true => Err(not_in_index("$alwaysFalse: 1\n")),
        false => Ok(Filter::And(parts)),
    }
}

/// The types of a `$type`: a name, a number or an array of those.
fn types(path: &str, element: &Element<'_>) -> Result<Types, SpecError> {
    let mut types = Types::default();
    if element.kind == ElementType::Array {
        for element in array(element, "")? {
            types.add(&element)?;
        }
        if types.kinds.is_empty() {
            return Err(SpecError::refused(
                FAILED_TO_PARSE,
                format!("{path} must match at least one type"),
            ));
        }
    } else {
        types.add(element)?;
    }
    Ok(types)
}

impl Types {
    fn add(&mut self, element: &Element<'_>) -> Result<(), SpecError> {
        let bad = |message: String| Err(SpecError::refused(BAD_VALUE, message));
        if let Some(name) = element.as_str() {
            return match (
                name,
                ALL_TYPES.iter().find(|kind| crate::server::type_name(**kind) == name),
            ) {
                ("number", _) => {
                    self.kinds.extend(NUMBERS);
                    Ok(())
                }
                (_, Some(kind)) => {
                    self.kinds.push(*kind);
                    Ok(())
                }
                ("missing", None) => bad(
                    "'missing' is not a legal type name. To query for non-existence of a field, use {$exists:false}."
                        .to_owned(),
                ),
                (_, None) => bad(format!("Unknown type name alias: {name}")),
            };
        }
        let Some(number) = Number::of(element) else {
            let message = "type must be represented as a number or a string";
            return Err(SpecError::refused(TYPE_MISMATCH, message));
        };
        let code = |kind: &&ElementType| i64::from(**kind as u8 as i8);
        match ALL_TYPES.iter().find(|kind| number.is_equal_to(code(kind))) {
            Some(kind) => self.kinds.push(*kind),
            None if number.is_zero() => {
                return bad("Invalid numerical type code: 0. Instead use {$exists:false}.".to_owned());
            }
            None => return bad("Invalid numerical type code".to_owned()),
        }
        Ok(())
    }
}

const NUMBERS: [ElementType; 4] = [
    ElementType::Double,
    ElementType::Int32,
    ElementType::Int64,
    ElementType::Decimal128,
];

const ALL_TYPES: [ElementType; 21] = [
    ElementType::Double,
    ElementType::String,
    ElementType::EmbeddedDocument,
    ElementType::Array,
    ElementType::Binary,
    ElementType::Undefined,
    ElementType::ObjectId,
    ElementType::Boolean,
    ElementType::DateTime,
    ElementType::Null,
    ElementType::RegularExpression,
    ElementType::DbPointer,
    ElementType::JavaScriptCode,
    ElementType::Symbol,
    ElementType::JavaScriptCodeWithScope,
    ElementType::Int32,
    ElementType::Timestamp,
    ElementType::Int64,
    ElementType::Decimal128,
    ElementType::MinKey,
    ElementType::MaxKey,
];

fn is_true(element: &Element<'_>) -> bool {
    match Number::of(element) {
        Some(number) => !number.is_zero(),
        None => element.is_truthy(),
    }
}

fn array<'a>(element: &Element<'a>, otherwise: &str) -> Result<Vec<Element<'a>>, SpecError> {
    if element.kind != ElementType::Array {
        return Err(SpecError::refused(BAD_VALUE, otherwise));
    }
    elements(Doc::new(element.value).map_err(super::super::not_bson)?).collect()
}

fn elements(document: Doc<'_>) -> impl Iterator<Item = Result<Element<'_>, SpecError>> {
    document
        .elements()
        .map(|element| element.map_err(super::super::not_bson))
}

fn name<'a>(element: &Element<'a>) -> Result<&'a str, SpecError> {
    std::str::from_utf8(element.name).map_err(|_| SpecError::FilterUnsupported {
        what: "a field name that isn't UTF-8".to_owned(),
    })
}

fn not_in_index(expression: &str) -> SpecError {
    let message = format!("Expression not supported in partial index: {expression}");
    SpecError::refused(CANNOT_CREATE_INDEX, message)
}
