//! Starting an agent.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::agent::{Process, install};
use super::pipe::{PATIENCE, chat_in, feed, run};

/// Fails unless a crash is shown as users can read it.
fn assert_readable(text: &str) {
    for raw in ["unix_wait_status", "terminationInfo", "\\n", "\\\""] {
        assert!(!text.contains(raw), "{raw} in\n{text}");
    }
}

#[tokio::test]
async fn an_agent_is_found_by_its_name_or_says_how_to_install_it() {
    let agent = Process::new();
    let folder = agent.path.parent().unwrap();
    agent.install(folder, "codex-acp");
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let home = folder.display().to_string();
    let environment = [("PATH", path.as_str()), ("HOME", home.as_str())];
    let ended = feed(chat_in(None, &["--agent", "codex"], &environment), "hello\n").await;
    assert!(ended.said.starts_with("process "), "{} {}", ended.said, ended.notes);
    let environment = [("PATH", "/no/such/folder"), ("HOME", home.as_str())];
    let ended = feed(chat_in(None, &["--agent", "qwen"], &environment), "hello\n").await;
    assert!(ended.notes.contains("install it with: npm install -g @qwen-code/qwen-code"), "{}", ended.notes);
    assert_eq!(ended.code, 3);
    let ended = feed(chat_in(None, &["--agent", "nobody"], &environment), "hello\n").await;
    assert!(ended.notes.contains("known are opencode, codex, claude, gemini, qwen"), "{}", ended.notes);
    assert_eq!(ended.code, 3);
}

#[tokio::test]
async fn a_file_that_cannot_be_executed_is_not_an_agent() {
    let agent = Process::new();
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    std::fs::create_dir(&first).unwrap();
    std::fs::write(first.join("codex-acp"), "notes about codex").unwrap();
    agent.install(&second, "codex-acp");
    let path = format!("{}:{}:/usr/bin:/bin", first.display(), second.display());
    let ended = feed(chat_in(None, &["--agent", "codex"], &[("PATH", &path)]), "hello\n").await;
    assert!(ended.said.starts_with("process "), "{} {}", ended.said, ended.notes);
}

#[tokio::test]
async fn an_agent_that_dies_at_its_start_is_reported_as_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "killed", "kill -9 $$\n");
    install(folder.path(), "old-node", "printf 'SyntaxError: \"x\"\\nNode.js v12\\n' >&2\nexit 1\n");
    for (name, parts) in [
        ("killed", &["The agent died  killed by SIGKILL"][..]),
        ("old-node", &["The agent died  exit code 1", "  SyntaxError: \"x\"\n", "  Node.js v12\n"]),
    ] {
        let command = folder.path().join(name).display().to_string();
        let ended = run(None, &["--agent-command", &command], "hello\n").await;
        assert_eq!(ended.code, 3, "{}", ended.notes);
        assert_readable(&ended.notes);
        for part in parts {
            assert!(ended.notes.contains(part), "no {part:?} in\n{}", ended.notes);
        }
        assert!(!ended.notes.contains("restarts it"), "the chat has ended:\n{}", ended.notes);
    }
}

#[tokio::test]
async fn the_agent_is_not_called_by_the_name_of_an_interpreter() {
    let ended = run(None, &["--agent-command", "sh -c 'exit 1'"], "").await;
    assert!(ended.notes.contains("starting the agent:"), "{}", ended.notes);
}

#[tokio::test]
async fn opencode_is_configured_to_ask_unless_the_user_has_configured_it() {
    let folder = tempfile::tempdir().unwrap();
    // It prints the variable instead of speaking the protocol, and exits.
    install(folder.path(), "opencode", "echo \"permissions: $OPENCODE_PERMISSION\" >&2\nexit 1\n");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    for (own, expected) in [
        ("", r#"{"edit":"ask","bash":"ask","webfetch":"ask"}"#),
        (r#"{"edit":"deny"}"#, r#"{"edit":"deny"}"#),
    ] {
        let environment = [("PATH", path.as_str()), ("OPENCODE_PERMISSION", own)];
        let ended = feed(chat_in(None, &["--agent", "opencode"], &environment), "").await;
        assert!(ended.notes.contains(&format!("permissions: {expected}")), "{}", ended.notes);
    }
}

/// The example `agents` with the programs in a folder.
fn list_command(folder: &Path) -> Command {
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let mut list = Command::new(env!("CARGO_BIN_EXE_list-agents"));
    list.env("PATH", path).env("HOME", folder);
    list
}

/// The output of the example `agents` for the programs in a folder.
async fn list(folder: &Path) -> String {
    let list = list_command(folder).output();
    let list = tokio::time::timeout(PATIENCE, list).await.expect("the list ends").unwrap();
    String::from_utf8(list.stdout).unwrap()
}

/// The lines of the table about an agent.
fn rows(table: &str, agent: &str) -> String {
    let lines = table.lines().skip_while(|line| !line.starts_with(agent));
    let more = lines.clone().skip(1).take_while(|line| line.starts_with(' '));
    lines.take(1).chain(more).map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn agents_on_the_path_are_listed_with_what_they_can_do() {
    let agent = Process::new();
    let folder = tempfile::tempdir().unwrap();
    agent.install(folder.path(), "codex-acp");
    install(folder.path(), "qwen", "printf 'no \"node\"\\nhere\\n' >&2\nexit 1\n");
    install(folder.path(), "opencode", "kill -9 $$\n");
    let text = list(folder.path()).await;
    let codex: Vec<String> = rows(&text, "codex").split_whitespace().map(str::to_owned).collect();
    assert_eq!(codex[..8], ["codex", "1", "yes", "no", "no", "yes", "no", "no"], "{text}");
    assert!(rows(&text, "codex").trim_end().ends_with("oauth, gemini-api-key, openai-api-key"), "{text}");
    let qwen = rows(&text, "qwen");
    assert!(qwen.contains("failed to start: the agent has ended: error, exit code 1\n"), "{text}");
    assert!(qwen.contains("  no \"node\"\n") && qwen.contains("  here\n"), "{text}");
    assert!(rows(&text, "opencode").contains("killed by SIGKILL"), "{text}");
    assert!(rows(&text, "gemini").contains("not installed: npm install -g @google/gemini-cli"), "{text}");
    assert_readable(&text);
}

#[tokio::test]
async fn the_table_is_aligned_and_plain_whatever_an_agent_is_called() {
    let agent = Process::new();
    let folder = tempfile::tempdir().unwrap();
    let script = std::fs::read_to_string(&agent.path).unwrap();
    let hostile = script.replace(r#""version":"1""#, r#""version":"日本\u001b[31m1""#);
    std::fs::write(folder.path().join("hostile.sh"), hostile).unwrap();
    install(folder.path(), "codex-acp", &format!("exec sh {}\n", folder.path().join("hostile.sh").display()));
    agent.install(folder.path(), "qwen");
    let text = list(folder.path()).await;
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    // 日本 takes four columns.
    assert!(rows(&text, "codex").contains("日本1       yes"), "{text}");
    assert!(rows(&text, "qwen").contains("1           yes"), "{text}");
}

#[tokio::test]
async fn an_agent_that_does_not_respond_delays_no_row_of_another_agent() {
    let agent = Process::new();
    let folder = tempfile::tempdir().unwrap();
    agent.install(folder.path(), "codex-acp");
    install(folder.path(), "qwen", "exec cat >/dev/null\n");
    let mut list = list_command(folder.path());
    let mut list = list.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(list.stdout.take().unwrap()).lines();
    let shown = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with("codex") {
                return;
            }
        }
        panic!("no row of codex");
    };
    tokio::time::timeout(PATIENCE, shown).await.expect("the row is shown");
    assert!(list.try_wait().unwrap().is_none(), "the list waits for qwen");
}
