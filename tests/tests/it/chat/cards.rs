//! What a permission card shows before the user decides.

use super::agent::server;
use super::terminal::{Start, Terminal, tmux_is_missing};

/// Fails unless the screen shows every key of the card.
fn assert_keys(screen: &str) {
    for key in ["1 or y", "2 or n", "Esc"] {
        assert!(screen.contains(key), "no {key:?} on\n{screen}");
    }
}

#[tokio::test]
async fn of_many_files_the_first_are_shown_and_the_keys_always() {
    chat!(server, terminal);
    for (width, height) in [("80", "40"), ("80", "24"), ("40", "12")] {
        terminal.tmux(&["resize-window", "-x", width, "-y", height]).await;
        terminal.line("edits").await;
        let screen = terminal.see("more files").await;
        let screen = match screen.contains("1 or y") {
            true => screen,
            false => terminal.see("1 or y").await,
        };
        assert_keys(&screen);
        assert!(screen.contains("file1.rs") && !screen.contains("file5.rs"), "{screen}");
        let more = screen.lines().find(|line| line.contains("more files")).unwrap();
        assert!(more.contains("more lines, "), "{more}");
        terminal.key("n").await;
        terminal.until("end of the card", |screen| !screen.contains("1 or y")).await;
    }
}

#[tokio::test]
async fn a_command_is_shown_from_its_beginning() {
    chat!(server, terminal);
    terminal.line("script").await;
    let screen = terminal.see("1 or y").await;
    assert_keys(&screen);
    for line in ["$ rm -rf /everything", "echo step 1\n", "echo step 9"] {
        assert!(screen.contains(line), "no {line:?} on\n{screen}");
    }
    terminal.key("n").await;
    terminal.line("one line").await;
    let screen = terminal.see("1 or y").await;
    assert!(screen.contains("/everything"), "{screen}");
}

#[tokio::test]
async fn of_a_long_command_the_card_says_how_much_follows() {
    chat!(server, terminal);
    terminal.line("endless").await;
    let screen = terminal.see("1 or y").await;
    assert_keys(&screen);
    assert!(screen.contains("$ echo step 1\n") && screen.contains("? Run for long"), "{screen}");
    let shown = screen.lines().filter(|line| line.contains("echo step ")).count();
    assert!(screen.contains(&format!("… {} more lines\n", 500 - shown)), "{shown} of 500 in\n{screen}");
}
