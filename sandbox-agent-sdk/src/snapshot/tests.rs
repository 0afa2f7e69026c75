//! What counts for more than what.

use serde_json::{Value, json};

use super::{Patch, SnapshotCell};
use crate::{Origin, SessionMetadata, Update};

fn state(mode: &str) -> Patch {
    Patch::of_state(&json!({"modes": {"currentModeId": mode, "availableModes": [{"id": "a"}, {"id": "b"}]}}))
}

fn report(update: Value) -> Patch {
    Patch::of_update(&Update::read(json!({"sessionId": "s", "update": update}), Origin::Live, 0)).unwrap()
}

fn mode_report(mode: &str) -> Patch {
    report(json!({"sessionUpdate": "current_mode_update", "currentModeId": mode}))
}

fn mode(cell: &SnapshotCell) -> Option<String> {
    cell.get().current_mode.clone()
}

#[test]
fn an_answer_does_not_undo_what_was_told_since_its_call_began() {
    let cell = SnapshotCell::default();
    cell.report(mode_report("b"), Origin::Live, 5);
    cell.answer(state("a"), 4, 6);
    assert_eq!((mode(&cell).as_deref(), cell.get().modes.len()), (Some("b"), 2));
    cell.answer(state("a"), 6, 7);
    assert_eq!(mode(&cell).as_deref(), Some("a"));
}

#[test]
fn history_counts_for_less_than_the_answer_and_the_past_for_less_than_anything() {
    let cell = SnapshotCell::default();
    cell.report(mode_report("old"), Origin::Replayed, 1);
    assert_eq!(mode(&cell).as_deref(), Some("old"), "it is better than nothing");
    cell.report(mode_report("b"), Origin::History, 2);
    cell.answer(state("a"), 1, 3);
    assert_eq!(mode(&cell).as_deref(), Some("a"));
    cell.report(mode_report("old"), Origin::Replayed, 4);
    assert_eq!(mode(&cell).as_deref(), Some("a"));
    cell.report(mode_report("b"), Origin::History, 5);
    assert_eq!(mode(&cell).as_deref(), Some("b"), "a session that is loaded again tells of itself again");
}

#[test]
fn a_session_that_is_made_has_nothing_of_an_earlier_one_of_the_same_name() {
    let cell = SnapshotCell::default();
    let commands =
        json!({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "x"}]});
    cell.report(report(commands.clone()), Origin::Live, 1);
    cell.answer(Patch::of_state(&json!({"title": "old", "odd": 1})), 1, 2);
    cell.report(mode_report("b"), Origin::Live, 4);
    cell.begin(Patch::of_state(&json!({})), 3, 5);
    let now = cell.get();
    assert!(now.commands.is_empty() && now.title.is_none());
    assert_eq!(now.current_mode.as_deref(), Some("b"), "this came after the call began");
    cell.report(report(commands), Origin::Live, 6);
    assert_eq!(cell.get().commands.len(), 1);
}

#[test]
fn modes_and_models_are_made_of_options_where_there_is_nothing_else() {
    let options = |mode: &str| {
        json!({"configOptions": [
            {"id": "m", "category": "mode", "currentValue": mode, "options": [{"value": "ask", "name": "Ask"}, {"value": "code"}]},
            {"id": "n", "category": "model", "currentValue": "big", "options": [{"value": "big"}]}]})
    };
    let cell = SnapshotCell::default();
    cell.answer(Patch::of_state(&options("ask")), 0, 1);
    let now = cell.get();
    assert_eq!(now.mode().and_then(|mode| mode.name.as_deref()), Some("Ask"));
    assert_eq!((now.modes.len(), now.model().map(|model| model.id.as_str())), (2, Some("big")));
    cell.answer(Patch::of_options(crate::ConfigOption::read_all(&options("code")).unwrap()), 1, 2);
    assert_eq!(mode(&cell).as_deref(), Some("code"));
    cell.report(mode_report("ask"), Origin::Live, 3);
    assert_eq!(cell.get().option_for("mode").unwrap().current, "ask");
    cell.report(mode_report("unheard of"), Origin::Live, 4);
    assert_eq!(cell.get().option_for("mode").unwrap().current, "ask", "an option has only its own values");
    assert_eq!(mode(&cell).as_deref(), Some("unheard of"));
}

#[test]
fn a_title_can_be_taken_away() {
    let cell = SnapshotCell::default();
    cell.answer(Patch::default().with_metadata(SessionMetadata::new().with_title("T")), 0, 1);
    assert_eq!(cell.get().title.as_deref(), Some("T"));
    cell.report(report(json!({"sessionUpdate": "session_info_update", "updatedAt": "now"})), Origin::Live, 2);
    assert_eq!(cell.get().title.as_deref(), Some("T"), "what is not mentioned stays");
    cell.report(report(json!({"sessionUpdate": "session_info_update", "title": null})), Origin::Live, 3);
    assert_eq!((cell.get().title.clone(), cell.get().last_activity.clone()), (None, Some("now".to_owned())));
}
