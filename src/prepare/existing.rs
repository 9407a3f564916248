//! Reads a collection's options from `listCollections`.

use bson::{Bson, Document, doc};
use mongodb::Client;

use super::PrepareError;
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
    /// Its uuid, if the collection exists.
    pub uuid: Option<Bson>,
    /// The fields that Queryable Encryption encrypts.
    pub encrypted: EncryptedFields,
}

impl Existing {
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
            uuid: nested("info", "uuid"),
            encrypted,
        })
    }
}
