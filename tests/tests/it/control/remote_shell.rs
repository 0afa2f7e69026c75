//! The example `remote_shell` in a real terminal.

use crate::chat::terminal::{Start, Terminal, tmux_is_missing};

use super::{Kind, Server};

const REMOTE_SHELL: &str = env!("CARGO_BIN_EXE_remote-shell");

async fn start(server: &Server) -> Terminal {
    let environment = vec![("SANDBOX_AGENT_URL", server.url()), ("SANDBOX_AGENT_TOKEN", "secret".to_owned())];
    Terminal::start_program(REMOTE_SHELL, &Start { arguments: "sh".to_owned(), environment }).await
}

pub(super) async fn a_shell_is_used_resized_and_left_with_its_exit_code(kind: Kind) {
    if tmux_is_missing() {
        return;
    }
    let Some(server) = Server::with_token(kind, Some("secret")).await else { return };
    let terminal = start(&server).await;
    terminal.line("stty size; echo a$((1+1))b").await;
    let screen = terminal.see("a2b").await;
    assert!(screen.contains("24 80"), "{screen}");
    terminal.tmux(&["resize-window", "-x", "100", "-y", "30"]).await;
    terminal.line("while [ \"$(stty size)\" != '30 100' ]; do :; done; echo re''sized").await;
    terminal.see("resized").await;
    terminal.line("printf '\\033[32mgre''en\\033[0m\\n'").await;
    terminal.see("green\n").await;
    let painted = terminal.painted().await;
    let line =
        painted.lines().find(|line| line.contains("green") && !line.contains("printf")).expect("a line");
    assert!(line.contains("\u{1b}[32m"), "{line:?}");
    terminal.line("exit 7").await;
    let screen = terminal.has_left_with(7).await;
    assert!(!screen.contains("stream error"), "{screen}");
}

pub(super) async fn keys_reach_the_programs_in_the_shell(kind: Kind) {
    if tmux_is_missing() {
        return;
    }
    let Some(server) = Server::with_token(kind, Some("secret")).await else { return };
    let terminal = start(&server).await;
    terminal.line("trap 'echo inter''rupted' INT; echo beg''un; cat; echo go''ne").await;
    terminal.see("begun").await;
    terminal.line("some words").await;
    terminal.until("an echo", |screen| screen.matches("some words").count() == 2).await;
    // Ctrl-C goes to the remote shell and does not end the local program.
    terminal.key("C-c").await;
    terminal.see("interrupted").await;
    terminal.line("cat > /dev/null; echo do''ne").await;
    terminal.key("C-d").await;
    terminal.see("done").await;
    terminal.key("C-d").await;
    terminal.has_left_with(0).await;
}
