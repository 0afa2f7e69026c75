//! Which kept session is which session of the agent, and what happens in it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use self::books::{Books, Follower};
use self::observing::{amendment, outcome_payload};
use super::amend::{Amender, Amendment};
use super::binding::{Binding, Moment, TakenUp};
use super::entry::Entry;
use super::replay::ReplayLimits;
use super::stream::Stream;
use crate::client::Hub;
use crate::session::Timestamp;
use crate::sessions::{MemoryStore, Recorder, RecorderOptions, SessionRecord, SessionStore, StoredEventKind};
use crate::store::Listeners;
use crate::{Error, Event, Events, TerminationInfo};

mod books;
mod keeping;
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
        self.move_followers(&moved, taken.agent_session);
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
        self.move_followers(&moved, taken.agent_session);
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
        before.iter().chain(&since).for_each(|entry| binding.see(entry));
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
    fn move_followers(&self, moved: &[Follower], to: &str) {
        if let Some(hub) = self.hub.upgrade().filter(|_| !moved.is_empty()) {
            hub.follow(moved, to);
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
        self.move_followers(&moved, &now);
    }

    /// This program is done with the session: nothing of it is taken down any more.
    pub(super) fn unbind(&self, id: &str) {
        self.books().unbind(id);
        if let Some(recorder) = self.recorder.get() {
            recorder.disclaim(id);
        }
    }

    /// The session was deleted: nothing of it is taken down any more, not even the end of a turn that is running.
    pub(super) fn forget(&self, id: &str) {
        self.unbind(id);
        let mut books = self.books();
        books.leaving.retain(|_, left| left != id);
        books.followers.remove(id);
    }

    /// Another program has taken the session up, so this one lets go of it and says so. Gives whether it was this one that
    /// did, which keeps it then.
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

    /// Holds back what comes for a session of the agent, and gives the last place before that.
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
    pub(super) fn place(&self) -> String {
        self.last_place().unwrap_or_else(|| Stream::BEGINNING.to_owned())
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

    /// Takes down that something may be missing.
    pub(super) fn record_gap(&self, id: &str, from: Option<u64>, to: Option<u64>) {
        self.record_entry(id, Entry::gap(from, to));
    }

    fn record_entry(&self, id: &str, entry: Entry) {
        let Entry { kind, payload, place, .. } = entry;
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
                None => books.strangers.put(&self.agent_session, entry, true),
            }
        }
    }
}
