//! Checks that every document has its reservations.

use std::collections::HashMap;
use std::time::Duration;

use bson::RawDocumentBuf;
use tokio::time::Instant;

use super::repair::Repaired;
use super::{Finding, FindingKind, KEYS_REMEMBERED, PAGE, RecheckTimes, SUSPECTS_AT_ONCE, SUSPECTS_MAX, Verification};
use crate::claims::{keys_under, owner_of};
use crate::constraint::{KEYS_MEMORY_MAX, Key};
use crate::extended_json::as_json;
use crate::proxy_collection::{Moment, Owner, Reservation, StoreError};
use crate::raw::Doc;
use crate::reservation::Scope;

/// A key of a document that seems not to be reserved for it.
#[derive(Debug, Clone)]
struct Suspect {
    key: Key,
    owner: Owner,
}

/// The fault of a suspect.
pub(super) enum Fault {
    Missing,
    Foreign(Reservation),
    Misrouted(Reservation),
    /// These hold the key, too; whether it is reserved for any of them.
    Duplicate(Vec<Owner>, bool),
}

/// The suspects that wait for their second read.
struct SuspectDocuments {
    keys: Vec<Suspect>,
    unindexable: Vec<Owner>,
    /// When the last of them was seen.
    since: Instant,
}

impl SuspectDocuments {
    fn new() -> SuspectDocuments {
        SuspectDocuments {
            keys: Vec::new(),
            unindexable: Vec::new(),
            since: Instant::now(),
        }
    }
}

impl Verification<'_> {
    /// Walks the documents.
    pub(super) async fn documents(&mut self) -> Result<(), StoreError> {
        let (proxy, protected) = (self.proxy, self.protected);
        let mut all = proxy.all_documents(None, PAGE, &protected.shard_key);
        let mut suspects = SuspectDocuments::new();
        while let Some((page, _)) = all.next().await? {
            self.tally.documents += page.len() as u64;
            self.suspect(&page, &mut suspects).await?;
            if suspects.keys.len() + suspects.unindexable.len() >= SUSPECTS_MAX {
                self.recheck(&mut suspects, proxy.lease()).await?;
            }
            self.have_read(page.len()).await;
        }
        self.recheck(&mut suspects, proxy.lease()).await
    }

    /// Checks these documents only.
    pub(super) async fn these(&mut self, documents: &[RawDocumentBuf]) -> Result<(), StoreError> {
        let mut suspects = SuspectDocuments::new();
        self.suspect(documents, &mut suspects).await?;
        self.recheck(&mut suspects, Duration::ZERO).await
    }

    /// Adds those of a page that are wrong at one and the same moment, too.
    async fn suspect(&self, page: &[RawDocumentBuf], suspects: &mut SuspectDocuments) -> Result<(), StoreError> {
        let (mut wanted, mut memory) = (Vec::new(), 0);
        for document in page {
            let malformed = |_| StoreError::Unexpected("a document");
            let document = Doc::new(document.as_bytes()).map_err(malformed)?;
            let owner = owner_of(self.protected, document).map_err(malformed)?;
            match keys_under(self.protected, self.position, document) {
                Ok(keys) => {
                    memory += keys.iter().map(Key::memory).sum::<usize>();
                    wanted.extend(keys.into_iter().map(|key| Suspect {
                        key,
                        owner: owner.clone(),
                    }));
                }
                Err(_) => {
                    suspects.unindexable.push(owner);
                    suspects.since = Instant::now();
                }
            }
            if memory > KEYS_MEMORY_MAX {
                self.suspect_of(std::mem::take(&mut wanted), suspects).await?;
                memory = 0;
            }
        }
        self.suspect_of(wanted, suspects).await
    }

    /// Adds those `wanted` that are wrong at one and the same moment, too.
    async fn suspect_of(&self, mut wanted: Vec<Suspect>, suspects: &mut SuspectDocuments) -> Result<(), StoreError> {
        let keys: Vec<&Key> = wanted.iter().map(|suspect| &suspect.key).collect();
        let mut reserved = HashMap::with_capacity(keys.len());
        for entry in self.proxy.entries(&keys).await? {
            if let Ok((key, read)) = entry.read {
                reserved.insert(key, read.owner);
            }
        }
        wanted.retain(|suspect| reserved.get(&suspect.key) != Some(&suspect.owner));
        let faulty = self.faulty(&wanted).await?;
        if !faulty.is_empty() {
            suspects.since = Instant::now();
        }
        suspects.keys.extend(faulty.into_iter().map(|(suspect, _)| suspect));
        Ok(())
    }

    /// Reads all suspects once more, `patience` after they were found, and reports what is wrong still.
    async fn recheck(&mut self, suspects: &mut SuspectDocuments, patience: Duration) -> Result<(), StoreError> {
        if suspects.keys.is_empty() && suspects.unindexable.is_empty() {
            return Ok(());
        }
        let mut times = RecheckTimes::until(suspects.since + patience);
        let mut faulty = Vec::new();
        while (!suspects.keys.is_empty() || !suspects.unindexable.is_empty()) && times.next().await {
            faulty = self.faulty(&suspects.keys).await?;
            suspects.keys = faulty.iter().map(|(suspect, _)| suspect.clone()).collect();
        }
        suspects.keys.clear();
        for owner in std::mem::take(&mut suspects.unindexable) {
            self.report_unindexable(&owner).await?;
        }
        // If several documents have one key, the first may be in its place. The finding lists the others with it, once.
        let mut by_key: HashMap<Key, usize> = HashMap::new();
        let mut faults: Vec<(Suspect, Fault)> = Vec::new();
        for (suspect, fault) in faulty {
            if let Some(first) = by_key.get(&suspect.key) {
                let (first, fault) = &mut faults[*first];
                // An audited document comes as often as it was written.
                if suspect.owner != first.owner {
                    *fault = also_held_by(fault, suspect.owner);
                }
                continue;
            }
            let fault = match fault {
                Fault::Missing | Fault::Foreign(_) => match self.other_unreserved(&suspect).await? {
                    Some(other) => Fault::Duplicate(vec![other], false),
                    None => fault,
                },
                Fault::Misrouted(_) | Fault::Duplicate(..) => fault,
            };
            by_key.insert(suspect.key.clone(), faults.len());
            faults.push((suspect, fault));
        }
        for (suspect, fault) in faults {
            self.report_fault(&suspect, fault).await?;
        }
        Ok(())
    }

    /// Another document that was found to hold the key without a reservation, if it holds it still.
    async fn other_unreserved(&mut self, suspect: &Suspect) -> Result<Option<Owner>, StoreError> {
        let other = self.unreserved.get(&suspect.key);
        // It may be this document, which has moved to another shard.
        let Some(other) = other.filter(|other| !other.has_same_id_as(&suspect.owner)) else {
            return Ok(None);
        };
        let is_held = self
            .proxy
            .look_up(&[(&suspect.key, other)], Scope::Linearizable)
            .await?;
        if is_held == [true] {
            return Ok(Some(other.clone()));
        }
        self.unreserved.remove(&suspect.key);
        Ok(None)
    }

    /// The suspects that are wrong at one moment, with their faults.
    async fn faulty(&self, suspects: &[Suspect]) -> Result<Vec<(Suspect, Fault)>, StoreError> {
        let mut faulty = Vec::new();
        for suspects in suspects.chunks(SUSPECTS_AT_ONCE) {
            let pairs: Vec<_> = suspects.iter().map(|suspect| (&suspect.key, &suspect.owner)).collect();
            let moments = self
                .proxy
                .at_one_moment(&pairs, &self.protected.shard_key, self.owner_of())
                .await?;
            for (suspect, moment) in suspects.iter().zip(moments) {
                faulty.extend(self.fault(suspect, moment));
            }
        }
        Ok(faulty)
    }

    fn fault(&self, suspect: &Suspect, moment: Moment) -> Option<(Suspect, Fault)> {
        // It may have moved to another shard since.
        let (mut documents_of_same_id, mut others): (Vec<Owner>, Vec<Owner>) = moment
            .owners
            .into_iter()
            .partition(|holder| holder.has_same_id_as(&suspect.owner));
        let position = documents_of_same_id
            .iter()
            .position(|same_id| *same_id == suspect.owner);
        let owner = match documents_of_same_id.is_empty() {
            true => return None,
            false => documents_of_same_id.swap_remove(position.unwrap_or(0)),
        };
        others.append(&mut documents_of_same_id);
        let read = match moment.entry {
            None => None,
            // The walk over the reservations finds entries that aren't reservations.
            Some(entry) => Some(entry.read.ok()?.1),
        };
        let fault = match read {
            None if others.is_empty() => Fault::Missing,
            None => Fault::Duplicate(others, false),
            Some(reservation) if reservation.owner == owner => return None,
            Some(reservation) if others.contains(&reservation.owner) => Fault::Duplicate(others, true),
            // It names none of them by its place. All the same, only one of them may hold the key.
            Some(reservation) if reservation.owner.has_same_id_as(&owner) && !others.is_empty() => {
                Fault::Duplicate(others, true)
            }
            Some(reservation) if reservation.owner.has_same_id_as(&owner) => {
                // Before the collection was sharded as it is now, it had another form.
                if !reservation.owner.has_route_by(&self.protected.shard_key) {
                    return None;
                }
                Fault::Misrouted(reservation)
            }
            Some(reservation) => match others.iter().any(|other| other.has_same_id_as(&reservation.owner)) {
                true => Fault::Duplicate(others, true),
                false => Fault::Foreign(reservation),
            },
        };
        let key = suspect.key.clone();
        Some((Suspect { key, owner }, fault))
    }

    async fn report_fault(&mut self, suspect: &Suspect, fault: Fault) -> Result<(), StoreError> {
        let Suspect { key, owner } = suspect;
        let constraint = &self.proxy.constraint;
        let finding = |kind| Finding::new(kind, constraint, Some(key)).about([owner]);
        let mut found = match &fault {
            Fault::Missing => finding(FindingKind::Missing),
            Fault::Foreign(reservation) => Finding {
                reservation: Some(as_json(&reservation.owner.id)),
                ..finding(FindingKind::Foreign)
            },
            Fault::Misrouted(_) => finding(FindingKind::Misrouted),
            Fault::Duplicate(others, _) => finding(FindingKind::Duplicate).about(others),
        };
        if self.unreserved.len() < KEYS_REMEMBERED {
            self.unreserved.insert(key.clone(), owner.clone());
        }
        if self.settings.repair {
            match self.repair(key, owner, &fault).await {
                Ok(Repaired::Yes) => found.repaired = true,
                Ok(Repaired::No) => {}
                Ok(Repaired::Duplicate(other)) => found = finding(FindingKind::Duplicate).about([&other]),
                // One that can't be repaired is in the way of no other.
                Err(error) => found.reason = Some(format!("not repaired: {error}")),
            }
        }
        self.note(&found);
        Ok(())
    }

    async fn report_unindexable(&mut self, owner: &Owner) -> Result<(), StoreError> {
        let shard_key = &self.protected.shard_key;
        for document in self.proxy.documents_of_same_id(&owner.id, shard_key).await? {
            let malformed = |_| StoreError::Unexpected("a document");
            let document = Doc::new(document.as_bytes()).map_err(malformed)?;
            if owner_of(self.protected, document).map_err(malformed)? != *owner {
                continue;
            }
            if let Err(error) = keys_under(self.protected, self.position, document) {
                let found = Finding {
                    reason: Some(error.to_string()),
                    ..Finding::new(FindingKind::Unindexable, &self.proxy.constraint, None).about([owner])
                };
                self.note(&found);
            }
        }
        Ok(())
    }
}

/// The fault of the first document of a key, when another one, `owner`, turns out to hold it, too.
fn also_held_by(fault: &Fault, owner: Owner) -> Fault {
    let (mut others, is_reserved) = match fault {
        Fault::Duplicate(others, is_reserved) => (others.clone(), *is_reserved),
        Fault::Missing | Fault::Foreign(_) => (Vec::new(), false),
        Fault::Misrouted(_) => (Vec::new(), true),
    };
    if !others.contains(&owner) {
        others.push(owner);
    }
    Fault::Duplicate(others, is_reserved)
}
