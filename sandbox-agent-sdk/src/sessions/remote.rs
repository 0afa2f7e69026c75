//! A turn that runs on the endpoint of another process.

use tokio::sync::{mpsc, oneshot};

use super::entry::Entry;
use super::feed::Mailbox;
use super::holder;
use super::options::Durability;
use super::shared::Shared;
use super::store::StoredEventKind;
use super::tracker::Command;
use crate::client::event::Hold;
use crate::client::names::AGENT_EXITED;
use crate::stream::{LogEntry, LogRecord, StreamReader};
use crate::termination::TerminationReport;
use crate::{Error, Event, SandboxAgentClient};

/// Gets the result of a cancel.
type Cancel = oneshot::Sender<Result<(), Error>>;
type Cancels = mpsc::Receiver<Cancel>;

/// A turn that another process began on its own endpoint of a released server. It is followed until it ends; dropping
/// this ends the following, and leaves the turn as it is.
#[derive(Debug)]
pub(super) struct RemoteTurn {
    cancels: mpsc::Sender<Cancel>,
}

/// The turn that is followed.
pub(super) struct Followed {
    /// The id of the stored session.
    pub(super) id: String,
    /// The id of the agent's session on that endpoint.
    pub(super) agent_session: String,
    /// The id of the turn.
    pub(super) turn: String,
    /// The JSON-RPC ids under which the prompt was sent.
    pub(super) prompts: Vec<String>,
    /// The agent requests that are open.
    pub(super) requests: Vec<String>,
    pub(super) inbox: Mailbox,
    pub(super) reader: StreamReader,
}

impl RemoteTurn {
    /// Follows a turn after the events that were already read.
    pub(super) fn follow(
        client: &SandboxAgentClient,
        shared: &std::sync::Arc<Shared>,
        followed: Followed,
    ) -> Self {
        let (cancels, asked) = mpsc::channel(1);
        let shared = std::sync::Arc::downgrade(shared);
        // Without a client nothing more is stored.
        client.inner().spawn(async move { followed.run(shared, asked).await });
        Self { cancels }
    }

    /// Cancels the turn.
    pub(super) async fn cancel(&self) -> Result<(), Error> {
        let (done, cancelled) = oneshot::channel();
        // A turn that has ended needs no cancel.
        let _ = self.cancels.send(done).await;
        cancelled.await.unwrap_or(Ok(()))
    }
}

impl Followed {
    async fn run(mut self, shared: std::sync::Weak<Shared>, mut cancels: Cancels) {
        for request in std::mem::take(&mut self.requests) {
            let Some(shared) = shared.upgrade() else { return };
            self.offer(&shared, &request).await;
        }
        loop {
            let entry = tokio::select! {
                entry = self.reader.follow() => entry,
                done = cancels.recv() => match self.cancel(done).await {
                    true => continue,
                    false => return,
                },
            };
            let Some(shared) = shared.upgrade() else { return };
            let is_over = match entry {
                Some(entry) => self.take(&shared, entry, &mut cancels).await,
                None => {
                    self.lose(&shared);
                    true
                }
            };
            if is_over {
                return;
            }
        }
    }

    /// Cancels the turn for a tracker. Returns `false` if the tracker does not follow the turn any more.
    async fn cancel(&mut self, done: Option<Cancel>) -> bool {
        let Some(done) = done else { return false };
        // A caller that went away needs no answer.
        let _ = done.send(self.reader.cancel_turn(&self.agent_session).await);
        true
    }

    /// Waits until an entry is stored or discarded. The tracker that stores it may cancel the turn before. Returns `false`
    /// if the tracker does not follow the turn any more.
    async fn is_shown(&mut self, hold: &Hold, cancels: &mut Cancels) -> bool {
        loop {
            tokio::select! {
                () = holder::ended(hold) => return true,
                done = cancels.recv() => if !self.cancel(done).await {
                    return false;
                },
            }
        }
    }

    /// Takes in what happened on the endpoint, and returns whether the turn is over.
    async fn take(&mut self, shared: &Shared, entry: LogEntry, cancels: &mut Cancels) -> bool {
        match &entry.record {
            LogRecord::Response { request_id, result } if self.prompts.contains(request_id) => {
                self.inbox.note(Command::Responded(request_id.clone(), result.clone()));
                return true;
            }
            LogRecord::Event(Event::ServerRestarted) => {
                self.lose(shared);
                return true;
            }
            LogRecord::Missing(_)
            | LogRecord::Event(Event::Lagged(_) | Event::Malformed { lost: true, .. }) => {
                self.push(shared, Entry::of_record(&entry.record, None));
            }
            record if ended(record).is_some() => {
                self.push(shared, ended(record).map(|ended| Entry { position: entry.position, ..ended }));
                return true;
            }
            _ => {}
        }
        if entry.session_id() != Some(&self.agent_session) {
            return false;
        }
        let read = Entry::of_record(&entry.record, entry.position);
        let hold = match shared.options.durability {
            Durability::BeforeDelivery => self.push_held(shared, read),
            Durability::Background => {
                self.push(shared, read);
                None
            }
        };
        match &entry.record {
            LogRecord::AgentRequest { request_id, .. } => {
                if let Some(hold) = hold
                    && !self.is_shown(&hold, cancels).await
                {
                    return true;
                }
                self.offer(shared, request_id).await;
            }
            LogRecord::Event(event) => shared.deliver(&self.id, event, hold.as_ref()),
            _ => {}
        }
        false
    }

    /// Offers an agent request to the application. If the agent of this process has given the id of the session to
    /// another session, nothing could tell their requests apart, and the response is "cancelled".
    async fn offer(&mut self, shared: &Shared, request: &str) {
        if shared.feed.is_of_another(&self.agent_session, &self.inbox) {
            tracing::warn!(
                session = self.id,
                "a request of another endpoint is cancelled: its session id is in use"
            );
            return self.reader.cancel_request(request);
        }
        shared.feed.offer(&self.agent_session, request, &self.turn, &self.inbox);
        self.reader.offer(request).await;
    }

    fn push(&self, shared: &Shared, entry: Option<Entry>) {
        // It does not come from the stream of this process, so it does not change the progress.
        let _ = entry.map(|entry| shared.feed.give(&self.inbox, Entry { stream: u64::MAX, ..entry }));
    }

    /// Returns a hold that ends when the entry is stored.
    fn push_held(&self, shared: &Shared, entry: Option<Entry>) -> Option<Hold> {
        let mut entry = entry?;
        let hold = entry.hold_back();
        self.push(shared, Some(entry));
        Some(hold)
    }

    /// The end of the turn can no longer be observed.
    fn lose(&self, shared: &Shared) {
        self.push(shared, Some(Entry::gap(None, None)));
        self.inbox.note(Command::ForeignTurnLost);
    }
}

/// The end of the one agent of an endpoint of a released server.
pub(super) fn ended(record: &LogRecord) -> Option<Entry> {
    let LogRecord::Event(Event::Other { method, params, .. }) = record else { return None };
    let info = (method == AGENT_EXITED).then(|| TerminationReport::from_agent_exited(params).into_info())?;
    Some(Entry::own(StoredEventKind::Ended, serde_json::json!(info)))
}
