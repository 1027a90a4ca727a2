//! What do a shell and a manual need to know of the arguments?
//!
//! Both are made from the definitions in [`crate::args`], so they cannot disagree with the program.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{self, Failure};
use crate::output::Output;

/// Completions, for `eval` or for a file of the shell's directory.
pub(crate) fn completions(args: &CompletionsArgs, output: Output) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "syncguard", &mut text);
    output.data(String::from_utf8_lossy(&text).trim_end());
    exit::OK
}

/// The manual page of the program, or of one of its commands with every flag that it understands.
pub(crate) fn man(args: &ManArgs, output: Output) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| Failure::new(exit::INTERNAL, "internal", format!("no manual page: {error}"));
    let mut text = Vec::new();
    let mut program = Cli::command();
    program.build();
    let mut page = &program;
    for name in &args.command {
        let known: Vec<&str> = page.get_subcommands().map(clap::Command::get_name).collect();
        page = page
            .find_subcommand(name)
            .ok_or_else(|| Failure::usage("there is no such command").hint(format!("one of: {}", known.join(", "))))?;
    }
    // What `-h` leaves out for brevity would have no text here.
    let page = page.clone().mut_args(|argument| argument.hide_short_help(false));
    clap_mangen::Man::new(page).render(&mut text).map_err(failed)?;
    output.data(String::from_utf8_lossy(&text).trim_end());
    Ok(exit::OK)
}
