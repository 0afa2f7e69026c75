//! What the stored sessions of a client share.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Fuse, FusedFuture as _};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::answers::Answers;
use super::feed::{Feed, Mailbox};
use super::inbox::Inbox;
use super::incarnations::KnownStream;
use super::options::StoreOptions;
use super::store::{
    AgentSession, Fingerprint, RecordQuery, SessionRecord, SessionStore, StoreError, StreamPosition,
};
use super::tracker::{Ask, Command, Tracker, View};
use super::unique::unique_id;
use crate::client::event::{Hold, Queue};
use crate::client::hub::Hub;
use crate::client::network::check_runtime;
use crate::connection::Capabilities;
use crate::event::EventsLost;
use crate::requests::Registration;
use crate::stream::StreamPosition as Position;
use crate::{ConnectionState, Error, Event, Events, SandboxAgentClient};

/// The state that the stored sessions of a client share. Each session has a tracker, which owns its state.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Arc<dyn SessionStore>,
    pub(super) options: StoreOptions,
    pub(super) hub: Arc<Hub>,
    pub(super) feed: Arc<Feed>,
    /// Stores responses to agent requests.
    _answers: Registration,
    /// This process, as an owner of sessions.
    pub(super) owner: String,
    /// The name of the server in records. Its incarnations are counted under this name.
    pub(super) server: String,
    /// Guards the trackers; held for a look-up.
    trackers: Mutex<BTreeMap<String, Handle>>,
    /// Guards the followers of sessions; held for a look-up.
    followers: Mutex<Followers>,
    /// Guards the losses since the last flush; held to add or take them.
    losses: Mutex<Losses>,
    /// Guards the known incarnation of the stream; held for a copy.
    pub(super) stream: Mutex<Option<KnownStream>>,
    /// Held while the incarnation of a stream is determined, so that all sessions get the same one.
    pub(super) raising: tokio::sync::Mutex<()>,
    /// Guards the endpoint that was left to another process when this one disconnected; held for a look-up or a change.
    left_endpoint: Mutex<Option<String>>,
}

/// The followers of each session, by its id.
#[derive(Debug, Default)]
struct Followers {
    by_session: BTreeMap<String, Vec<Weak<Queue<Event>>>>,
    /// The number of sessions at which those without followers are removed.
    room: usize,
}

impl Followers {
    fn of(&self, id: &str) -> Vec<Arc<Queue<Event>>> {
        self.by_session.get(id).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    fn make_room(&mut self) {
        if self.by_session.len() >= self.room {
            self.by_session.retain(|_, followers| {
                followers.retain(|follower| follower.strong_count() > 0);
                !followers.is_empty()
            });
            self.room = 2 * self.by_session.len() + 1;
        }
    }
}

#[derive(Debug, Default)]
struct Losses {
    by_session: BTreeMap<String, EventsLost>,
    failure: Option<StoreError>,
}

/// What uses an endpoint of a released server.
#[derive(Debug, Clone, Copy)]
pub(super) enum UsedBy<'a> {
    /// Any other stored session that may continue there.
    SessionsBut(&'a str),
    /// A stored session that another process owns.
    OtherProcesses,
}

/// The handle of a tracker.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) inbox: Arc<Inbox<Command>>,
    pub(super) view: watch::Receiver<View>,
}

impl Handle {
    /// Waits until all events so far are stored or reported as lost.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.inbox.note(Command::Ask(Box::new(|tracker| {
            Box::pin(async {
                tracker.describe().await;
                tracker.store_pending().await;
                let _ = done.send(());
            })
        })));
        // A tracker that has ended has nothing to store.
        let _ = flushed.await;
    }
}

impl Shared {
    pub(super) fn new(
        client: &SandboxAgentClient,
        store: Arc<dyn SessionStore>,
        options: StoreOptions,
    ) -> Arc<Self> {
        let inner = client.inner();
        let feed = Feed::attached(&inner.hub, options.durability, options.advance_every);
        let url = || inner.options.base_url.trim_end_matches('/').to_owned();
        let server = options.server_name.clone().unwrap_or_else(url);
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
            owner: format!("own_{}", unique_id()),
            server,
            trackers: Mutex::default(),
            followers: Mutex::default(),
            losses: Mutex::default(),
            stream: Mutex::default(),
            raising: tokio::sync::Mutex::default(),
            left_endpoint: Mutex::default(),
        });
        let (feed, reporting) = (Arc::clone(&shared.feed), Arc::downgrade(&shared));
        // Without a runtime nothing happens that could be lost.
        inner.spawn(async move { report(&feed, &reporting).await });
        shared
    }

    /// The tracker of a session. It is started if it does not run; `None` if that is not possible, because the client is
    /// gone.
    fn tracker(self: &Arc<Self>, client: &SandboxAgentClient, id: &str) -> Option<Handle> {
        let mut trackers = lock(&self.trackers);
        if let Some(handle) = trackers.get(id) {
            return Some(handle.clone());
        }
        let (tracker, handle) = Tracker::new(Arc::clone(self), client.downgrade(), id);
        client.inner().spawn(tracker.run()).then(|| {
            trackers.insert(id.to_owned(), handle.clone());
            handle
        })
    }

    pub(super) fn tracked(&self, id: &str) -> Option<Handle> {
        lock(&self.trackers).get(id).cloned()
    }

    pub(super) fn all_tracked(&self) -> Vec<(String, Handle)> {
        lock(&self.trackers).iter().map(|(id, handle)| (id.clone(), handle.clone())).collect()
    }

    /// Ends the tracker of a session: nothing more of it is stored, and waiting events are dropped.
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

    /// Sends a command to a tracker and waits for the result. The command completes even if the caller is dropped.
    pub(super) async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        client: &SandboxAgentClient,
        id: &str,
        act: impl for<'a> FnOnce(&'a mut Tracker) -> BoxFuture<'a, Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        check_runtime()?;
        let (sender, answer) = oneshot::channel();
        let ask: Ask = Box::new(|tracker| {
            Box::pin(async {
                tracker.inbox.set_busy(true);
                let result = act(tracker).await;
                tracker.inbox.set_busy(false);
                tracker.show();
                // The caller may be gone.
                let _ = sender.send(result);
            })
        });
        let mut command = Command::Ask(ask);
        loop {
            let handle = self.tracker(client, id).ok_or(Error::NotConnected)?;
            match handle.inbox.command(command) {
                Ok(()) => return answer.await.map_err(|_| Error::NotConnected)?,
                Err(refused) => command = refused,
            }
            // It has ended since it was found.
            self.forget_tracker(id, &handle.inbox);
        }
    }

    /// Subscribes to the events of a session, across changes of the agent's session.
    pub(super) fn follow(&self, id: &str) -> Events {
        let queue = self.hub.event_queue();
        {
            let mut followers = lock(&self.followers);
            followers.make_room();
            followers.by_session.entry(id.to_owned()).or_default().push(Arc::downgrade(&queue));
        }
        let bound = self.tracked(id).and_then(|handle| handle.view.borrow().agent_session.clone());
        if let Some(bound) = bound {
            self.hub.move_subscriptions(&[Arc::clone(&queue)], None, &bound);
        }
        Events::new(queue)
    }

    /// The followers of a session follow this session of the agent from now on.
    pub(super) fn move_followers(&self, id: &str, from: Option<&str>, to: &str) {
        let followers = lock(&self.followers).of(id);
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
            // Another call created it.
            Err(Error::AlreadyConnected) => capabilities(client).await,
            // The application disconnected meanwhile.
            Err(error @ Error::Disconnected { .. }) => Err(error),
            Err(error) => {
                self.feed.set_asleep(true);
                Err(error)
            }
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

    /// Whether the agent on an endpoint continues after this connection to it has ended: other processes use the endpoint.
    pub(super) fn outlives_connection(&self, endpoint: &str) -> bool {
        self.path_of(endpoint).is_none() || lock(&self.left_endpoint).as_deref() == Some(endpoint)
    }

    /// Whether an endpoint is in use, according to the stored sessions.
    pub(super) async fn is_in_use(&self, endpoint: &str, by: UsedBy<'_>) -> Result<bool, StoreError> {
        let uses = |record: &SessionRecord| match by {
            UsedBy::SessionsBut(id) => record.id != id,
            UsedBy::OtherProcesses => record.owner.as_ref().is_some_and(|owner| *owner != self.owner),
        };
        let query = RecordQuery::counted().endpoint(endpoint);
        let found = self.find_record(query, |record| uses(&record).then_some(()));
        Ok(found.await?.is_some())
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
        let query = RecordQuery::all().endpoint(endpoint).agent_session_id(&session.id);
        let found = self.find_record(query, |record| is_bound(&record).then_some(()));
        Ok(found.await?.is_some())
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
        *lock(&self.left_endpoint) = is_used.then_some(endpoint);
        is_used
    }

    /// Passes an event of another endpoint to the followers of a session, once it is released.
    pub(super) fn deliver(&self, id: &str, event: &Event, hold: Option<&Hold>) {
        for queue in lock(&self.followers).of(id) {
            queue.push_held(event.copy_for(false), hold.cloned());
        }
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

    /// Reports the events that did not fit into a mailbox.
    fn report_overflow(&self) {
        for (session_id, count) in self.feed.take_lost() {
            self.lost(EventsLost { session_id, count, error: None });
        }
    }

    /// A record could not be changed.
    pub(super) fn failed(&self, error: StoreError) {
        lock(&self.losses).failure = Some(error);
    }

    /// Returns the losses since the last call.
    pub(super) fn take_losses(&self) -> Result<(), Error> {
        self.report_overflow();
        let Losses { by_session, failure } = std::mem::take(&mut *lock(&self.losses));
        let losses: Vec<_> = by_session.into_values().collect();
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
            () = feed.news() => {}
            () = &mut advancing => continue,
        }
        let Some(shared) = shared.upgrade() else { return };
        shared.report_overflow();
        if advancing.is_terminated() && feed.take_due() {
            advancing.set(advance(shared).fuse());
        }
    }
}

async fn advance(shared: Arc<Shared>) {
    if let Some(scanned_to) = shared.scanned_to()
        && let Err(error) = shared.in_time(shared.store.advance(scanned_to)).await
    {
        // The next append stores it. Otherwise the next owner reads more than necessary.
        tracing::debug!(error = %crate::convert::text::OneLine(&error), "the read position could not be stored");
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
mod tests;
