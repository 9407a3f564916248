//! Finds the results of a driver's first try, so that Keyward neither repeats it nor refuses the retry as a duplicate of
//! itself.
//!
//! If a driver gets no reply to a write, it repeats the write under the same session, transaction number and statement numbers
//! ([`RetryId`](crate::reservation::RetryId)). This table lists all questions about retries; the last two are answered
//! outside this folder:
//!
//! | question | asked when | called from | proof | where |
//! | --- | --- | --- | --- | --- |
//! | Did the server insert these documents before? | An insert in compensating mode would be refused as a duplicate. Or a reply names repeated statements. | `insert/mod.rs`, through `insert/way.rs` | The server's memory of the statements' numbers, by a majority. | [`server_memory`] |
//! | Did the server carry out this statement before? | A statement in place would be refused. Or its document may have changed shards. | `update/in_place.rs`, `update/sending.rs` | The same memory; Keyward sends a form of the statement that matches nothing. | [`server_memory`] |
//! | Which documents of this slice did a transaction insert? | In each inserting transaction, and before an insert would be refused as a duplicate. | `insert/transactional/transaction.rs`, `insert/transactional/mod.rs` | The slice's record, written by the inserting transaction. | [`inserted`] |
//! | What was the reply to this statement? | A transaction of Keyward's can't write the statement's record, is to be tried again, or would refuse the statement or wait for a key. | `update/in_transaction.rs` | The statement's record, written by its transaction. | [`results`] |
//! | Did the first try leave a reservation that is in the way? | A key is claimed. | `claims/effects.rs` | The retry id in the reservation's token. | `reservation/claim.rs` |
//! | Did an earlier commit of this client's transaction succeed? | A client commits a transaction whose start this process hasn't seen. A driver retries only the commit, never a statement in the transaction. | `write/mod.rs` | Keyward first ends the transaction on every shard: only an earlier commit then stands. | `txn/client_transactions.rs` |
//!
//! A statement's way depends on the statement, the constraints and the shard key alone ([`super::plan`]). So a retry looks for the proof where
//! its first try left it. A proof counts after a majority has it: until then a step-down may undo the write.

pub mod inserted;
pub mod results;
pub mod server_memory;
