//! Which kept session is which session of the agent, and what happens in it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use self::observing::{amendment, outcome_payload};
use super::amend::{Amender, Amendment};
use super::binding::{Binding, Moment, TakenUp};
use super::change::change;
use super::entry::{Early, Entry};
use super::own::Own;
use super::replay::ReplayLimits;
use super::strangers::Strangers;
use super::stream::Stream;
use crate::client::Hub;
use crate::event::Queue;
use crate::store::{Listeners, number_of};
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

/// Who listens to a session, and to which of the agent's.
type Follower = (Weak<Queue<Event>>, String);

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
    strangers: Strangers,
    /// Who listens to which kept session, and to which session of the agent that is by now.
    followers: HashMap<String, Vec<Follower>>,
    stream: Stream,
    gates: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// What has happened to all sessions so far, and whether the stream of events is lost now.
    now: Moment,
    away: bool,
    /// How often the stream had been lost when the server began anew last.
    restarted_after: u64,
    /// By what this program knows what it has done itself: each has a name that is in the record.
    own: Own,
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
                if ledger.let_go(record) {
                    // This program has done it itself, and has everything to store.
                    return None;
                }
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
            self.let_go(record);
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
            missed = books.recover(before, taken);
            early = books.early.release_but(before, &mut stored);
        }
        early.extend(books.strangers.recall(taken.agent_session));
        early.extend(books.early.release(taken.agent_session));
        let moved = self.bind(&mut books, taken, missed, early, stored);
        if let Some(before) = before {
            books.kept.insert(before.to_owned(), taken.id.to_owned());
        }
        drop(books);
        self.move_followers(moved, taken.agent_session);
    }

    /// The agent has taken the session up under this id, and what was held back since is taken down, unless somebody
    /// who had the session before has stored it.
    pub(super) fn bind_held(&self, taken: &TakenUp<'_>, mut stored: HashSet<String>) {
        let mut books = self.books();
        // What came earlier was somebody else's to store, who may have been killed before.
        let missed = books.recover(taken.agent_session, taken);
        let held = books.early.release_but(taken.agent_session, &mut stored);
        let moved = self.bind(&mut books, taken, missed, held, stored);
        drop(books);
        self.move_followers(moved, taken.agent_session);
    }

    /// Binds a session, and takes down what came before it was taken up and since. Gives who listens to what was its
    /// session of the agent before.
    fn bind(
        &self,
        books: &mut Books,
        taken: &TakenUp<'_>,
        before: Vec<Entry>,
        since: Vec<Entry>,
        stored: HashSet<String>,
    ) -> Vec<Follower> {
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
        for entry in since {
            // Nobody could bring the record up to date before.
            self.amend(taken.id, taken.epoch, amendment(&entry));
            self.record_entry(taken.id, entry);
        }
        books.followers_to_move(taken.id, taken.agent_session)
    }

    /// Has those who listen to a session go on with what it is now. Whoever tells of something waits for the books, so
    /// that these must not be held.
    fn move_followers(&self, moved: Vec<Follower>, to: &str) {
        let Some(hub) = self.hub.upgrade() else { return };
        for (follower, from) in moved {
            hub.follow(&from, to, &follower);
        }
    }

    /// Somebody listens to a session, and goes on to if the agent's session becomes another one.
    pub(super) fn follow(&self, id: &str, agent_session: &str, events: &Events) {
        let mut books = self.books();
        books.followers.retain(|_, followers| {
            followers.retain(|(follower, _)| follower.strong_count() > 0);
            !followers.is_empty()
        });
        books.followers.entry(id.to_owned()).or_default().push((events.queue(), agent_session.to_owned()));
        // It may have become another one since.
        let now = books.bound.get(id).map(|binding| binding.agent_session.clone());
        let Some(now) = now else { return };
        let moved = books.followers_to_move(id, &now);
        drop(books);
        self.move_followers(moved, &now);
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

    /// Another program has taken the session up, so this one lets go of it and says so; unless it was this one that did,
    /// in which case that is told.
    fn let_go(&self, record: &SessionRecord) -> bool {
        {
            let mut books = self.books();
            let is_own = books.own.has_done(record);
            let Some(binding) = books.bound.get_mut(&record.id) else { return is_own };
            if binding.epoch >= record.epoch {
                return is_own;
            }
            if is_own {
                // Whether it was done could not be found out before.
                binding.epoch = record.epoch;
                self.recorder().claim(&record.id, record.epoch, record.last_index);
                return true;
            }
            books.unbind(&record.id);
        }
        tracing::debug!(session = record.id, "another program has taken a session up");
        self.tell(&Event::TakenOver { session_id: record.id.clone() });
        false
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
        (self.hold_later(agent_session), self.hold_back(agent_session))
    }

    /// Prepares to [hold back](Self::hold_back) what comes for a session of the agent, until this is dropped.
    pub(super) fn hold_later(self: &Arc<Self>, agent_session: &str) -> Hold {
        Hold { ledger: Arc::clone(self), agent_session: agent_session.to_owned() }
    }

    /// Gives the last place before what is held back.
    pub(super) fn hold_back(&self, agent_session: &str) -> String {
        let mut books = self.books();
        books.early.hold(agent_session);
        books.stream.last().unwrap_or(Stream::BEGINNING).to_owned()
    }

    /// A name for what this program is about to do to the record of a session, by which it is known again.
    pub(super) fn own_name(&self) -> String {
        self.books().own.name()
    }

    /// What has happened to all sessions until now.
    pub(super) fn now(&self) -> Moment {
        self.books().now
    }

    /// The last place of the stream, or its beginning.
    pub(super) fn beginning(&self) -> Option<String> {
        Some(self.last_place().unwrap_or_else(|| Stream::BEGINNING.to_owned()))
    }

    /// The last place of the stream.
    pub(super) fn last_place(&self) -> Option<String> {
        self.books().stream.last().map(str::to_owned)
    }

    /// Whether something came for a session of the agent behind this number that nobody here has kept.
    pub(super) fn has_behind(&self, agent_session: &str, number: Option<u64>) -> bool {
        self.books().strangers.has_behind(agent_session, number)
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

    /// Takes a session up, or leaves it, and changes its record besides. If nobody says in time whether it was done, that is
    /// looked up.
    pub(super) async fn raise(
        &self,
        id: &str,
        mut alter: impl FnMut(&mut SessionRecord) -> Result<(), Error>,
    ) -> Result<SessionRecord, Error> {
        let name = self.own_name();
        let raised = self.change(id, |record| {
            alter(record)?;
            let too_often = || StoreError::Invalid("a session was taken up too often".to_owned());
            record.epoch = record.epoch.checked_add(1).ok_or_else(too_often)?;
            record.taken_by = Some(name.clone());
            Ok(())
        });
        match raised.await {
            Err(error @ Error::Store(StoreError::Unavailable(_))) => match self.record(id).await {
                Ok(record) if record.taken_by.as_ref() == Some(&name) => Ok(record),
                _ => Err(error),
            },
            raised => raised,
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

    /// Takes down that something may be missing.
    pub(super) fn record_gap(&self, id: &str, from: Option<u64>, to: Option<u64>) {
        self.record_entry(id, Entry::gap(from, to));
    }

    fn record_entry(&self, id: &str, entry: Entry) {
        let Entry { kind, payload, place } = entry;
        self.recorder().record_at(id, kind, payload, place.as_deref());
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
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
        let id = books.kept.get(&self.agent_session).cloned();
        for entry in held {
            match &id {
                Some(id) => self.ledger.record_entry(id, entry),
                None => books.strangers.put(&self.agent_session, entry, true, 0),
            }
        }
    }
}

impl Books {
    fn unbind(&mut self, id: &str) {
        let Some(binding) = self.bound.remove(id) else { return };
        self.kept.retain(|_, kept| kept != id);
        // What was seen of it until now is not remembered, and is somebody else's.
        if let Some(reached) = self.stream.reached() {
            self.strangers.miss_of(&binding.agent_session, reached);
        }
        if binding.in_turn {
            self.leaving.insert(binding.agent_session, id.to_owned());
        }
    }

    /// Nothing that the agent had is there any more, as far as is known.
    fn lose_all(&mut self) {
        self.now.endings += 1;
        self.away = false;
        // The next connection reads from the beginning what the server still has, and that may be another server.
        self.begin_stream();
        self.bound.values_mut().for_each(|binding| binding.live = false);
    }

    /// The server began anew.
    fn restart(&mut self) {
        self.begin_stream();
        self.now.restarts += 1;
        self.restarted_after = self.now.losses;
        let losses = self.now.losses;
        self.bound.values_mut().for_each(|binding| binding.lose_if_older(losses));
    }

    fn begin_stream(&mut self) {
        self.stream = Stream::default();
        self.strangers.clear();
    }

    /// The stream has come to a place.
    fn pass(&mut self, place: &str) {
        self.stream.pass(place);
        if let Some(number) = number_of(place).filter(|number| *number > 0) {
            self.strangers.pass(number);
        }
    }

    /// What came for a session before it was taken up, and nobody has stored.
    fn recover(&mut self, agent_session: &str, taken: &TakenUp<'_>) -> Vec<Entry> {
        match &taken.stored {
            Some(stored) => self.strangers.recover(agent_session, stored, self.stream.reached()),
            None => Vec::new(),
        }
    }

    /// Those who listen to a session that was another one of the agent's.
    fn followers_to_move(&mut self, id: &str, agent_session: &str) -> Vec<Follower> {
        let followers = self.followers.get_mut(id).into_iter().flatten();
        let others = followers.filter(|(_, session)| session != agent_session);
        let moved = others.map(|(follower, session)| {
            (Weak::clone(follower), std::mem::replace(session, agent_session.to_owned()))
        });
        moved.collect()
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
