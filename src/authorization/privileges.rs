//! Reads the privileges in a reply to `connectionStatus`, as far as writes need them.

use super::needs::{Actions, Need};
use crate::raw::{Doc, Malformed};

/// The actions on documents that a user's privileges allow.
#[derive(Debug, Default)]
pub struct Privileges(Vec<Privilege>);

#[derive(Debug)]
struct Privilege {
    /// `None` is every database.
    database: Option<Vec<u8>>,
    /// `None` is every collection but the system's.
    collection: Option<Vec<u8>>,
    actions: Actions,
}

impl Privileges {
    /// Reads the reply's `authInfo`.
    pub fn read(info: Doc<'_>) -> Result<Privileges, Malformed> {
        let mut privileges = Vec::new();
        for element in info
            .nested("authenticatedUserPrivileges")?
            .into_iter()
            .flat_map(Doc::elements)
        {
            if let Some(privilege) = element?.as_document_or_array()? {
                privileges.extend(Privilege::read(privilege)?);
            }
        }
        Ok(Privileges(privileges))
    }

    /// Whether they allow nothing.
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether they are enough.
    pub fn cover(&self, need: &Need<'_>) -> bool {
        let there = self.0.iter().filter(|privilege| privilege.is_for(need));
        let there = there.fold(Actions::default(), |all, privilege| all.and(privilege.actions));
        there.contain(need.actions)
    }

    /// Adds what the server has shown to be there.
    pub fn add(&mut self, need: &Need<'_>) {
        self.0.push(Privilege {
            database: Some(need.database.to_vec()),
            collection: Some(need.collection.to_vec()),
            actions: need.actions,
        });
    }
}

impl Privilege {
    /// `None` if it isn't about documents.
    fn read(privilege: Doc<'_>) -> Result<Option<Privilege>, Malformed> {
        let mut actions = Actions::default();
        for action in privilege.nested("actions")?.into_iter().flat_map(Doc::elements) {
            if let Some(name) = action?.as_string_bytes() {
                actions = actions.and(Actions::named(name));
            }
        }
        let resource = privilege.nested("resource")?.unwrap_or(Doc::empty());
        if actions == Actions::default() {
            return Ok(None);
        }
        let (database, collection) = match resource.is_set("anyResource")? {
            true => (None, None),
            false => match (resource.get("db")?, resource.get("collection")?) {
                (Some(database), Some(collection)) => (database.as_string_bytes(), collection.as_string_bytes()),
                // The cluster, or time series.
                _ => return Ok(None),
            },
        };
        let named = |name: Option<&[u8]>| name.filter(|name| !name.is_empty()).map(<[u8]>::to_vec);
        Ok(Some(Privilege {
            database: named(database),
            collection: named(collection),
            actions,
        }))
    }

    fn is_for(&self, need: &Need<'_>) -> bool {
        let is_database = self.database.as_ref().is_none_or(|name| name == need.database);
        let is_collection = match &self.collection {
            Some(name) => name == need.collection,
            None => !need.collection.starts_with(b"system."),
        };
        is_database && is_collection
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn cover(privileges: Vec<Document>, collection: &str, actions: Actions) -> bool {
        let info = doc! { "authenticatedUserPrivileges": privileges }.to_vec().unwrap();
        let privileges = Privileges::read(Doc::new(&info).unwrap()).unwrap();
        privileges.cover(&Need {
            database: b"shop",
            collection: collection.as_bytes(),
            actions,
        })
    }

    fn on(resource: Document, actions: &[&str]) -> Document {
        doc! { "resource": resource, "actions": actions.to_vec() }
    }

    #[test]
    fn a_privilege_is_for_what_its_resource_names() {
        for (resource, fits) in [
            (doc! { "db": "shop", "collection": "users" }, true),
            (doc! { "db": "shop", "collection": "" }, true),
            (doc! { "db": "", "collection": "users" }, true),
            (doc! { "db": "", "collection": "" }, true),
            (doc! { "anyResource": true }, true),
            (doc! { "db": "shop", "collection": "user" }, false),
            (doc! { "db": "shop2", "collection": "" }, false),
            (doc! { "cluster": true }, false),
            (doc! { "db": "shop", "system_buckets": "users" }, false),
        ] {
            let privileges = vec![on(resource.clone(), &["insert"])];
            assert_eq!(cover(privileges, "users", Actions::INSERT), fits, "{resource}");
        }
        let all = vec![on(doc! { "db": "", "collection": "" }, &["insert"])];
        assert!(!cover(all, "system.js", Actions::INSERT));
    }

    #[test]
    fn several_privileges_are_enough_together_and_all_actions_are_needed() {
        let apart = || {
            vec![
                on(doc! { "db": "shop", "collection": "users" }, &["insert", "dbStats"]),
                on(doc! { "db": "shop", "collection": "" }, &["update"]),
            ]
        };
        assert!(cover(apart(), "users", Actions::INSERT.and(Actions::UPDATE)));
        assert!(!cover(apart(), "users", Actions::INSERT.and(Actions::REMOVE)));
        assert!(!cover(apart(), "orders", Actions::INSERT));
        assert!(!cover(Vec::new(), "users", Actions::FIND));
    }

    /// A routed read would show how long the look-up of a key takes.
    #[test]
    fn a_client_that_may_only_write_may_not_find() {
        let writes = vec![on(
            doc! { "db": "shop", "collection": "" },
            &["insert", "update", "remove"],
        )];
        assert!(!cover(writes, "users", Actions::FIND));
        let reads = || vec![on(doc! { "db": "shop", "collection": "orders" }, &["find"])];
        assert!(!cover(reads(), "users", Actions::FIND));
        assert!(cover(reads(), "orders", Actions::FIND));
    }
}
