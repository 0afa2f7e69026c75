//! Taking a session up again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::handle::Sessions;
use super::replay::{history, tells};
use crate::client::random::random_below;
use crate::connection::Capabilities;
use crate::sessions::{EventQuery, ResumeSupport, SessionRecord, SessionStatus, StoreError, UserAction};
use crate::{ConnectionState, Error, NewSession, ServerKind};

/// How often a session is tried to be taken up that others take up at the same moment, and how long to wait in between,
/// about.
const RIVALS: u32 = 6;
const RIVAL_WAIT: Duration = Duration::from_millis(5);
/// How many pages of events are looked through for those that tell an agent anything.
const SPANS: usize = 64;

/// How a session was taken up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Restored {
    /// The agent resumed it.
    Resumed,
    /// The agent loaded it. The history that came with it is no news and is not stored again.
    Loaded,
    /// A new session of the agent takes its place, which is told the recent history with the next prompt.
    Replayed,
}

impl Restored {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Resumed => "resume",
            Self::Loaded => "load",
            Self::Replayed => "replay",
        }
    }
}

/// Which session is to be taken up, and for what.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) id: String,
    /// What it was made of in this program, with its tool servers.
    pub(super) new: Option<NewSession>,
    pub(super) action: UserAction,
    /// What is there to resume it, if it is suspended.
    pub(super) support: Option<ResumeSupport>,
}

impl Wish {
    /// Whether its status allows it, which others may change at any time.
    pub(super) fn check(&self, record: &SessionRecord) -> Result<(), Error> {
        match record.status {
            SessionStatus::Active => Ok(()),
            SessionStatus::Suspended if self.support.is_some() => Ok(()),
            status => Err(Error::NotAllowed { action: self.action, status }),
        }
    }
}

impl Sessions {
    /// A connection to the agent: the one there is, or a new one where that has ended by itself.
    pub(super) async fn connected(&self, agent: &str) -> Result<Arc<Capabilities>, Error> {
        let client = self.client();
        let connecting = match client.state() {
            ConnectionState::AgentEnded(_) => client.restart_agent(),
            ConnectionState::Lost(_) => client.connect_with(agent),
            ConnectionState::Disconnected if self.ledger.is_asleep() || client.inner().has_failed() => {
                client.connect_with(agent)
            }
            _ => return self.capabilities().await,
        };
        match connecting.await {
            Ok(capabilities) => Ok(capabilities),
            // Somebody else had the same thought.
            Err(Error::AlreadyConnected) => self.capabilities().await,
            // The program gave the connection up while it was made.
            Err(error @ Error::Disconnected { .. }) => Err(error),
            Err(error) => {
                // Nobody gave the connection up: whoever wants a session next tries again.
                self.ledger.set_asleep(true);
                Err(error)
            }
        }
    }

    async fn capabilities(&self) -> Result<Arc<Capabilities>, Error> {
        let connection = self.client().inner().connection().await?;
        connection.capabilities().ok_or(Error::NotConnected)
    }

    /// Has the agent take a session up again: it resumes it, or else loads it, or else gets a new one that is told what
    /// went before. Whoever calls this holds the gate of the session.
    pub(super) async fn restore(&self, wish: Wish) -> Result<Restored, Error> {
        let ledger = &self.ledger;
        for attempt in 1..=RIVALS {
            // What happened here has to be there, to be told and to be told apart from what others have stored.
            ledger.settle_in_time().await?;
            let record = ledger.record(&wish.id).await?;
            wish.check(&record)?;
            let can = self.connected(&record.agent).await?;
            if can.server == ServerKind::PerAgent && can.agent != record.agent {
                let (wanted, present) = (&record.agent, &can.agent);
                let what = format!(
                    "the session belongs to the agent `{wanted}`, and this client talks to `{present}`"
                );
                return Err(Error::config(what));
            }
            match self.take_over(&wish, &can, &record).await {
                // Somebody else wants it at the same moment; one of the two is last, and has it.
                Err(Error::Store(StoreError::TakenOver { .. })) if attempt < RIVALS => {
                    let wait = RIVAL_WAIT * (1 + random_below(8));
                    tokio::time::sleep(wait * attempt).await;
                }
                taken => return taken,
            }
        }
        // The last attempt returned.
        Err(Error::NotConnected)
    }

    /// The recent history as a text for the agent.
    pub(super) async fn history(&self, id: &str) -> Result<Option<String>, Error> {
        let limits = self.ledger.replay;
        let mut end = self.ledger.record(id).await?.last_index;
        let mut telling = VecDeque::new();
        // Not every event tells anything, so that more are read than are told, though not all of a long life.
        for _ in 0..SPANS {
            let start = end.saturating_sub(crate::sessions::MAX_PAGE as u64);
            let query = EventQuery::of(id).after(start).limit(crate::sessions::MAX_PAGE);
            let page = self.ledger.events(&query).await?;
            let of_span = page.events.into_iter().filter(|event| event.index <= end && tells(event));
            of_span.rev().for_each(|event| telling.push_front(event));
            if start == 0 || telling.len() >= limits.max_events {
                break;
            }
            end = start;
        }
        Ok(history(telling.make_contiguous(), limits))
    }
}
