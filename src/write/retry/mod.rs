//! Finds the results of a driver's first try, so that Keyward neither repeats it nor refuses the retry as a duplicate of
//! itself.
//!
//! If a driver gets no reply to a write, it repeats the write under the same session, transaction number and statement numbers
//! ([`RetryId`](crate::reservation::RetryId)). This table lists all questions about retries. Some are answered outside
//! this folder. Paths begin in `src/write/`, those in `claims/`, `command/` and `reservation/` in `src/`:
//!
//! | question | asked when | called from | proof | where |
//! | --- | --- | --- | --- | --- |
//! | Did the server insert these documents before? | An insert in compensating mode would be refused as a duplicate, or its time is over while it waits for a key. Or a reply names repeated statements. | `insert/mod.rs`, through `insert/way.rs` | The server's memory of the statements' numbers, by a majority. | [`server_memory`] |
//! | Did the server carry out this statement before? | A statement in place would be refused. Or its document may have changed shards. | `update/in_place.rs`, `update/slice.rs`, `update/sending.rs` | The same memory; Keyward sends a form of the statement that matches nothing. | `update/first_try.rs` |
//! | Which documents of this slice did a transaction insert? | In each inserting transaction, and before an insert would be refused as a duplicate or for its time. | `insert/strict/transaction.rs`, `insert/strict/mod.rs` | The slice's record, written by the inserting transaction. | [`slice_record`], [`inserted`] |
//! | What was the reply to this statement? | A transaction of Keyward's can't write the statement's record, is to be tried again, or would refuse the statement or wait for a key. | `update/in_transaction.rs` | The statement's record, written by its transaction. | [`results`] |
//! | May the first try's transaction still be open? | A retryable strict insert met a key that its first try had reserved. | `insert/strict/mod.rs` | Keyward ends the transactions of the command's session on all shards. | [`inserted`] |
//! | Did the first try leave a reservation that is in the way? | A key is claimed. | `claims/effects.rs` | The retry id in the reservation's token, and the same owner. | `reservation/claim.rs` |
//! | Did an earlier commit of this client's transaction succeed? | A client commits a transaction whose start this process hasn't seen. A driver retries only the commit, never a statement in the transaction. | `mod.rs` | Keyward first ends the transaction on every shard: only an earlier commit then stands. | `txn/client_transactions.rs` |
//!
//! A statement's way depends on the statement, the constraints and the shard key alone ([`super::plan`]). So a retry looks for the proof where
//! its first try left it. These rules keep it so:
//!
//! | rule | where |
//! | --- | --- |
//! | Keyward forwards a retryable statement about many documents, which the server refuses. | `plan.rs` |
//! | A retryable `findAndModify` without the shard key runs in a transaction: its record has the reply. | `command/key_update.rs` |
//! | A retryable statement in place stays in place after a miss. | `update/in_place.rs` |
//! | A statement in place that is too large is refused, unless its first try was carried out. | `update/in_place.rs` |
//! | A retry of an insert or an upsert without `_id` gets the `_id` of its first try. | `claims/document.rs` |
//!
//! A proof counts after a majority has it: until then a step-down may undo the write.

pub mod inserted;
pub mod results;
pub mod server_memory;
pub mod slice_record;
