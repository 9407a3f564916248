//! Keeps the catalog's shard keys current while clients drop, create and shard collections.
//!
//! By an outdated shard key, two documents with one `_id` on two shards look like one. A takeover in strict mode reads the shard
//! key itself. If a lookup by a wrong route finds nothing, Keyward repeats it on all shards. A statement in a transaction must
//! change exactly the documents that Keyward read, and leave them in place. Otherwise it runs again, and Keyward reads all
//! documents with their `_id`s. So an outdated shard key costs time, and occasionally causes an error that a retry clears.
//! Keyward reads the shard keys again after each command that may change one, after such a statement, and at intervals.

use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::forward_error::ForwardError;
use crate::proxy_collection::answered;
use crate::raw::Doc;
use crate::upstream::{Connection, shard_keys};

/// The interval at which Keyward reads shard keys that were changed past it.
const EVERY: Duration = Duration::from_secs(10);

impl Context {
    /// Renews the shard keys at intervals, without end.
    ///
    /// - Cancel: at any time.
    pub async fn follow_shard_keys(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.renew_shard_keys().await;
        }
    }

    /// Looks up the shard keys of all protected collections.
    pub async fn renew_shard_keys(&self) {
        let asked = self.catalog.load_full();
        let Some(proxy) = asked.all().flat_map(|protected| &protected.constraints).next() else {
            return;
        };
        let namespaces: Vec<_> = asked.all().map(|protected| &protected.namespace).collect();
        match answered(shard_keys(proxy.client(), &namespaces)).await {
            Ok(keys) => drop(
                self.catalog
                    .rcu(|catalog| Arc::new(catalog.with_shard_keys(&asked, &keys))),
            ),
            Err(error) => tracing::warn!(%error, "the shard keys could not be looked up"),
        }
    }
}

/// Forwards a command that may change a shard key; returns the server's reply.
pub async fn forward_and_renew_shard_keys(
    context: &Context,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let reply = upstream.run(body.bytes()).await?;
    context.renew_shard_keys().await;
    Ok(reply)
}
