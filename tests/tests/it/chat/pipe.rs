//! Through a pipe.

use std::process::Stdio;
use std::time::Duration;

use sdk_tests::eventually;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::agent::{Process, server};
use super::terminal::CHAT;

/// A bound for a machine that is busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) said: String,
    pub(super) notes: String,
}

fn chat(url: Option<&str>, arguments: &[&str]) -> Child {
    chat_in(url, arguments, &[])
}

pub(super) fn chat_in(url: Option<&str>, arguments: &[&str], environment: &[(&str, &str)]) -> Child {
    command(url, arguments, environment).spawn().unwrap()
}

pub(super) fn command(url: Option<&str>, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(CHAT);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
        .env_remove("SANDBOX_AGENT_URL")
        .env_remove("SANDBOX_AGENT_TOKEN")
        .env_remove("SANDBOX_AGENT_AGENT");
    if let Some(url) = url {
        command.env("SANDBOX_AGENT_URL", url);
    }
    command.envs(environment.iter().copied());
    command
}

pub(super) async fn end(child: Child) -> Ended {
    let output =
        tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("the chat hangs").unwrap();
    let (said, notes) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    for text in [&said, &notes] {
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "control characters in {text:?}");
    }
    Ended { code: output.status.code().unwrap(), said, notes }
}

/// Runs the chat with this input.
pub(super) async fn run(url: Option<&str>, arguments: &[&str], input: impl AsRef<[u8]>) -> Ended {
    feed(chat(url, arguments), input).await
}

pub(super) async fn feed(mut child: Child, input: impl AsRef<[u8]>) -> Ended {
    let mut stdin = child.stdin.take().unwrap();
    // A chat that has ended does not read the rest.
    let _ = stdin.write_all(input.as_ref()).await;
    drop(stdin);
    end(child).await
}

#[tokio::test]
async fn lines_go_in_and_only_what_the_agent_says_comes_out() {
    let server = server().await;
    let ended = run(Some(&server.url()), &[], "hello\n\nthink\nzum Schluß").await;
    assert_eq!(ended.said, "you said hello\nplain speech\nyou said zum Schluß\n");
    assert!(ended.notes.contains("deep thought") && ended.notes.contains("› hello"), "{}", ended.notes);
    assert_eq!(ended.code, 0);
}

#[tokio::test]
async fn nothing_in_is_nothing_out() {
    let ended = run(None, &[], "").await;
    assert_eq!((ended.code, ended.said.as_str()), (0, ""));
}

#[tokio::test]
async fn hostile_text_and_changes_come_without_escape_sequences() {
    let server = server().await;
    let ended = run(Some(&server.url()), &[], "hostile\ndiff\n").await;
    assert!(ended.said.contains("start red") && ended.said.contains("hidden"), "{}", ended.said);
    assert!(ended.notes.contains("+ new line"), "{}", ended.notes);
    assert_eq!(ended.code, 0);
}

#[tokio::test]
async fn a_permission_is_refused_unless_a_policy_gives_it() {
    let server = server().await;
    for (arguments, said) in [
        (&[][..], "permission: reject_once\n"),
        (&["--permissions", "ask"], "permission: reject_once\n"),
        (&["--permissions", "deny"], "permission: reject_once\n"),
        (&["--permissions", "edits"], "permission: reject_once\n"),
        (&["--permissions=allow"], "permission: allow_once\n"),
    ] {
        let ended = run(Some(&server.url()), arguments, "permission\n").await;
        assert_eq!((ended.said.as_str(), ended.code), (said, 0), "{arguments:?}: {}", ended.notes);
    }
}

#[tokio::test]
async fn a_question_is_declined() {
    let server = server().await;
    let ended = run(Some(&server.url()), &[], "question\n").await;
    assert_eq!(ended.said, "answer: {\"action\":\"decline\"}\n");
    assert!(ended.notes.contains("the input is not a terminal"), "{}", ended.notes);
}

#[tokio::test]
async fn commands_work_and_their_output_is_not_the_agents() {
    let server = server().await;
    let ended =
        run(Some(&server.url()), &[], "/mode plan\n/mode\n/model 2\n/files\n/resume\n/help\n/quit\nnever\n")
            .await;
    for part in [
        "The mode is Plan now.",
        "▸  2  Plan",
        "The model is Mock fast now.",
        "this one",
        "/resume [N or ID]",
    ] {
        assert!(ended.notes.contains(part), "no {part:?} in\n{}", ended.notes);
    }
    assert_eq!((ended.code, ended.said.as_str()), (0, ""));
}

#[tokio::test]
async fn the_exit_code_says_how_it_went() {
    let server = server().await;
    let url = server.url();
    for (arguments, input, code, note) in [
        (&[][..], "hello\n", 0, "› hello"),
        (&[], "fail\nhello\n", 1, "no idea"),
        (&[], "refuse\n", 1, "– stopped: refusal"),
        (&[], "/nonsense\n", 1, "There is no command /nonsense"),
        (&["--colour"], "", 2, "unknown option --colour; see --help"),
        (&["--agent", "nobody"], "hello\n", 3, "✗ starting nobody"),
        (&["--resume", "unknown", "--agent", "nobody"], "hello\n", 3, "✗ loading the session"),
        (&["--agent-command", "x"], "", 3, "--agent-command cannot be used with SANDBOX_AGENT_URL"),
        (&[], "crash\nnever sent\n", 4, "it was the disk"),
    ] {
        let ended = run(Some(&url), arguments, input).await;
        assert_eq!(ended.code, code, "{arguments:?} {input:?}: {}", ended.notes);
        assert!(ended.notes.contains(note), "no {note:?} in {}", ended.notes);
        assert!(!ended.notes.contains("never sent"));
    }
}

#[tokio::test]
async fn a_turn_that_failed_does_not_keep_the_next_from_being_sent() {
    let server = server().await;
    let ended = run(Some(&server.url()), &[], "fail\nhello\n").await;
    assert_eq!((ended.said.as_str(), ended.code), ("you said hello\n", 1));
}

#[tokio::test]
async fn an_interrupt_cancels_the_turn_and_ends_the_chat() {
    let server = server().await;
    let mut child = chat(Some(&server.url()), &[]);
    child.stdin.take().unwrap().write_all(b"stream\n").await.unwrap();
    let prompted =
        || server.requests().iter().any(|request| request.rpc_method().as_deref() == Some("session/prompt"));
    eventually("the prompt", prompted).await;
    let process = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &process]).status().await.unwrap().success());
    let ended = end(child).await;
    assert_eq!(ended.code, 130, "{}", ended.notes);
    assert!(ended.notes.contains("– stopped: cancelled"), "{}", ended.notes);
}

#[tokio::test]
async fn bytes_that_are_no_text_are_no_reason_to_stop() {
    let server = server().await;
    let ended = run(Some(&server.url()), &[], b"\xff\xfe odd\nhello\n").await;
    assert!(ended.said.ends_with("you said hello\n"), "{}", ended.said);
    assert_eq!(ended.code, 0);
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_the_chat() {
    let server = server().await;
    let mut child = chat(Some(&server.url()), &[]);
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all("hello\n".repeat(10).as_bytes()).await.unwrap();
    assert_eq!(end(child).await.code, 129);
}

#[tokio::test]
async fn stderr_from_before_the_turn_is_named_as_such() {
    let agent = Process::new();
    let ended = run(None, &["--agent-command", &agent.command()], "quiet\n").await;
    assert!(ended.notes.contains("stderr before this turn, all of it:"), "{}", ended.notes);
    assert!(ended.notes.contains("shell: started"), "{}", ended.notes);
}

#[tokio::test]
async fn a_session_that_is_loaded_without_a_history_has_a_warning() {
    let warning = "! The agent replayed no history.";
    let agent = Process::new();
    let ended = run(None, &["--agent-command", &agent.command(), "--resume", "typo"], "").await;
    assert!(ended.notes.contains(warning), "{}", ended.notes);
    let server = server().await;
    let ended = run(Some(&server.url()), &["--resume", "s1"], "").await;
    assert!(ended.notes.contains("Back in session s1") && !ended.notes.contains(warning), "{}", ended.notes);
}

#[tokio::test]
async fn a_mode_that_is_not_in_the_list_is_not_sent() {
    let server = server().await;
    let ended = run(Some(&server.url()), &[], "/mode no-such-mode\n/mode\n").await;
    assert!(ended.notes.contains("! There is no mode no-such-mode."), "{}", ended.notes);
    assert_eq!(ended.code, 1, "{}", ended.notes);
    assert!(!ended.notes.contains("The mode is"), "{}", ended.notes);
}

#[tokio::test]
async fn an_empty_variable_is_as_good_as_none() {
    let server = server().await;
    let empty = [("SANDBOX_AGENT_AGENT", ""), ("SANDBOX_AGENT_TOKEN", "")];
    let ended = feed(chat_in(Some(&server.url()), &[], &empty), "hello\n").await;
    assert_eq!((ended.said.as_str(), ended.code), ("you said hello\n", 0), "{}", ended.notes);
}

#[tokio::test]
async fn a_notice_of_the_agent_is_shown() {
    let server = server().await;
    let ended = run(Some(&server.url()), &[], "notice\n").await;
    assert!(ended.notes.contains("! warning: Trying again\n"), "{}", ended.notes);
}

#[tokio::test]
async fn an_agent_that_is_a_process_is_talked_to_and_its_death_is_reported() {
    let agent = Process::new();
    let command = format!("sh {}", agent.path.display());
    let ended = run(None, &["--agent-command", &command], "hello\ndie\n").await;
    assert!(
        ended.said.starts_with("process ") && ended.said.ends_with(" here\ngoing down\n"),
        "{}",
        ended.said
    );
    assert!(ended.notes.contains("exit code 9") && ended.notes.contains("shell: no more"), "{}", ended.notes);
    assert!(ended.notes.contains("stderr of this turn, all of it:"), "{}", ended.notes);
    assert!(!ended.notes.contains("shell: started"), "{}", ended.notes);
    assert_eq!(ended.code, 4);
}

#[tokio::test]
async fn the_agent_is_called_by_its_title() {
    let agent = Process::new();
    let command = format!("sh {}", agent.path.display());
    let ended = run(None, &["--agent-command", &command], "hello\n").await;
    assert!(ended.notes.contains("A new session with Shell Agent"), "{}", ended.notes);
}

#[tokio::test]
async fn an_agent_that_lists_no_sessions_is_not_started_again_for_the_list() {
    let agent = Process::new();
    let command = format!("sh {}", agent.path.display());
    let chat = chat_in(None, &["--agent-command", &command], &[("NO_LIST", "1")]);
    let ended = feed(chat, "hello\n/resume\n").await;
    assert!(ended.notes.contains("this one"), "{}", ended.notes);
    assert_eq!(agent.starts(), 1);
}

#[tokio::test]
async fn sessions_without_a_title_are_listed_by_their_first_prompt() {
    let server = server().await;
    let ended = run(Some(&server.url()), &[], "fix the build\n/new\nanother\n/resume\n").await;
    let listed =
        |title: &str| ended.notes.lines().any(|line| line.contains(&format!("{title}  mock-session-")));
    assert!(listed("fix the build") && listed("another"), "{}", ended.notes);
}

#[tokio::test]
async fn the_agents_own_sessions_are_listed_with_their_titles() {
    let agent = Process::new();
    let command = format!("sh {}", agent.path.display());
    let ended = run(None, &["--agent-command", &command], "hello\n/resume\n").await;
    let line = |title: &str| ended.notes.lines().find(|line| line.contains(title)).unwrap_or_default();
    assert!(line("This chat").contains("this one"), "{}", ended.notes);
    assert!(line("Last week").contains("s0"), "{}", ended.notes);
}

#[tokio::test]
async fn a_listed_session_is_resumed_and_restarted_in_its_own_directory() {
    let agent = Process::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let directory = elsewhere.path().canonicalize().unwrap().display().to_string();
    for resume in ["/resume 2", "/resume s0"] {
        let chat = chat_in(None, &["--agent-command", &agent.command()], &[("OTHER_DIRECTORY", &directory)]);
        let ended = feed(chat, format!("/resume\n{resume}\n/restart\n")).await;
        assert_eq!(ended.code, 0, "{}", ended.notes);
    }
    assert_eq!(agent.loaded_in(), [directory.as_str(); 4]);
}

#[tokio::test]
async fn a_conversation_that_a_restarted_agent_has_lost_is_not_shown_as_continued() {
    let agent = Process::new();
    let warning = "! The agent replayed no history.";
    let chat = || chat_in(None, &["--agent-command", &agent.command()], &[]);
    let ended = feed(chat(), "hello\n/restart\n").await;
    assert!(
        ended.notes.contains("! The agent runs again") && ended.notes.contains(warning),
        "{}",
        ended.notes
    );
    let keeps = chat_in(None, &["--agent-command", &agent.command()], &[("HAS_HISTORY", "1")]);
    let ended = feed(keeps, "hello\n/restart\n").await;
    assert!(
        ended.notes.contains("✔ The agent runs again") && !ended.notes.contains(warning),
        "{}",
        ended.notes
    );
    assert!(
        !ended.said.contains("what was said") && !ended.notes.contains("what was said"),
        "{}",
        ended.notes
    );
}

#[tokio::test]
async fn the_help_lists_the_exit_codes() {
    let ended = run(None, &["--help"], "").await;
    for part in ["--agent-command", "EXIT CODES", "130"] {
        assert!(ended.said.contains(part));
    }
    assert_eq!(ended.code, 0);
}
