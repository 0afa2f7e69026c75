//! The example `chat`, as a user has it: in a real terminal, and through a pipe.

/// Starts the chat with the agent of the tests, and waits until it is ready.
macro_rules! chat {
    ($server:ident, $terminal:ident) => {
        if tmux_is_missing() {
            return;
        }
        let $server = server().await;
        let $terminal = Terminal::start(&Start::with(&$server.url())).await;
        $terminal.see("/help lists the commands").await;
    };
}

mod agent;
mod cards;
mod keys;
mod leaving;
mod login;
mod pipe;
mod screen;
mod start;
mod status;
pub(crate) mod terminal;
