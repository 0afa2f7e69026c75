//! Runs the directives of a request.

use std::{
    io::{BufWriter, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    peer::Peer,
    session::Sessions,
    step::{StderrText, Step},
};

/// The cancellation of a turn. A turn waits for anything by waiting for this with a timeout.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    cancelled: Mutex<bool>,
    changed: Condvar,
}

impl Cancel {
    pub(crate) fn cancel(&self) {
        *self.cancelled.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits until cancelled or until the time limit. Returns whether the turn is cancelled.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let cancelled = self.cancelled.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(cancelled, limit, |cancelled| !*cancelled);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Waits without a way to cancel.
pub(crate) fn rest(limit: Duration) {
    Cancel::default().wait(limit);
}

/// One run of directives, with or without a request.
pub(crate) struct Turn<'a> {
    pub(crate) peer: &'a Peer,
    /// Stores what is said.
    pub(crate) sessions: &'a Sessions,
    /// The session of the updates; empty if there is none.
    pub(crate) session: &'a str,
    pub(crate) cancel: Arc<Cancel>,
    /// Responds to the request; taken when that has happened.
    pub(crate) answer: Option<Box<dyn FnOnce(bool) + 'a>>,
    /// How long the response is delayed.
    pub(crate) late: Duration,
}

impl Turn<'_> {
    /// Runs every step, then responds unless a step has done so.
    pub(crate) fn run(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
        self.answer();
    }

    fn answer(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        if !self.late.is_zero() {
            rest(self.late);
        }
        answer(self.cancel.wait(Duration::ZERO));
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Say(text) => self.say(text),
            Step::Updates { count, bytes } => {
                let text = "x".repeat(*bytes);
                (0..*count).for_each(|_| self.peer.update(self.session, chunk("agent_message_chunk", &text)));
            }
            Step::Stderr { lines, bytes, text } => write_stderr(*lines, *bytes, *text),
            Step::Recall => {
                // This repeats the history and is not part of it.
                let said = format!("recall: {}", self.sessions.said(self.session).join(", "));
                self.peer.update(self.session, chunk("agent_message_chunk", &said));
            }
            Step::Permission => self.ask_permission(),
            Step::FsRead(path) => self.read_file(path),
            Step::Delay(millis) => drop(self.cancel.wait(Duration::from_millis(*millis))),
            Step::Late(millis) => self.late = Duration::from_millis(*millis),
            Step::Hang => drop(self.cancel.wait(Duration::MAX)),
            Step::Freeze => rest(Duration::MAX),
            Step::Garbage => self.peer.print("this is not json\n\n   \n{\"half\":\n42\n[1,2]\n\"text\"\n"),
            Step::Torn => self.peer.print("{\"jsonrpc\":\"2.0\",\"method\":\"session/upd"),
            Step::CloseStdout => close_stdout(),
            Step::Child(seconds) => leave_child(&mut sleeper(*seconds)),
            Step::Linger(seconds) => leave_child(sleeper(*seconds).process_group(0)),
            Step::Answer => self.answer(),
            Step::Exit(code) => std::process::exit(*code),
            Step::Signal(name) => die_by_signal(name),
        }
    }

    fn say(&mut self, text: &str) {
        self.sessions.remember(self.session, text);
        self.peer.update(self.session, chunk("agent_message_chunk", text));
    }

    fn ask_permission(&mut self) {
        let tool_call = json!({
            "toolCallId": "stub-call", "title": "echo test", "kind": "execute", "status": "pending",
            "rawInput": { "command": "echo test" },
        });
        let options = json!([
            { "optionId": "allow", "name": "Allow", "kind": "allow_once" },
            { "optionId": "reject", "name": "Reject", "kind": "reject_once" },
        ]);
        let params = json!({ "sessionId": self.session, "toolCall": tool_call, "options": options });
        let answer = self.peer.ask("session/request_permission", params);
        let outcome = &answer["result"]["outcome"];
        let choice = outcome["optionId"].as_str().or(outcome["outcome"].as_str()).unwrap_or("no outcome");
        self.say(&format!("permission: {choice}"));
    }

    fn read_file(&mut self, path: &str) {
        let params = json!({ "sessionId": self.session, "path": path });
        let answer = self.peer.ask("fs/read_text_file", params);
        match answer["result"]["content"].as_str() {
            Some(content) => self.say(&format!("file: {content}")),
            None => self.say(&format!("no file: {}", answer["error"]["message"].as_str().unwrap_or("?"))),
        }
    }
}

/// Creates a message chunk of the given kind.
pub(crate) fn chunk(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

fn write_stderr(lines: u64, bytes: usize, text: StderrText) {
    let mut stderr = BufWriter::with_capacity(64 * 1024, std::io::stderr().lock());
    let suffix: &[u8] = if text == StderrText::Invalid { b" \xff\xfe" } else { b"" };
    let filling = vec![b'.'; bytes];
    for number in 1..=lines {
        let start = format!("stderr line {number}");
        let missing = bytes.saturating_sub(start.len() + suffix.len());
        let parts = [start.as_bytes(), &filling[..missing], suffix, b"\n"];
        if parts.iter().try_for_each(|part| stderr.write_all(part)).is_err() {
            return;
        }
    }
    let _ = stderr.flush();
}

/// Replaces standard output by the null device, which closes the pipe.
fn close_stdout() {
    match std::fs::OpenOptions::new().write(true).open("/dev/null") {
        Ok(null) => drop(nix::unistd::dup2_stdout(null)),
        Err(error) => eprintln!("stub-agent: cannot close standard output: {error}"),
    }
}

fn sleeper(seconds: u64) -> Command {
    let mut command = Command::new("sleep");
    command.arg(seconds.to_string()).stdin(Stdio::null());
    command
}

fn leave_child(command: &mut Command) {
    if let Err(error) = command.spawn() {
        eprintln!("stub-agent: cannot start a child process: {error}");
    }
}

/// Replaces the process by a shell that signals itself. The signal dispositions of this program's runtime do
/// not survive that, so every fatal signal takes effect. No core file is written.
fn die_by_signal(name: &str) {
    let script = "ulimit -c 0; kill -s \"$1\" $$";
    let error = Command::new("sh").args(["-c", script, "sh", name]).exec();
    eprintln!("stub-agent: cannot send itself {name}: {error}");
    std::process::exit(70);
}
