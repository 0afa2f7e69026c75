//! What is seen in a terminal.

use std::time::Duration;

use mock_server::State;

use super::agent::{Process, released_server, server};
use super::terminal::{Start, Terminal, tmux_is_missing};

#[tokio::test]
async fn text_is_seen_while_it_is_streamed_and_a_spinner_turns() {
    chat!(server, terminal);
    terminal.line("stream").await;
    let screen = terminal.see("first words").await;
    assert!(screen.contains("› stream"), "{screen}");
    terminal.see("working").await;
    // The time beside the spinner shows that it is redrawn without anything happening.
    terminal.see("working 2s").await;
    terminal.see("working 3s").await;
}

#[tokio::test]
async fn thoughts_are_dim_and_speech_is_not() {
    chat!(server, terminal);
    terminal.line("think").await;
    terminal.see("plain speech").await;
    let painted = terminal.painted().await;
    let line = |text: &str| painted.lines().find(|line| line.contains(text)).unwrap().to_owned();
    assert!(line("deep thought").contains("\u{1b}[2m"), "{painted:?}");
    assert!(!line("plain speech").contains("\u{1b}[2m"), "{painted:?}");
}

#[tokio::test]
async fn with_no_color_there_are_no_colours_but_thoughts_are_still_dim() {
    if tmux_is_missing() {
        return;
    }
    let server = server().await;
    let mut start = Start::with(&server.url());
    start.environment.push(("NO_COLOR", "1".to_owned()));
    let terminal = Terminal::start(&start).await;
    terminal.see("/help lists the commands").await;
    terminal.line("think").await;
    terminal.see("plain speech").await;
    terminal.line("diff").await;
    terminal.see("+ new line").await;
    let painted = terminal.painted().await;
    assert!(painted.contains("\u{1b}[2mdeep thought"), "{painted:?}");
    for colour in 30..38 {
        assert!(!painted.contains(&format!("\u{1b}[{colour}m")), "{painted:?}");
    }
}

#[tokio::test]
async fn a_tool_call_has_a_state_line_that_lives_and_ends() {
    chat!(server, terminal);
    terminal.line("tool").await;
    terminal.see("Run the tests  running").await;
    terminal.key("C-c").await;
    let screen = terminal.see("Run the tests  not finished").await;
    assert_eq!(screen.matches("Run the tests").count(), 1, "the state line is still there:\n{screen}");
}

#[tokio::test]
async fn a_change_is_shown_in_colour() {
    chat!(server, terminal);
    terminal.line("diff").await;
    terminal.see("+ new line").await;
    let painted = terminal.painted().await;
    for (text, colour) in [("- old line", "\u{1b}[31m"), ("+ new line", "\u{1b}[32m")] {
        let line = painted.lines().find(|line| line.contains(text)).unwrap();
        assert!(line.contains(colour), "{line:?}");
    }
}

#[tokio::test]
async fn of_a_very_long_output_the_end_is_shown() {
    chat!(server, terminal);
    terminal.line("output").await;
    terminal.see("printed").await;
    let everything = terminal.everything().await;
    assert!(
        everything.contains("output line 5000") && everything.contains("4988 lines before"),
        "{everything}"
    );
    assert!(!everything.contains("output line 4000"));
}

#[tokio::test]
async fn a_crash_is_a_card_with_code_and_stderr_and_the_next_message_restarts_the_agent() {
    chat!(server, terminal);
    terminal.line("crash").await;
    let screen = terminal.see("restarts it").await;
    for part in
        ["farewell", "The agent died  exit code 7", "stderr, all of it:", "it was the disk", "no luck"]
    {
        assert!(screen.contains(part), "no {part:?} in\n{screen}");
    }
    terminal.line("hello").await;
    let screen = terminal.see("you said hello").await;
    assert!(screen.contains("The agent runs again"), "{screen}");
    assert_eq!(screen.matches("› hello").count(), 1, "{screen}");
    assert_eq!(screen.matches("it was the disk").count(), 1, "{screen}");
}

#[tokio::test]
async fn stderr_that_a_released_server_reports_late_is_shown_once() {
    if tmux_is_missing() {
        return;
    }
    for next in [None, Some("stream")] {
        let server = released_server(Duration::from_secs(3)).await;
        let terminal = Terminal::start(&Start::with(&server.url())).await;
        terminal.see("/help lists the commands").await;
        terminal.line("crash").await;
        let screen = terminal.see("restarts it").await;
        assert!(screen.contains("The agent died  exit code 7"), "{screen}");
        if let Some(next) = next {
            terminal.line(next).await;
        }
        let screen = terminal.see("it was the disk").await;
        assert_eq!(screen.matches("it was the disk").count(), 1, "{screen}");
        assert!(screen.contains("no luck"), "{screen}");
    }
}

#[tokio::test]
async fn an_agent_that_dies_between_turns_is_reported_and_can_be_restarted() {
    chat!(server, terminal);
    server.restart(State::Lost).await;
    terminal.line("hello").await;
    terminal.until("failure", |screen| screen.contains("✗") || screen.contains("┃")).await;
    terminal.line("/restart").await;
    terminal.until("session again", |screen| screen.matches("mode Build").count() == 2).await;
    terminal.line("still there").await;
    terminal.see("you said still there").await;
}

#[tokio::test]
async fn a_turn_that_fails_shows_its_cause_and_the_chat_continues() {
    chat!(server, terminal);
    terminal.line("fail").await;
    terminal.see("no idea").await;
    terminal.line("refuse").await;
    terminal.see("– stopped: refusal").await;
    terminal.line("hello").await;
    terminal.see("you said hello").await;
}

#[tokio::test]
async fn mode_model_files_and_help_do_what_they_say() {
    chat!(server, terminal);
    terminal.line("/mode").await;
    terminal.see("▸  1  Build").await;
    terminal.line("/mode plan").await;
    terminal.see("The mode is Plan now.").await;
    terminal.line("/mode").await;
    terminal.see("▸  2  Plan").await;
    terminal.line("/model 2").await;
    terminal.see("The model is Mock fast now.").await;
    terminal.line("/files").await;
    terminal.see("› /files\n/\n").await;
    terminal.line("/files nothing").await;
    terminal.see("✗ reading the files").await;
    terminal.line("/help").await;
    terminal.see("/resume [N or ID]").await;
    terminal.line("/nonsense").await;
    terminal.see("There is no command /nonsense").await;
    assert!(
        server.requests().iter().any(|request| request.rpc_method().as_deref() == Some("session/set_mode"))
    );
}

#[tokio::test]
async fn another_session_is_listed_and_resumed_with_its_history() {
    chat!(server, terminal);
    terminal.line("/new").await;
    terminal.until("second session", |screen| screen.matches("A new session").count() == 2).await;
    terminal.line("/resume").await;
    let screen = terminal.see("/resume NUMBER resumes").await;
    let present = screen.lines().find(|line| line.contains("this one")).unwrap();
    let other = screen.lines().find(|line| line.contains("mock-session-1")).unwrap();
    assert!(present.contains("mock-session-2"), "{screen}");
    let number = other.split_whitespace().next().unwrap();
    terminal.line(&format!("/resume {number}")).await;
    let screen = terminal.see("Back in session mock-session-1").await;
    assert!(screen.contains("› what was") && screen.contains("the past of mock-session-1"), "{screen}");
    terminal.line("hello").await;
    terminal.see("you said hello").await;
}

#[tokio::test]
async fn the_screen_may_become_narrow_and_wide_again() {
    chat!(server, terminal);
    terminal.line("stream").await;
    terminal.see("working").await;
    terminal.tmux(&["resize-window", "-x", "40", "-y", "12"]).await;
    terminal.key("C-c").await;
    let screen = terminal.see("– cancelled").await;
    assert!(screen.lines().all(|line| line.chars().count() <= 40), "{screen}");
    assert_eq!(screen.matches("first words").count(), 1, "{screen}");
    assert!(!screen.contains("working"), "a row of the old width is left:\n{screen}");
    terminal.line("long").await;
    let screen = terminal.see("the end").await;
    assert!(screen.contains("日本語"), "{screen}");
    terminal.tmux(&["resize-window", "-x", "100", "-y", "30"]).await;
    terminal.line("hello").await;
    let screen = terminal.see("you said hello").await;
    assert_eq!(screen.matches("you said hello").count(), 1, "{screen}");
    terminal.key("C-d").await;
    terminal.has_left_with(0).await;
}

#[tokio::test]
async fn a_screen_of_few_columns_and_rows_is_enough_to_answer() {
    chat!(server, terminal);
    terminal.tmux(&["resize-window", "-x", "12", "-y", "4"]).await;
    terminal.line("permission").await;
    terminal.see("Esc").await;
    terminal.key("y").await;
    terminal.see("allow_once").await;
}

#[tokio::test]
async fn hostile_text_does_nothing_to_the_terminal() {
    chat!(server, terminal);
    let title = terminal.tmux(&["display-message", "-p", "#{pane_title}"]).await;
    terminal.line("hostile").await;
    let screen = terminal.see("1 or y").await;
    assert!(screen.contains("/help lists the commands"), "the screen was cleared:\n{screen}");
    for part in ["start red", "cut", "hidden", "end", "Evil tool second line", "? Allow me evil"] {
        assert!(screen.contains(part), "no {part:?} in\n{screen}");
    }
    assert_eq!(terminal.tmux(&["display-message", "-p", "#{pane_title}"]).await, title);
    assert_eq!(terminal.tmux(&["display-message", "-p", "#{alternate_on}#{cursor_flag}"]).await.trim(), "01");
    let painted = terminal.painted().await;
    let line = painted.lines().find(|line| line.contains("start red")).unwrap();
    assert!(!line.contains("\u{1b}[31m") && !line.contains("\u{1b}[8m"), "{line:?}");
    assert_eq!(terminal.tmux(&["list-buffers"]).await, "", "the clipboard was written");
    terminal.key("n").await;
    terminal.line("hello").await;
    terminal.see("you said hello").await;
}

#[tokio::test]
async fn a_signal_and_a_panic_leave_the_terminal_as_it_was() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130), ("-USR1", 101)] {
        chat!(server, terminal);
        terminal.line("stream").await;
        terminal.see("working").await;
        let process = terminal.process().await.to_string();
        let sent = std::process::Command::new("kill").args([signal, &process]).status().unwrap();
        assert!(sent.success());
        let screen = terminal.has_left_with(code).await;
        assert_eq!(screen.contains("panic requested"), signal == "-USR1", "{screen}");
    }
}

#[tokio::test]
async fn a_terminal_that_goes_away_takes_the_chat_with_it() {
    for busy in [false, true] {
        chat!(server, terminal);
        if busy {
            terminal.line("stream").await;
            terminal.see("working").await;
        }
        let process = terminal.process().await;
        terminal.kill().await;
        let gone = || !std::path::Path::new(&format!("/proc/{process}")).exists();
        sdk_tests::eventually("the end of the chat", gone).await;
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_ends_the_chat_with_a_reason() {
    if tmux_is_missing() {
        return;
    }
    let start = Start { arguments: "--agent-command /no/such/agent".to_owned(), ..Start::default() };
    let terminal = Terminal::start(&start).await;
    let screen = terminal.has_left_with(3).await;
    assert!(screen.contains("✗ starting the agent"), "{screen}");
}

#[tokio::test]
async fn an_agent_that_is_a_process_can_be_chatted_with_and_restarted() {
    if tmux_is_missing() {
        return;
    }
    let agent = Process::new();
    let start = Start { arguments: agent.option(), ..Start::default() };
    let terminal = Terminal::start(&start).await;
    terminal.see("/help lists the commands").await;
    terminal.line("hello").await;
    terminal.see("process").await;
    terminal.line("die").await;
    let screen = terminal.see("restarts it").await;
    assert!(screen.contains("exit code 9") && screen.contains("shell: no more"), "{screen}");
    terminal.line("again").await;
    terminal.until("second process", |screen| screen.matches(" here").count() == 2).await;
}

#[tokio::test]
async fn a_message_that_could_not_be_sent_to_a_restarted_agent_is_not_lost() {
    if tmux_is_missing() {
        return;
    }
    let agent = Process::new();
    let start = Start { arguments: agent.option(), ..Start::default() };
    let terminal = Terminal::start(&start).await;
    terminal.see("/help lists the commands").await;
    terminal.line("die").await;
    terminal.see("restarts it").await;
    let away = agent.path.with_extension("away");
    std::fs::rename(&agent.path, &away).unwrap();
    terminal.line("important words").await;
    terminal.see("✗ restarting the agent").await;
    terminal.until("the message again", |screen| screen.matches("› important words").count() == 2).await;
    std::fs::rename(&away, &agent.path).unwrap();
    terminal.key("Enter").await;
    let screen = terminal.see(" here").await;
    assert!(screen.contains("The agent runs again"), "{screen}");
}

#[tokio::test]
async fn without_a_server_an_embedded_one_shows_everything() {
    if tmux_is_missing() {
        return;
    }
    let terminal = Terminal::start(&Start::default()).await;
    terminal.see("/help lists the commands").await;
    terminal.line("tour").await;
    terminal.see("1 or y").await;
    terminal.key("y").await;
    terminal.see("Your name").await;
    for answer in ["Ada", "blue", ""] {
        terminal.line(answer).await;
    }
    terminal
        .until("end of the turn", |screen| {
            screen.contains("Mend it") && !screen.contains("working") && !screen.contains("answer ›")
        })
        .await;
    let everything = terminal.everything().await;
    for part in [
        "The user wants to see a thought",
        "✔ Run the tests",
        "+ fn greet(name: &str)",
        r#""colour":"blue","sure":true"#,
    ] {
        assert!(everything.contains(part), "no {part:?} in\n{everything}");
    }
    for moving in ["starting showcase", "working", "1 or y"] {
        assert!(!everything.contains(moving), "{moving:?} is left above:\n{everything}");
    }
    terminal.line("/files").await;
    terminal.see("README.md").await;
}
