//! Evaluates partial filters, which decide which documents an index holds.
//!
//! It turns a `partialFilterExpression` into a tree of tests and applies it to documents, as the server's
//! `MatchExpression` does. It supports only operators that the server allows in an index. For the others, for example `$regex`, it gives the
//! server's error. Keyward can't evaluate some of the allowed ones exactly, such as geometry or a regular expression within `$in`. It refuses
//! such a filter when the constraint is made, with an error of its own.

mod matching;
mod parse;

use std::sync::Arc;

use bson::{Document, spec::ElementType};

pub(super) use self::matching::is_position;
pub use self::parse::FILTER_OPERATORS;

use super::SpecError;
use super::canonical::Uncomparable;
use super::collation::Collation;
use super::routing::is_alone_in_its_kind;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::server::code::BAD_VALUE;

/// The most numbers in a path. Each may be a position in an array or a field's name, so the time for a match doubles with each.
const POSITIONS_MAX: usize = 8;

/// A partial filter, checked: a tree of tests.
#[derive(Debug, Clone)]
pub(super) enum Filter {
    /// All of these hold; true if there are none.
    And(Vec<Filter>),
    /// At least one of these holds.
    Or(Vec<Filter>),
    /// A test of the elements that a path leads to.
    Test(Arc<str>, Test),
}

/// A condition that at least one of the elements at the end of a path must meet.
#[derive(Debug, Clone)]
pub(super) enum Test {
    Compare(Operator, Operand),
    In(Choices),
    Type(Types),
    Exists,
}

/// How an element is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A constant of the filter.
#[derive(Debug, Clone)]
pub(super) struct Operand {
    kind: ElementType,
    canonical: Vec<u8>,
    /// How its strings are compared: as the index compares strings.
    collation: Collation,
    is_nan: bool,
}

/// The constants of an `$in`: a value must equal one of them, or be missing or undefined if null is among them.
#[derive(Debug, Clone)]
pub(super) struct Choices {
    /// How its strings are compared.
    collation: Collation,
    /// The canonical forms of all but NaN, in order. Each begins with the rank of its type.
    ordered: Vec<Vec<u8>>,
    has_null: bool,
    has_nan: bool,
}

/// A set of types.
#[derive(Debug, Clone, Default)]
pub(super) struct Types {
    kinds: Vec<ElementType>,
}

/// A filter's test of types, and its result for one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeTest {
    /// The test as a query.
    pub query: Vec<u8>,
    /// Whether the document meets it.
    pub is_met: bool,
}

impl Filter {
    /// Checks and parses a `partialFilterExpression` of an index with this collation.
    ///
    /// # Errors
    /// [`SpecError`], with the server's code and text if the server also refuses it.
    pub(super) fn new(expression: &Document, collation: &Collation) -> Result<Self, SpecError> {
        let bytes = expression
            .to_vec()
            .map_err(|error| SpecError::refused(BAD_VALUE, error.to_string()))?;
        parse::filter(Doc::new(&bytes).map_err(super::not_bson)?, collation)
    }

    /// Checks that matching it takes no very long time. A filter that is in use already stays as it is.
    ///
    /// # Errors
    /// [`SpecError::FilterUnsupported`] if a path has very many numbers.
    pub(super) fn check_new(&self) -> Result<(), SpecError> {
        let numbers = |path: &str| path.split('.').filter(|name| is_position(name)).count();
        match self.paths().into_iter().find(|path| numbers(path) > POSITIONS_MAX) {
            Some(path) => Err(SpecError::FilterUnsupported {
                what: format!("the path '{path}' with more than {POSITIONS_MAX} numbers"),
            }),
            None => Ok(()),
        }
    }

    /// The paths that it tests; a path may occur more than once.
    pub(super) fn paths(&self) -> Vec<&str> {
        let mut paths = Vec::new();
        self.collect_paths(&mut paths);
        paths
    }

    /// The tests of types, each with whether `document` meets it.
    ///
    /// Every other test has the same result for equal values. A test of types can differ between 1 and 1.0, and between
    /// a string and a symbol.
    pub(super) fn type_tests(&self, document: Doc<'_>) -> Result<Vec<TypeTest>, Malformed> {
        let mut tests = Vec::new();
        self.collect_type_tests(document, &mut tests)?;
        Ok(tests)
    }

    fn collect_paths<'e>(&'e self, paths: &mut Vec<&'e str>) {
        match self {
            Filter::And(parts) | Filter::Or(parts) => parts.iter().for_each(|part| part.collect_paths(paths)),
            Filter::Test(path, _) => paths.push(path),
        }
    }

    /// Whether every document matches that has, at each path in `equal`, this plain value or an equal one.
    ///
    /// - False if that can't be shown.
    pub(super) fn is_implied_by(&self, equal: &[Element<'_>]) -> bool {
        match self {
            Filter::And(parts) => parts.iter().all(|part| part.is_implied_by(equal)),
            Filter::Or(parts) => parts.iter().any(|part| part.is_implied_by(equal)),
            Filter::Test(path, test) => {
                // A test of types differs between equal values of several types.
                let is_sure = |value: &Element<'_>| !matches!(test, Test::Type(_)) || is_alone_in_its_kind(value.kind);
                let mut values = equal.iter().filter(|value| value.name == path.as_bytes());
                values.any(|value| is_sure(value) && test.holds(Some(value)).unwrap_or(false))
            }
        }
    }

    fn collect_type_tests(&self, document: Doc<'_>, tests: &mut Vec<TypeTest>) -> Result<(), Malformed> {
        match self {
            Filter::And(parts) | Filter::Or(parts) => {
                for part in parts {
                    part.collect_type_tests(document, tests)?;
                }
            }
            Filter::Test(path, Test::Type(types)) => {
                let is_met = match self.matches(document) {
                    Err(Uncomparable::Malformed(malformed)) => return Err(malformed),
                    // A test of types compares no strings, so it can't fail for them.
                    met => met.unwrap_or_default(),
                };
                let query = types.query(path);
                tests.push(TypeTest { query, is_met });
            }
            Filter::Test(..) => {}
        }
        Ok(())
    }
}

impl Types {
    /// The test of the elements that `path` leads to, as a query.
    fn query(&self, path: &str) -> Vec<u8> {
        let mut query = Builder::new();
        query.open(ElementType::EmbeddedDocument, path.as_bytes());
        query.int32s("$type", self.kinds.iter().map(|kind| i32::from(*kind as u8 as i8)));
        query.close();
        query.finish()
    }
}
