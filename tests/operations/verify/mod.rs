//! `keyward verify` as an operator meets it: planted faults are found, each once and nothing else, while clients go on
//! writing; what is safe is repaired. And `keyward backfill`, which reserves for existing documents.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod backfill;
mod clean;
mod clustered;
mod faults;
mod interrupted;
mod million;
mod planted;
mod repeated;
mod reported;
mod restored;
mod run;
mod same_id;
mod shapes;
mod strict;
