//! The snapshot of a session, with the times of its parts.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::budget::{Budget, Group, Part};
use super::reported::{Reported, Worth};
use super::{Patch, SessionSnapshot};
use crate::control::AgentMode;
use crate::event::Origin;
use crate::session::{Model, SessionMetadata};
use crate::update::ConfigOption;

/// The snapshot of one session, as it changes.
///
/// A response and the updates around it arrive on different paths, so a response may arrive after a newer update.
/// Each part therefore has the time of its last report: a response changes only parts without a report since its call
/// began. Each unknown field is a separate part. A part that exceeds the budget is ignored.
#[derive(Debug, Default)]
pub(crate) struct TrackedSnapshot {
    snapshot: Arc<SessionSnapshot>,
    budget: Budget,
    /// When the session began to be loaded, while it is.
    loading: Option<u64>,
}

impl TrackedSnapshot {
    /// Creates the snapshot of a session about which nothing is known. It takes at most this many bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { budget: Budget::new(limit), ..Self::default() }
    }

    /// Returns the current snapshot.
    pub(crate) fn get(&self) -> Arc<SessionSnapshot> {
        Arc::clone(&self.snapshot)
    }

    /// Returns the size of all parts.
    pub(crate) fn bytes(&self) -> usize {
        self.budget.bytes()
    }

    /// Applies an update of the agent.
    pub(crate) fn report(&mut self, patch: Patch, origin: Origin, now: u64) {
        let worth = match origin {
            Origin::Live => Worth::News,
            Origin::History => Worth::History(self.loading),
            Origin::Replayed => Worth::Old,
        };
        self.apply(patch, worth, now);
    }

    /// The session begins to be loaded.
    pub(crate) fn load(&mut self, now: u64) {
        self.loading.get_or_insert(now);
    }

    /// Loading the session has ended.
    pub(crate) fn loaded(&mut self) {
        self.loading = None;
    }

    /// Applies the response to a call that began at this time.
    pub(crate) fn answer(&mut self, patch: Patch, began: u64, now: u64) {
        self.apply(patch, Worth::Since(began), now);
    }

    /// Applies the options in the response to a call that set one of them and began at this time.
    ///
    /// A report since then may be older than the response: codex reports its options some time after its response to an
    /// earlier call. The option that was set still gets the value of the response.
    pub(crate) fn set_option(&mut self, options: Vec<ConfigOption>, set: &str, began: u64, now: u64) {
        let is_reported = self.budget.reported(Part::Options).is_after(began);
        let options = match options.iter().find(|option| option.id == set) {
            Some(changed) if is_reported => {
                let known = self.snapshot.config_options.iter();
                known.map(|option| if option.id == set { changed } else { option }).cloned().collect()
            }
            _ if is_reported => return,
            _ => options,
        };
        self.apply(Patch::of_options(options), Worth::News, now);
    }

    /// Applies the response that created the session. An earlier session with the same id is forgotten.
    pub(crate) fn begin(&mut self, patch: Patch, began: u64, now: u64) {
        self.forget(began);
        self.apply(patch, Worth::Since(began), now);
    }

    /// Forgets what was reported up to this time.
    fn forget(&mut self, until: u64) {
        let old = std::mem::take(&mut self.snapshot);
        let stays = |part: Part| self.budget.reported(part).is_after(until);
        let mut merged = SessionSnapshot::default();
        if stays(Part::Mode) {
            merged.current_mode.clone_from(&old.current_mode);
        }
        if stays(Part::Model) {
            merged.models.current.clone_from(&old.models.current);
        }
        if stays(Part::Modes) {
            merged.modes.clone_from(&old.modes);
        }
        if stays(Part::Models) {
            merged.models.available.clone_from(&old.models.available);
        }
        if stays(Part::Options) {
            merged.config_options.clone_from(&old.config_options);
        }
        if stays(Part::Commands) {
            merged.commands.clone_from(&old.commands);
        }
        if stays(Part::Tools) {
            merged.tools.clone_from(&old.tools);
        }
        if stays(Part::Title) {
            merged.title.clone_from(&old.title);
        }
        if stays(Part::LastActivity) {
            merged.last_activity.clone_from(&old.last_activity);
        }
        if stays(Part::Context) {
            (merged.context_used, merged.context_size) = (old.context_used, old.context_size);
        }
        if stays(Part::Cost) {
            merged.cost.clone_from(&old.cost);
        }
        self.budget.forget(until);
        let stay = |group: Group, members: &Map<String, Value>| -> Map<String, Value> {
            let members = members.iter().filter(|(name, _)| self.budget.has_member(group, name));
            members.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        merged.other = stay(Group::Session, &old.other);
        merged.models.other = stay(Group::Models, &old.models.other);
        merged.metadata = SessionMetadata::from(stay(Group::Metadata, &old.metadata.clone().into_map()));
        self.snapshot = Arc::new(merged);
    }

    fn apply(&mut self, patch: Patch, worth: Worth, now: u64) {
        // Copied only if a reader has it: a large snapshot is not copied for each small update.
        let next = Arc::make_mut(&mut self.snapshot);
        let (mode, model, options) = (patch.mode.clone(), patch.model.clone(), patch.options.is_some());
        let mut put = Put { budget: &mut self.budget, worth, now };
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
            if next.other.contains_key(name) && put.member(Group::Session, name, None) {
                next.other.shift_remove(name);
            }
        }
        next.other.extend(put.news(Group::Session, patch.other));
        if options && new_options {
            follow_options(&self.budget, next, mode.is_none(), model.is_none());
        }
        if let Some(mode) = mode.filter(|_| new_mode) {
            choose(&mut next.config_options, "mode", &mode);
        }
        if let Some(model) = model.filter(|_| new_model) {
            choose(&mut next.config_options, "model", &model);
        }
    }
}

/// Updates modes and models from the options of these categories.
fn follow_options(budget: &Budget, next: &mut SessionSnapshot, mode: bool, model: bool) {
    let given = |part: Part| matches!(budget.reported(part), Reported::At(_));
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

/// Replaces a part if the new value is newer, and fits.
struct Put<'a> {
    budget: &'a mut Budget,
    worth: Worth,
    now: u64,
}

impl Put<'_> {
    /// Replaces a part if the new value is newer and fits, and returns whether it is replaced.
    fn part<T: Serialize>(&mut self, part: Part, place: &mut T, news: Option<T>) -> bool {
        let Some(news) = news else { return false };
        let counts = self.budget.accept(part, &news, self.worth, self.now);
        if counts {
            *place = news;
        }
        counts
    }

    /// Returns whether the new value of an unknown field is newer, and fits.
    fn member(&mut self, group: Group, name: &str, value: Option<&Value>) -> bool {
        self.budget.accept_member((group, name), value, self.worth, self.now)
    }

    /// Returns the unknown fields that are newer, and fit.
    fn news(&mut self, group: Group, mut members: Map<String, Value>) -> Map<String, Value> {
        members.retain(|name, value| self.member(group, name, Some(value)));
        members
    }
}

/// Sets the current value of the option of a category, if the option has this value.
fn choose(options: &mut [ConfigOption], category: &str, value: &str) {
    let of_category = |option: &&mut ConfigOption| option.category.as_deref() == Some(category);
    if let Some(option) = options.iter_mut().find(of_category)
        && option.values.iter().any(|known| known.value == value)
    {
        option.current = Value::from(value);
    }
}
