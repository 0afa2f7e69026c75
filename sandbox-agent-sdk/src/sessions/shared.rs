//! What the stored sessions of a client share.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Fuse, FusedFuture as _};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::answers::Answers;
use super::feed::{Feed, Mailbox};
use super::inbox::Inbox;
use super::options::StoreOptions;
use super::store::{
    AgentSession, Append, EventPage, EventQuery, Fingerprint, RecordQuery, ScannedTo, SessionRecord,
    SessionStore, StoreError, StreamPosition,
};
use super::tracker::{Ask, Command, Tracker, View};
use crate::client::deadline::deadline_after;
use crate::client::event::Queue;
use crate::client::hub::Hub;
use crate::client::maps::HashMap;
use crate::client::network::check_runtime;
use crate::client::random::random_id;
use crate::connection::Capabilities;
use crate::event::EventsLost;
use crate::requests::Registration;
use crate::stream::StreamPosition as Position;
use crate::{ConnectionState, Error, Event, Events, SandboxAgentClient};

/// How long to wait before a store that failed is tried again, at first and at most.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(20);
const LAST_WAIT: Duration = Duration::from_secs(2);
/// How long a store is given at least for one attempt.
const SHORTEST: Duration = Duration::from_millis(500);

/// What the stored sessions of a client share. Each session has a tracker, which owns its state.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Arc<dyn SessionStore>,
    pub(super) options: StoreOptions,
    pub(super) hub: Arc<Hub>,
    pub(super) feed: Arc<Feed>,
    /// Stores answers to agent requests.
    _answers: Registration,
    /// This process, as an owner of sessions.
    pub(super) owner: String,
    /// The server. Its incarnations are counted under this name.
    pub(super) server: String,
    /// Guards the trackers; held for a look-up.
    trackers: Mutex<HashMap<String, Handle>>,
    /// Guards who follows which session; held for a look-up.
    followers: Mutex<HashMap<String, Vec<Weak<Queue<Event>>>>>,
    /// Guards what could not be stored since the last flush; held to add or take it.
    losses: Mutex<Losses>,
    /// Guards what is known of the stream that is read; held for a copy.
    stream: Mutex<Option<KnownStream>>,
    /// Held while the incarnation of a stream is determined, so that all sessions get the same one.
    raising: tokio::sync::Mutex<()>,
}

/// A stream of which the incarnation was determined.
#[derive(Debug, Clone)]
struct KnownStream {
    /// Its number, as the feed counts them.
    number: u64,
    incarnation: u64,
    endpoint: String,
    /// Whether it is proven, or was raised for this stream.
    is_fact: bool,
}

#[derive(Debug, Default)]
struct Losses {
    by_session: BTreeMap<String, EventsLost>,
    failure: Option<StoreError>,
}

/// What uses an endpoint of a released server.
#[derive(Debug, Clone, Copy)]
pub(super) enum UsedBy<'a> {
    /// Any stored session that may continue there, but for this one.
    SessionsBut(&'a str),
    /// A stored session that another process owns.
    OtherProcesses,
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
        let feed = Feed::attached(&inner.hub, options.durability, options.advance_every);
        let shared = Arc::new_cyclic(|weak: &Weak<Self>| Self {
            store,
            options,
            hub: Arc::clone(&inner.hub),
            feed,
            _answers: {
                let selects = Answers(weak.clone());
                let answers = Answers(weak.clone());
                client.requests().register_outermost(move |request| selects.selects(request), answers)
            },
            owner: format!("own_{}", random_id()),
            server: inner.options.base_url.trim_end_matches('/').to_owned(),
            trackers: Mutex::default(),
            followers: Mutex::default(),
            losses: Mutex::default(),
            stream: Mutex::default(),
            raising: tokio::sync::Mutex::default(),
        });
        let (feed, reporting) = (Arc::clone(&shared.feed), Arc::downgrade(&shared));
        // Without a runtime nothing happens that could be lost.
        inner.spawn(async move { report(&feed, &reporting).await });
        shared
    }

    /// The tracker of a session. It is started if it does not run.
    pub(super) fn tracker(self: &Arc<Self>, client: &SandboxAgentClient, id: &str) -> Handle {
        let mut trackers = lock(&self.trackers);
        if let Some(handle) = trackers.get(id) {
            return handle.clone();
        }
        let inbox = Arc::new(Inbox::new(id, self.options.capacity, self.options.max_bytes));
        let (view, seen) = watch::channel(View::default());
        let tracker = Tracker {
            shared: Arc::clone(self),
            client: client.downgrade(),
            id: id.to_owned(),
            inbox: Arc::clone(&inbox),
            view,
            owned: None,
            lost: 0,
            lost_at: None,
            is_failing: false,
            unstored_ends: Vec::new(),
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
            self.feed.discard(handle.inbox.close());
        }
    }

    /// The tracker has ended.
    pub(super) fn forget_tracker(&self, id: &str, inbox: &Mailbox) {
        let mut trackers = lock(&self.trackers);
        if trackers.get(id).is_some_and(|known| Arc::ptr_eq(&known.inbox, inbox)) {
            trackers.remove(id);
        }
    }

    /// Asks a tracker, and waits for the answer. What was begun is completed even if the caller does not wait.
    pub(super) async fn ask<T>(
        self: &Arc<Self>,
        client: &SandboxAgentClient,
        id: &str,
        ask: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Ask,
    ) -> Result<T, Error> {
        check_runtime()?;
        let (sender, answer) = oneshot::channel();
        let mut command = Command::Ask(ask(sender));
        loop {
            let handle = self.tracker(client, id);
            match handle.inbox.command(command) {
                Ok(()) => return answer.await.map_err(|_| Error::NotConnected)?,
                Err(refused) => command = refused,
            }
            if self.tracked(id).is_none_or(|known| !Arc::ptr_eq(&known.inbox, &handle.inbox)) {
                // It could not be started: the client is gone.
                return Err(Error::NotConnected);
            }
            // It has ended since it was found.
            self.forget_tracker(id, &handle.inbox);
        }
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
        deadline_after(self.options.retry_for)
    }

    /// When a flush ends: a tracker that waits for the store gives up before.
    pub(super) fn flush_deadline(&self) -> Instant {
        deadline_after(self.options.retry_for.saturating_mul(2))
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
        StoreError::check_runtime()?;
        let result = tokio::time::timeout(self.options.retry_for, call).await;
        result.unwrap_or_else(|_| Err(StoreError::timed_out("the store")))
    }

    /// Appends. A store that fails is tried again until the deadline: an event that is stored already is not stored twice.
    pub(super) async fn append_until(&self, append: Append, deadline: Instant) -> Result<(), StoreError> {
        StoreError::check_runtime()?;
        let mut wait = FIRST_WAIT;
        loop {
            let limit = deadline.max(Instant::now() + SHORTEST);
            let appended = tokio::time::timeout_at(limit, self.store.append(append.clone())).await;
            let error = match appended {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => StoreError::timed_out("append"),
            };
            if !error.may_be_done() || Instant::now() >= deadline {
                return Err(error);
            }
            let shown = crate::convert::text::OneLine(&error);
            tracing::debug!(error = %shown, session = append.session_id, "an append is tried again");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_WAIT);
        }
    }

    pub(super) fn position(&self, incarnation: u64, at: Position) -> StreamPosition {
        StreamPosition { incarnation, offset: at.offset, fingerprint: Fingerprint(at.fingerprint) }
    }

    /// The endpoint of the present connection, as records name it: that of this process alone, or the server's.
    pub(super) async fn endpoint(&self, client: &SandboxAgentClient) -> Result<String, Error> {
        let connection = client.inner().connection().await?;
        Ok(format!("{}{}", self.server, connection.own_path().unwrap_or_default()))
    }

    /// The path of an endpoint of a released server that one process has for itself.
    pub(super) fn path_of<'a>(&self, endpoint: &'a str) -> Option<&'a str> {
        let path = endpoint.strip_prefix(&self.server)?;
        path.starts_with(&format!("{}/", crate::client::ENDPOINTS)).then_some(path)
    }

    /// Whether an endpoint is in use, as far as stored sessions say.
    pub(super) async fn is_in_use(&self, endpoint: &str, by: UsedBy<'_>) -> Result<bool, StoreError> {
        let uses = |record: &SessionRecord| match by {
            UsedBy::SessionsBut(id) => record.id != id,
            UsedBy::OtherProcesses => record.owner.as_ref().is_some_and(|owner| *owner != self.owner),
        };
        self.any_record(RecordQuery::counted().endpoint(endpoint), uses).await
    }

    /// Whether another stored session is bound to the agent's session, in this incarnation of the server or a later one.
    pub(super) async fn is_bound_since(
        &self,
        session: &AgentSession,
        endpoint: &str,
        (but, incarnation): (&str, u64),
    ) -> Result<bool, StoreError> {
        let is_bound = |record: &SessionRecord| {
            let bound = record.agent_session.as_ref();
            record.id != but && bound.is_some_and(|bound| bound.incarnation >= incarnation)
        };
        self.any_record(RecordQuery::all().endpoint(endpoint).agent_session_id(&session.id), is_bound).await
    }

    async fn any_record(
        &self,
        mut query: RecordQuery,
        is_it: impl Fn(&SessionRecord) -> bool,
    ) -> Result<bool, StoreError> {
        loop {
            let page = self.in_time(self.store.list(&query)).await?;
            match (page.records.iter().any(&is_it), page.next) {
                (true, _) => return Ok(true),
                (false, Some(next)) => query = query.after(next),
                (false, None) => return Ok(false),
            }
        }
    }

    /// Leaves the endpoint of this process to another one that owns a session on it, instead of ending it with the
    /// connection.
    pub(super) async fn leave_endpoint_in_use(&self, client: &SandboxAgentClient, until: Instant) -> bool {
        let connection = client.inner().present();
        let Some(connection) = connection.filter(|connection| connection.own_path().is_some()) else {
            return false;
        };
        let endpoint = format!("{}{}", self.server, connection.own_path().unwrap_or_default());
        let using = self.is_in_use(&endpoint, UsedBy::OtherProcesses);
        // If the store does not say so, the next owner that finds the endpoint ends it.
        let is_used = !matches!(tokio::time::timeout_at(until, using).await, Ok(Ok(false)));
        connection.is_left.store(is_used, Ordering::Release);
        is_used
    }

    /// Gives an event of another endpoint to those who follow a session.
    pub(super) fn deliver(&self, id: &str, event: &Event) {
        let followers = lock(&self.followers).get(id).cloned().unwrap_or_default();
        for queue in followers.iter().filter_map(Weak::upgrade) {
            queue.push(event.copy_for(false));
        }
    }

    /// How far this process has read the stream, if its incarnation is known.
    pub(super) fn scanned_to(&self) -> Option<ScannedTo> {
        let (stream, at) = self.feed.scanned_to()?;
        // A stream after a restart has no incarnation until a session was acquired on it.
        let known = lock(&self.stream).clone().filter(|known| known.number == stream)?;
        let position = self.position(known.incarnation, at);
        Some(ScannedTo { owner: self.owner.clone(), endpoint: known.endpoint, position })
    }

    /// The incarnation of the server on this stream, for a session that has nothing stored of it: what is known, or what
    /// the store has. No other session may rely on the latter, which may be that of an earlier run of the server.
    pub(super) async fn assumed_incarnation(&self, stream: u64, endpoint: &str) -> Result<u64, StoreError> {
        let _one_at_a_time = self.raising.lock().await;
        if let Some(known) = self.known(stream, endpoint) {
            return Ok(known.incarnation);
        }
        // Nobody else reads the stream of an endpoint of its own.
        if self.path_of(endpoint).is_some() {
            return self.raise(stream, endpoint).await;
        }
        let assumed = self.in_time(self.store.incarnation(&self.server)).await?;
        self.know(stream, assumed, endpoint, false);
        Ok(assumed)
    }

    /// The incarnation of the server on this stream, which an event of that incarnation was found on.
    pub(super) async fn proven_incarnation(&self, stream: u64, endpoint: &str, proven: u64) -> u64 {
        let _one_at_a_time = self.raising.lock().await;
        // Several processes may have numbered the same stream: the highest number wins, because positions never go back.
        let number = self.known(stream, endpoint).map_or(proven, |known| known.incarnation.max(proven));
        self.know(stream, number, endpoint, true);
        number
    }

    /// An incarnation of the server on this stream that is none of the earlier ones of a session, of which `not` is the
    /// last.
    pub(super) async fn other_incarnation(
        &self,
        stream: u64,
        endpoint: &str,
        not: u64,
    ) -> Result<u64, StoreError> {
        let _one_at_a_time = self.raising.lock().await;
        match self.known(stream, endpoint).filter(|known| known.is_fact && known.incarnation != not) {
            Some(known) => Ok(known.incarnation),
            None => self.raise(stream, endpoint).await,
        }
    }

    fn known(&self, stream: u64, endpoint: &str) -> Option<KnownStream> {
        lock(&self.stream).clone().filter(|known| known.number == stream && known.endpoint == endpoint)
    }

    async fn raise(&self, stream: u64, endpoint: &str) -> Result<u64, StoreError> {
        let before = self.in_time(self.store.incarnation(&self.server)).await?;
        let raised = self.in_time(self.store.raise_incarnation(&self.server, before)).await?;
        self.know(stream, raised, endpoint, true);
        Ok(raised)
    }

    fn know(&self, number: u64, incarnation: u64, endpoint: &str, is_fact: bool) {
        let endpoint = endpoint.to_owned();
        *lock(&self.stream) = Some(KnownStream { number, incarnation, endpoint, is_fact });
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

/// Reports what did not fit, also while the store does not respond, and stores how far the stream was read while no session
/// has anything to store.
async fn report(feed: &Feed, shared: &Weak<Shared>) {
    let mut advancing = pin!(Fuse::terminated());
    loop {
        tokio::select! {
            () = feed.news.notified() => {}
            () = &mut advancing => continue,
        }
        let Some(shared) = shared.upgrade() else { return };
        for (session_id, count) in feed.take_lost() {
            shared.lost(EventsLost { session_id, count, error: None });
        }
        if advancing.is_terminated() && feed.take_due() {
            advancing.set(advance(shared).fuse());
        }
    }
}

async fn advance(shared: Arc<Shared>) {
    if let Some(scanned_to) = shared.scanned_to()
        && let Err(error) = shared.in_time(shared.store.advance(scanned_to)).await
    {
        // The next append stores it, or the next owner reads more than it has to.
        tracing::debug!(error = %crate::convert::text::OneLine(&error), "how far the stream was read could not be stored");
    }
}

async fn capabilities(client: &SandboxAgentClient) -> Result<Arc<Capabilities>, Error> {
    let connection = client.inner().connection().await?;
    connection.capabilities().ok_or(Error::NotConnected)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use crate::SandboxAgentClient;
    use crate::sessions::MemoryStore;

    #[tokio::test]
    async fn a_tracker_of_a_session_that_does_not_exist_is_freed() {
        let client = SandboxAgentClient::builder("http://127.0.0.1:1").auto_connect(false).build().unwrap();
        let client = client.with_store(MemoryStore::new());
        for _ in 0..3 {
            client.session("nothing").resume().await.unwrap_err();
        }
        while !client.shared.all_tracked().is_empty() {
            tokio::task::yield_now().await;
        }
    }
}
