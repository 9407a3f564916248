//! How far a constraint's documents are taken in: in its own document in `keyward.constraints`, so that whoever starts
//! next goes on from there.
//!
//! Every position that was ever noted is true: whatever lies before it is reserved. So several Keywards may take a
//! constraint in at once; only the one that began last notes how far it has come. A position never passes a duplicate:
//! who goes on finds it again, and its report is whole. And once a report was given, or somebody has said that documents came
//! that aren't reserved, an era is over: nothing of it is noted any more, nor does anybody who began in it enforce the
//! constraint.

use bson::raw::CStr;
use bson::{Bson, Document, RawBson, RawDocument, RawDocumentBuf, cstr, doc, oid::ObjectId, rawdoc};
use mongodb::{Collection, Database};

use super::DEFINITIONS;
use crate::proxy_collection::{StoreError, answered};
use crate::server::driver;

/// Where the uuid of the protected collection stands.
const COLLECTION_FIELD: &CStr = cstr!("collection");
/// Where the uuid of the proxy collection stands: with a position, and with a constraint whose reservations are complete in it.
pub(super) const PROXY_FIELD: &CStr = cstr!("proxyCollection");
/// Whether all who might write reserved, when the position was noted.
const GUARDED_FIELD: &CStr = cstr!("guarded");
/// Where the era stands, in the constraint's document.
pub(super) const BACKFILL_EPOCH_FIELD: &str = "era";

/// The collections that a position counts in, each by its uuid, which it has if it is there.
#[derive(Debug, Clone)]
pub(super) struct Between {
    /// Whose documents are taken in.
    pub collection: Option<Bson>,
    /// Where they are reserved.
    pub proxy: Option<Bson>,
}

impl Between {
    fn uuids(&self) -> (Option<RawBson>, Option<RawBson>) {
        let raw = |uuid: &Option<Bson>| uuid.clone().and_then(|uuid| RawBson::try_from(uuid).ok());
        (raw(&self.collection), raw(&self.proxy))
    }

    /// Whether a noted position counts in these.
    fn is_of(&self, noted: &RawDocument) -> bool {
        let there = |field: &CStr| noted.get(field).ok().flatten().map(RawBson::from);
        let (collection, proxy) = self.uuids();
        collection.is_some() && collection == there(COLLECTION_FIELD) && proxy.is_some() && proxy == there(PROXY_FIELD)
    }
}

/// The position of one constraint, as this process has it.
pub(super) struct Position {
    database: Database,
    definitions: Collection<RawDocumentBuf>,
    constraint: Document,
    by: ObjectId,
    between: Between,
    /// Whether all who may write reserve meanwhile.
    is_guarded: bool,
    /// The era in which it began; none is one, too.
    pub backfill_epoch: Option<Bson>,
    /// The `_id` up to which all is done.
    pub after: Option<RawBson>,
    /// About how many documents that is.
    pub done: u64,
}

impl Position {
    /// Takes over from whoever went before. `constraint` is the `_id` of its document. Where one of the collections is
    /// another one than then, as after a drop or a restore, all begins anew; so it does with a guard, if who went before had none.
    pub(super) async fn resume(
        database: Database,
        constraint: Document,
        between: Between,
        is_guarded: bool,
    ) -> Result<Position, StoreError> {
        let mut position = Position {
            definitions: database.collection(DEFINITIONS),
            database,
            constraint,
            by: ObjectId::new(),
            between,
            is_guarded,
            backfill_epoch: None,
            after: None,
            done: 0,
        };
        let taken = doc! { "$set": { "backfill.by": position.by } };
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

    /// Notes that everything up to `after` is done; not if somebody else has taken over, or given a report.
    pub(super) async fn go_on(&self, after: &RawBson, done: u64) -> Result<(), StoreError> {
        let (Some(collection), Some(proxy)) = self.between.uuids() else {
            return Ok(());
        };
        let mut backfill = rawdoc! { "by": self.by, COLLECTION_FIELD: collection, PROXY_FIELD: proxy };
        if self.is_guarded {
            backfill.append(GUARDED_FIELD, true);
        }
        backfill.append(cstr!("after"), after.clone());
        backfill.append(cstr!("done"), i64::try_from(done).unwrap_or(i64::MAX));
        let mut query = RawDocumentBuf::try_from(&self.filter()).map_err(|_| StoreError::Unexpected("a query"))?;
        query.append(cstr!("backfill.by"), self.by);
        // In bytes: an `_id` may hold the same name twice, which no map of fields can.
        let update = rawdoc! { "q": query, "u": { "$set": { "backfill": backfill } } };
        let command = rawdoc! { "update": self.definitions.name(), "updates": [update] };
        let reply = answered(self.database.run_raw_command(command).into_future()).await?;
        match driver::write_errors(&reply).is_some() {
            true => Err(StoreError::Unexpected("the reply to a note of a position")),
            false => Ok(()),
        }
    }

    /// Ends the era: the next one, whoever it is, begins at the first document.
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
