//! Where the snapshot of a session is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use super::told::{Told, Worth};
use super::{Patch, SessionSnapshot};
use crate::control::AgentMode;
use crate::event::Origin;
use crate::session::{Model, SessionMetadata};
use crate::update::ConfigOption;

/// How many members that this version does not know are kept of one session.
const MEMBERS: usize = 1024;

/// The snapshot of one session, as it changes.
///
/// An answer and the reports around it come by different ways, so that an answer may be seen after a report that was
/// made later. That is why each part remembers when it was last told of: an answer changes only what nobody has told
/// of since its call began. Members that this version does not know are parts of their own.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCell {
    /// Guards the snapshot and its times; held for a change or a copy.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Arc<SessionSnapshot>,
    told: [Told; PARTS],
    members: HashMap<(Group, String), Told>,
    /// When the session began to be loaded, while it is.
    loading: Option<u64>,
}

/// Where members are kept that this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Group {
    Session,
    Models,
    Metadata,
}

/// The parts of a snapshot that are told of separately.
#[derive(Debug, Clone, Copy)]
enum Part {
    Modes,
    Mode,
    Models,
    Model,
    Options,
    Commands,
    Tools,
    Title,
    LastActivity,
    Context,
    Cost,
}

const PARTS: usize = Part::Cost as usize + 1;

impl SnapshotCell {
    /// What is known now.
    pub(crate) fn get(&self) -> Arc<SessionSnapshot> {
        Arc::clone(&self.lock().snapshot)
    }

    /// Takes in what the agent reports by itself.
    pub(crate) fn report(&self, patch: Patch, origin: Origin, now: u64) {
        let mut state = self.lock();
        let worth = match origin {
            Origin::Live => Worth::News,
            Origin::History => Worth::History(state.loading),
            Origin::Replayed => Worth::Old,
        };
        state.apply(patch, worth, now);
    }

    /// The session begins to be loaded.
    pub(crate) fn load(&self, now: u64) {
        self.lock().loading.get_or_insert(now);
    }

    /// The session is loaded, or is not.
    pub(crate) fn loaded(&self) {
        self.lock().loading = None;
    }

    /// Takes in an answer to a call that began at this time.
    pub(crate) fn answer(&self, patch: Patch, began: u64, now: u64) {
        self.lock().apply(patch, Worth::Since(began), now);
    }

    /// Takes in the answer that made the session: whatever had the same id before is forgotten.
    pub(crate) fn begin(&self, patch: Patch, began: u64, now: u64) {
        let mut state = self.lock();
        state.forget(began);
        state.apply(patch, Worth::Since(began), now);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets what was told up to this time.
    fn forget(&mut self, until: u64) {
        let old = std::mem::take(&mut self.snapshot);
        let stays = |part: Part| self.told[part as usize].is_after(until);
        let mut kept = SessionSnapshot::default();
        if stays(Part::Mode) {
            kept.current_mode.clone_from(&old.current_mode);
        }
        if stays(Part::Model) {
            kept.models.current.clone_from(&old.models.current);
        }
        if stays(Part::Modes) {
            kept.modes.clone_from(&old.modes);
        }
        if stays(Part::Models) {
            kept.models.available.clone_from(&old.models.available);
        }
        if stays(Part::Options) {
            kept.config_options.clone_from(&old.config_options);
        }
        if stays(Part::Commands) {
            kept.commands.clone_from(&old.commands);
        }
        if stays(Part::Tools) {
            kept.tools.clone_from(&old.tools);
        }
        if stays(Part::Title) {
            kept.title.clone_from(&old.title);
        }
        if stays(Part::LastActivity) {
            kept.last_activity.clone_from(&old.last_activity);
        }
        if stays(Part::Context) {
            (kept.context_used, kept.context_size) = (old.context_used, old.context_size);
        }
        if stays(Part::Cost) {
            kept.cost.clone_from(&old.cost);
        }
        self.members.retain(|_, told| told.is_after(until));
        let stay = |group: Group, members: &Map<String, Value>| -> Map<String, Value> {
            let members =
                members.iter().filter(|(name, _)| self.members.contains_key(&(group, (*name).clone())));
            members.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        kept.other = stay(Group::Session, &old.other);
        kept.models.other = stay(Group::Models, &old.models.other);
        kept.metadata = SessionMetadata::from(stay(Group::Metadata, &old.metadata.clone().into_map()));
        for told in self.told.iter_mut().filter(|told| !told.is_after(until)) {
            *told = Told::Never;
        }
        self.snapshot = Arc::new(kept);
    }

    fn apply(&mut self, patch: Patch, worth: Worth, now: u64) {
        let mut next = SessionSnapshot::clone(&self.snapshot);
        let (mode, model, options) = (patch.mode.clone(), patch.model.clone(), patch.options.is_some());
        let mut put = Put { told: &mut self.told, members: &mut self.members, worth, now };
        put.part(Part::Modes, &mut next.modes, patch.modes);
        let new_mode = put.part(Part::Mode, &mut next.current_mode, patch.mode.map(Some));
        put.part(Part::Models, &mut next.models.available, patch.models);
        let new_model = put.part(Part::Model, &mut next.models.current, patch.model.map(Some));
        let new_options = put.part(Part::Options, &mut next.config_options, patch.options);
        put.part(Part::Commands, &mut next.commands, patch.commands);
        put.part(Part::Tools, &mut next.tools, patch.tools);
        put.part(Part::Title, &mut next.title, patch.title);
        put.part(Part::LastActivity, &mut next.last_activity, patch.last_activity);
        if let Some((used, size)) = patch.context {
            let mut context = (next.context_used, next.context_size);
            put.part(Part::Context, &mut context, Some((used, size)));
            (next.context_used, next.context_size) = context;
        }
        put.part(Part::Cost, &mut next.cost, patch.cost.map(Some));
        next.models.other.extend(put.news(Group::Models, patch.about_models));
        next.metadata.merge(SessionMetadata::from(put.news(Group::Metadata, patch.metadata.into_map())));
        for name in patch.understood {
            if next.other.contains_key(name) && put.member(Group::Session, name) {
                next.other.shift_remove(name);
            }
        }
        next.other.extend(put.news(Group::Session, patch.other));
        if options && new_options {
            self.follow_options(&mut next, mode.is_none(), model.is_none());
        }
        if let Some(mode) = mode.filter(|_| new_mode) {
            choose(&mut next.config_options, "mode", &mode);
        }
        if let Some(model) = model.filter(|_| new_model) {
            choose(&mut next.config_options, "model", &model);
        }
        self.snapshot = Arc::new(next);
    }

    /// Brings modes and models in step with the options that stand for them.
    fn follow_options(&self, next: &mut SessionSnapshot, mode: bool, model: bool) {
        let given = |part: Part| matches!(self.told[part as usize], Told::At(_));
        if let Some(option) = next.option_for("mode").cloned() {
            if !given(Part::Modes) {
                next.modes = option.values.iter().map(AgentMode::from_value).collect();
            }
            if mode {
                next.current_mode = option.current.as_str().map(str::to_owned);
            }
        }
        if let Some(option) = next.option_for("model").cloned() {
            if !given(Part::Models) {
                next.models.available = option.values.iter().map(Model::from_value).collect();
            }
            if model {
                next.models.current = option.current.as_str().map(str::to_owned);
            }
        }
    }
}

/// Puts news in its place if it is worth more than what is there.
struct Put<'a> {
    told: &'a mut [Told; PARTS],
    members: &'a mut HashMap<(Group, String), Told>,
    worth: Worth,
    now: u64,
}

impl Put<'_> {
    /// Whether the news counted.
    fn part<T>(&mut self, part: Part, place: &mut T, news: Option<T>) -> bool {
        let Some(news) = news else { return false };
        let counts = self.told[part as usize].hear(self.worth, self.now);
        if counts {
            *place = news;
        }
        counts
    }

    /// Whether news of a member count.
    fn member(&mut self, group: Group, name: &str) -> bool {
        let key = (group, name.to_owned());
        if self.members.len() >= MEMBERS && !self.members.contains_key(&key) {
            tracing::warn!(
                bound = MEMBERS,
                name,
                "a session has more members than are kept; this one is not"
            );
            return false;
        }
        self.members.entry(key).or_default().hear(self.worth, self.now)
    }

    /// The members that count.
    fn news(&mut self, group: Group, mut members: Map<String, Value>) -> Map<String, Value> {
        members.retain(|name, _| self.member(group, name));
        members
    }
}

/// Marks a value as the one in force in the option of a category, if the option has it.
fn choose(options: &mut [ConfigOption], category: &str, value: &str) {
    let of_category = |option: &&mut ConfigOption| option.category.as_deref() == Some(category);
    if let Some(option) = options.iter_mut().find(of_category)
        && option.values.iter().any(|known| known.value == value)
    {
        option.current = Value::from(value);
    }
}
