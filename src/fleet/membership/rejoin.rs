//! Registers a Keyward anew whose entry was removed, or restored to an earlier state.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bson::oid::ObjectId;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::Membership;
use crate::constraint::ConstraintName;
use crate::fleet::RegisterEntry;
use crate::fleet::register::OwnEntry;
use crate::prepare::{self, Collections};
use crate::proxy_collection::StoreError;

/// In how many databases a new entry's missing constraints are suspended at once.
const SUSPENDED_AT_ONCE: usize = 16;

impl Membership {
    /// Registers it anew, under another id. Constraints that it lacks are then not enforced any more in the collections to which it may write.
    pub(super) async fn rejoin(&self, entry: &mut RegisterEntry) -> Result<(), StoreError> {
        self.permit.withdraw();
        let rejoined = self.rejoined.fetch_add(1, Ordering::AcqRel) + 1;
        tracing::warn!("the entry in the register of Keywards is gone: nothing is written before there is a new one");
        // Earlier tries may have left entries.
        self.take_orphans_away().await;
        let mut new = entry.clone();
        (new.id, new.beat, new.is_pinned) = (ObjectId::new(), 0, false);
        // If this ends midway, the next try begins with another entry: the constraints that this one lists may have been given up by then.
        self.orphans().push(new.id);
        let (own, mut sent) = (OwnEntry::new(new.id), Instant::now());
        self.register.insert(&new).await?;
        tokio::select! {
            suspended = self.suspend_everywhere(&new.constraints) => suspended?,
            gone = self.renew_meanwhile(&own, &mut sent) => return Err(gone),
        }
        self.own.store(own.into());
        {
            let mut orphans = self.orphans();
            orphans.retain(|one| *one != new.id);
            orphans.push(entry.id);
        }
        *entry = new;
        self.is_listing_lost.store(false, Ordering::Release);
        // Clients may have made constraints meanwhile, which didn't wait for this Keyward: the next write to each collection reads their list.
        self.declared.clear();
        // After that: a command that was judged by what is declared must not write by it later.
        self.permit.begin_anew();
        self.prolong(sent + self.terms.lease);
        self.replaced.store(rejoined, Ordering::Release);
        // Only now: the task that this wakes breaks off all that it does, and that may be this.
        self.in_doubt.notify_one();
        Ok(())
    }

    /// Suspends the constraints other than these in the collections to which this Keyward may have written. These are not only the declared
    /// ones: after an earlier loss none may be declared, and constraints were enforced since without this Keyward.
    async fn suspend_everywhere(&self, constraints: &BTreeSet<ObjectId>) -> Result<(), StoreError> {
        let databases = self.ever_declared().by_database();
        let suspend = |(database, collections): (String, Collections)| async move {
            // The next write to their collections is refused, and others are not.
            for of_client in self.suspend_lacking(&database, &collections, constraints).await? {
                let namespace = of_client.namespace.clone();
                let error = StoreError::OfClient(of_client);
                tracing::warn!(%namespace, %error, "nothing is written there");
            }
            Ok(())
        };
        let databases = stream::iter(databases).map(Ok);
        databases.try_for_each_concurrent(SUSPENDED_AT_ONCE, suspend).await
    }

    pub(super) async fn suspend_lacking(
        &self,
        database: &str,
        collections: &Collections,
        constraints: &BTreeSet<ObjectId>,
    ) -> Result<Vec<ConstraintName>, StoreError> {
        prepare::suspend_lacking(
            &self.client,
            database,
            collections,
            constraints,
            self.is_list_unreadable,
        )
        .await
    }

    /// Renews a new entry that isn't used yet, and notes when the last successful renewal was `sent`. Otherwise other Keywards would remove
    /// it before all constraints are suspended. It ends only if the entry is gone.
    async fn renew_meanwhile(&self, own: &OwnEntry, sent: &mut Instant) -> StoreError {
        loop {
            tokio::time::sleep(self.terms.renewal()).await;
            let now = Instant::now();
            match self.register.renew(own).await {
                Ok(true) => *sent = now,
                Ok(false) => return StoreError::Unexpected("an entry in the register of Keywards"),
                // If that goes on for long, the permit ends before it begins.
                Err(error) => {
                    tracing::warn!(%error, "this Keyward's entry in the register of Keywards could not be renewed");
                }
            }
        }
    }
}
