//! Runs of the SDK's client that can be recorded and replayed.

use sandbox_agent_sdk::{
    ClientOptions, Error, Event, Events, NewSession, PermissionDecision, SandboxAgentClient, Session, Turn,
};
use serde_json::{Value, json};

use crate::within;

/// A fixed sequence of client calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Two turns with some updates.
    Turn,
    /// A turn with a permission request.
    Permission,
    /// A cancelled turn.
    Cancel,
    /// An agent that prints lines that are not messages.
    Garbage,
    /// An agent that dies during a turn.
    Crash,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 5] = [Self::Turn, Self::Permission, Self::Cancel, Self::Garbage, Self::Crash];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Permission => "permission",
            Self::Cancel => "cancel",
            Self::Garbage => "garbage",
            Self::Crash => "crash",
        }
    }

    /// Returns the scenario with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    /// Returns the prompts, which are directives of the stub agent.
    fn prompts(self) -> &'static [&'static str] {
        match self {
            Self::Turn => &["say one; say two; say three", "say four"],
            Self::Permission => &["say before; permission; say after"],
            Self::Cancel => &["say begun; hang; say stopped"],
            Self::Garbage => &["say before; garbage; say after"],
            Self::Crash => &["say partial; stderr 3; exit 3", "say too late"],
        }
    }

    /// Runs the scenario and returns everything that the client reported.
    ///
    /// # Errors
    /// If connecting or creating the session fails.
    ///
    /// # Panics
    /// If a step times out.
    pub async fn run(self, options: ClientOptions) -> Result<Vec<Value>, Error> {
        let options =
            options.auto_connect(false).permission_policy(|_| PermissionDecision::Option("allow".to_owned()));
        let client = options.build()?;
        let mut events = client.events();
        let capabilities = within("connecting", client.connect()).await?;
        let session = within("a session", client.new_session(NewSession::in_dir("/"))).await?;
        let mut observed =
            vec![json!({ "agent": capabilities.agent_name }), json!({ "session": session.id() })];
        for prompt in self.prompts() {
            observed.push(self.turn(&session, prompt).await);
        }
        let ended = (self == Self::Crash).then(|| session.termination()).flatten();
        observed.push(json!({ "ended": ended }));
        observed.extend(events_so_far(&mut events));
        finish(client).await;
        Ok(observed)
    }

    async fn turn(self, session: &Session, prompt: &str) -> Value {
        let mut turn = session.prompt(prompt);
        let mut texts = Vec::new();
        while let Some(text) = within("an update", next_text(&mut turn)).await {
            texts.push(text);
            if self == Self::Cancel && texts.len() == 1 {
                within("cancelling", turn.cancel()).await.expect("the turn can be cancelled");
            }
        }
        let outcome = within("the outcome", turn.outcome()).await;
        let outcome = outcome
            .map(|outcome| json!(outcome.stop_reason.to_string()))
            .unwrap_or_else(|error| failure(&error));
        json!({ "prompt": prompt, "texts": texts, "outcome": outcome })
    }
}

async fn next_text(turn: &mut Turn) -> Option<String> {
    loop {
        if let Some(text) = turn.next().await?.message_text() {
            return Some(text.to_owned());
        }
    }
}

fn failure(error: &Error) -> Value {
    let termination = error.termination().map(|info| serde_json::to_value(info).expect("JSON"));
    json!({ "error": error.to_string(), "mayHaveRun": error.maybe_executed(), "termination": termination })
}

/// Returns the events outside the turns.
fn events_so_far(events: &mut Events) -> Vec<Value> {
    let observed = std::iter::from_fn(|| events.try_next());
    let observed = observed.filter_map(|event| match event {
        Event::AgentUnparsed { unparsed, .. } => Some(json!({ "unparsed": unparsed.raw })),
        Event::SessionEnded(ended) => Some(json!({ "sessionEnded": ended.termination })),
        Event::Malformed { start, .. } => Some(json!({ "malformed": start })),
        Event::Gap(gap) => Some(json!({ "gap": [gap.from, gap.to] })),
        Event::ServerRestarted => Some(json!("serverRestarted")),
        Event::Reconnected { checked, .. } => Some(json!({ "reconnected": checked })),
        _ => None,
    });
    observed.collect()
}

async fn finish(client: SandboxAgentClient) {
    within("disconnecting", client.disconnect()).await.expect("disconnecting does not fail");
}
