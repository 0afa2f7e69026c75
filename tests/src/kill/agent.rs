//! The server that is killed, and its agent.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use mock_server::{MockServer, Permission, Script, Step, ToolCall, Turn};
use serde_json::{Value, json};

use super::words::{WORDS, asks, word};

/// The agent request of which each has to be executed once at most.
pub(super) const WRITE: &str = "fs/write_text_file";

/// Between two words.
const PACE: Duration = Duration::from_millis(8);

/// How the agent continues sessions of an earlier run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// By `session/resume`.
    Resume,
    /// By `session/load`. It has forgotten what was said before it was restarted.
    Load,
    /// Not at all, and its new sessions have the ids of earlier ones.
    Neither,
}

impl Ability {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Resume, Self::Load, Self::Neither];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Load => "load",
            Self::Neither => "neither",
        }
    }

    fn initialize(self) -> Value {
        let sessions = if self == Self::Resume { json!({"resume": {}}) } else { json!({}) };
        json!({"protocolVersion": 1, "agentCapabilities": {
            "loadSession": self == Self::Load, "sessionCapabilities": sessions}})
    }
}

/// Serves on this port, 0 for any, until the process is killed. Prints the URL.
pub async fn serve(port: u16, ability: Ability) {
    let agent = Script::new(answer).initialize(ability.initialize());
    let server = MockServer::builder()
        .agent("mock", agent)
        // What a program misses while it is down is all there: only the server's end loses anything.
        .replay_buffer(usize::MAX)
        .record(0)
        .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .start()
        .await;
    println!("{}", server.url());
    let _ = std::io::stdout().flush();
    std::future::pending::<()>().await;
}

/// Says the words of a prompt, half of them behind a permission if it asks for one. In between it writes a file, which
/// has to happen once.
fn answer(turn: &Turn) -> Vec<Step> {
    let blocks = turn.params["prompt"].as_array().map(Vec::as_slice).unwrap_or_default();
    // A transcript comes before the prompt.
    let prompt = blocks.last().and_then(|block| block["text"].as_str()).unwrap_or_default().to_owned();
    let params = json!({"path": format!("/{prompt}"), "content": "text"});
    let write = Step::Request { method: WRITE.to_owned(), params };
    let mut steps =
        [say(&prompt, 1, WORDS / 4), vec![write], say(&prompt, WORDS / 4 + 1, WORDS / 2)].concat();
    if !asks(&prompt) {
        steps.extend(say(&prompt, WORDS / 2 + 1, WORDS));
        return steps;
    }
    let call = ToolCall::new(format!("call-{prompt}"), "Say the rest");
    steps.push(Step::AskPermission(Permission::new(call).then(move |outcome| {
        match outcome["outcome"] == "selected" {
            true => say(&prompt, WORDS / 2 + 1, WORDS),
            false => vec![Step::Stop("refusal".to_owned())],
        }
    })));
    steps
}

fn say(prompt: &str, from: u32, to: u32) -> Vec<Step> {
    (from..=to).flat_map(|number| [Step::Say(word(prompt, number)), Step::Wait(PACE)]).collect()
}
