//! What the documents say, held against what is there: links, lists, messages, samples of configuration, commands that cannot be
//! run; and how they say it (STYLE.md). Commands that can be run are run by tests/operations/chapters.

#![expect(clippy::unwrap_used, reason = "a document that isn't as it must be fails its test")]

mod codes;
mod commands;
mod debug_output;
mod imports;
mod inventories;
pub mod markdown;
mod messages;
mod names;
mod pictures;
mod prose;
mod samples;
mod settings;
mod site;
mod ways;
