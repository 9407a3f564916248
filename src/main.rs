//! The `keyward` command.

fn main() {}
