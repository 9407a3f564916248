//! Carries out statements that change documents: `update`, `delete` and `findAndModify`.
//!
//! A statement whose new keys can be read from it runs in place ([`in_place`]). Every other statement runs in a transaction
//! ([`in_transaction`]); Keyward reads its documents before and after it ([`document_keys`]).

mod change;
pub mod document_keys;
mod evaluation;
pub mod existing_reservations;
mod find_and_modify;
mod first_try;
mod in_place;
mod in_transaction;
mod old_reservations;
mod placement;
pub mod reservation_conflict;
pub mod reservation_diff;
pub mod result;
mod routed;
mod selected;
mod sending;
mod shown;
mod slice;
pub mod statement_run;
mod statements;
mod upsert;
mod way;

pub use find_and_modify::find_and_modify;
pub use statements::modify;
