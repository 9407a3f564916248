//! Parses and checks namespaces: the database and collection that a command or a setting names.
//!
//! It splits `database.collection` into its two parts, and checks whether the server would let a client create such a
//! collection. It keeps no list of collections, and does not know which ones are protected.

use std::fmt;

/// MongoDB's own databases, which can't have constraints.
pub const OF_MONGODB: [&str; 3] = ["admin", "config", "local"];

/// A collection and its database. The parts are unchanged from the client's text; [`Namespace::check`] checks whether
/// the server accepts them as names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The database's name, which contains no dot.
    pub database: String,
    /// The collection's name, which may contain dots.
    pub collection: String,
}

/// Why a name is not valid for a user's collection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message names each field")]
pub enum InvalidNamespace {
    /// There is no dot between database and collection, or nothing on one side of it.
    #[error("'{0}' is not of the form database.collection")]
    NotDotted(String),
    /// The database's name is empty, longer than 63 bytes, or has a character that the server refuses.
    #[error("Invalid database name: '{0}'")]
    Database(String),
    /// The collection's name is empty, starts with a dot, or has a character that the server refuses.
    #[error("Invalid collection name: {0}")]
    Collection(String),
    /// Database, dot and collection together are too long.
    #[error("Fully qualified namespace is too long. Namespace: {namespace} Max: {max}")]
    TooLong { namespace: Namespace, max: usize },
}

impl Namespace {
    /// The maximum bytes of a namespace that isn't sharded (`NamespaceString::MaxUserNsCollectionLen`, 4.4 and later).
    pub const MAX_BYTES: usize = 255;
    /// The maximum bytes of a sharded namespace, whose cached chunks carry its name behind a prefix
    /// (`NamespaceString::MaxUserNsShardedCollectionLen`).
    pub const MAX_SHARDED_BYTES: usize = 235;

    /// Joins the two names without checking them.
    pub fn new(database: impl Into<String>, collection: impl Into<String>) -> Self {
        Namespace {
            database: database.into(),
            collection: collection.into(),
        }
    }

    /// Splits `database.collection` at its first dot and checks it.
    ///
    /// # Errors
    /// [`InvalidNamespace`] if the server wouldn't create it.
    pub fn parse(text: &str) -> Result<Self, InvalidNamespace> {
        let (database, collection) = text
            .split_once('.')
            .ok_or_else(|| InvalidNamespace::NotDotted(text.to_owned()))?;
        let namespace = Namespace::new(database, collection);
        namespace.check()?;
        Ok(namespace)
    }

    /// Checks that the server would let a client create this collection.
    ///
    /// # Errors
    /// The first [`InvalidNamespace`] found: database, collection, length.
    pub fn check(&self) -> Result<(), InvalidNamespace> {
        let bad_in_database = |c: char| matches!(c, '/' | '\\' | '.' | ' ' | '"' | '$' | '\0');
        if self.database.is_empty() || self.database.len() > 63 || self.database.contains(bad_in_database) {
            return Err(InvalidNamespace::Database(self.database.clone()));
        }
        let collection = &self.collection;
        if collection.is_empty() || collection.starts_with('.') || collection.contains(['$', '\0']) {
            return Err(InvalidNamespace::Collection(collection.clone()));
        }
        if self.len() > Self::MAX_BYTES {
            return Err(InvalidNamespace::TooLong {
                namespace: self.clone(),
                max: Self::MAX_BYTES,
            });
        }
        Ok(())
    }

    /// The length of `database.collection` in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a namespace has at least its dot")]
    pub fn len(&self) -> usize {
        self.database.len() + 1 + self.collection.len()
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}

impl std::str::FromStr for Namespace {
    type Err = InvalidNamespace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Namespace::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_dot_parts_database_and_collection() {
        let namespace = Namespace::parse("shop.users.old").unwrap();
        assert_eq!(namespace, Namespace::new("shop", "users.old"));
        assert_eq!(namespace.to_string(), "shop.users.old");
    }

    #[test]
    fn refuses_what_the_server_refuses() {
        for text in [
            "shop",
            "shop.",
            ".users",
            "sh op.users",
            "s$p.users",
            "a/b.c",
            "shop..users",
            "shop.us$ers",
            "shop.a\0b",
        ] {
            assert!(Namespace::parse(text).is_err(), "{text:?}");
        }
        assert!(Namespace::parse(&format!("{}.c", "d".repeat(64))).is_err());
        assert!(Namespace::parse(&format!("{}.c", "d".repeat(63))).is_ok());
        assert!(Namespace::parse(&format!("d.{}", "c".repeat(254))).is_err());
        assert!(Namespace::parse(&format!("d.{}", "c".repeat(253))).is_ok());
    }
}
