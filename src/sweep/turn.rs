//! Decides whose turn it is to sweep a constraint, and records how far the sweep has come.
//!
//! Both are in the constraint's own document in `keyward.constraints`, by the server's clock alone.
//!
//! A turn that isn't renewed runs out, and another Keyward goes on from the last key noted. Two that sweep at once, because
//! one was stopped for longer than its turn, do no harm: every deletion names the token it saw.

use std::time::Duration;

use bson::{Document, RawBson, RawDocumentBuf, doc};
use mongodb::options::ReturnDocument;
use mongodb::{Client, Collection};

use crate::namespace::Namespace;
use crate::prepare::{DEFINITIONS, definition_id};
use crate::proxy_collection::{StoreError, answered};
use crate::server::clock::{from_now, is_past};

/// How long a turn lasts unless it is renewed, which happens with every page.
const TURN: Duration = Duration::from_secs(30);

/// A turn that is this Keyward's.
pub(super) struct SweepTurn<'a> {
    definitions: Collection<Document>,
    id: Document,
    sweeper: &'a str,
    after: Option<RawBson>,
}

impl<'a> SweepTurn<'a> {
    /// Takes the turn unless another Keyward has it, or a sweep has ended less than `pause` ago.
    pub(super) async fn take(
        client: &Client,
        namespace: &Namespace,
        constraint: &str,
        sweeper: &'a str,
        pause: Duration,
    ) -> Result<Option<SweepTurn<'a>>, StoreError> {
        let definitions = client.database(&namespace.database).collection(DEFINITIONS);
        let id = definition_id(namespace, constraint);
        let mut turn = SweepTurn {
            definitions,
            id,
            sweeper,
            after: None,
        };
        let free = is_past("sweep.until", TURN.max(pause));
        let set = doc! { "by": sweeper, "until": from_now(TURN) };
        let taken = turn
            .update(doc! { "$expr": free }, vec![doc! { "$set": { "sweep": set } }])
            .await?;
        turn.after = taken.as_ref().and_then(after);
        Ok(taken.is_some().then_some(turn))
    }

    /// The key after which the walk goes on.
    pub(super) fn after(&self) -> Option<&RawBson> {
        self.after.as_ref()
    }

    /// Notes that everything up to `last` is settled, and renews the turn; false if another Keyward has it now.
    pub(super) async fn go_on(&mut self, last: RawBson) -> Result<bool, StoreError> {
        let mut set = doc! { "until": from_now(TURN) };
        // A key that no map of fields can hold isn't noted: the next sweep then begins a little earlier.
        if let Some(Ok(last)) = last.as_document().map(Document::try_from) {
            // A literal: a key may hold what looks like an expression.
            set.insert("after", doc! { "$literal": last });
        }
        let kept = self
            .update(
                doc! { "sweep.by": self.sweeper },
                vec![doc! { "$set": { "sweep": set } }],
            )
            .await?;
        self.after = Some(last);
        Ok(kept.is_some())
    }

    /// Ends the turn: the next one, any Keyward's, begins after `pause` at the first key.
    pub(super) async fn end(self, pause: Duration) -> Result<(), StoreError> {
        let ended = vec![
            doc! { "$set": { "sweep": { "until": from_now(pause) } } },
            doc! { "$unset": "sweep.after" },
        ];
        self.update(doc! { "sweep.by": self.sweeper }, ended).await?;
        Ok(())
    }

    async fn update(&self, mut filter: Document, pipeline: Vec<Document>) -> Result<Option<Document>, StoreError> {
        filter.insert("_id", self.id.clone());
        let update = self.definitions.find_one_and_update(filter, pipeline);
        answered(update.return_document(ReturnDocument::After).into_future()).await
    }
}

fn after(definition: &Document) -> Option<RawBson> {
    let after = definition.get_document("sweep").ok()?.get_document("after").ok()?;
    RawDocumentBuf::try_from(after).ok().map(RawBson::Document)
}
