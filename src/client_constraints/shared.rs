//! Shares one Keyward's view of the list between its connections and the task that follows the list.

use tokio::sync::Notify;

use super::ClientConstraintStore;

/// The list in the cluster, for a connection that changes it.
#[derive(Debug)]
pub struct SharedList {
    /// The list.
    pub store: ClientConstraintStore,
    changed: Notify,
}

impl SharedList {
    /// The list in `store`.
    pub fn new(store: ClientConstraintStore) -> SharedList {
        SharedList {
            store,
            changed: Notify::new(),
        }
    }

    /// Has this Keyward read the list at once.
    pub fn note_change(&self) {
        self.changed.notify_one();
    }

    /// Waits for such a note; one that came before counts.
    pub async fn noted(&self) {
        self.changed.notified().await;
    }
}
