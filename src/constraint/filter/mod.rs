//! Partial filters: which documents an index holds.
//!
//! It turns a `partialFilterExpression` into a tree of tests and applies it to documents, as the server's
//! `MatchExpression` does. Only what the server allows in an index is here; what of that can't be evaluated exactly
//! (regular expressions, geometry) is refused when the filter is made, so that evaluating it never guesses.

mod matching;
mod parse;

use bson::{Document, spec::ElementType};

use super::SpecError;
use super::canonical::Uncomparable;
use super::collation::Collation;
use crate::raw::{Builder, Doc, Malformed};

/// A partial filter, checked.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    root: Expression,
}

/// A node of the tree.
#[derive(Debug, Clone)]
enum Expression {
    /// All of them; true without any.
    And(Vec<Expression>),
    /// At least one of them.
    Or(Vec<Expression>),
    /// A test of what a path leads to.
    Test(String, Test),
}

/// What is asked of an element: of any of those that a path leads to.
#[derive(Debug, Clone)]
enum Test {
    Compare(Operator, Operand),
    /// Equal to one of these, or missing or undefined if null is among them.
    In(Vec<Operand>),
    Type(Types),
    Exists,
}

/// How an element is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A constant of the filter.
#[derive(Debug, Clone)]
struct Operand {
    kind: ElementType,
    canonical: Vec<u8>,
    /// How the strings in it are compared: as those of the index are.
    collation: Collation,
    is_nan: bool,
}

/// A set of types.
#[derive(Debug, Clone, Default)]
struct Types {
    kinds: Vec<ElementType>,
}

/// A filter's test of types, and what it says of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeTest {
    /// The test as a query.
    pub query: Vec<u8>,
    /// Whether the document meets it.
    pub is_met: bool,
}

impl Filter {
    /// Checks and takes a `partialFilterExpression` of an index with this collation.
    ///
    /// # Errors
    /// [`SpecError`], with the server's code and text where the server refuses it, too.
    pub(super) fn new(expression: &Document, collation: &Collation) -> Result<Self, SpecError> {
        let bytes = expression
            .to_vec()
            .map_err(|error| SpecError::refused(2, error.to_string()))?;
        let root = parse::filter(Doc::new(&bytes).map_err(super::not_bson)?, collation)?;
        Ok(Filter { root })
    }

    /// The paths that it looks at; one may come up more than once.
    pub(super) fn paths(&self) -> Vec<&str> {
        let mut paths = Vec::new();
        self.root.collect_paths(&mut paths);
        paths
    }

    /// The tests of types, each with whether `document` meets it. Everything else that a filter asks has the same answer for
    /// values that are equal; these tell 1 from 1.0, and a string from a symbol.
    ///
    /// # Errors
    /// [`Malformed`] if `document` is.
    pub(super) fn type_tests(&self, document: Doc<'_>) -> Result<Vec<TypeTest>, Malformed> {
        let mut tests = Vec::new();
        self.root.collect_type_tests(document, &mut tests)?;
        Ok(tests)
    }

    /// Whether `document` matches.
    pub(super) fn matches(&self, document: Doc<'_>) -> Result<bool, Uncomparable> {
        self.root.matches(document)
    }
}

impl Expression {
    fn collect_paths<'e>(&'e self, paths: &mut Vec<&'e str>) {
        match self {
            Expression::And(parts) | Expression::Or(parts) => parts.iter().for_each(|part| part.collect_paths(paths)),
            Expression::Test(path, _) => paths.push(path),
        }
    }

    fn collect_type_tests(&self, document: Doc<'_>, tests: &mut Vec<TypeTest>) -> Result<(), Malformed> {
        match self {
            Expression::And(parts) | Expression::Or(parts) => {
                for part in parts {
                    part.collect_type_tests(document, tests)?;
                }
            }
            Expression::Test(path, Test::Type(types)) => {
                let is_met = match self.matches(document) {
                    Err(Uncomparable::Malformed(malformed)) => return Err(malformed),
                    // A type is found out without comparing anything.
                    met => met.unwrap_or_default(),
                };
                let query = types.query(path);
                tests.push(TypeTest { query, is_met });
            }
            Expression::Test(..) => {}
        }
        Ok(())
    }
}

impl Types {
    /// The test of what `path` leads to.
    fn query(&self, path: &str) -> Vec<u8> {
        let mut query = Builder::new();
        query.open(ElementType::EmbeddedDocument, path.as_bytes());
        query.int32s("$type", self.kinds.iter().map(|kind| i32::from(*kind as u8 as i8)));
        query.close();
        query.finish()
    }
}
