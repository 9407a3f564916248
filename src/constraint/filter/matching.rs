//! Applies a filter to a document's bytes.
//!
//! It answers as the server's matcher does. A test holds if it holds for any element that the path leads to, also
//! through arrays. For a final array, the test is tried on each element and on the array itself. Comparisons stay
//! within a type bracket, except with null, MinKey and MaxKey.
//! Source: mongodb/mongo `src/mongo/db/matcher/path.cpp`, `expression_leaf.cpp`; measured on 6.0.5.

use std::cmp::Ordering;

use bson::spec::ElementType;

use super::{Choices, Filter, Operand, Operator, Test};
use crate::constraint::canonical::{Canonical, Strings, Uncomparable, rank};
use crate::constraint::collation::Collation;
use crate::constraint::number::Number;
use crate::raw::{Doc, Element};

impl Filter {
    /// Whether `document` matches.
    pub(in crate::constraint) fn matches(&self, document: Doc<'_>) -> Result<bool, Uncomparable> {
        match self {
            Filter::And(parts) => {
                for part in parts {
                    if !part.matches(document)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Filter::Or(parts) => {
                for part in parts {
                    if part.matches(document)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Filter::Test(path, test) => {
                let path: Vec<_> = path.split('.').collect();
                any_in_document(document, &path, test)
            }
        }
    }
}

/// Whether `test` holds for anything that `path` leads to from `document`.
fn any_in_document(mut document: Doc<'_>, mut path: &[&str], test: &Test) -> Result<bool, Uncomparable> {
    while let [name, rest @ ..] = path {
        match document.get(name)? {
            None => return test.holds(None),
            Some(element) => match element.kind {
                ElementType::Array => return any_in_array(&element, rest, test),
                _ if rest.is_empty() => return test.holds(Some(&element)),
                ElementType::EmbeddedDocument => document = Doc::new(element.value)?,
                _ => return test.holds(None),
            },
        }
        path = rest;
    }
    test.holds(None)
}

/// Whether `test` holds for anything that `path` leads to from `array`, an array on the way.
fn any_in_array(array: &Element<'_>, path: &[&str], test: &Test) -> Result<bool, Uncomparable> {
    for element in Doc::new(array.value)?.elements() {
        let element = element?;
        if any_in_element(&element, path, test)? {
            return Ok(true);
        }
    }
    match path {
        [] => test.holds(Some(array)),
        _ => Ok(false),
    }
}

fn any_in_element(element: &Element<'_>, path: &[&str], test: &Test) -> Result<bool, Uncomparable> {
    let [name, rest @ ..] = path else {
        return test.holds(Some(element));
    };
    let is_document = element.kind == ElementType::EmbeddedDocument;
    if is_document && any_in_document(Doc::new(element.value)?, path, test)? {
        return Ok(true);
    }
    let is_there = element.name == name.as_bytes() && is_position(name);
    match (is_there, element.kind) {
        (false, _) => Ok(false),
        (true, _) if rest.is_empty() => test.holds(Some(element)),
        (true, ElementType::EmbeddedDocument) => any_in_document(Doc::new(element.value)?, rest, test),
        (true, ElementType::Array) => any_in_array(element, rest, test),
        (true, _) => Ok(false),
    }
}

/// Whether this part of a path may be a position in an array.
pub(in crate::constraint) fn is_position(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

impl Test {
    /// Whether it holds for `element`, or for a path that leads nowhere.
    pub(super) fn holds(&self, element: Option<&Element<'_>>) -> Result<bool, Uncomparable> {
        match self {
            Test::Compare(operator, operand) => operator.holds(element, operand),
            Test::In(choices) => choices.have(element),
            Test::Type(types) => Ok(element.is_some_and(|element| types.kinds.contains(&element.kind))),
            Test::Exists => Ok(element.is_some()),
        }
    }
}

impl Choices {
    pub(super) fn of(operands: Vec<Operand>, collation: &Collation) -> Choices {
        let has_null = operands.iter().any(|operand| operand.kind == ElementType::Null);
        let has_nan = operands.iter().any(|operand| operand.is_nan);
        let others = operands.into_iter().filter(|operand| !operand.is_nan);
        let mut ordered: Vec<_> = others.map(|operand| operand.canonical).collect();
        ordered.sort_unstable();
        Choices {
            collation: collation.clone(),
            ordered,
            has_null,
            has_nan,
        }
    }

    /// Whether `element`, or a path that leads nowhere, equals one of them. An array may be tested once for each element, so this mustn't take
    /// longer the more of them there are.
    fn have(&self, element: Option<&Element<'_>>) -> Result<bool, Uncomparable> {
        let Some(element) = element.filter(|element| element.kind != ElementType::Undefined) else {
            return Ok(self.has_null);
        };
        if Number::of(element) == Some(Number::Nan) {
            return Ok(self.has_nan);
        }
        // Strings that no constant is compared with needn't have a sort key.
        let rank = [rank(element.kind)];
        let first = self.ordered.partition_point(|one| one[..] < rank[..]);
        if !self.ordered.get(first).is_some_and(|one| one.starts_with(&rank)) {
            return Ok(false);
        }
        let mut canonical = Vec::new();
        Canonical::for_query(&mut canonical, Strings::from(&self.collation)).append(element, false)?;
        Ok(self.ordered.binary_search(&canonical).is_ok())
    }
}

impl Operator {
    fn holds(self, element: Option<&Element<'_>>, operand: &Operand) -> Result<bool, Uncomparable> {
        let or_equal = matches!(self, Operator::Equal | Operator::LessOrEqual | Operator::GreaterOrEqual);
        let Some(element) = element.filter(|element| rank(element.kind) == rank(operand.kind)) else {
            return Ok(match operand.kind {
                ElementType::Null => or_equal && element.is_none_or(|element| element.kind == ElementType::Undefined),
                ElementType::MinKey => matches!(self, Operator::Greater | Operator::GreaterOrEqual),
                ElementType::MaxKey => matches!(self, Operator::Less | Operator::LessOrEqual),
                _ => false,
            });
        };
        let is_nan = Number::of(element) == Some(Number::Nan);
        if is_nan || operand.is_nan {
            return Ok(or_equal && is_nan && operand.is_nan);
        }
        let mut canonical = Vec::new();
        Canonical::for_query(&mut canonical, Strings::from(&operand.collation)).append(element, false)?;
        let order = canonical.cmp(&operand.canonical);
        Ok(match self {
            Operator::Equal => order == Ordering::Equal,
            Operator::Less => order == Ordering::Less,
            Operator::LessOrEqual => order != Ordering::Greater,
            Operator::Greater => order == Ordering::Greater,
            Operator::GreaterOrEqual => order != Ordering::Less,
        })
    }
}
