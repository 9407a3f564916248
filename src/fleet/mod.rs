//! Registers the Keywards of a deployment in the cluster, and where each of them may write.
//!
//! A constraint holds only if every Keyward that writes reserves for it. So each Keyward has a [`RegisterEntry`] from its start to
//! its end. The entry lists the collections to which the Keyward forwards writes, noted before the first write. It also lists the
//! constraints for which all its writes reserve. A constraint doesn't count as enforced while an entry lists its collection
//! without it. A Keyward that begins to write to a collection first revokes `enforced` from the constraints there that it
//! lacks.
//!
//! A living Keyward renews its entry. A Keyward that couldn't renew it for its [`EntryTerms::lease`] stops writing. A Keyward that
//! has seen an entry unchanged for far longer removes it.

mod builds;
mod declared;
mod enforced;
mod entry;
mod ever_declared;
mod follow;
mod guard;
mod membership;
mod permit;
mod register;
mod replaced;
mod revoked;
mod terms;
mod watch;

pub use enforced::{Enforced, StatesRead};
pub use entry::RegisterEntry;
pub use follow::{Kept, end_doubts, keep, renew, show};
pub use guard::Guard;
pub use membership::{ClientsView, Membership};
pub use permit::CommandPermit;
pub use register::{COLLECTION, DATABASE, Forgotten, Register};
pub use revoked::FollowRevoked;
pub use terms::EntryTerms;

/// How many collections an entry names at most; one with more stands for all.
const COLLECTIONS_MAX: usize = 1_000;
