//! Keeps the catalog's shard keys true while clients drop, make and shard collections.
//!
//! A shard key that is out of date is harmless (a takeover in strict mode reads its own): a look by a wrong route that misses is repeated on all shards, and whatever
//! is written meanwhile is judged by `_id` and key alone. It only costs time, and here and there an error that trying again
//! clears. So it is enough to look after a command that changes one, and every now and then for what other ways change.

use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::forward::ForwardError;
use crate::proxy_collection::answered;
use crate::raw::Doc;
use crate::upstream::{Connection, shard_keys};

/// How often to look for shard keys that were changed past this Keyward.
const EVERY: Duration = Duration::from_secs(10);

impl Context {
    /// Looks again and again.
    ///
    /// - Cancel: at any time.
    pub async fn follow_shard_keys(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.renew_shard_keys().await;
        }
    }

    /// Looks the shard keys of all protected collections up.
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

/// Sends a command on that may change a shard key; gives the server's reply.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's has to go, too.
pub async fn change_shard_key(
    context: &Context,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let reply = upstream.run(body.bytes()).await?;
    context.renew_shard_keys().await;
    Ok(reply)
}
