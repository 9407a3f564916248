//! Confirms right before takeovers are sent that their judgements still count.
//!
//! A takeover relies on reads that came before it, and this process may have stood still since. Others may presume this Keyward gone by
//! now.

/// The facts that takeovers still need when they are sent.
pub trait TakeoverCheck: Sync {
    /// Whether this Keyward may still write. It is asked for each takeover.
    fn may_write(&self) -> bool;
}
