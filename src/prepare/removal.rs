//! Removes a constraint's definition from the cluster, by steps that may be cut off anywhere and done twice.
//!
//! 1. A *removal* takes the place of the definition. No Keyward can make the constraint hold while it is there: none finds a definition.
//! 2. The process that removes the constraint reads the register. If a Keyward counts on the constraint, the definition comes back.
//! 3. Otherwise the removal is noted as *decided*. From then on the definition can't come back, and the proxy collection may be dropped.
//! 4. The removal is deleted. A Keyward with the constraint makes it anew.
//!
//! A Keyward lists a constraint in the register first, and then looks at its definition once more. So if the register of step 2 doesn't
//! list it, that Keyward finds the removal.

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{Client, Collection};

use super::position::BACKFILL_EPOCH_FIELD;
use super::stored_definition::{DEFINITIONS, OF_CLIENT, definition_id};
use super::{CHANGING_FIELD, ConstraintState, KnownDefinition};
use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};

/// The field with the removal, in a constraint's document.
pub(super) const REMOVAL_FIELD: &str = "removal";

/// A removal that has begun.
#[derive(Debug, Clone, PartialEq)]
pub struct Removal {
    /// Names it; the next removal of the same constraint has another one.
    pub id: ObjectId,
    /// The identity of the constraint that is removed.
    pub former: Option<ObjectId>,
    /// No Keyward counts on the constraint, and its proxy collection may be gone already.
    pub is_decided: bool,
    /// The former definition.
    definition: Option<Document>,
    strategy: Option<String>,
    of_client: Option<Bson>,
}

impl Removal {
    /// The removal in a constraint's document.
    pub(super) fn of(found: &Document) -> Option<Removal> {
        let removal = found.get_document(REMOVAL_FIELD).ok()?;
        Some(Removal {
            id: removal.get_object_id("id").ok()?,
            former: removal.get_object_id("former").ok(),
            is_decided: removal.get_bool("decided").unwrap_or(false),
            definition: removal.get_document("definition").ok().cloned(),
            strategy: removal.get_str("strategy").ok().map(str::to_owned),
            of_client: removal.get(OF_CLIENT).cloned(),
        })
    }

    /// Puts a removal in the place of the definition that was `known`. Returns nothing if that has changed since.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that it is there.
    pub async fn begin(client: &Client, known: &KnownDefinition) -> Result<Option<Removal>, StoreError> {
        let removal = Removal {
            id: ObjectId::new(),
            former: known.identity,
            is_decided: false,
            definition: known.definition.clone(),
            strategy: known.strategy.clone(),
            of_client: known.of_client.clone(),
        };
        let mut noted = doc! { "id": removal.id, "decided": false };
        if let Some(former) = removal.former {
            noted.insert("former", former);
        }
        noted.extend(removal.fields());
        let mut filter = doc! { "_id": definition_id(&known.namespace, &known.name), "identity": known.identity };
        for under_way in [REMOVAL_FIELD, CHANGING_FIELD] {
            filter.insert(under_way, doc! { "$exists": false });
        }
        // Without a definition: earlier versions refuse such a document, too.
        let definitions = definitions(client, &known.namespace);
        let replace = definitions.replace_one(filter, doc! { REMOVAL_FIELD: noted });
        let replaced = answered(replace.into_future()).await?;
        Ok((replaced.matched_count == 1).then_some(removal))
    }

    /// Puts the definition back, unless the removal is decided. All documents are backfilled again: others may have been written since.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that it is there.
    pub async fn take_back(&self, client: &Client, namespace: &Namespace, name: &str) -> Result<(), StoreError> {
        let mut restored = doc! {
            "version": 1, "state": ConstraintState::Reserving.name(), BACKFILL_EPOCH_FIELD: ObjectId::new(),
        };
        if let Some(former) = self.former {
            restored.insert("identity", former);
        }
        restored.extend(self.fields());
        let mut filter = self.filter(namespace, name);
        filter.insert("removal.decided", false);
        let definitions = definitions(client, namespace);
        let replace = definitions.replace_one(filter, restored);
        answered(replace.into_future()).await?;
        Ok(())
    }

    /// Notes that no Keyward counts on the constraint. Returns whether the removal was still there.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that it is noted.
    pub async fn decide(&self, client: &Client, namespace: &Namespace, name: &str) -> Result<bool, StoreError> {
        let set = doc! { "$set": { "removal.decided": true } };
        let definitions = definitions(client, namespace);
        let update = definitions.update_one(self.filter(namespace, name), set);
        Ok(answered(update.into_future()).await?.matched_count == 1)
    }

    /// Whether the removal is still there, now or later than now.
    pub async fn is_there(&self, client: &Client, namespace: &Namespace, name: &str) -> Result<bool, StoreError> {
        let definitions = definitions(client, namespace);
        let find = definitions.find_one(doc! { "_id": definition_id(namespace, name) });
        let found = answered(find.read_concern(ReadConcern::linearizable()).into_future()).await?;
        let there = found.as_ref().and_then(Removal::of);
        Ok(there.is_some_and(|there| there.id == self.id))
    }

    /// Ends the removal: the cluster doesn't know the constraint any more.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say so.
    pub async fn finish(&self, client: &Client, namespace: &Namespace, name: &str) -> Result<(), StoreError> {
        let definitions = definitions(client, namespace);
        let delete = definitions.delete_one(self.filter(namespace, name));
        answered(delete.into_future()).await?;
        Ok(())
    }

    /// The fields of the definition that a removal keeps.
    fn fields(&self) -> Document {
        let mut fields = Document::new();
        if let Some(definition) = &self.definition {
            fields.insert("definition", definition.clone());
        }
        if let Some(strategy) = &self.strategy {
            fields.insert("strategy", strategy);
        }
        if let Some(of_client) = &self.of_client {
            fields.insert(OF_CLIENT, of_client);
        }
        fields
    }

    fn filter(&self, namespace: &Namespace, name: &str) -> Document {
        doc! { "_id": definition_id(namespace, name), "removal.id": self.id }
    }
}

fn definitions(client: &Client, namespace: &Namespace) -> Collection<Document> {
    client.database(&namespace.database).collection(DEFINITIONS)
}
