//! What keys do in a terminal.

use super::agent::{Process, server};
use super::terminal::{Start, Terminal, tmux_is_missing};

#[tokio::test]
async fn a_permission_is_given_and_refused_by_a_key() {
    chat!(server, terminal);
    for (key, said) in
        [("y", "permission: allow_once"), ("2", "permission: allow_always"), ("n", "permission: reject_once")]
    {
        terminal.line("permission").await;
        terminal.see("1 or y").await;
        // A key that means nothing answers nothing.
        terminal.key("x").await;
        terminal.key("Enter").await;
        terminal.key(key).await;
        terminal.see(said).await;
        terminal.until("card any more", |screen| !screen.contains("1 or y")).await;
    }
    terminal.line("permission").await;
    terminal.see("1 or y").await;
    terminal.key("Escape").await;
    terminal.see("Remove everything  refused").await;
    assert_eq!(server.answers().len(), 4);
}

#[tokio::test]
async fn a_permission_to_edit_shows_its_change_once_and_no_json() {
    chat!(server, terminal);
    terminal.line("edit").await;
    let screen = terminal.see("1 or y").await;
    assert_eq!(screen.matches("new line").count(), 1, "{screen}");
    assert!(!screen.contains("filepath"), "{screen}");
    terminal.key("y").await;
    terminal.see("edited").await;
    let everything = terminal.everything().await;
    assert_eq!(everything.matches("new line").count(), 1, "{everything}");
}

#[tokio::test]
async fn what_the_user_is_writing_gives_no_permission() {
    if tmux_is_missing() {
        return;
    }
    let agent = Process::new();
    let start = Start { arguments: agent.option(), ..Start::default() };
    let terminal = Terminal::start(&start).await;
    terminal.see("/help lists the commands").await;
    terminal.line("gate").await;
    terminal.see("begun").await;
    terminal.write("next").await;
    terminal.see("› next").await;
    agent.open_gate();
    terminal.see("Tab: answer this").await;
    terminal.write(" yay 1").await;
    let screen = terminal.see("› next yay 1").await;
    assert!(!screen.contains("pass\n"), "a letter of the text was taken for an answer:\n{screen}");
    terminal.key("Tab").await;
    terminal.see("1 or y").await;
    terminal.key("y").await;
    terminal.see("may pass").await;
    terminal.see("› next yay 1").await;
}

#[tokio::test]
async fn a_key_that_is_pressed_twice_answers_once() {
    chat!(server, terminal);
    terminal.line("two").await;
    terminal.see("and 1 more to answer").await;
    terminal.see("1 or y").await;
    terminal.tmux(&["send-keys", "y", "y"]).await;
    terminal.see("Tab: answer this").await;
    assert_eq!(server.answers().len(), 1, "a request was answered that nobody can have read");
    terminal.key("Tab").await;
    terminal.see("1 or y").await;
    terminal.key("n").await;
    terminal.see("both answered").await;
}

#[tokio::test]
async fn a_question_is_answered_field_by_field() {
    chat!(server, terminal);
    terminal.line("question").await;
    terminal.see("Your name").await;
    terminal.key("Enter").await;
    terminal.see("Your name is needed").await;
    terminal.line("Zoë").await;
    terminal.see("(y or n)").await;
    terminal.line("maybe").await;
    terminal.see("y or n, please").await;
    terminal.line("y").await;
    terminal.see(r#""name":"Zoë","sure":true"#).await;
    terminal.line("question").await;
    terminal.see("Your name").await;
    terminal.key("Escape").await;
    terminal.see(r#"answer: {"action":"decline"}"#).await;
}

#[tokio::test]
async fn ctrl_c_cancels_and_once_more_leaves() {
    chat!(server, terminal);
    terminal.line("stream").await;
    terminal.see("first words").await;
    terminal.key("C-c").await;
    terminal.see("– cancelled").await;
    // It continues after that, if the user wants it to.
    terminal.line("again").await;
    terminal.see("you said again").await;
    terminal.key("C-c").await;
    terminal.see("Ctrl-C again leaves").await;
    terminal.key("C-c").await;
    terminal.has_left_with(130).await;
}

#[tokio::test]
async fn an_agent_that_does_not_stop_cannot_keep_the_user() {
    chat!(server, terminal);
    terminal.line("stubborn").await;
    terminal.see("I do not listen").await;
    terminal.key("C-c").await;
    terminal.see("cancelling").await;
    terminal.key("C-c").await;
    terminal.has_left_with(130).await;
}

#[tokio::test]
async fn a_permission_that_is_asked_for_is_cancelled_with_the_turn() {
    chat!(server, terminal);
    terminal.line("permission").await;
    terminal.see("1 or y").await;
    terminal.key("C-c").await;
    // An agent that reads the response before the cancel may run to the end of its turn.
    terminal
        .until("end of the turn", |screen| !screen.contains("1 or y") && !screen.contains("ancelling"))
        .await;
    terminal.line("hello").await;
    terminal.see("you said hello").await;
    assert_eq!(server.answers()[0].answer["result"]["outcome"]["outcome"], "cancelled");
}

#[tokio::test]
async fn ctrl_d_and_quit_leave_the_terminal_as_it_was() {
    for way in ["C-d", "/quit"] {
        chat!(server, terminal);
        terminal.tmux(&["send-keys", way]).await;
        if way == "/quit" {
            terminal.key("Enter").await;
        }
        terminal.has_left_with(0).await;
    }
}

#[tokio::test]
async fn a_line_that_is_written_during_a_turn_is_sent_after_it() {
    chat!(server, terminal);
    terminal.line("permission").await;
    terminal.see("1 or y").await;
    terminal.key("y").await;
    terminal.see("permission: allow_once").await;
    terminal.line("stream").await;
    terminal.see("first words").await;
    terminal.line("later").await;
    terminal.see("then: later").await;
    // A cancel drops it: a user who stops the agent does not want it to start something else.
    terminal.key("C-c").await;
    terminal.see("queued lines are dropped").await;
    terminal.line("now").await;
    terminal.see("you said now").await;
    assert!(!terminal.everything().await.contains("you said later"));
}

#[tokio::test]
async fn what_is_pasted_is_not_sent_until_enter_is_pressed() {
    chat!(server, terminal);
    terminal.tmux(&["set-buffer", "one\ntwo"]).await;
    terminal.tmux(&["paste-buffer", "-p"]).await;
    terminal.see("› one⏎two").await;
    terminal.key("Enter").await;
    terminal.see("you said one").await;
    let prompts =
        server.requests().into_iter().filter(|r| r.rpc_method().as_deref() == Some("session/prompt"));
    assert_eq!(prompts.count(), 1);
}

#[tokio::test]
async fn a_line_is_edited_and_recalled() {
    chat!(server, terminal);
    terminal.write("helo").await;
    for key in ["Left", "l", "End", "!", "Home", "Delete", "H"] {
        terminal.key(key).await;
    }
    terminal.key("Enter").await;
    terminal.see("you said Hello!").await;
    terminal.key("Up").await;
    terminal.see("› Hello!\n\n").await;
    terminal.key("BSpace").await;
    terminal.line("?").await;
    terminal.see("you said Hello?").await;
}
