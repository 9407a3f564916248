//! Reads a collection's options from `listCollections`, and checks that constraints can hold with them.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use mongodb::Client;

use super::PrepareError;
use crate::classify::EncryptedField;
use crate::constraint::{Constraint, ConstraintName};
use crate::encrypted_fields::EncryptedFields;
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;
use crate::server::driver;

/// The options of a collection that matter to its constraints; empty if the collection doesn't exist.
#[derive(Debug, Default)]
pub struct Existing {
    /// Its default collation, if it has one.
    pub collation: Option<Document>,
    /// Whether it is capped.
    pub is_capped: bool,
    /// Whether its documents lie in the order of their `_id`s, as those of a clustered collection.
    pub is_clustered: bool,
    /// Its uuid, if the collection exists.
    pub uuid: Option<Bson>,
    /// The fields that Queryable Encryption encrypts.
    pub encrypted: EncryptedFields,
}

impl Existing {
    /// Whether it is clustered and has a default collation. A server then misses documents by a text `_id` under any other collation: it
    /// compares the text with the sort keys by which the documents lie.
    pub fn is_clustered_by_sort_keys(&self) -> bool {
        self.is_clustered && self.collation.is_some()
    }

    /// Asks the cluster for the options.
    ///
    /// # Errors
    /// [`PrepareError`] if the cluster doesn't answer, or the collection is a view or a time series.
    pub async fn read(client: &Client, namespace: &Namespace) -> Result<Self, PrepareError> {
        let command = doc! { "listCollections": 1, "filter": { "name": namespace.collection.as_str() } };
        let reply = client.database(&namespace.database).run_command(command).await?;
        let batch = driver::first_batch(&reply).ok_or(StoreError::Unexpected("the list of collections"))?;
        match batch.first().and_then(Bson::as_document) {
            Some(listed) => Existing::of(listed, namespace),
            None => Ok(Existing::default()),
        }
    }

    fn of(listed: &Document, namespace: &Namespace) -> Result<Self, PrepareError> {
        if listed.get_str("type").is_ok_and(|kind| kind != "collection") {
            return Err(PrepareError::NoCollection(namespace.clone()));
        }
        let nested = |document: &str, field: &str| listed.get_document(document).ok()?.get(field).cloned();
        let option = |name: &str| match nested("options", name) {
            Some(Bson::Document(option)) => Some(option),
            _ => None,
        };
        let encrypted = match option("encryptedFields") {
            Some(listed) => EncryptedFields::of(&listed).ok_or(StoreError::Unexpected("a list of encrypted fields"))?,
            None => EncryptedFields::default(),
        };
        Ok(Existing {
            collation: option("collation"),
            is_capped: nested("options", "capped") == Some(Bson::Boolean(true)),
            is_clustered: !matches!(nested("options", "clusteredIndex"), None | Some(Bson::Boolean(false))),
            uuid: nested("info", "uuid"),
            encrypted,
        })
    }

    /// Checks that the collection can have these constraints. A client's constraint is kept, as it mustn't stop all others.
    ///
    /// # Errors
    /// [`PrepareError`] if one of the configuration file can't hold there.
    pub fn check<'c>(
        &self,
        namespace: &Namespace,
        constraints: impl Iterator<Item = &'c Arc<Constraint>> + Clone,
    ) -> Result<(), PrepareError> {
        let is_any_of_file = constraints.clone().any(|one| one.client_entry().is_none());
        if self.is_capped && is_any_of_file {
            return Err(PrepareError::Capped(namespace.clone()));
        }
        if self.is_clustered_by_sort_keys() {
            if is_any_of_file {
                return Err(PrepareError::Clustered(namespace.clone()));
            }
            tracing::warn!(
                %namespace,
                "a client made a unique constraint on a collection that is clustered and has a default collation now; Keyward refuses \
                 writes to it: send dropIndexes to end it"
            );
        }
        check_encrypted(namespace, &self.encrypted, constraints)
    }
}

/// Checks that no constraint reads an encrypted field. A client's constraint is kept: it compares the encrypted values then.
fn check_encrypted<'c>(
    namespace: &Namespace,
    encrypted: &EncryptedFields,
    constraints: impl Iterator<Item = &'c Arc<Constraint>>,
) -> Result<(), PrepareError> {
    for constraint in constraints {
        let Some(EncryptedField {
            constraint: name,
            field,
            ..
        }) = encrypted.read_by([&**constraint].into_iter())
        else {
            continue;
        };
        if constraint.client_entry().is_none() {
            let constraint = ConstraintName::new(namespace, &name);
            return Err(PrepareError::Encrypted { constraint, field });
        }
        tracing::warn!(
            %namespace, constraint = name, field,
            "a client made a unique constraint on a field that Queryable Encryption encrypts now; send dropIndexes to end it"
        );
    }
    Ok(())
}
