//! Reads an `aggregate` that ends with `$merge`, and composes the commands that carry it out. No I/O.
//!
//! The server runs the pipeline without its last stage. Keyward turns each batch of its results into an `update` or an `insert`,
//! as the server's own `$merge` does. `session/merging.rs` sends these commands the way of a client's own.

mod batch;
mod command;
mod key;
mod outcome;
mod stage;

pub use batch::{MergeKeyFault, MergeParts};
pub use command::MergeCommand;
pub use key::MergeKey;
pub use outcome::MergeOutcome;
pub use stage::{MergeStage, WhenMatched, WhenNotMatched};
