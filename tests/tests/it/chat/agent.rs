//! Agents to chat with.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mock_server::{Fault, MockServer, Permission, Script, Step, ToolCall, Turn};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server whose agent does what the tests need, word by word.
pub(super) async fn server() -> MockServer {
    let history = |session: &str| {
        let chunk = |kind: &str, text: String| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
        vec![
            chunk("user_message_chunk", "what was".to_owned()),
            chunk("agent_message_chunk", format!("the past of {session}")),
        ]
    };
    MockServer::builder().agent("mock", Script::new(steps).history(history)).start().await
}

/// A server without `/v1/rpc`, like the released ones. It reports the stderr of an agent that ended in a turn when a
/// request's time limit has passed.
pub(super) async fn released_server(limit: Duration) -> MockServer {
    let builder = MockServer::builder().agent("mock", Script::new(steps)).request_timeout(limit);
    builder.fault(Fault::StreamRefused { status: 404 }.on_path("/v1/rpc")).start().await
}

fn steps(turn: &Turn) -> Vec<Step> {
    let say = |text: &str| Step::Say(text.to_owned());
    match turn.text.as_str() {
        "stream" => vec![say("first words"), Step::WaitForCancel],
        "think" => vec![Step::Think("deep thought".to_owned()), say("plain speech")],
        "permission" => vec![Step::AskPermission(Permission::new(call("Remove everything")))],
        "two" => vec![Step::FireRequests(2), say("both answered")],
        "question" => {
            let schema = json!({
                "type": "object", "required": ["name"],
                "properties": {"name": {"type": "string", "title": "Your name"}, "sure": {"type": "boolean"}},
            });
            vec![Step::AskQuestion { message: "Who are you?".to_owned(), schema }]
        }
        "tool" => {
            let call = call("Run the tests");
            let running =
                Step::ToolUpdate { id: call.id.clone(), status: "in_progress".to_owned(), text: None };
            vec![Step::ToolCall(call), running, Step::WaitForCancel]
        }
        "output" => {
            let call = call("Print a lot");
            let lines: String = (1..=5_000).map(|line| format!("output line {line}\n")).collect();
            let done =
                Step::ToolUpdate { id: call.id.clone(), status: "completed".to_owned(), text: Some(lines) };
            vec![Step::ToolCall(call), done, say("printed")]
        }
        "diff" => {
            let diff =
                json!({"type": "diff", "path": "a.rs", "oldText": "old line\n", "newText": "new line\n"});
            let update = json!({
                "sessionUpdate": "tool_call", "toolCallId": "d", "title": "Edit a.rs", "status": "completed",
                "content": [diff],
            });
            vec![Step::Update(update)]
        }
        "edit" => {
            let diff =
                json!({"type": "diff", "path": "a.rs", "oldText": "old line\n", "newText": "new line\n"});
            // Some agents send a change twice, and once more as the tool's input.
            let call = json!({
                "toolCallId": "e", "title": "Edit a.rs", "kind": "edit", "content": [diff, diff],
                "rawInput": {"filepath": "a.rs", "diff": "+new line"}, "locations": [{"path": "a.rs"}],
            });
            let done = json!({
                "sessionUpdate": "tool_call", "toolCallId": "e", "title": "Edit a.rs", "status": "completed",
                "content": [diff],
            });
            vec![asked(call), Step::Update(done), say("edited")]
        }
        "edits" => {
            let text = |line: &str| (1..=8).map(|number| format!("{line} {number}\n")).collect::<String>();
            let diff = |file: usize| {
                let path = format!("file{file}.rs");
                json!({"type": "diff", "path": path, "oldText": text("old"), "newText": text("new")})
            };
            let diffs: Vec<_> = (1..=5).map(diff).collect();
            vec![asked(
                json!({"toolCallId": "e", "title": "Edit five files", "kind": "edit", "content": diffs}),
            )]
        }
        "script" => {
            let lines: Vec<String> = (1..=9).map(|line| format!("echo step {line}")).collect();
            let command = format!("rm -rf /everything\n{}", lines.join("\n"));
            let call = json!({"toolCallId": "c", "title": "Run a script", "rawInput": {"command": command}});
            vec![asked(call)]
        }
        "one line" => {
            let command = format!("echo {} && rm -rf /everything", "x".repeat(300));
            let call = json!({"toolCallId": "c", "title": "Run a line", "rawInput": {"command": command}});
            vec![asked(call)]
        }
        "elsewhere" => {
            let input = json!({"command": "rm -rf build", "workdir": "/home/me/other", "env": {"A": ["b"]}});
            vec![asked(json!({"toolCallId": "c", "title": "Clean up", "rawInput": input}))]
        }
        "nested" => {
            let input = json!({"filter": {"all": true}, "ids": [17, 18], "until": null});
            vec![asked(json!({"toolCallId": "c", "title": "Delete issues", "rawInput": input}))]
        }
        "rename" => {
            let (old, new) = ("one\nall\ntwo\n", "one\nevery\ntwo\n");
            let patch = "Index: /w/a.rs\n=====\n--- /w/a.rs\n+++ /w/a.rs\n@@ -1,3 +1,3 @@\n one\n-all\n+every\n two\n\
                \\ No newline at end of file\n";
            let input = json!({
                "file_path": "/w/a.rs", "old_string": "all", "new_string": "every", "diff": patch,
                "replace_all": true, "scope": "al", "changes": {"/w/a.rs": {"type": "update", "content": new}},
                "command": "sed -i s/all/every/ a.rs",
            });
            let diff = json!({"type": "diff", "path": "/w/a.rs", "oldText": old, "newText": new});
            vec![asked(json!({
                "toolCallId": "e", "title": "Rename", "kind": "edit", "content": [diff], "rawInput": input,
                "locations": [{"path": "/w/a.rs"}, {"path": "/w/b.rs"}],
            }))]
        }
        "endless" => {
            let lines: Vec<String> = (1..=500).map(|line| format!("echo step {line}")).collect();
            let call = json!({"toolCallId": "c", "title": "Run for long", "rawInput": {"command": lines.join("\n")}});
            vec![asked(call)]
        }
        "hostile" => vec![
            say(
                "start \u{1b}[31mred \u{1b}[2J\u{1b}[H\u{1b}]0;OWNED\u{7}\u{1b}]52;c;aGk=\u{1b}\\ cut \u{1b}",
            ),
            say("[?1049h \u{9b}8mhidden \u{1b}[?25l end\u{8}\u{8}\u{8}"),
            Step::ToolCall(ToolCall::new("\u{1b}[2J", "Evil\u{1b}]0;OWNED\u{7} tool\nsecond line")),
            Step::AskPermission(Permission::new(call("\u{1b}[2J\u{1b}[?1049hAllow\r\nme \u{202e}evil"))),
        ],
        "notice" => {
            let title = "Trying again";
            vec![Step::Update(json!({"sessionUpdate": "notice", "severity": "warning", "title": title}))]
        }
        "crash" => vec![say("farewell"), Step::crash(7, ["it was the \u{1b}[2Jdisk", "no luck"])],
        "long" => vec![say(&"日本語 and words ".repeat(30)), say(&"x".repeat(300)), say("\nthe end")],
        "fail" => vec![Step::Fail { code: -32603, message: "no idea".to_owned(), data: None }],
        "refuse" => vec![say("I would rather not"), Step::Stop("refusal".to_owned())],
        "stubborn" => vec![say("I do not listen"), Step::Hang],
        other => vec![say(&format!("you said {other}"))],
    }
}

/// Asks for a permission to make this tool call.
fn asked(call: Value) -> Step {
    let option = |id: &str, kind: &str| json!({"optionId": id, "name": id, "kind": kind});
    let options = [option("Yes", "allow_once"), option("No", "reject_once")];
    let method = "session/request_permission".to_owned();
    Step::Request { method, params: json!({"toolCall": call, "options": options}) }
}

fn call(title: &str) -> ToolCall {
    ToolCall::new("call", title)
}

/// An agent that is a process: a shell script that speaks the protocol. It answers prompts, exits on `die`, and asks for
/// a permission after `gate` as soon as the gate is opened. It records its starts and its logins. Variables change it:
///
/// - `WANTS_LOGIN`, `PROMPT_WANTS_LOGIN`: sessions or prompts require a login. `WORKS_FIRST`: prompts require it after
///   a part of the work.
/// - `REFUSED_LOGIN`: the login method that it refuses. `KEEPS_WANTING`: a login changes nothing.
/// - `METHODS`, `TERMINAL_METHODS`: its login methods; the second ones for a client that offers terminal logins.
/// - `LOGIN_EXPIRES`: a prompt ends the login.
/// - `NO_LIST`: it does not list its sessions. `OTHER_DIRECTORY`: the directory of its earlier session.
/// - `HAS_HISTORY`: it replays the history of a session that it loads.
/// - `IGNORES_END`: it does not exit at the end of its input.
/// - `WRITES_LATE`: it records each turn a moment after its response.
pub(super) struct Process {
    _directory: TempDir,
    pub(super) path: PathBuf,
}

const SCRIPT: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
say() { printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%s"}}}}\n' "$1"; }
echo "$$" >> "$0.starts"
echo 'shell: started' >&2
[ -n "$NO_LIST" ] || list='"list":{}'
refuse() { printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"Authentication required"}}\n' "$id"; }
[ -n "$METHODS" ] || METHODS='[{"id":"oauth","name":"Browser"},{"id":"gemini-api-key","name":"Key"},{"id":"openai-api-key","name":"Other key"}]'
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\|[0-9][0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*)
      case "$line" in *'"auth":{"terminal":true'*) METHODS=${TERMINAL_METHODS:-$METHODS} ;; esac
      answer '{"protocolVersion":1,"agentInfo":{"name":"shell","title":"Shell Agent","version":"1"},"agentCapabilities":{"loadSession":true,"sessionCapabilities":{'"$list"'}},"authMethods":'"$METHODS"'}' ;;
    *'"method":"authenticate"'*) echo "$line" >> "$0.logins"; 
      case "$line" in *"\"methodId\":\"${REFUSED_LOGIN:-none}\""*) refuse; continue ;; esac
      [ -n "$KEEPS_WANTING" ] || { WANTS_LOGIN=; PROMPT_WANTS_LOGIN=; }
      answer '{}' ;;
    *'"method":"session/new"'*|*'"method":"session/load"'*)
      case "$line" in *session/load*) echo "$line" >> "$0.loads"; [ -z "$HAS_HISTORY" ] || say 'what was said' ;; esac
      if [ -n "$WANTS_LOGIN" ]; then refuse; else answer '{"sessionId":"s1"}'; fi ;;
    *'"method":"session/list"'*) answer '{"sessions":[{"sessionId":"s1","cwd":"/","title":"This chat"},{"sessionId":"s0","cwd":"'"${OTHER_DIRECTORY:-/}"'","title":"Last week"}]}' ;;
    *'"method":"session/prompt"'*gate*)
      prompt=$id
      say 'begun'
      until [ -e "$0.open" ]; do sleep 0.1; done
      printf '{"jsonrpc":"2.0","id":"p1","method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"t","title":"Pass the gate"},"options":[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"n","name":"No","kind":"reject_once"}]}}\n'
      read -r reply
      case "$reply" in *'"optionId":"y"'*) say 'may pass' ;; *) say 'may not pass' ;; esac
      id=$prompt
      answer '{"stopReason":"end_turn"}' ;;
    *'"method":"session/prompt"'*quiet*) exit 9 ;;
    *'"method":"session/prompt"'*die*) say 'going down'; echo 'shell: no more' >&2; exit 9 ;;
    *'"method":"session/prompt"'*)
      if [ -n "$PROMPT_WANTS_LOGIN" ]; then [ -z "$WORKS_FIRST" ] || say 'half done'; refuse; continue; fi
      say "process $$ here"
      answer '{"stopReason":"end_turn"}'
      [ -z "$LOGIN_EXPIRES" ] || PROMPT_WANTS_LOGIN=1
      [ -z "$WRITES_LATE" ] || { sleep 0.3; echo "$id" >> "$0.turns"; } ;;
    *'"id"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}\n' "$id" ;;
  esac
done
while [ -n "$IGNORES_END" ]; do sleep 0.2; done
"#;

impl Process {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sh");
        std::fs::write(&path, SCRIPT).unwrap();
        Self { _directory: directory, path }
    }

    /// How often the agent was started.
    pub(super) fn starts(&self) -> usize {
        self.lines("sh.starts")
    }

    /// How often the client logged in.
    pub(super) fn logins(&self) -> usize {
        self.lines("sh.logins")
    }

    /// How many turns the agent has recorded.
    pub(super) fn turns(&self) -> usize {
        self.lines("sh.turns")
    }

    /// How many processes of the agent are running.
    pub(super) fn running(&self) -> usize {
        let starts = std::fs::read_to_string(self.path.with_extension("sh.starts")).unwrap_or_default();
        let is_running = |id: &&str| {
            let status = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            // A process that has exited and was not waited for is a zombie.
            status.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
        };
        starts.lines().filter(is_running).count()
    }

    /// The command that starts it.
    pub(super) fn command(&self) -> String {
        format!("sh {}", self.path.display())
    }

    /// Installs it as a program of this name.
    pub(super) fn install(&self, folder: &Path, name: &str) {
        install(folder, name, &format!("exec {}\n", self.command()));
    }

    /// The directories of the sessions that it loaded.
    pub(super) fn loaded_in(&self) -> Vec<String> {
        let loads = std::fs::read_to_string(self.path.with_extension("sh.loads")).unwrap_or_default();
        let directory = |line: &str| {
            let message: Value = serde_json::from_str(line).unwrap();
            message["params"]["cwd"].as_str().unwrap().to_owned()
        };
        loads.lines().map(directory).collect()
    }

    fn lines(&self, extension: &str) -> usize {
        let text = std::fs::read_to_string(self.path.with_extension(extension)).unwrap_or_default();
        text.lines().count()
    }

    /// Lets the agent ask.
    pub(super) fn open_gate(&self) {
        std::fs::write(self.path.with_extension("sh.open"), "").unwrap();
    }

    /// The option that makes the chat run it.
    pub(super) fn option(&self) -> String {
        format!("--agent-command \"sh {}\"", self.path.display())
    }
}

/// Writes a shell script that can be run as a program of this name.
pub(super) fn install(folder: &Path, name: &str, script: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let program = folder.join(name);
    std::fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
}
