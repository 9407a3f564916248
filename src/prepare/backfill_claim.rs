//! Decides which Keyward backfills a constraint: by a claim in the constraint's own document, and by the server's clock
//! alone.
//!
//! A claim saves work and proves nothing. A Keyward breaks its backfill off when the list of clients' constraints changes: its next
//! backfill takes the claim again at once. If a Keyward dies, its claim expires, and another Keyward continues. If one
//! is stopped or a clock jumps, two Keywards may backfill at once: they do the same work twice. No Keyward waits for a
//! claim while it holds one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bson::{Bson, Document, doc, oid::ObjectId};
use mongodb::{Client, Collection};

use super::stored_definition::{DEFINITIONS, definition_id};
use crate::constraint::Constraint;
use crate::haste::{self, hastened};
use crate::proxy_collection::{StoreError, answered};
use crate::server::clock::{from_now, is_past};

/// How long a claim lasts unless it is renewed.
const TERM: Duration = Duration::from_secs(30);
/// How many renewals fit into a claim's term.
const RENEWALS: u32 = 3;

/// The claim to one constraint.
#[derive(Debug, Clone)]
struct BackfillClaim {
    definitions: Collection<Document>,
    id: Document,
}

/// The claims of one backfill.
#[derive(Debug)]
pub(super) struct BackfillClaims {
    client: Client,
    by: ObjectId,
    held: Mutex<Vec<BackfillClaim>>,
}

impl BackfillClaims {
    /// No claim yet, of the Keyward with the entry `by` in the register.
    pub(super) fn of(client: &Client, by: ObjectId) -> BackfillClaims {
        BackfillClaims {
            client: client.clone(),
            by,
            held: Mutex::default(),
        }
    }

    /// Claims the backfill of `constraint`, unless another Keyward has claimed it; returns whether it did.
    pub(super) async fn take(&self, constraint: &Constraint) -> Result<bool, StoreError> {
        let claim = BackfillClaim::of(&self.client, constraint);
        let free = doc! { "$or": [{ "claim.by": self.by }, { "$expr": is_free() }] };
        let is_taken = claim.update(free, self.by, term()).await?;
        if is_taken {
            self.held().push(claim);
        }
        Ok(is_taken)
    }

    /// Does `work`, and renews the held claims meanwhile.
    pub(super) async fn renewed_during<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            never = self.renew() => match never {},
        }
    }

    async fn renew(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(term() / RENEWALS).await;
            let held = self.held().clone();
            for claim in held {
                // If the renewal fails, other Keywards do the same work.
                if let Err(error) = claim.update(doc! { "claim.by": self.by }, self.by, term()).await {
                    tracing::debug!(%error, "a claim to a backfill could not be renewed");
                }
            }
        }
    }

    /// Releases all claims at once.
    pub(super) async fn release(&self) {
        self.leave_for(Duration::ZERO).await;
    }

    /// Leaves all claims as they are until they expire, without an owner: this Keyward waits for them like any other.
    pub(super) async fn leave(&self) {
        self.leave_for(term()).await;
    }

    async fn leave_for(&self, term: Duration) {
        let held = std::mem::take(&mut *self.held());
        for claim in held {
            // If it fails, the claim expires by itself.
            if let Err(error) = claim.update(doc! { "claim.by": self.by }, ObjectId::new(), term).await {
                tracing::debug!(%error, "a claim to a backfill could not be given up");
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, Vec<BackfillClaim>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases the claim to the backfill of `constraint`, also that of another Keyward. The build has ended, and the next one must not wait.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't confirm it. The claim then expires by itself.
pub async fn release_claim(client: &Client, constraint: &Constraint) -> Result<(), StoreError> {
    let claim = BackfillClaim::of(client, constraint);
    claim
        .update(Document::new(), ObjectId::new(), Duration::ZERO)
        .await
        .map(drop)
}

impl BackfillClaim {
    fn of(client: &Client, constraint: &Constraint) -> BackfillClaim {
        let namespace = constraint.namespace();
        BackfillClaim {
            definitions: client.database(&namespace.database).collection(DEFINITIONS),
            id: definition_id(namespace, constraint.name()),
        }
    }

    async fn update(&self, mut filter: Document, by: ObjectId, term: Duration) -> Result<bool, StoreError> {
        filter.insert("_id", self.id.clone());
        let set = vec![doc! { "$set": { "claim": { "by": by, "until": from_now(term) } } }];
        let update = self.definitions.update_one(filter, set);
        Ok(answered(update.into_future()).await?.matched_count == 1)
    }
}

/// Whether a constraint isn't claimed, as an expression about its document.
fn is_free() -> Document {
    is_past("claim.until", term())
}

/// Whether it is claimed.
pub(super) fn is_claimed() -> Document {
    doc! { "$not": [is_free()] }
}

/// The Keyward that has claimed it; null if it isn't claimed.
pub(super) fn claimed_by() -> Document {
    doc! { "$cond": [is_free(), Bson::Null, "$claim.by"] }
}

fn term() -> Duration {
    hastened(TERM, haste::REGISTER)
}
