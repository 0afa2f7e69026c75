//! The events of a client.

use sdk_tests::within;
use serde_json::Value;

/// A subscription of one of the clients.
#[derive(Debug)]
pub(crate) enum Watch {
    Sdk(sandbox_agent_sdk::Events),
    Protocol(acp_http_client::Events),
}

/// An event of either client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Seen {
    /// A live chunk of the agent's message.
    Text(String),
    /// A chunk of the agent's message from the history.
    History(String),
    /// The agent printed a line that is not a message.
    Unparsed(String),
    /// The server sent an event that is not a message.
    Malformed,
    /// The agent ended, with this exit code and signal.
    Exited { code: Option<i64>, signal: Option<String> },
    /// The last lines of stderr, which arrived after the end.
    Details(Vec<String>),
    /// Events are missing.
    Lost,
    /// The server restarted.
    Restarted,
    /// The connection has ended for good.
    Terminated,
    /// Anything else.
    Other,
}

impl Watch {
    /// Waits for the first event that `fits` accepts.
    pub(crate) async fn find<T>(&mut self, what: &str, mut fits: impl FnMut(Seen) -> Option<T>) -> T {
        within(what, async {
            loop {
                let seen = self.next().await.unwrap_or_else(|| panic!("the events ended before {what}"));
                if let Some(found) = fits(seen) {
                    return found;
                }
            }
        })
        .await
    }

    /// Waits until the agent has said this.
    pub(crate) async fn text(&mut self, text: &str) {
        self.find(text, |seen| (seen == Seen::Text(text.to_owned())).then_some(())).await;
    }

    /// Returns all events that were received and not read yet.
    pub(crate) fn rest(&mut self) -> Vec<Seen> {
        std::iter::from_fn(|| match self {
            Self::Sdk(events) => events.try_next().map(of_sdk),
            Self::Protocol(events) => events.try_recv().map(of_protocol),
        })
        .collect()
    }

    async fn next(&mut self) -> Option<Seen> {
        match self {
            Self::Sdk(events) => events.next().await.map(of_sdk),
            Self::Protocol(events) => events.recv().await.map(of_protocol),
        }
    }
}

fn of_sdk(event: sandbox_agent_sdk::Event) -> Seen {
    use sandbox_agent_sdk::event::Origin;
    use sandbox_agent_sdk::{ConnectionState, Event};
    match event {
        Event::Update(update) => match update.message_text().map(str::to_owned) {
            Some(text) if update.origin() == Origin::Live => Seen::Text(text),
            Some(text) if update.origin() == Origin::History => Seen::History(text),
            _ => Seen::Other,
        },
        Event::AgentUnparsed { unparsed, .. } => Seen::Unparsed(unparsed.raw),
        Event::Malformed { .. } => Seen::Malformed,
        Event::SessionEnded(ended) => {
            let info = ended.termination;
            Seen::Exited { code: info.exit_code, signal: info.signal }
        }
        Event::TerminationDetails(details) => {
            let lines = details.termination.last_stderr_lines(100);
            Seen::Details(lines.into_iter().map(str::to_owned).collect())
        }
        Event::Gap(_) | Event::Lagged(_) => Seen::Lost,
        Event::ServerRestarted => Seen::Restarted,
        Event::Connection(ConnectionState::Lost(_)) => Seen::Terminated,
        _ => Seen::Other,
    }
}

fn of_protocol(event: acp_http_client::Event) -> Seen {
    use acp_http_client::{Event, Origin};
    match event {
        Event::Update(update) => match update.message_text().map(str::to_owned) {
            Some(text) if update.meta.origin == Origin::Live => Seen::Text(text),
            Some(text) if update.meta.origin == Origin::History => Seen::History(text),
            _ => Seen::Other,
        },
        Event::Notification(notification) => {
            let params = notification.params.to_value().unwrap();
            let text = |value: &Value| value.as_str().map(str::to_owned);
            match &*notification.method {
                "_adapter/invalid_stdout" | "_sandboxagent/agent/unparsed" => {
                    Seen::Unparsed(text(&params["raw"]).unwrap_or_default())
                }
                "_adapter/agent_exited" => Seen::Exited { code: params["code"].as_i64(), signal: None },
                "_sandboxagent/session/ended" => {
                    let data = &params["data"];
                    Seen::Exited { code: data["exit_code"].as_i64(), signal: text(&data["signal"]) }
                }
                _ => Seen::Other,
            }
        }
        Event::Malformed(_) => Seen::Malformed,
        Event::Gap { .. } | Event::Lagged(_) | Event::StreamLost { .. } => Seen::Lost,
        Event::Restarted { .. } => Seen::Restarted,
        Event::State(state) if state.is_terminated() => Seen::Terminated,
        _ => Seen::Other,
    }
}
