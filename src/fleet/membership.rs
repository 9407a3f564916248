//! Holds this Keyward's own entry in the register: whether it may write, and where.

mod rejoin;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use bson::oid::ObjectId;
use bson::{Document, Uuid, doc};
use mongodb::Client;
use tokio::sync::Notify;

use super::declared::DeclaredCollections;
use super::ever_declared::EverDeclared;
use super::permit::Permit;
use super::register::OwnEntry;
use super::watch::EntryWatch;
use super::{COLLECTION, COLLECTIONS_MAX, CommandPermit, EntryTerms, Register, RegisterEntry};
use crate::constraint::Strategy;
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;

/// The state of the list of clients' constraints, as a Keyward sees it at its start.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientsView {
    /// The version that it applies, if it follows the list.
    pub version: Option<i64>,
    /// Its user may not read the list.
    pub is_unreadable: bool,
}

/// This Keyward's own entry in the register.
#[derive(Debug)]
pub struct Membership {
    client: Client,
    register: Register,
    /// The entry, as it is in the register or will be at once. A task holds it while it changes anything there but the beat. Then `own`
    /// names this entry.
    entry: tokio::sync::Mutex<RegisterEntry>,
    own: ArcSwap<OwnEntry>,
    declared: DeclaredCollections,
    ever_declared: Mutex<EverDeclared>,
    permit: Permit,
    terms: EntryTerms,
    /// A constraint was to be listed in the entry, and it is unknown when the cluster does that.
    is_listing_lost: AtomicBool,
    /// Clients may have made constraints that this Keyward can't know of.
    is_list_unreadable: bool,
    /// How often its entry was gone, and it was registered anew. Other Keywards didn't know meanwhile that it counts on its
    /// constraints: these may have been removed, or written with another strategy.
    rejoined: AtomicU64,
    /// After how many of these times it has seen that its constraints are as before.
    confirmed: AtomicU64,
    /// After how many of these times there was a new entry.
    replaced: AtomicU64,
    in_doubt: Notify,
    watch: Mutex<EntryWatch>,
    /// Entries that this Keyward wrote and doesn't use. It removes them, because it doesn't renew them.
    orphans: Mutex<Vec<ObjectId>>,
    /// The proxy collections for which it has waited until no other Keyward writes by their predecessors.
    awaited: Mutex<HashSet<Uuid>>,
}

impl Membership {
    /// Registers a Keyward that writes nowhere yet.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that it is registered.
    pub async fn join(
        client: &Client,
        address: String,
        terms: EntryTerms,
        clients: ClientsView,
    ) -> Result<Membership, StoreError> {
        let entry = RegisterEntry {
            clients_version: clients.version,
            ..RegisterEntry::of_this_process(address, terms)
        };
        let membership = Membership {
            client: client.clone(),
            register: Register::of(client),
            own: ArcSwap::from_pointee(OwnEntry::new(entry.id)),
            entry: tokio::sync::Mutex::new(entry),
            declared: DeclaredCollections::default(),
            ever_declared: Mutex::default(),
            permit: Permit::withheld(),
            terms,
            is_listing_lost: AtomicBool::new(false),
            is_list_unreadable: clients.is_unreadable,
            rejoined: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            in_doubt: Notify::new(),
            watch: Mutex::default(),
            orphans: Mutex::default(),
            awaited: Mutex::default(),
        };
        let sent = Instant::now();
        let entry = membership.entry.lock().await;
        membership.register.insert(&entry).await?;
        membership.permit.prolong(sent + terms.lease);
        drop(entry);
        Ok(membership)
    }

    /// Names its entry.
    pub fn id(&self) -> ObjectId {
        self.own.load().id
    }

    /// All entries of the register, as a majority had them a short time ago.
    ///
    /// # Errors
    /// [`StoreError`] if the register can't be read.
    pub async fn entries(&self) -> Result<Vec<RegisterEntry>, StoreError> {
        self.register.recent().await
    }

    /// The identities of the constraints that its entry lists.
    pub async fn listed(&self) -> BTreeSet<ObjectId> {
        self.entry.lock().await.constraints.clone()
    }

    /// Whether it may write: its entry can't have been removed.
    pub fn is_permitted_to_write(&self) -> bool {
        self.permit.holds()
    }

    /// The permit of one connection's commands.
    pub fn command_permit(&self) -> CommandPermit {
        self.permit.clone().of_commands()
    }

    /// How often its entry was gone until now.
    pub fn rejoined(&self) -> u64 {
        self.rejoined.load(Ordering::Acquire)
    }

    /// Names what [`Membership::confirm`] ends, if its entry was gone since its constraints were last seen as they are: until then nothing
    /// is written.
    pub fn doubt(&self) -> Option<u64> {
        let rejoined = self.rejoined();
        (rejoined != self.confirmed.load(Ordering::Acquire)).then_some(rejoined)
    }

    /// Waits for such a doubt that no earlier call has waited for, until there is a new entry.
    ///
    /// - Cancel: at any time.
    pub(super) async fn doubt_arisen(&self) {
        self.in_doubt.notified().await;
    }

    /// Permits it to write again: after `doubt` arose, the entry listed all its constraints, and the cluster still had them as they
    /// are here.
    ///
    /// # Errors
    /// [`StoreError`] if the entry can't be renewed.
    pub async fn confirm(&self, doubt: u64) -> Result<(), StoreError> {
        self.confirmed.store(doubt, Ordering::Release);
        self.renew().await
    }

    /// Permits it to write until then, unless its constraints may have changed.
    fn prolong(&self, until: Instant) {
        if self.doubt().is_none() {
            self.permit.prolong(until);
            // A doubt that arose just now has withdrawn the permit, perhaps before this.
            if self.doubt().is_some() {
                self.permit.withdraw();
            }
        }
    }

    /// The command that renews its entry, for its database. It changes the entry also if another renewal comes first: a server remembers no
    /// statement without effect.
    pub fn renewal(&self) -> Document {
        let own = self.own.load();
        let u = doc! { "$max": { "beat": own.next_beat() }, "$set": { "asked": ObjectId::new() } };
        doc! { "update": COLLECTION, "updates": [{ "q": { "_id": own.id }, "u": u }] }
    }

    /// How long its entry vouches for it.
    pub fn terms(&self) -> EntryTerms {
        self.terms
    }

    /// Whether a write to this collection may go on.
    pub fn has_declared(&self, database: &[u8], collection: &[u8]) -> bool {
        self.declared.has(database, collection)
    }

    /// Whether this Keyward may ever have written to the collection, under this entry or a former one.
    pub fn has_ever_declared(&self, namespace: &Namespace) -> bool {
        self.ever_declared().may_have(namespace)
    }

    /// Lists `constraints` in the entry: all writes here reserve for them, as the caller has seen since [`Membership::rejoined`] was this number.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that they are listed. [`StoreError::Outlasted`] if the entry was gone since the caller looked: the
    /// new one doesn't list them.
    pub async fn list(&self, constraints: &[ObjectId], rejoined: u64) -> Result<(), StoreError> {
        let mut entry = self.entry.lock().await;
        let constraints: BTreeSet<ObjectId> = constraints.iter().copied().collect();
        if constraints.is_subset(&entry.constraints) {
            return Ok(());
        }
        match self.rejoined() == rejoined {
            true => self.add_to(&mut entry, &BTreeSet::new(), &constraints).await,
            false => Err(StoreError::Outlasted),
        }
    }

    /// Declares that writes go to `namespaces` from now on, and that all of them reserve for `constraints`, too. First it is written in the
    /// entry. Nothing is declared unless `may_write` is true then. Then the constraints that this Keyward lacks there are noted as not
    /// enforced. Returns whether writes may go there; if not, ask again.
    ///
    /// # Errors
    /// [`StoreError`]: nothing may be written there then. [`StoreError::Outlasted`] if the entry was gone, and constraints were to be listed:
    /// the new one doesn't list them.
    pub async fn declare_if(
        &self,
        namespaces: impl IntoIterator<Item = Namespace>,
        constraints: &[ObjectId],
        may_write: impl Future<Output = Result<bool, StoreError>>,
    ) -> Result<bool, StoreError> {
        let mut entry = self.entry.lock().await;
        let known =
            |namespace: &Namespace| self.has_declared(namespace.database.as_bytes(), namespace.collection.as_bytes());
        let new: BTreeSet<Namespace> = namespaces.into_iter().filter(|one| !known(one)).collect();
        let constraints: BTreeSet<ObjectId> = constraints.iter().copied().collect();
        if new.is_empty() && constraints.is_subset(&entry.constraints) {
            drop(entry);
            // Another command may have declared them since, by other constraints than this one was decided by.
            return may_write.await;
        }
        self.add_to(&mut entry, &new, &constraints).await?;
        let id = entry.id;
        drop(entry);
        if !may_write.await? {
            return Ok(false);
        }
        // Before the entry's constraints are read. One that is given up later is then suspended by the task that gives it up.
        self.ever_declared().extend(&new);
        // Not held meanwhile: one shard that doesn't answer mustn't keep the writes to others waiting.
        let constraints = self.entry.lock().await.constraints.clone();
        for (database, collections) in EverDeclared::of(&new).by_database() {
            let lacking = self.suspend_lacking(&database, &collections, &constraints).await?;
            if let Some(of_client) = lacking.into_iter().next() {
                return Err(StoreError::OfClient(of_client));
            }
        }
        // Held until they are noted.
        let entry = self.entry.lock().await;
        if entry.id != id {
            // Another entry has come meanwhile: a Keyward that polled before it was there, and after this, saw neither. Clients may have made
            // constraints while there was none.
            return Ok(false);
        }
        self.declared.extend(&new);
        Ok(true)
    }

    /// Adds collections and constraints to the entry, in the register first.
    async fn add_to(
        &self,
        entry: &mut RegisterEntry,
        new: &BTreeSet<Namespace>,
        constraints: &BTreeSet<ObjectId>,
    ) -> Result<(), StoreError> {
        let mut wanted = entry.clone();
        let names: BTreeSet<String> = new.iter().map(ToString::to_string).collect();
        wanted.is_everywhere |= wanted.collections.union(&names).count() > COLLECTIONS_MAX;
        let names = match wanted.is_everywhere {
            true => BTreeSet::new(),
            false => names,
        };
        wanted.collections.extend(names.iter().cloned());
        let was_lost = self.is_listing_lost.load(Ordering::Acquire);
        let is_any_listed = !constraints.is_subset(&entry.constraints);
        self.is_listing_lost.store(was_lost || is_any_listed, Ordering::Release);
        let is_there = self
            .register
            .add(&self.own.load_full(), &names, wanted.is_everywhere, constraints)
            .await?;
        self.is_listing_lost.store(was_lost, Ordering::Release);
        // Also if what follows fails: the register has it.
        *entry = wanted;
        if is_there {
            entry.constraints.extend(constraints);
            return Ok(());
        }
        // The next entry lists no others than before: a constraint may have been made anew meanwhile, and writes from before that may be
        // under way here.
        self.rejoin(entry).await?;
        match is_any_listed {
            true => Err(StoreError::Outlasted),
            false => Ok(()),
        }
    }

    /// Notes that from now on not all writes reserve for `constraints`. The caller must then inform a Keyward that calls one of them
    /// enforced.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that it is noted.
    pub async fn give_up(&self, constraints: &[ObjectId]) -> Result<(), StoreError> {
        let mut entry = self.entry.lock().await;
        entry.constraints.retain(|one| !constraints.contains(one));
        // A write that was to list one of them may arrive after this: then in an entry that no Keyward uses.
        let is_lost = self.is_listing_lost.swap(true, Ordering::AcqRel);
        if !is_lost && self.register.take_out(&self.own.load_full(), constraints).await? {
            self.is_listing_lost.store(false, Ordering::Release);
            return Ok(());
        }
        self.rejoin(&mut entry).await
    }

    /// Replaces the entry if it may list, now or later, what this Keyward has given up.
    ///
    /// # Errors
    /// The same.
    pub async fn settle(&self) -> Result<(), StoreError> {
        match self.is_listing_lost.load(Ordering::Acquire) {
            true => self.give_up(&[]).await,
            false => Ok(()),
        }
    }

    /// Notes that this Keyward has ended what was taken out of the list of clients' constraints up to this version.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't say that it is noted.
    pub async fn note_clients_version(&self, version: i64) -> Result<(), StoreError> {
        let mut entry = self.entry.lock().await;
        entry.clients_version = Some(version);
        // If the entry is gone, the next one has the version.
        self.register
            .note_clients_version(&self.own.load_full(), version)
            .await?;
        Ok(())
    }

    /// Those that may write to `namespace` without reserving for the constraint with this identity; this Keyward, too, if it
    /// does. Where the constraint is strict, no time that passes takes them away.
    ///
    /// # Errors
    /// [`StoreError`] if the register can't be read.
    pub async fn lacking(
        &self,
        namespace: &Namespace,
        identity: ObjectId,
        strategy: Strategy,
    ) -> Result<Vec<RegisterEntry>, StoreError> {
        let mut lacking = self.register.current().await?;
        lacking.retain(|entry| entry.lacks(namespace, identity));
        if strategy == Strategy::Strict {
            for entry in lacking.iter_mut().filter(|entry| !entry.is_pinned) {
                entry.is_pinned = self.register.pin(entry.id).await?;
            }
        }
        Ok(lacking)
    }

    /// Reads the register, and takes those away that are gone; gives the others as they were a short time ago.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't do as it is asked.
    pub async fn poll(&self) -> Result<Vec<RegisterEntry>, StoreError> {
        let mut entries = self.register.recent().await?;
        let own = self.id();
        let gone: Vec<RegisterEntry> = {
            let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = watch.gone(&entries, Instant::now());
            gone.into_iter().filter(|entry| entry.id != own).cloned().collect()
        };
        let mut evicted = Vec::new();
        for entry in gone {
            if self.register.evict(&entry).await? {
                evicted.push(entry.id);
                tracing::warn!(keyward = %entry, "taken out of the register of Keywards: it didn't renew its entry");
            }
        }
        entries.retain(|entry| !evicted.contains(&entry.id));
        Ok(entries)
    }

    /// Waits until nothing takes effect any more that other Keywards have sent to `namespaces`. Their reservations were in proxy
    /// collections that those with the `uuids` replace. It waits for the Keywards that `may_reserve`. Returns whether it waited: it doesn't once
    /// [`Membership::note_awaited`] has all uuids.
    ///
    /// # Errors
    /// [`StoreError`] if the register can't be read.
    pub async fn await_others(
        &self,
        namespaces: &[&Namespace],
        uuids: &[Uuid],
        may_reserve: impl Fn(&RegisterEntry) -> bool,
    ) -> Result<bool, StoreError> {
        if uuids.iter().all(|uuid| self.awaited().contains(uuid)) {
            return Ok(false);
        }
        let mut entries = self.register.current().await?;
        let own = self.id();
        entries.retain(|entry| entry.id != own && may_reserve(entry));
        entries.retain(|entry| namespaces.iter().any(|namespace| entry.may_write_to(namespace)));
        let longest = entries.iter().map(|entry| entry.terms.aftermath).max();
        if let Some(longest) = longest {
            tracing::warn!(
                "waiting for {} until no write of another Keyward can be under way that has reservations in a dropped collection",
                humantime::format_duration(longest)
            );
            tokio::time::sleep(longest).await;
        }
        Ok(true)
    }

    /// Notes that this process has waited for proxy collections with these `uuids`, and that the cluster has that noted.
    pub fn note_awaited(&self, uuids: &[Uuid]) {
        self.awaited().extend(uuids);
    }

    fn awaited(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the entry. If the entry was removed, or restored to an earlier state, this Keyward is registered anew.
    pub(super) async fn renew(&self) -> Result<(), StoreError> {
        let (own, sent) = (self.own.load_full(), Instant::now());
        // If the entry was gone and no new one could be written, a restored register may have it again. Others didn't know of it meanwhile.
        let is_replaced = self.replaced.load(Ordering::Acquire) == self.rejoined();
        if is_replaced && self.register.renew(&own).await? {
            self.prolong(sent + self.terms.lease);
            if !self.orphans().is_empty() {
                // Not while a new entry is under way, which is one of them until it is there.
                let _entry = self.entry.lock().await;
                self.take_orphans_away().await;
            }
            return Ok(());
        }
        self.permit.withdraw();
        let mut entry = self.entry.lock().await;
        match entry.id == own.id {
            true => self.rejoin(&mut entry).await,
            false => Ok(()),
        }
    }

    fn ever_declared(&self) -> MutexGuard<'_, EverDeclared> {
        self.ever_declared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphans(&self) -> MutexGuard<'_, Vec<ObjectId>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the entries that this Keyward doesn't use. The caller holds the entry.
    async fn take_orphans_away(&self) {
        let orphans = self.orphans().clone();
        for id in orphans {
            match self.register.remove(id).await {
                Ok(_) => self.orphans().retain(|one| *one != id),
                Err(error) => {
                    tracing::warn!(%error, %id, "an entry of this Keyward's that it doesn't go by stays in the register for now");
                }
            }
        }
    }

    /// Ends the membership: nothing is written any more. If a sent write may still be under way, the entry stays for as long as that may
    /// take.
    pub async fn leave(&self, is_all_done: bool) {
        self.permit.withdraw();
        let entry = self.entry.lock().await;
        if is_all_done {
            self.take_orphans_away().await;
        }
        let left = match is_all_done {
            true => self.register.remove(entry.id).await,
            false => self.register.leave(entry.id).await,
        };
        if let Err(error) = left {
            tracing::warn!(%error, "this Keyward's entry stays in the register until others see that it is gone");
        }
    }
}
