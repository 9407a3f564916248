//! Decides whose turn it is to audit a collection, and records how far the audit has come.
//!
//! Both are in a document of the collection `keyward.audits` in the protected database, by the server's clock alone. A turn that isn't
//! renewed runs out, and another Keyward goes on from the last change noted.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::change_stream::event::ResumeToken;
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::options::ReturnDocument;
use mongodb::{Client, Collection};

use crate::constraint::Constraint;
use crate::haste::{self, hastened};
use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};
use crate::server::clock::{from_now, is_past};
use crate::server::code;

/// The collection, in each protected database.
pub const COLLECTION: &str = "keyward.audits";
/// The field with the record. Earlier versions note a token without constraints, in the field `token`. That proves nothing here, and they
/// don't go on from this record: they compare all documents. This version goes on from its own last record.
const RECORD: &str = "record";
/// How long a turn lasts unless it is renewed.
const TURN: Duration = Duration::from_secs(30);

/// A turn that is this Keyward's.
pub(super) struct AuditTurn<'a> {
    audits: Collection<Document>,
    collection: &'a str,
    auditor: &'a str,
    /// How far the audit has come; none if all documents are to be compared.
    pub record: Option<AuditRecord>,
}

/// How far an audit has come, and for which constraints.
///
/// A Keyward applies a client's constraint later than others do. The documents that it has audited until then aren't audited for that
/// constraint. So a record proves nothing about a constraint that it doesn't name. The list of clients' constraints couldn't show this: some
/// Keywards may not read it.
#[derive(Debug, Clone)]
pub(super) struct AuditRecord {
    /// Behind the last change that is audited.
    pub token: ResumeToken,
    /// The constraints for which that holds, as [`audited_as`] names them.
    pub constraints: BTreeSet<String>,
}

impl AuditRecord {
    fn read(audit: &Document) -> Option<AuditRecord> {
        let record = audit.get_document(RECORD).ok()?;
        let constraints = record.get_array("constraints").ok()?.iter();
        Some(AuditRecord {
            token: bson::deserialize_from_bson(record.get("token")?.clone()).ok()?,
            constraints: constraints
                .map(|one| Some(one.as_str()?.to_owned()))
                .collect::<Option<_>>()?,
        })
    }

    fn document(&self) -> Option<Document> {
        let token = bson::serialize_to_bson(&self.token).ok()?;
        Some(doc! { "token": token, "constraints": self.constraints.iter().collect::<Vec<_>>() })
    }
}

/// Names a constraint in a record. A client's constraint that is dropped and made again is another one.
pub(super) fn audited_as(constraint: &Constraint) -> String {
    match constraint.client_entry() {
        Some(entry) => entry.to_hex(),
        None => constraint.name().to_owned(),
    }
}

impl<'a> AuditTurn<'a> {
    /// Takes the turn unless another Keyward has it.
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
            record: None,
        };
        let is_over = is_past("until", hastened(TURN, haste::REGISTER));
        // This Keyward continues its own interrupted turn.
        let free = vec![doc! { "$expr": is_over }, doc! { "by": auditor }];
        let taken = turn.update(doc! { "$or": free }, doc! {}).await?;
        turn.record = taken.as_ref().and_then(AuditRecord::read);
        Ok(taken.is_some().then_some(turn))
    }

    /// Renews the turn, and stores its record. False if another Keyward has the turn now.
    pub(super) async fn renew(&self) -> Result<bool, StoreError> {
        let record = self.record.as_ref().and_then(AuditRecord::document);
        let record = record.map_or(Bson::from("$$REMOVE"), |record| doc! { "$literal": record }.into());
        let set = doc! { RECORD: record, "token": "$$REMOVE" };
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
