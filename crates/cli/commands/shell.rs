//! `dtrain completions` and `dtrain man`: what a shell and `man` know of the command line, made from the one that clap reads.

use super::print;
use crate::arguments::{Completions, Man, shown_command};
use crate::error::CliError;
use std::io;
use std::path::Path;

/// Writes a completion script to standard output.
///
/// *Errors*: standard output cannot be written.
pub fn completions(arguments: &Completions) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut shown_command(), "dtrain", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes `dtrain.1`, `dtrain-train.1` and so on, over those that are there.
///
/// *Errors*: the folder cannot be made or written to.
pub fn man(arguments: &Man) -> Result<(), CliError> {
    let folder = &arguments.folder;
    let mut command = shown_command();
    command.build();
    std::fs::create_dir_all(folder).and_then(|()| write_pages(&command, folder)).map_err(|error| {
        CliError::usage(format!("cannot write man pages to {}", folder.display()))
            .because(&error)
            .hint("`dtrain man ~/.local/share/man/man1` puts them where man looks")
    })
}

/// The page of a command and those of all below it.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    command.get_subcommands().try_for_each(|command| write_pages(command, folder))?;
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    // What follows the options are examples, whose lines are not to be filled.
    let text = String::from_utf8_lossy(&text)
        .replace(".SH EXTRA\n", ".SH EXAMPLES\n.nf\n")
        .replace("\n.SH VERSION", "\n.fi\n.SH VERSION");
    std::fs::write(folder.join(page.get_filename()), text)
}
