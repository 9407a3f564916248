//! Decides whose turn it is to audit a collection, and records how far the audit has come.
//!
//! Both are in a document of the collection `keyward.audits` in the protected database, by the server's clock alone. A turn that isn't
//! renewed runs out, and another Keyward goes on from the last change noted.

use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::change_stream::event::ResumeToken;
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::options::ReturnDocument;
use mongodb::{Client, Collection};

use crate::haste::{self, hastened};
use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};
use crate::server::{clock::from_now, code};

/// The collection, in each protected database.
pub const COLLECTION: &str = "keyward.audits";
/// How long a turn lasts unless it is renewed.
const TURN: Duration = Duration::from_secs(30);

/// A turn that is this Keyward's.
pub(super) struct AuditTurn<'a> {
    audits: Collection<Document>,
    collection: &'a str,
    auditor: &'a str,
    /// Behind the last change that is audited; none if all documents are to be compared.
    pub token: Option<ResumeToken>,
}

impl<'a> AuditTurn<'a> {
    /// Takes the turn unless another Keyward has it. One that ends much later than any may was noted while a clock was ahead, so it
    /// doesn't count.
    pub(super) async fn take(
        client: &Client,
        namespace: &'a Namespace,
        auditor: &'a str,
    ) -> Result<Option<AuditTurn<'a>>, StoreError> {
        let audits: Collection<Document> = client.database(&namespace.database).collection(COLLECTION);
        let first = audits.insert_one(doc! { "_id": &namespace.collection });
        match answered(first.into_future()).await {
            Err(StoreError::Driver(error)) if !is_duplicate(&error) => return Err(error.into()),
            Err(error @ StoreError::TimedOut(_)) => return Err(error),
            _ => {}
        }
        let mut turn = AuditTurn {
            audits,
            collection: &namespace.collection,
            auditor,
            token: None,
        };
        let until = doc! { "$ifNull": ["$until", Bson::Null] };
        let is_over = doc! { "$lte": [until.clone(), "$$NOW"] };
        let is_of_wrong_clock = doc! { "$gt": [until, from_now(2 * hastened(TURN, haste::REGISTER))] };
        // One of its own that was broken off goes on.
        let free = vec![
            doc! { "$expr": { "$or": [is_over, is_of_wrong_clock] } },
            doc! { "by": auditor },
        ];
        let taken = turn.update(doc! { "$or": free }, doc! {}).await?;
        let token = taken.as_ref().and_then(|taken| taken.get("token"));
        turn.token = token.and_then(|token| bson::deserialize_from_bson(token.clone()).ok());
        Ok(taken.is_some().then_some(turn))
    }

    /// Renews the turn, and notes that everything before the turn's token is audited, or nothing without one. False if another Keyward has
    /// the turn now.
    pub(super) async fn renew(&self) -> Result<bool, StoreError> {
        let token = self.token.as_ref();
        let token = token.and_then(|token| bson::serialize_to_bson(token).ok());
        let token = token.map_or(Bson::from("$$REMOVE"), |token| doc! { "$literal": token }.into());
        let set = doc! { "token": token };
        Ok(self.update(doc! { "by": self.auditor }, set).await?.is_some())
    }

    async fn update(&self, mut filter: Document, mut set: Document) -> Result<Option<Document>, StoreError> {
        filter.insert("_id", self.collection);
        let until = from_now(hastened(TURN, haste::REGISTER));
        set.extend(doc! { "by": self.auditor, "until": until });
        let update = self.audits.find_one_and_update(filter, vec![doc! { "$set": set }]);
        answered(update.return_document(ReturnDocument::After).into_future()).await
    }
}

fn is_duplicate(error: &mongodb::error::Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(refused)) if refused.code == code::DUPLICATE_KEY)
}
