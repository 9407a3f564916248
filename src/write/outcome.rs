//! Defines the outcome of a document or a statement that was sent to the server.

/// The outcome; `E` says why it isn't a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<E> {
    /// It took effect.
    Applied,
    /// It took no effect, and never will.
    NotApplied(E),
    /// It may have taken effect, or may yet take effect.
    InDoubt(E),
    /// It took no effect, and never will, because another attempt has taken a key over.
    Superseded,
}
