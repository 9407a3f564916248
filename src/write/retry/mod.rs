//! A driver's retry: how Keyward finds what the first try did, so that it is neither done twice nor refused as a duplicate
//! of itself.
//!
//! A driver repeats a write whose reply it never got, under the same session, transaction number and statement numbers
//! ([`Operation`](crate::reservation::Operation)). Every question about that is asked here:
//!
//! | question | asked when | proof | where |
//! | --- | --- | --- | --- |
//! | Did the server insert these documents before? | an insert in compensating mode would be refused as a duplicate, or a reply names statements that it repeats | the server's memory of the statements' numbers, by a majority | [`server_memory`] |
//! | Did it carry this statement out before? | a statement in place would be refused, or its document may have changed shards | the same, asked by a form of the statement that matches nothing | [`server_memory`] |
//! | Which documents of this slice did a transaction insert? | before each transactional insert, and before one would be refused as a duplicate | the slice's record, written by the transaction that inserted | [`inserted`] |
//! | What was the reply to this statement? | before each statement in a transaction of Keyward's, and before one would be refused as a duplicate | the statement's record, written by its transaction | [`results`] |
//! | Is a reservation in the way that the first try left? | a key is claimed | the operation in the reservation's token | [`crate::reservation`] |
//!
//! A statement's way depends on the statement and the constraints alone ([`super::plan`]), so a retry asks where its first try
//! left its proof. A proof counts once a majority has it: until then a step-down may undo what was done.

pub mod inserted;
pub mod results;
pub mod server_memory;
