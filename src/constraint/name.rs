//! Names a constraint: its name is unique in its collection only.

use std::fmt;

use super::Constraint;
use crate::namespace::Namespace;

/// A constraint's name and its collection, as messages show them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConstraintName {
    /// The protected collection.
    pub namespace: Namespace,
    /// The constraint's name.
    pub name: String,
}

impl ConstraintName {
    /// That of the constraint `name` on `namespace`.
    pub fn new(namespace: &Namespace, name: &str) -> ConstraintName {
        ConstraintName {
            namespace: namespace.clone(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for ConstraintName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.name, self.namespace)
    }
}

impl Constraint {
    /// Its name and its collection.
    pub fn full_name(&self) -> ConstraintName {
        ConstraintName::new(self.namespace(), self.name())
    }

    /// Whether it has this name and this collection.
    pub fn is_named(&self, namespace: &Namespace, name: &str) -> bool {
        self.namespace() == namespace && self.name() == name
    }

    /// Whether it has the name and the collection of `other`; the definitions may differ.
    pub fn has_name_of(&self, other: &Constraint) -> bool {
        self.is_named(other.namespace(), other.name())
    }
}
