//! The `keyward` command; what it does is in [`keyward::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    keyward::cli::main()
}
