//! Replaces the token of each reservation that a backfill finds for an existing document.
//!
//! Every judgement about a reservation names the token that it saw. A takeover, a release or a sweep may be delayed by minutes, as
//! in a Keyward that stood still. Its judgement may date from a time when no document relied on the reservation. After a backfill a
//! document does. With another token, the delayed command doesn't match any more.
//!
//! Everything else stays: the owner, the route, the time and the lease. The attempt that wrote the reservation may still be under way. If
//! its write fails after all, it doesn't release the key, because it names the former token. Then the key stays reserved until the
//! lease is over, and the next write that meets it takes it over.

use std::collections::HashSet;

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use futures_util::future::FutureExt;

use super::filter::seen_filter;
use super::reading::{find_reservations, key_of};
use super::reservation::token_value;
use super::writing::{PATIENCE_MS, each_alone};
use super::{Fitting, KEYS_MAX, ProxyCollection, Reservation, StoreError};
use crate::constraint::Key;
use crate::reservation::{Token, WriteId};

/// The limits of one command: the keys may be long, and a query takes 16 MB.
const COMMAND_MAX: Fitting = Fitting {
    items: KEYS_MAX,
    bytes: 8 << 20,
};
/// The time limit of a command: no client waits for it.
const WAIT_MS_MAX: i32 = 3 * PATIENCE_MS;

/// A reservation with the token that it is to get.
type Renewal<'r> = (&'r Key, &'r Reservation, Token);

impl ProxyCollection {
    /// Gives each reservation another token, if it still is the one that was `seen`. One command carries up to 1,000 of them.
    ///
    /// Returns for each whether it has a new token, and a majority has that. If not, the reservation was changed, an open transaction
    /// holds it up, or it may have been renewed without a majority: it must be read again.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer. Then some may be renewed, and no harm is done.
    pub async fn renew(&self, seen: &[(&Key, &Reservation)]) -> Result<Vec<bool>, StoreError> {
        let write = WriteId(rand::random());
        let mut renewed = Vec::with_capacity(seen.len());
        for seen in COMMAND_MAX.parts(seen, |(key, _)| key.reservation_id().as_bytes().len()) {
            // The statement stays: a driver's retry recognises its first try by it.
            let seen = seen.iter().copied();
            let renewals: Vec<Renewal<'_>> = seen
                .map(|(key, seen)| (key, seen, Token { write, ..seen.token }))
                .collect();
            renewed.extend(self.renew_together(&renewals).await?);
        }
        Ok(renewed)
    }

    async fn renew_together(&self, renewals: &[Renewal<'_>]) -> Result<Vec<bool>, StoreError> {
        let answered = match self.write_tokens(renewals).await {
            Ok(count) if usize::try_from(count) == Ok(renewals.len()) => return Ok(vec![true; renewals.len()]),
            Ok(_) => vec![true; renewals.len()],
            Err(StoreError::Busy) => {
                let alone = |renewal| {
                    let written = self.write_tokens(std::slice::from_ref(renewal));
                    written.map(|written| written.is_ok()).boxed()
                };
                each_alone(renewals.iter().map(alone).collect(), self.limit, false).await
            }
            // Once more, as when a primary steps down.
            Err(_) => {
                self.write_tokens(renewals).await?;
                vec![true; renewals.len()]
            }
        };
        // A try may have taken effect, and then the next one matched nothing. The answer to that waited for a majority all the same.
        let have = self.have_tokens(renewals).await?;
        Ok(answered
            .into_iter()
            .zip(have)
            .map(|(is_answered, has)| is_answered && has)
            .collect())
    }

    /// Writes the tokens with one command. Returns how many reservations it matched; a majority has those.
    async fn write_tokens(&self, renewals: &[Renewal<'_>]) -> Result<i32, StoreError> {
        let mut updates = RawArrayBuf::new();
        for (key, seen, token) in renewals {
            updates.push(rawdoc! { "q": seen_filter(key, seen), "u": { "$set": { "token": token_value(*token) } } });
        }
        let command = rawdoc! {
            "update": self.reservations.name(), "updates": updates, "ordered": false,
            "writeConcern": { "w": "majority" }, "maxTimeMS": WAIT_MS_MAX,
        };
        self.finder.write(command).await
    }

    /// Returns for each reservation whether it has its new token.
    async fn have_tokens(&self, renewals: &[Renewal<'_>]) -> Result<Vec<bool>, StoreError> {
        let tokens: HashSet<Token> = renewals.iter().map(|(_, _, token)| *token).collect();
        let tokens: Vec<Token> = tokens.into_iter().collect();
        let keys = renewals.iter().map(|(key, _, _)| *key);
        let command = find_reservations(self.reservations.name(), keys, &tokens).finish();
        let command = RawDocumentBuf::from_bytes(command).map_err(|_| StoreError::Unexpected("a query"))?;
        let mut renewed = HashSet::new();
        for document in &self.find(command).await? {
            renewed.extend(key_of(&self.constraint, document));
        }
        Ok(renewals.iter().map(|(key, _, _)| renewed.contains(*key)).collect())
    }
}
