//! What becomes of keys when things go wrong in compensating mode: shards that refuse, clients that get in each other's way,
//! reservations that are left behind. Whatever happens, documents and reservations agree once it is quiet.

mod backfilled;
mod collated;
mod cut_commits;
mod failing;
mod given_twice;
mod half_committed;
mod known_time;
mod large;
mod leaping_clock;
mod meanwhile;
mod member_down;
mod moved_since;
mod odd_values;
mod open_transaction;
mod other_types;
mod refused_again;
mod reservations;
mod restarted;
mod same_id;
mod set_values;
mod side_by_side;
mod unanswered;
mod unfinished;
mod waiting;

pub use crate::strategy::PHONE;
pub use crate::trial::{assert_agreement, insert, keyward, reservations, users, users_on, write_errors};

const EMAIL: &str = crate::strategy::Strategy::Compensating.email();
