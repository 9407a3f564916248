//! Writes completions for shells and the manual page, for packages.

use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Exit};

/// Prints what makes `shell` complete `keyward`.
pub(super) fn completions(shell: Shell) -> Exit {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "keyward", &mut text);
    print(&text)
}

/// Prints the manual page: the command, then each of its subcommands, in roff.
pub(super) fn manual() -> Exit {
    let mut command = Cli::command();
    command.build();
    let mut text = Vec::new();
    let written = pages(&command, &mut text);
    match written {
        Ok(()) => print(&text),
        Err(_) => Exit::System,
    }
}

fn pages(command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    for subcommand in command.get_subcommands().filter(|command| command.get_name() != "help") {
        writeln!(text, ".SH {}", subcommand.get_name().to_uppercase())?;
        let page = clap_mangen::Man::new(subcommand.clone());
        page.render_description_section(text)?;
        page.render_options_section(text)?;
    }
    page.render_extra_section(text)?;
    page.render_version_section(text)
}

fn print(text: &[u8]) -> Exit {
    match io::stdout().write_all(text) {
        Ok(()) => Exit::Success,
        Err(_) => Exit::System,
    }
}
