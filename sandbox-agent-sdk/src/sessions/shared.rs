//! What the stored sessions of a client share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::answers::Answers;
use super::events_lost::EventsLost;
use super::feed::Feed;
use super::inbox::Inbox;
use super::options::StoreOptions;
use super::store::{
    EventPage, EventQuery, Fingerprint, SessionRecord, SessionStore, StoreError, StreamPosition,
};
use super::tracker::{Ask, Command, Tracker, View};
use crate::client::Hub;
use crate::client::event::Queue;
use crate::client::maps::HashMap;
use crate::client::random::random_id;
use crate::connection::Capabilities;
use crate::requests::Registration;
use crate::stream::StreamPosition as Position;
use crate::thread::ResultRules;
use crate::{ConnectionState, Error, Event, Events, SandboxAgentClient};

/// The longest time that a deadline may be away.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What the stored sessions of a client share. Each session has a tracker, which owns its state.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Arc<dyn SessionStore>,
    pub(super) options: StoreOptions,
    pub(super) rules: ResultRules,
    pub(super) hub: Arc<Hub>,
    pub(super) feed: Arc<Feed>,
    /// Stores answers to agent requests.
    _answers: Registration,
    /// This process, as an owner of sessions.
    pub(super) owner: String,
    /// The server, as positions name it.
    pub(super) endpoint: String,
    /// Guards the trackers; held for a look-up.
    trackers: Mutex<HashMap<String, Handle>>,
    /// Guards who follows which session; held for a look-up.
    followers: Mutex<HashMap<String, Vec<Weak<Queue<Event>>>>>,
    /// Guards what could not be stored since the last flush; held to add or take it.
    losses: Mutex<Losses>,
    /// The incarnation of the server on the stream of this number.
    incarnation: Mutex<Option<(u64, u64)>>,
}

#[derive(Debug, Default)]
struct Losses {
    by_session: BTreeMap<String, EventsLost>,
    failure: Option<StoreError>,
}

/// The way to a tracker.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) inbox: Arc<Inbox<Command>>,
    pub(super) view: watch::Receiver<View>,
}

impl Shared {
    pub(super) fn new(
        client: &SandboxAgentClient,
        store: Arc<dyn SessionStore>,
        options: StoreOptions,
    ) -> Arc<Self> {
        let inner = client.inner();
        let feed = Feed::attached(&inner.hub, options.durability);
        let selects = Answers(Arc::downgrade(&feed));
        let shared = Arc::new(Self {
            store,
            options,
            rules: ResultRules::default(),
            hub: Arc::clone(&inner.hub),
            feed: Arc::clone(&feed),
            _answers: client
                .requests()
                .register(move |request| selects.selects(request), Answers(Arc::downgrade(&feed))),
            owner: format!("own_{}", random_id()),
            endpoint: inner.options.base_url.trim_end_matches('/').to_owned(),
            trackers: Mutex::default(),
            followers: Mutex::default(),
            losses: Mutex::default(),
            incarnation: Mutex::default(),
        });
        let (feed, reporting) = (Arc::clone(&shared.feed), Arc::downgrade(&shared));
        // Without a runtime nothing happens that could be lost.
        inner.spawn(async move { report_losses(&feed, &reporting).await });
        shared
    }

    /// The tracker of a session. It is started if it does not run.
    pub(super) fn tracker(self: &Arc<Self>, client: &SandboxAgentClient, id: &str) -> Handle {
        let mut trackers = lock(&self.trackers);
        if let Some(handle) = trackers.get(id) {
            return handle.clone();
        }
        let inbox = Arc::new(Inbox::new(self.options.capacity, self.options.max_bytes));
        let (view, seen) = watch::channel(View::default());
        let tracker = Tracker {
            shared: Arc::clone(self),
            client: client.downgrade(),
            id: id.to_owned(),
            inbox: Arc::clone(&inbox),
            view,
            owned: None,
            lost: 0,
            is_failing: false,
            not_stored: None,
        };
        let handle = Handle { inbox, view: seen };
        if client.inner().spawn(tracker.run()) {
            trackers.insert(id.to_owned(), handle.clone());
        } else {
            // The client is gone: nothing answers.
            handle.inbox.close();
        }
        handle
    }

    pub(super) fn tracked(&self, id: &str) -> Option<Handle> {
        lock(&self.trackers).get(id).cloned()
    }

    pub(super) fn all_tracked(&self) -> Vec<(String, Handle)> {
        lock(&self.trackers).iter().map(|(id, handle)| (id.clone(), handle.clone())).collect()
    }

    /// Ends the tracker of a session: nothing of it is stored any more, and what waits is dropped.
    pub(super) fn untrack(&self, id: &str) {
        let handle = lock(&self.trackers).remove(id);
        if let Some(handle) = handle {
            self.feed.unroute(&handle.inbox, None);
            handle.inbox.close();
        }
    }

    /// Asks a tracker, and waits for the answer. What was begun is completed even if the caller does not wait.
    pub(super) async fn ask<T>(
        self: &Arc<Self>,
        client: &SandboxAgentClient,
        id: &str,
        ask: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Ask,
    ) -> Result<T, Error> {
        let (sender, answer) = oneshot::channel();
        let mut command = Command::Ask(ask(sender));
        // A tracker may have ended since it was found.
        for _ in 0..2 {
            let handle = self.tracker(client, id);
            match handle.inbox.command(command) {
                Ok(()) => return answer.await.map_err(|_| Error::NotConnected)?,
                Err(refused) => command = refused,
            }
            lock(&self.trackers).retain(|_, known| !Arc::ptr_eq(&known.inbox, &handle.inbox));
        }
        drop(command);
        answer.await.map_err(|_| Error::NotConnected)?
    }

    /// The events of a session, whatever session of the agent it is.
    pub(super) fn follow(&self, id: &str) -> Events {
        let queue = self.hub.event_queue();
        {
            let mut followers = lock(&self.followers);
            followers.retain(|_, followers| {
                followers.retain(|follower| follower.strong_count() > 0);
                !followers.is_empty()
            });
            followers.entry(id.to_owned()).or_default().push(Arc::downgrade(&queue));
        }
        let bound = self.tracked(id).and_then(|handle| handle.view.borrow().agent_session.clone());
        if let Some(bound) = bound {
            self.hub.move_subscriptions(&[Arc::clone(&queue)], None, &bound);
        }
        Events::new(queue)
    }

    /// The followers of a session follow this session of the agent from now on.
    pub(super) fn move_followers(&self, id: &str, from: Option<&str>, to: &str) {
        let followers = lock(&self.followers).get(id).cloned().unwrap_or_default();
        let followers: Vec<_> = followers.iter().filter_map(Weak::upgrade).collect();
        self.hub.move_subscriptions(&followers, from, to);
    }

    /// A connection to the agent: the present one, or a new one where that has ended by itself.
    pub(super) async fn connected(
        &self,
        client: &SandboxAgentClient,
        agent: &str,
    ) -> Result<Arc<Capabilities>, Error> {
        let connecting = match client.state() {
            ConnectionState::AgentEnded(_) => client.restart_agent(),
            ConnectionState::Lost(_) => client.connect_with(agent),
            ConnectionState::Disconnected if self.feed.is_asleep() => client.connect_with(agent),
            _ => return capabilities(client).await,
        };
        match connecting.await {
            Ok(capabilities) => Ok(capabilities),
            // Another call made it.
            Err(Error::AlreadyConnected) => capabilities(client).await,
            // The application disconnected meanwhile.
            Err(error @ Error::Disconnected { .. }) => Err(error),
            Err(error) => {
                self.feed.set_asleep(true);
                Err(error)
            }
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline_in(self.options.retry_for)
    }

    /// When a flush ends: a tracker that waits for the store gives up before.
    pub(super) fn flush_deadline(&self) -> Instant {
        self.deadline_in(self.options.retry_for.saturating_mul(2))
    }

    pub(super) fn deadline_in(&self, time: Duration) -> Instant {
        Instant::now() + time.min(LONGEST)
    }

    pub(super) async fn record(&self, id: &str) -> Result<SessionRecord, Error> {
        let record = self.in_time(self.store.get(id)).await?;
        Ok(record.ok_or_else(|| StoreError::NotFound { id: id.to_owned() })?)
    }

    pub(super) async fn events(&self, query: &EventQuery) -> Result<EventPage, Error> {
        Ok(self.in_time(self.store.events(query)).await?)
    }

    /// Waits for the store, but not for ever.
    pub(super) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = tokio::time::timeout(self.options.retry_for.min(LONGEST), call).await;
        result.unwrap_or_else(|_| Err(StoreError::timed_out("the store")))
    }

    pub(super) fn position(&self, incarnation: u64, place: Position) -> StreamPosition {
        StreamPosition { incarnation, offset: place.offset, fingerprint: Fingerprint(place.fingerprint) }
    }

    /// The incarnation of the server on a stream, if it was determined.
    pub(super) fn incarnation_of(&self, stream: u64) -> Option<u64> {
        lock(&self.incarnation).filter(|(of, _)| *of == stream).map(|(_, incarnation)| incarnation)
    }

    /// The incarnation of the server on this stream. Another stream after one that is known is another incarnation,
    /// unless the server is proven to be the same.
    pub(super) async fn incarnation(&self, stream: u64, is_proven: bool) -> Result<u64, StoreError> {
        if let Some(known) = self.incarnation_of(stream) {
            return Ok(known);
        }
        let known = lock(&self.incarnation).map(|(_, incarnation)| incarnation);
        let incarnation = match known.filter(|_| !is_proven) {
            Some(known) => self.in_time(self.store.raise_incarnation(&self.endpoint, known)).await?,
            None => self.in_time(self.store.incarnation(&self.endpoint)).await?,
        };
        *lock(&self.incarnation) = Some((stream, incarnation));
        Ok(incarnation)
    }

    /// The server on this stream is not the one of that incarnation.
    pub(super) async fn raise_incarnation(&self, stream: u64, from: u64) -> Result<u64, StoreError> {
        let current = self.incarnation_of(stream);
        if let Some(current) = current.filter(|current| *current != from) {
            return Ok(current);
        }
        let raised = self.in_time(self.store.raise_incarnation(&self.endpoint, from)).await?;
        *lock(&self.incarnation) = Some((stream, raised));
        Ok(raised)
    }

    /// Events could not be stored.
    pub(super) fn lost(&self, lost: EventsLost) {
        {
            let mut losses = lock(&self.losses);
            let of_session = losses.by_session.entry(lost.session_id.clone());
            let known = of_session.or_insert_with(|| EventsLost { count: 0, ..lost.clone() });
            known.count += lost.count;
            known.error = known.error.take().or_else(|| lost.error.clone());
        }
        self.hub.publish(&Event::EventsLost(lost));
    }

    /// A record could not be changed.
    pub(super) fn failed(&self, error: StoreError) {
        lock(&self.losses).failure = Some(error);
    }

    /// What could not be stored since the last call.
    pub(super) fn take_losses(&self) -> Result<(), Error> {
        let Losses { by_session, failure } = std::mem::take(&mut *lock(&self.losses));
        let losses: Vec<_> = by_session.into_values().filter(|lost| lost.error.is_some()).collect();
        match (losses.is_empty(), failure) {
            (false, _) => Err(Error::EventsLost(losses)),
            (true, Some(error)) => Err(error.into()),
            (true, None) => Ok(()),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.feed.close();
    }
}

/// Reports what did not fit, also while the store stands still.
async fn report_losses(feed: &Feed, shared: &Weak<Shared>) {
    loop {
        feed.losing.notified().await;
        let Some(shared) = shared.upgrade() else { return };
        for (session_id, count) in feed.take_lost() {
            shared.lost(EventsLost { session_id, count, error: None });
        }
    }
}

async fn capabilities(client: &SandboxAgentClient) -> Result<Arc<Capabilities>, Error> {
    let connection = client.inner().connection().await?;
    connection.capabilities().ok_or(Error::NotConnected)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
