//! Which kept session is which session of the agent, and what happens in it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use self::observing::outcome_payload;
use super::amend::{Amender, Amendment};
use super::binding::{Binding, Moment, TakenUp};
use super::change::change;
use super::entry::{Early, Entry};
use super::replay::ReplayLimits;
use super::stream::Stream;
use crate::client::Hub;
use crate::event::Queue;
use crate::store::Listeners;
use crate::{
    Error, Event, EventPage, EventQuery, Events, MemoryStore, Recorder, RecorderOptions, SessionRecord,
    SessionStore, StoreError, StoredEventKind, TerminationInfo, Timestamp,
};

mod observing;

pub(super) use self::observing::is_unknown_session;

/// From how many on the gates are looked through for those that nobody holds.
const GATES: usize = 1024;

/// The sessions of one client that are kept.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(super) store: Arc<dyn SessionStore>,
    pub(super) replay: ReplayLimits,
    options: RecorderOptions,
    hub: Weak<Hub>,
    /// For those who tell it something and must not keep it.
    this: Weak<Self>,
    /// Both are started with the first session that is bound, which is when there is a runtime.
    recorder: OnceLock<Recorder>,
    amender: OnceLock<Amender>,
    /// Guards who is who; held for a look-up, and never while anything waits.
    books: Mutex<Books>,
}

/// Whoever holds this may take up the session or begin a turn in it.
pub(super) type Alone = tokio::sync::OwnedMutexGuard<()>;

#[derive(Debug, Default)]
struct Books {
    bound: HashMap<String, Binding>,
    /// The kept session of each session of the agent, also of those that were its session before.
    kept: HashMap<String, String>,
    /// Sessions that this program has let go of in the middle of a turn, whose end only it will know.
    leaving: HashMap<String, String>,
    early: Early,
    /// Who listens to which kept session, whatever the agent calls it.
    followers: HashMap<String, Vec<Weak<Queue<Event>>>>,
    stream: Stream,
    gates: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// What has happened to all sessions so far, and whether the stream of events is lost now.
    now: Moment,
    away: bool,
    /// How often the stream had been lost when the server began anew last.
    restarted_after: u64,
    /// The sessions that this program is taking up or leaving, with the epoch that is its own doing.
    taking: HashMap<String, u64>,
    /// Whether there is no connection because nothing happened, or because it could not be made again: not because the
    /// program gave it up.
    asleep: bool,
    /// Whether the session that the client attaches to was taken.
    expected: bool,
    /// When something last happened in any session, kept or not.
    last_active: Option<Timestamp>,
}

impl Ledger {
    pub(super) fn new(
        store: Option<Arc<dyn SessionStore>>,
        options: RecorderOptions,
        replay: ReplayLimits,
        hub: &Arc<Hub>,
    ) -> Arc<Self> {
        let store = store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let ledger = Arc::new_cyclic(|this| Self {
            store,
            replay,
            options,
            hub: Arc::downgrade(hub),
            this: Weak::clone(this),
            recorder: OnceLock::new(),
            amender: OnceLock::new(),
            books: Mutex::default(),
        });
        hub.observe(Arc::<Self>::clone(&ledger));
        ledger
    }

    /// What takes events down. It starts on the first call, which needs a runtime.
    pub(super) fn recorder(&self) -> &Recorder {
        self.recorder.get_or_init(|| {
            let hub = Weak::clone(&self.hub);
            let lost = move |unrecorded| {
                if let Some(hub) = hub.upgrade() {
                    hub.publish(&Event::Unrecorded(unrecorded));
                }
            };
            let this = Weak::clone(&self.this);
            let taken = move |record: &SessionRecord| {
                let ledger = this.upgrade()?;
                ledger.let_go(&record.id, record.epoch);
                ledger.books().stream.until(record.taken_at.as_deref()?)
            };
            let this = Weak::clone(&self.this);
            let gone = move |id: &str, made_at| {
                // Somebody else has deleted it.
                if let Some(ledger) = this.upgrade()
                    && ledger.binding(id).is_some_and(|binding| binding.made_at == made_at)
                {
                    ledger.forget(id);
                }
            };
            let (store, options) = (Arc::clone(&self.store), self.options.clone());
            let listeners = Listeners { lost: Box::new(lost), taken: Box::new(taken), gone: Box::new(gone) };
            Recorder::start_telling(store, options, listeners)
        })
    }

    fn amend(&self, id: &str, epoch: u64, amendment: Amendment) {
        if amendment.is_empty() {
            return;
        }
        let start = || Amender::start(Arc::clone(&self.store), self.options.patience);
        let amender = self.amender.get_or_init(start);
        amender.amend(id, epoch, amendment);
    }

    /// Waits until everything that happened is stored.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        let recorded = match self.recorder.get() {
            Some(recorder) => recorder.flush().await,
            None => Ok(()),
        };
        let amended = match self.amender.get() {
            Some(amender) => amender.flush().await,
            None => Ok(()),
        };
        Ok(recorded.and(amended)?)
    }

    /// Waits until everything that happened is stored, and tells what became of one session.
    pub(super) async fn flush_session(&self, id: &str) -> Result<(), Error> {
        match self.recorder.get() {
            Some(recorder) => Ok(recorder.flush_session(id).await?),
            None => Ok(()),
        }
    }

    /// Waits until everything that happened is stored, or was given up and told of. It is bounded: a store that stands
    /// still is no reason to wait for ever.
    pub(super) async fn settle_in_time(&self) -> Result<(), Error> {
        let Some(recorder) = self.recorder.get() else { return Ok(()) };
        match tokio::time::timeout(self.options.patience, recorder.settle()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(StoreError::late("events still wait to be stored").into()),
        }
    }

    /// Waits until records are up to date, or were given up. This is bounded too.
    pub(super) async fn amend_in_time(&self) -> Result<(), Error> {
        let Some(amender) = self.amender.get() else { return Ok(()) };
        Ok(self.in_time(amender.settle()).await?)
    }

    /// One at a time: whoever holds this may take up the session or begin a turn in it.
    pub(super) fn gate(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut books = self.books();
        // Those that nobody holds are made again when they are needed.
        if books.gates.len() > GATES {
            books.gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        Arc::clone(books.gates.entry(id.to_owned()).or_default())
    }

    pub(super) fn binding(&self, id: &str) -> Option<Binding> {
        self.books().bound.get(id).cloned()
    }

    /// The session as it is bound here, if the agent has it as far as is known and nobody else has taken it up since.
    pub(super) fn current(&self, record: &SessionRecord) -> Option<Binding> {
        let binding = self.binding(&record.id)?;
        if binding.epoch < record.epoch {
            self.let_go(&record.id, record.epoch);
        }
        let same = binding.epoch == record.epoch
            && record.agent_session_id.as_deref() == Some(binding.agent_session.as_str());
        (same && binding.live).then_some(binding)
    }

    /// The sessions that this program has used.
    pub(super) fn bound(&self) -> Vec<(String, Binding)> {
        self.books().bound.iter().map(|(id, binding)| (id.clone(), binding.clone())).collect()
    }

    /// The agent has made the session under this id, and what came for it already is taken down. What it was before, if
    /// it was another one, is listened to as well: somebody's turn may go on in it, who has stored a part of that.
    pub(super) fn bind_new(&self, taken: &TakenUp<'_>, before: Option<(&str, HashSet<String>)>) {
        let mut books = self.books();
        let (before, stored) = before.unzip();
        let mut stored = stored.unwrap_or_default();
        let (mut missed, mut early) = (Vec::new(), Vec::new());
        if let Some(before) = before {
            missed = books.early.recall_behind(before, taken.stored_to);
            early = books.early.release_but(before, &mut stored);
        }
        early.extend(books.early.recall(taken.agent_session));
        early.extend(books.early.release(taken.agent_session));
        self.bind(&mut books, taken, missed, early, stored);
        let Some(before) = before else { return };
        books.kept.insert(before.to_owned(), taken.id.to_owned());
        let followers = books.followers.get(taken.id).cloned().unwrap_or_default();
        // Whoever tells of something waits for the books.
        drop(books);
        if let Some(hub) = self.hub.upgrade() {
            hub.follow(before, taken.agent_session, &followers);
        }
    }

    /// Somebody listens to a session, and goes on to if the agent's session becomes another one.
    pub(super) fn follow(&self, id: &str, events: &Events) {
        let mut books = self.books();
        let followers = books.followers.entry(id.to_owned()).or_default();
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(events.queue());
    }

    /// The agent has taken the session up under this id, and what was held back since is taken down, unless somebody
    /// who had the session before has stored it.
    pub(super) fn bind_held(&self, taken: &TakenUp<'_>, mut stored: HashSet<String>) {
        let mut books = self.books();
        // What came earlier was somebody else's to store, who may have been killed before.
        let missed = books.early.recall_behind(taken.agent_session, taken.stored_to);
        let held = books.early.release_but(taken.agent_session, &mut stored);
        self.bind(&mut books, taken, missed, held, stored);
    }

    /// Binds a session, and takes down what came before it was taken up and since.
    fn bind(
        &self,
        books: &mut Books,
        taken: &TakenUp<'_>,
        before: Vec<Entry>,
        since: Vec<Entry>,
        stored: HashSet<String>,
    ) {
        self.recorder().claim(taken.id, taken.epoch, taken.since);
        books.asleep = false;
        books.kept.insert(taken.agent_session.to_owned(), taken.id.to_owned());
        let mut binding = Binding::new(taken, stored);
        binding.live &= !books.has_ended_since(taken.asked);
        books.bound.insert(taken.id.to_owned(), binding);
        before.into_iter().for_each(|entry| self.record_entry(taken.id, entry));
        if let Some(payload) = &taken.restored {
            self.recorder().record(taken.id, StoredEventKind::Restored, payload.clone());
        }
        since.into_iter().for_each(|entry| self.record_entry(taken.id, entry));
    }

    /// This program is done with the session: nothing of it is taken down any more.
    pub(super) fn unbind(&self, id: &str) {
        self.books().unbind(id);
        if let Some(recorder) = self.recorder.get() {
            recorder.disclaim(id);
        }
    }

    /// Deletes a session, and tells whether there was one. What waits to be stored of it goes with it.
    pub(super) async fn delete(
        &self,
        id: &str,
        deleting: impl Future<Output = Result<bool, StoreError>>,
    ) -> Result<bool, StoreError> {
        let told = |is_deleted| {
            if let Some(recorder) = self.recorder.get() {
                recorder.delete(id, is_deleted);
            }
        };
        told(true);
        let deleted = deleting.await;
        match deleted {
            Ok(true) => self.forget(id),
            _ => told(false),
        }
        deleted
    }

    /// The session was deleted: nothing of it is taken down any more, not even the end of a turn that is running.
    pub(super) fn forget(&self, id: &str) {
        self.unbind(id);
        let mut books = self.books();
        books.leaving.retain(|_, left| left != id);
        books.followers.remove(id);
    }

    /// Another program has taken the session up, so this one lets go of it and says so.
    fn let_go(&self, id: &str, epoch: u64) {
        {
            let mut books = self.books();
            let is_own = books.taking.get(id) == Some(&epoch);
            if is_own || books.bound.get(id).is_none_or(|binding| binding.epoch >= epoch) {
                return;
            }
            books.unbind(id);
        }
        tracing::debug!(session = id, "another program has taken a session up");
        self.tell(&Event::TakenOver { session_id: id.to_owned() });
    }

    /// Tells the program something.
    pub(super) fn tell(&self, event: &Event) {
        if let Some(hub) = self.hub.upgrade() {
            hub.publish(event);
        }
    }

    /// Holds back what comes for a session of the agent, until it is bound or this is dropped. Gives the last place in
    /// the stream before that, too.
    pub(super) fn hold(self: &Arc<Self>, agent_session: &str) -> (Hold, String) {
        let hold = self.hold_later(agent_session);
        let mut books = self.books();
        books.early.hold(agent_session);
        (hold, books.stream.last().unwrap_or(Stream::BEGINNING).to_owned())
    }

    /// Prepares to [hold back](Self::hold_back) what comes for a session of the agent, until this is dropped.
    pub(super) fn hold_later(self: &Arc<Self>, agent_session: &str) -> Hold {
        Hold { ledger: Arc::clone(self), agent_session: agent_session.to_owned() }
    }

    pub(super) fn hold_back(&self, agent_session: &str) {
        self.books().early.hold(agent_session);
    }

    /// This program is about to take a session up, or to leave it, as long as this is held.
    pub(super) fn taking(self: &Arc<Self>, id: &str) -> Taking {
        Taking { ledger: Arc::clone(self), id: id.to_owned() }
    }

    /// What has happened to all sessions until now.
    pub(super) fn now(&self) -> Moment {
        self.books().now
    }

    /// The last place of the stream.
    pub(super) fn last_place(&self) -> Option<String> {
        self.books().stream.last().map(str::to_owned)
    }

    /// Whether something came for a session of the agent behind this number that nobody here has kept.
    pub(super) fn has_behind(&self, agent_session: &str, number: Option<u64>) -> bool {
        self.books().early.has_behind(agent_session, number)
    }

    /// Whether this place was [read here](Stream::has_read).
    pub(super) fn has_read(&self, place: &str) -> bool {
        self.books().stream.has_read(place)
    }

    /// The places of what others have stored under these ids and that are [yet to come](Stream::ahead).
    pub(super) fn ahead(&self, ids: &[String], read: Option<u64>, is_ordered: bool) -> HashSet<String> {
        self.books().stream.ahead(ids, read, is_ordered)
    }

    /// A turn begins.
    pub(super) fn begin_turn(&self, id: &str) {
        let mut books = self.books();
        books.last_active = Some(SystemTime::now().into());
        if let Some(binding) = books.bound.get_mut(id) {
            binding.begin_turn();
        }
    }

    /// A turn that was to begin did not.
    pub(super) fn refuse_turn(&self, id: &str, why: &Error) {
        if let Some(binding) = self.books().bound.get_mut(id) {
            binding.end_turn(&Err(why.clone()));
        }
        self.recorder().record(id, StoredEventKind::TurnEnded, outcome_payload(&Err(why.clone())));
    }

    /// The session has ended since the agent gave it, and before it was bound.
    pub(super) fn ended(&self, id: &str, epoch: u64, termination: TerminationInfo) {
        self.lose(id);
        self.amend(id, epoch, Amendment { termination: Some(termination), ..Amendment::default() });
    }

    /// The agent no longer has the session, or will not.
    pub(super) fn lose(&self, id: &str) {
        if let Some(binding) = self.books().bound.get_mut(id) {
            binding.live = false;
        }
    }

    /// When something last happened in any session, kept or not.
    pub(super) fn last_active(&self) -> Option<Timestamp> {
        self.books().last_active
    }

    /// Whether this is the first time that somebody asks.
    pub(super) fn expect_once(&self) -> bool {
        !std::mem::replace(&mut self.books().expected, true)
    }

    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.books().asleep = asleep;
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.books().asleep
    }

    /// Changes a record, again and again until nobody else was quicker.
    pub(super) async fn change(
        &self,
        id: &str,
        alter: impl FnMut(&mut SessionRecord) -> Result<(), Error>,
    ) -> Result<SessionRecord, Error> {
        match tokio::time::timeout(self.options.patience, change(&*self.store, id, alter)).await {
            Ok(changed) => changed,
            Err(_) => Err(StoreError::late("a session could not be changed").into()),
        }
    }

    pub(super) async fn record(&self, id: &str) -> Result<SessionRecord, Error> {
        let record = self.in_time(self.store.get(id)).await?;
        Ok(record.ok_or_else(|| StoreError::NotFound { id: id.to_owned() })?)
    }

    /// A page of what happened in a session.
    pub(super) async fn events(&self, query: &EventQuery) -> Result<EventPage, Error> {
        Ok(self.in_time(self.store.events(query)).await?)
    }

    /// Waits for the store, but not for ever.
    pub(super) async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = tokio::time::timeout(self.options.patience, asking).await;
        answer.unwrap_or_else(|_| Err(StoreError::late("the store does not answer")))
    }

    fn record_entry(&self, id: &str, entry: Entry) {
        let Entry { kind, payload, place } = entry;
        self.recorder().record_at(id, kind, payload, place.as_deref());
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands for a session that this program is taking up or leaving.
#[derive(Debug)]
pub(super) struct Taking {
    ledger: Arc<Ledger>,
    id: String,
}

impl Taking {
    /// If the session gets this epoch, it is this program's doing.
    pub(super) fn will_be(&self, epoch: u64) {
        self.ledger.books().taking.insert(self.id.clone(), epoch);
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.ledger.books().taking.remove(&self.id);
    }
}

/// Holds back what comes for a session of the agent.
#[derive(Debug)]
pub(super) struct Hold {
    ledger: Arc<Ledger>,
    agent_session: String,
}

impl Drop for Hold {
    /// Whoever has bound the session has taken what was held; otherwise it goes where it would have gone.
    fn drop(&mut self) {
        let mut books = self.ledger.books();
        let held = books.early.release(&self.agent_session);
        if let Some(id) = books.kept.get(&self.agent_session) {
            held.into_iter().for_each(|entry| self.ledger.record_entry(id, entry));
        }
    }
}

impl Books {
    fn unbind(&mut self, id: &str) {
        let Some(binding) = self.bound.remove(id) else { return };
        self.kept.retain(|_, kept| kept != id);
        if binding.in_turn {
            self.leaving.insert(binding.agent_session, id.to_owned());
        }
    }

    /// Nothing that the agent had is there any more, as far as is known.
    fn lose_all(&mut self) {
        self.now.endings += 1;
        self.bound.values_mut().for_each(|binding| binding.live = false);
    }

    /// The server began anew.
    fn restart(&mut self) {
        self.stream = Stream::default();
        self.now.restarts += 1;
        self.restarted_after = self.now.losses;
        let losses = self.now.losses;
        self.bound.values_mut().for_each(|binding| binding.lose_if_older(losses));
    }

    /// Whether what the agent was asked for then is gone.
    fn has_ended_since(&self, then: Moment) -> bool {
        // What was asked for since the stream was lost was asked of the server that began anew.
        let of_old_server = then.restarts != self.now.restarts && then.losses < self.restarted_after;
        then.endings != self.now.endings || of_old_server
    }

    /// The stream of events is there, or is not.
    fn notice(&mut self, away: bool) {
        self.now.losses += u64::from(away && !self.away);
        self.away = away;
    }
}
