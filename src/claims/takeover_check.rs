//! Confirms, right before Keyward sends takeovers, that the judgements behind them still hold.
//!
//! A takeover relies on reads that came before it, and this process may have stood still since. Others may presume this Keyward gone by
//! now. They may also have given the constraint another definition, by which the owner holds the key.

use futures_util::future::BoxFuture;

use crate::proxy_collection::{ProxyCollection, StoreError};

/// The facts that takeovers still need when they are sent.
pub trait TakeoverCheck: Sync {
    /// Whether the constraint of `proxy` still is as these judgements assumed. It is asked once for the takeovers of a round, after
    /// their reservations were read.
    fn is_defined<'c>(&'c self, proxy: &'c ProxyCollection) -> BoxFuture<'c, Result<bool, StoreError>>;

    /// Whether this Keyward may still write. It is asked for each takeover.
    fn may_write(&self) -> bool;
}
