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
use crate::raw::Doc;

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
}
