//! Runs the `keyward` command, which is in [`keyward::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    keyward::cli::main()
}
