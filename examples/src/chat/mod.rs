//! A chat with an agent, in a terminal or through a pipe.
//!
//! ```text
//! args, exit, help.txt      options, exit codes, help
//! host, showcase            the server, and the agent of the embedded one
//! talk, choices, files      the conversation: session, modes and models, files            (uses the SDK)
//! login                     logging in, by a key or by the user
//! console, pipe             the two loops: with a terminal, and without
//! view, card, diff          how a turn is shown
//! ask, permission, form,
//! field                     requests of the agent, and the user's answers
//! screen, editor            the terminal: drawing and writing
//! line, plain               styled lines, which contain only plain text
//! ```

mod args;
mod ask;
mod card;
mod choices;
mod command;
mod console;
mod diff;
mod editor;
mod exit;
mod field;
mod files;
mod form;
mod host;
mod line;
mod login;
mod permission;
mod pipe;
mod plain;
mod run;
mod screen;
mod sessions;
mod showcase;
mod signals;
mod talk;
mod view;

pub(crate) use plain::Plain;
pub use run::run;
