//! How users learn to log in.

use super::agent::Process;
use super::pipe::{chat_in, command, feed};
use super::terminal::{Start, Terminal, tmux_is_missing};

#[tokio::test]
async fn a_key_in_its_variable_logs_in_to_an_agent_that_wants_it() {
    let agent = Process::new();
    let command = agent.command();
    let arguments = ["--agent-command", &command];
    let with_key = [("WANTS_LOGIN", "1"), ("GEMINI_API_KEY", "k")];
    for arguments in [&arguments[..], &[arguments[0], arguments[1], "--resume", "s1"]] {
        let ended = feed(chat_in(None, arguments, &with_key), "hello\n").await;
        assert_eq!(ended.code, 0, "{}", ended.notes);
    }
    assert_eq!(agent.logins(), 2);
    let without = [("WANTS_LOGIN", "1"), ("GEMINI_API_KEY", "")];
    let ended = feed(chat_in(None, &arguments, &without), "hello\n").await;
    assert_eq!(ended.code, 3);
    let program = format!("Browser: by the agent's own program, `{command}`");
    for hint in [program.as_str(), "Key: set GEMINI_API_KEY", "OPENAI_API_KEY"] {
        assert!(ended.notes.contains(hint), "{}", ended.notes);
    }
}

#[tokio::test]
async fn every_key_is_tried_until_one_logs_in() {
    let agent = Process::new();
    let keys = [("GEMINI_API_KEY", "k"), ("OPENAI_API_KEY", "k"), ("REFUSED_LOGIN", "openai-api-key")];
    for (wants, input) in [("WANTS_LOGIN", ""), ("PROMPT_WANTS_LOGIN", "hello\n")] {
        let environment: Vec<_> = keys.into_iter().chain([(wants, "1")]).collect();
        let ended = feed(chat_in(None, &["--agent-command", &agent.command()], &environment), input).await;
        assert_eq!(ended.code, 0, "{}", ended.notes);
        assert_eq!(ended.said.matches(" here\n").count(), input.lines().count(), "{}", ended.said);
    }
    assert_eq!(agent.logins(), 4);
}

#[tokio::test]
async fn a_key_logs_in_again_after_the_login_has_expired() {
    let agent = Process::new();
    let environment = [("PROMPT_WANTS_LOGIN", "1"), ("LOGIN_EXPIRES", "1"), ("GEMINI_API_KEY", "k")];
    let chat = chat_in(None, &["--agent-command", &agent.command()], &environment);
    let ended = feed(chat, "one\ntwo\n/restart\nthree\n").await;
    assert_eq!((ended.code, ended.said.matches(" here\n").count()), (0, 3), "{}", ended.notes);
    assert_eq!(agent.logins(), 3);
}

#[tokio::test]
async fn a_prompt_is_not_sent_again_if_the_agent_had_begun_to_work() {
    let agent = Process::new();
    let environment = [("PROMPT_WANTS_LOGIN", "1"), ("WORKS_FIRST", "1"), ("GEMINI_API_KEY", "k")];
    let chat = chat_in(None, &["--agent-command", &agent.command()], &environment);
    let ended = feed(chat, "do it\n").await;
    assert_eq!((ended.code, ended.said.as_str()), (1, "half done\n"), "{}", ended.notes);
    for note in ["✗ the turn failed: ", "the prompt is not sent again", "Logged in by gemini-api-key"] {
        assert!(ended.notes.contains(note), "no {note:?} in {}", ended.notes);
    }
    // The next prompt finds the agent logged in.
    let chat = chat_in(None, &["--agent-command", &agent.command()], &environment);
    let ended = feed(chat, "do it\ngo on\n").await;
    assert_eq!((ended.said.matches("half done").count(), ended.said.matches(" here\n").count()), (1, 1));
    assert_eq!((ended.code, agent.logins()), (1, 2), "{}", ended.notes);
}

#[tokio::test]
async fn a_prompt_that_is_not_sent_again_is_in_the_editor() {
    if tmux_is_missing() {
        return;
    }
    let agent = Process::new();
    let environment =
        ["PROMPT_WANTS_LOGIN", "WORKS_FIRST", "GEMINI_API_KEY"].map(|name| (name, "1".to_owned()));
    let start = Start { arguments: agent.option(), environment: environment.to_vec() };
    let terminal = Terminal::start(&start).await;
    terminal.see("/help lists the commands").await;
    terminal.line("do it").await;
    terminal.see("Logged in by gemini-api-key").await;
    let screen = terminal.until("the prompt again", |screen| screen.matches("› do it").count() == 2).await;
    assert!(!screen.contains(" here"), "{screen}");
    terminal.key("Enter").await;
    terminal.see(" here").await;
    assert_eq!(terminal.everything().await.matches("half done").count(), 1);
}

#[tokio::test]
async fn a_key_that_is_set_is_not_asked_for() {
    let agent = Process::new();
    for (wants, code) in [("WANTS_LOGIN", 3), ("PROMPT_WANTS_LOGIN", 1)] {
        let environment =
            [(wants, "1"), ("KEEPS_WANTING", "1"), ("GEMINI_API_KEY", "k"), ("OPENAI_API_KEY", "")];
        let ended =
            feed(chat_in(None, &["--agent-command", &agent.command()], &environment), "hello\n").await;
        assert_eq!(ended.code, code, "{}", ended.notes);
        assert!(ended.notes.contains("Key: GEMINI_API_KEY is set, but the agent"), "{}", ended.notes);
        assert!(ended.notes.contains("Other key: set OPENAI_API_KEY"), "{}", ended.notes);
    }
    assert_eq!(agent.logins(), 2);
}

#[tokio::test]
async fn a_login_that_the_agent_does_not_require_is_left_alone() {
    let agent = Process::new();
    let command = agent.command();
    let key = [("OPENAI_API_KEY", "k")];
    let ended = feed(chat_in(None, &["--agent-command", &command], &key), "hello\n/resume\n").await;
    assert_eq!(ended.code, 0, "{}", ended.notes);
    assert_eq!(agent.logins(), 0, "a key replaces the user's stored login");
}

#[tokio::test]
async fn a_prompt_that_requires_a_login_lists_the_methods() {
    let agent = Process::new();
    let environment = [("PROMPT_WANTS_LOGIN", "1"), ("GEMINI_API_KEY", "")];
    let ended = feed(chat_in(None, &["--agent-command", &agent.command()], &environment), "hello\n").await;
    assert_eq!(ended.code, 1, "{}", ended.notes);
    for hint in ["The agent requires a login. Its methods are:", "Key: set GEMINI_API_KEY"] {
        assert!(ended.notes.contains(hint), "{}", ended.notes);
    }
}

#[tokio::test]
async fn the_description_of_a_login_method_is_shown() {
    let agent = Process::new();
    let methods =
        r#"[{"id":"own","name":"Login with it","description":"Run `it auth login` in the terminal"}]"#;
    let environment = [("WANTS_LOGIN", "1"), ("METHODS", methods)];
    let ended = feed(chat_in(None, &["--agent-command", &agent.command()], &environment), "").await;
    assert!(ended.notes.contains("Login with it: Run `it auth login` in the terminal"), "{}", ended.notes);
}

#[tokio::test]
async fn a_terminal_login_names_a_program_that_can_be_run() {
    let agent = Process::new();
    let folder = tempfile::tempdir().unwrap();
    agent.install(&folder.path().join("node_modules/.bin"), "claude-agent-acp");
    let methods = r#"[{"id":"tty","type":"terminal","name":"Terminal","args":["--cli"]}]"#;
    let home = folder.path().display().to_string();
    let environment = [
        ("WANTS_LOGIN", "1"),
        ("METHODS", "[]"),
        ("TERMINAL_METHODS", methods),
        ("PATH", "/usr/bin:/bin"),
        ("HOME", home.as_str()),
    ];
    let mut command = command(None, &["--agent", "claude"], &environment);
    let ended = feed(command.current_dir(&folder).spawn().unwrap(), "").await;
    let hint = r#"Terminal: run "./node_modules/.bin/claude-agent-acp" "--cli" in a terminal"#;
    assert!(ended.notes.contains(hint), "{}", ended.notes);
}

#[tokio::test]
async fn an_agent_that_offers_no_login_method_has_a_hint_of_the_chat() {
    let agent = Process::new();
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    for (name, program, hint) in [
        ("opencode", "opencode", "Run `opencode auth login` in a terminal"),
        ("codex", "codex-acp", "Set OPENAI_API_KEY"),
        ("claude", "claude-agent-acp", "Run `claude-agent-acp --cli` in a terminal"),
        ("gemini", "gemini", "Run `gemini` in a terminal"),
        ("qwen", "qwen", "Run `qwen` in a terminal"),
    ] {
        agent.install(folder.path(), program);
        let environment = [("WANTS_LOGIN", "1"), ("METHODS", "[]"), ("PATH", path.as_str())];
        let ended = feed(chat_in(None, &["--agent", name], &environment), "").await;
        assert!(ended.notes.contains(hint), "{name}: {}", ended.notes);
        assert!(!ended.notes.contains("Its methods are"), "{name}: {}", ended.notes);
    }
}

#[tokio::test]
async fn a_restarted_agent_is_logged_in_to_again() {
    if tmux_is_missing() {
        return;
    }
    let agent = Process::new();
    let environment = vec![("WANTS_LOGIN", "1".to_owned()), ("GEMINI_API_KEY", "k".to_owned())];
    let terminal = Terminal::start(&Start { arguments: agent.option(), environment }).await;
    terminal.see("/help lists the commands").await;
    assert_eq!(agent.logins(), 1);
    terminal.line("die").await;
    terminal.see("restarts it").await;
    terminal.line("again").await;
    let screen = terminal.see(" here").await;
    assert!(screen.contains("The agent runs again"), "{screen}");
    assert_eq!((agent.logins(), agent.starts()), (2, 2));
}
