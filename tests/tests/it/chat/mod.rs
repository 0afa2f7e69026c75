//! The example `chat`, as a user has it: in a real terminal, and through a pipe.

mod agent;
mod pipe;
mod screen;
mod terminal;
