//! Writes to reservations without long waits.
//!
//! If an open transaction has written to a reservation, the server makes other writes to it wait until that transaction
//! ends. That may take a minute if no client goes on with it. Other items in the same command shouldn't wait for that: after
//! a second, each is tried alone.

use std::future::ready;
use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, StreamExt};
use tokio::time::sleep;

use super::StoreError;
use super::find::Finder;
use super::time_out::within;
use crate::server::driver::{is_time_up, says_time_up, write_concern_error, write_error_in_words, write_errors};

/// How long a command may wait, in ms, if it carries several items or is repeated anyway.
pub const PATIENCE_MS: i32 = 1_000;
/// How long the command of a single item may wait, in ms, if the item has waited before.
pub const PATIENCE_ALONE_MS: i32 = 500;
/// How many items are tried alone at a time.
const ALONE_AT_ONCE: usize = 32;

/// Runs commands of one item each, and returns their outcomes in order.
///
/// All of them together have `limit`: the outcome of a command without an answer by then is `time_out`.
pub async fn each_alone<T: Clone>(alone: Vec<BoxFuture<'_, T>>, limit: Duration, time_out: T) -> Vec<T> {
    let mut outcomes = vec![time_out; alone.len()];
    let mut numbered = Vec::with_capacity(alone.len());
    for (index, one) in alone.into_iter().enumerate() {
        numbered.push(one.map(move |outcome| (index, outcome)));
    }
    let answered = stream::iter(numbered).buffer_unordered(ALONE_AT_ONCE);
    let note = |(index, outcome): (usize, T)| {
        outcomes[index] = outcome;
        ready(())
    };
    answered.take_until(sleep(limit)).for_each(note).await;
    outcomes
}

impl Finder {
    /// Runs a write on reservations, whose answer may take `limit`, and returns how many it matched.
    ///
    /// The command is in bytes, like everything that holds a key or an owner: they may repeat a name, which no map of fields can
    /// hold.
    pub(super) async fn write(&self, command: RawDocumentBuf) -> Result<i32, StoreError> {
        matched(&self.reply(command).await?)
    }

    /// Runs an unordered write of `count` items, and returns the outcome of each.
    pub(super) async fn write_each(&self, command: RawDocumentBuf, count: usize) -> Vec<Result<(), StoreError>> {
        let reply = self.reply(command).await;
        let outcomes = reply.and_then(|reply| outcomes(&reply, count));
        outcomes.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn reply(&self, command: RawDocumentBuf) -> Result<Document, StoreError> {
        match within(self.limit, self.sessions.run(&self.database, command)).await {
            Err(StoreError::Driver(error)) if is_time_up(&error) => Err(StoreError::Busy),
            reply => reply,
        }
    }
}

/// How many reservations a write matched, by its reply.
fn matched(reply: &Document) -> Result<i32, StoreError> {
    // An unreachable shard is reported here, not by an error of the whole command.
    let of_write = write_errors(reply).into_iter().flatten().filter_map(Bson::as_document);
    // With this one, the write took effect, and its attempt will recognise it.
    let errors: Vec<&Document> = of_write.chain(write_concern_error(reply)).collect();
    match errors.iter().find(|error| !says_time_up(error)) {
        Some(error) => Err(StoreError::Refused(write_error_in_words(error))),
        None if !errors.is_empty() => Err(StoreError::Busy),
        None => {
            let matched = reply.get_i32("n");
            matched.map_err(|_| StoreError::Unexpected("the reply to a write on reservations"))
        }
    }
}

/// The outcome of each of `count` items of an unordered write, by its reply.
fn outcomes(reply: &Document, count: usize) -> Result<Vec<Result<(), StoreError>>, StoreError> {
    let unexpected = || StoreError::Unexpected("the reply to a write on reservations");
    let outcome = |error: &Document| match says_time_up(error) {
        true => StoreError::Busy,
        false => StoreError::Refused(write_error_in_words(error)),
    };
    let mut outcomes = vec![write_concern_error(reply).map_or(Ok(()), |error| Err(outcome(error))); count];
    for error in write_errors(reply).into_iter().flatten() {
        let error = error.as_document().ok_or_else(unexpected)?;
        let index = error.get_i32("index").map_err(|_| unexpected())?;
        let index = usize::try_from(index).map_err(|_| unexpected())?;
        *outcomes.get_mut(index).ok_or_else(unexpected)? = Err(outcome(error));
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bson::doc;

    use super::*;

    #[test]
    fn each_item_has_its_own_outcome() {
        let of_shard = doc! { "index": 1, "code": 133, "errmsg": "Could not find host" };
        let of_time = doc! { "index": 2, "code": 50, "errmsg": "operation exceeded time limit" };
        let reply = doc! { "n": 1, "writeErrors": [of_shard, of_time] };
        let outcomes = outcomes(&reply, 3).unwrap();
        assert!(outcomes[0].is_ok());
        assert!(matches!(outcomes[1], Err(StoreError::Refused(_))));
        assert!(matches!(outcomes[2], Err(StoreError::Busy)));
        assert!(super::outcomes(&reply, 2).is_err());
    }

    #[test]
    fn a_refused_write_is_reported_in_the_servers_words() {
        let of_shard = doc! { "index": 0, "code": 133, "errmsg": "Could not find host" };
        let late = doc! { "index": 0, "code": 50, "errmsg": "operation exceeded time limit" };
        let refused = |reply: Document| matched(&reply).unwrap_err().to_string();
        for reply in [
            doc! { "ok": 1, "n": 0, "writeErrors": [late.clone(), of_shard.clone()] },
            doc! { "ok": 1, "n": 1, "writeConcernError": of_shard },
        ] {
            let text = refused(reply);
            assert!(
                text.starts_with("the server refused a write on reservations: Could not find host (code 133"),
                "{text}"
            );
        }
        assert!(matches!(
            matched(&doc! { "ok": 1, "n": 0, "writeErrors": [late] }),
            Err(StoreError::Busy)
        ));
        assert!(matches!(matched(&doc! { "ok": 1, "n": 3 }), Ok(3)));
        assert!(matches!(matched(&doc! { "ok": 1 }), Err(StoreError::Unexpected(_))));
    }

    #[tokio::test]
    async fn a_command_without_answer_in_time_is_late_and_the_others_have_their_results() {
        let silent = || pending::<u8>().boxed();
        let mut alone = vec![silent(), ready(1).boxed(), silent()];
        alone.extend((0..2 * ALONE_AT_ONCE).map(|_| ready(2).boxed()));
        let outcomes = each_alone(alone, Duration::from_millis(20), 0).await;
        assert_eq!(outcomes[..3], [0, 1, 0]);
        assert_eq!(outcomes[3..], [2; 2 * ALONE_AT_ONCE]);
    }
}
