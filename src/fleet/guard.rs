//! Notes while a command is classified whether it may write, and to which collections that this Keyward hasn't declared.
//!
//! The classifier asks about every collection that a command may write to whether it is protected. So no command that writes
//! bypasses this check.

use std::cell::{Cell, RefCell};

use super::Membership;
use crate::classify::{ConstraintRemoval, EncryptedField, OtherCollation, Protection};
use crate::encrypted_fields::EncryptedFields;
use crate::namespace::Namespace;
use crate::raw::Element;

/// The most bytes in the name of a collection with its database: the server has no longer ones.
const NAMESPACE_MAX: usize = 255;

/// Answers the classifier's questions from `protection`. Notes whether the command may write, and to which undeclared collections.
pub struct Guard<'a, P> {
    protection: &'a P,
    membership: Option<&'a Membership>,
    is_asked: Cell<bool>,
    undeclared: RefCell<Vec<Namespace>>,
}

impl<'a, P: Protection> Guard<'a, P> {
    /// Asks `protection`. Without a membership there is nothing to declare.
    pub fn new(protection: &'a P, membership: Option<&'a Membership>) -> Guard<'a, P> {
        Guard {
            protection,
            membership,
            is_asked: Cell::new(false),
            undeclared: RefCell::default(),
        }
    }

    /// Whether the command may write somewhere.
    pub fn is_asked(&self) -> bool {
        self.is_asked.get()
    }

    /// The collections to which the command may write and this Keyward hasn't declared to write.
    pub fn undeclared(self) -> Vec<Namespace> {
        self.undeclared.into_inner()
    }
}

/// Whether the server takes these names. A longer one would fill the register.
fn can_exist(database: &[u8], collection: &[u8]) -> bool {
    let length = database.len() + 1 + collection.len();
    !database.is_empty() && !collection.is_empty() && length <= NAMESPACE_MAX
}

impl<P: Protection> Protection for Guard<'_, P> {
    fn protects(&self, database: &[u8], collection: &[u8]) -> bool {
        self.is_asked.set(true);
        if let Some(membership) = self.membership
            && !membership.has_declared(database, collection)
            && can_exist(database, collection)
        {
            let [database, collection] = [database, collection].map(|name| String::from_utf8_lossy(name));
            let namespace = Namespace::new(database, collection);
            self.undeclared.borrow_mut().push(namespace);
        }
        self.protection.protects(database, collection)
    }

    fn has_constraints(&self, database: &[u8], collection: &[u8]) -> bool {
        self.protection.has_constraints(database, collection)
    }

    fn removal(&self, database: &[u8], collection: &[u8]) -> ConstraintRemoval {
        self.protection.removal(database, collection)
    }

    fn strict_constraint(&self, database: &[u8], collection: &[u8]) -> Option<String> {
        self.protection.strict_constraint(database, collection)
    }

    fn is_keywards_own(&self, database: &[u8], collection: &[u8]) -> bool {
        self.protection.is_keywards_own(database, collection)
    }

    fn other_collation(
        &self,
        database: &[u8],
        collection: &[u8],
        collation: Option<&Element<'_>>,
    ) -> Option<OtherCollation> {
        self.protection.other_collation(database, collection, collation)
    }

    fn encrypted(&self, database: &[u8], collection: &[u8], fields: &EncryptedFields) -> Option<EncryptedField> {
        self.protection.encrypted(database, collection, fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_has_a_name_of_some_length() {
        assert!(can_exist(b"a", b"b"));
        assert!(!can_exist(b"", b"b") && !can_exist(b"a", b""));
        let long = [b'x'; NAMESPACE_MAX];
        assert!(can_exist(b"a", &long[2..]) && !can_exist(b"a", &long[1..]));
    }
}
