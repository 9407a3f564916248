//! Reads and writes one client's constraint, as the list in the cluster has it.

use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};

use crate::constraint::{Constraint, IndexSpec};
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;

/// The fields of an entry. A later version that adds an option adds a field: this version then can't keep the constraint.
const FIELDS: [&str; 10] = [
    "id",
    "command",
    "collection",
    "name",
    "key",
    "sparse",
    "partialFilterExpression",
    "collation",
    "uuid",
    "builder",
];

/// How far a client's constraint has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildState {
    /// The Keyward with this entry in the register builds it: the client has no reply yet.
    Building(ObjectId),
    /// It held once: the client knows that the index is there.
    Built,
}

impl BuildState {
    /// The Keyward that builds the constraint; none if it is built.
    pub fn builder(self) -> Option<ObjectId> {
        match self {
            BuildState::Building(builder) => Some(builder),
            BuildState::Built => None,
        }
    }
}

/// A constraint that a client has made.
#[derive(Debug, Clone)]
pub struct ClientConstraint {
    /// The number of this entry; a constraint that is dropped and made again has another one.
    pub id: ObjectId,
    /// The number of the `createIndexes` that made it. Its constraints hold together from one moment on, or none does.
    pub command: ObjectId,
    /// The constraint.
    pub constraint: Arc<Constraint>,
    /// The identity of the collection when the constraint was made.
    pub collection_uuid: Option<Bson>,
    /// How far it has come.
    pub state: BuildState,
}

impl ClientConstraint {
    /// The same constraint in another entry.
    pub fn renumbered(&self) -> ClientConstraint {
        let id = ObjectId::new();
        ClientConstraint {
            id,
            constraint: self.constraint.in_entry(id).into(),
            ..self.clone()
        }
    }

    /// Its form in the list.
    pub(super) fn document(&self) -> Document {
        let spec = self.constraint.spec();
        let mut document = doc! {
            "id": self.id,
            "command": self.command,
            "collection": self.constraint.namespace().to_string(),
            "name": self.constraint.name(),
            "key": spec.key.clone(),
        };
        if spec.sparse {
            document.insert("sparse", true);
        }
        if let Some(filter) = &spec.partial_filter_expression {
            document.insert("partialFilterExpression", filter.clone());
        }
        if let Some(collation) = &spec.collation {
            document.insert("collation", collation.clone());
        }
        if let Some(uuid) = &self.collection_uuid {
            document.insert("uuid", uuid.clone());
        }
        if let BuildState::Building(builder) = self.state {
            document.insert("builder", builder);
        }
        document
    }

    /// Reads a constraint from its form in the list.
    ///
    /// # Errors
    /// [`StoreError::Unexpected`] if it is none that this version can keep.
    pub(super) fn read(document: &Document) -> Result<ClientConstraint, StoreError> {
        ClientConstraint::parts(document).ok_or(StoreError::Unexpected("an entry in the list of clients' constraints"))
    }

    fn parts(document: &Document) -> Option<ClientConstraint> {
        if document.keys().any(|field| !FIELDS.contains(&field.as_str())) {
            return None;
        }
        let id = document.get_object_id("id").ok()?;
        let optional = |field| document.get_document(field).ok().cloned();
        let spec = IndexSpec {
            key: document.get_document("key").ok()?.clone(),
            name: Some(document.get_str("name").ok()?.to_owned()),
            sparse: document.get_bool("sparse").unwrap_or(false),
            partial_filter_expression: optional("partialFilterExpression"),
            collation: optional("collation"),
            client_entry: Some(id),
            ..IndexSpec::default()
        };
        let namespace = Namespace::parse(document.get_str("collection").ok()?).ok()?;
        Some(ClientConstraint {
            id,
            command: document.get_object_id("command").ok()?,
            constraint: Arc::new(Constraint::new(namespace, spec).ok()?),
            collection_uuid: document.get("uuid").cloned(),
            state: match document.get_object_id("builder") {
                Ok(builder) => BuildState::Building(builder),
                Err(_) => BuildState::Built,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let document = doc! {
            "id": ObjectId::new(),
            "command": ObjectId::new(),
            "collection": "shop.users",
            "name": "mail",
            "key": { "email": 1, "tenant": -1 },
            "partialFilterExpression": { "a": { "$gt": 1 } },
            "collation": { "locale": "en", "strength": 2 },
            "uuid": "u",
            "builder": ObjectId::new(),
        };
        let read = ClientConstraint::read(&document).unwrap();
        assert_eq!(read.document(), document);
        assert!(matches!(read.state, BuildState::Building(_)));
        assert!(ClientConstraint::read(&doc! { "id": ObjectId::new() }).is_err());
        let mut later = document;
        later.insert("strategy", "transaction");
        assert!(ClientConstraint::read(&later).is_err());
    }
}
