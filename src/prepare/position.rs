//! Stores how far a constraint's backfill has come, in the constraint's document in `keyward.constraints`, so that the
//! next start continues there.
//!
//! Every stored position is true: all documents before it are reserved. So several Keywards may backfill a constraint
//! at once. Only the one that began last stores its position. A position never passes a duplicate: the next backfill
//! finds the duplicate again, and its report is complete.
//!
//! A backfill epoch ends when a report is made, or when a Keyward notes that documents may be written without
//! reservations. After that, Keyward stores no position from this epoch, and no backfill that began in it makes the
//! constraint enforced.

use bson::raw::CStr;
use bson::{Bson, Document, RawBson, RawDocument, RawDocumentBuf, cstr, doc, oid::ObjectId, rawdoc};
use mongodb::{Collection, Database};

use super::DEFINITIONS;
use crate::proxy_collection::{StoreError, answered};
use crate::server::driver;

/// The field with the uuid of the protected collection.
const COLLECTION_FIELD: &CStr = cstr!("collection");
/// The field with the uuid of the proxy collection. It belongs to a position, or to a constraint whose reservations are
/// complete in it.
pub(super) const PROXY_FIELD: &CStr = cstr!("proxyCollection");
/// The field that says whether every Keyward that might write reserved, when the position was stored.
const GUARDED_FIELD: &CStr = cstr!("guarded");
/// The field with about how many documents there were when the backfill began. Earlier versions don't write this field.
const OF_FIELD: &CStr = cstr!("of");
/// The field with the backfill epoch, in the constraint's document.
pub(super) const BACKFILL_EPOCH_FIELD: &str = "era";

/// The collections for which a position counts, each by its uuid, if the collection exists.
#[derive(Debug, Clone)]
pub(super) struct Between {
    /// The collection whose documents are backfilled.
    pub collection: Option<Bson>,
    /// The collection with the reservations.
    pub proxy: Option<Bson>,
}

impl Between {
    fn uuids(&self) -> (Option<RawBson>, Option<RawBson>) {
        let raw = |uuid: &Option<Bson>| uuid.clone().and_then(|uuid| RawBson::try_from(uuid).ok());
        (raw(&self.collection), raw(&self.proxy))
    }

    /// Whether a stored position counts for these collections.
    fn is_of(&self, noted: &RawDocument) -> bool {
        let there = |field: &CStr| noted.get(field).ok().flatten().map(RawBson::from);
        let (collection, proxy) = self.uuids();
        collection.is_some() && collection == there(COLLECTION_FIELD) && proxy.is_some() && proxy == there(PROXY_FIELD)
    }
}

/// The position of one constraint, as this process knows it.
pub(super) struct BackfillPosition {
    database: Database,
    definitions: Collection<RawDocumentBuf>,
    constraint: Document,
    by: ObjectId,
    between: Between,
    /// Whether every Keyward that may write reserves meanwhile.
    is_guarded: bool,
    /// The backfill epoch in which it began; no value counts as an epoch, too.
    pub backfill_epoch: Option<Bson>,
    /// The `_id` up to which all documents are done.
    pub after: Option<RawBson>,
    /// About how many documents are done.
    pub done: u64,
    /// About how many documents there are.
    pub of: u64,
}

impl BackfillPosition {
    /// Takes over from the backfill before. `constraint` is the `_id` of its document, and `of` about how many documents
    /// there are. If a collection was replaced since, as by a drop or a restore, the backfill starts at the beginning. It
    /// also does so if this backfill is guarded and the one before was not.
    pub(super) async fn resume(
        database: Database,
        constraint: Document,
        between: Between,
        is_guarded: bool,
        of: u64,
    ) -> Result<BackfillPosition, StoreError> {
        let mut position = BackfillPosition {
            definitions: database.collection(DEFINITIONS),
            database,
            constraint,
            by: ObjectId::new(),
            between,
            is_guarded,
            backfill_epoch: None,
            after: None,
            done: 0,
            of,
        };
        let taken = doc! { "$set": { "backfill.by": position.by, "backfill.of": stored_count(of) } };
        let there = position.definitions.find_one_and_update(position.filter(), taken);
        let there = answered(there.into_future()).await?;
        let there = there.ok_or(StoreError::Unexpected("the definition of a constraint"))?;
        let backfill_epoch = there.get(BACKFILL_EPOCH_FIELD).ok().flatten();
        position.backfill_epoch = backfill_epoch.and_then(|backfill_epoch| Bson::try_from(backfill_epoch).ok());
        if let Ok(backfill) = there.get_document("backfill")
            && position.between.is_of(backfill)
            && (!is_guarded || backfill.get_bool(GUARDED_FIELD).unwrap_or(false))
        {
            position.after = backfill.get("after").ok().flatten().map(RawBson::from);
            position.done = backfill
                .get_i64("done")
                .ok()
                .and_then(|done| done.try_into().ok())
                .unwrap_or(0);
        }
        Ok(position)
    }

    /// Stores that everything up to `after` is done, unless another backfill has taken over or made a report.
    pub(super) async fn go_on(&self, after: &RawBson, done: u64) -> Result<(), StoreError> {
        let (Some(collection), Some(proxy)) = self.between.uuids() else {
            return Ok(());
        };
        let mut backfill = rawdoc! { "by": self.by, COLLECTION_FIELD: collection, PROXY_FIELD: proxy };
        if self.is_guarded {
            backfill.append(GUARDED_FIELD, true);
        }
        backfill.append(cstr!("after"), after.clone());
        backfill.append(cstr!("done"), stored_count(done));
        backfill.append(OF_FIELD, stored_count(self.of));
        let mut query = RawDocumentBuf::try_from(&self.filter()).map_err(|_| StoreError::Unexpected("a query"))?;
        query.append(cstr!("backfill.by"), self.by);
        // Built as bytes: an `_id` may hold the same field name twice, which a map of fields can't.
        let update = rawdoc! { "q": query, "u": { "$set": { "backfill": backfill } } };
        let command = rawdoc! { "update": self.definitions.name(), "updates": [update] };
        let reply = answered(self.database.run_raw_command(command).into_future()).await?;
        match driver::write_errors(&reply).is_some() {
            true => Err(StoreError::Unexpected("the reply to a note of a position")),
            false => Ok(()),
        }
    }

    /// Ends the backfill epoch: the next backfill begins at the first document.
    pub(super) async fn forget(&self) -> Result<(), StoreError> {
        let forgotten = doc! { "$set": { BACKFILL_EPOCH_FIELD: ObjectId::new() }, "$unset": { "backfill": 1 } };
        let forgetting = self.definitions.update_one(self.filter(), forgotten);
        answered(forgetting.into_future()).await?;
        Ok(())
    }

    fn filter(&self) -> Document {
        doc! { "_id": self.constraint.clone() }
    }
}

/// A number of documents, as it is stored.
fn stored_count(documents: u64) -> i64 {
    i64::try_from(documents).unwrap_or(i64::MAX)
}
