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

#[tokio::test]
async fn everything_that_the_agent_passes_to_a_tool_is_shown() {
    chat!(server, terminal);
    for (prompt, shown) in [
        ("elsewhere", &["  $ rm -rf build\n", "  workdir: /home/me/other\n", "  env: {\"A\":[\"b\"]}\n"][..]),
        ("nested", &["  filter: {\"all\":true}\n", "  ids: [17,18]\n", "  until: null\n"]),
    ] {
        terminal.line(prompt).await;
        let screen = terminal.see("1 or y").await;
        for part in shown {
            assert!(screen.contains(part), "no {part:?} on\n{screen}");
        }
        terminal.key("n").await;
        terminal.until("end of the card", |screen| !screen.contains("1 or y")).await;
    }
}

#[tokio::test]
async fn beside_a_diff_the_card_shows_what_the_diff_does_not() {
    chat!(server, terminal);
    terminal.tmux(&["resize-window", "-x", "80", "-y", "40"]).await;
    terminal.line("rename").await;
    let screen = terminal.see("1 or y").await;
    for part in [
        "  $ sed -i s/all/every/ a.rs\n",
        "  replace_all: true\n",
        "  scope: al\n",
        "  changes: {\"/w/a.rs\":{",
        "\"content\":\"…\"",
        "  /w/b.rs\n",
        "- all\n",
        "+ every\n",
    ] {
        assert!(screen.contains(part), "no {part:?} on\n{screen}");
    }
    for part in ["file_path", "old_string", "new_string", "diff:", "Index", "  /w/a.rs\n"] {
        assert!(!screen.contains(part), "{part:?} on\n{screen}");
    }
}
