//! Runs the program.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use super::args::Args;
use super::console::Console;
use super::exit::Exit;
use super::host::Host;
use super::line::Paint;
use super::pipe::Pipe;
use super::plain::Plain;

/// Runs the chat with the arguments of this process.
pub async fn run() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) if args.help => {
            print!("{}", include_str!("help.txt"));
            return Exit::Done.into();
        }
        Ok(args) => args,
        Err(message) => {
            eprintln!("chat: {}; see --help", Plain::line(&message));
            return Exit::Usage.into();
        }
    };
    let host = match Host::find(&args).await {
        Ok(host) => host,
        Err(message) => {
            eprintln!("chat: {}", Plain::line(&message));
            return Exit::NotStarted.into();
        }
    };
    let outcome = match paint() {
        Some(paint) => Console::run(&args, &host, paint).await,
        None => Pipe::run(&args, &host).await,
    };
    host.end().await;
    let exit = outcome.unwrap_or_else(|error| {
        // The output is closed, and standard error may be closed too.
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("chat: {error}\n"));
        Exit::HungUp
    });
    exit.into()
}

/// Returns the styles to use, or `None` without a terminal for input and output.
fn paint() -> Option<Paint> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if dumb || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return None;
    }
    Some(if set("NO_COLOR") { Paint::Colourless } else { Paint::Full })
}
