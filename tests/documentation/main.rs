//! What the documents say, held against what is there: links, lists, messages, samples of configuration, commands that can't be
//! run. Those that can be are run by tests/chapters.

#![expect(clippy::unwrap_used, reason = "a document that isn't as it must be fails its test")]

mod commands;
mod inventories;
mod markdown;
mod messages;
mod samples;
mod site;
