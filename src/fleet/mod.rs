//! The Keywards of a deployment, and what each of them may write without reserving: a register in the cluster.
//!
//! A constraint holds only if everybody who writes reserves for it. So each Keyward has an [`Entry`] from its start to
//! its end: the collections to which it forwards writes, noted before the first one goes on, and the constraints for which all its
//! writes reserve. A constraint isn't called enforced while an entry has its collection and lacks it; and whoever begins
//! to write to a collection first takes `enforced` back from the constraints there that it lacks.
//!
//! An entry is renewed as long as its Keyward lives. Who couldn't renew it for its [`Terms::lease`] writes nothing any more; who has seen
//! one unchanged for longer, by far, takes it away.

mod entry;
mod follow;
mod guard;
mod membership;
mod permit;
mod register;
mod terms;
mod watch;

pub use entry::Entry;
pub use follow::{Kept, keep, renew, show};
pub use guard::Guard;
pub use membership::Membership;
pub use permit::Permit;
pub use register::{COLLECTION, DATABASE, Forgotten, Register};
pub use terms::Terms;

/// How many collections an entry names at most; one with more stands for all.
const COLLECTIONS_MAX: usize = 1_000;
