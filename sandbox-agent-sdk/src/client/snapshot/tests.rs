//! What counts for more than what.

use serde_json::{Value, json};

use super::{Patch, TrackedSnapshot};
use crate::Update;
use crate::event::Origin;
use crate::session::SessionMetadata;

fn state(mode: &str) -> Patch {
    Patch::of_state(&json!({"modes": {"currentModeId": mode, "availableModes": [{"id": "a"}, {"id": "b"}]}}))
}

fn report(update: Value) -> Patch {
    Patch::of_update(&Update::read(json!({"sessionId": "s", "update": update}), Origin::Live, 0)).unwrap()
}

fn mode_report(mode: &str) -> Patch {
    report(json!({"sessionUpdate": "current_mode_update", "currentModeId": mode}))
}

fn mode(snapshot: &TrackedSnapshot) -> Option<String> {
    snapshot.get().current_mode.clone()
}

#[test]
fn an_answer_does_not_undo_what_was_told_since_its_call_began() {
    let mut snapshot = TrackedSnapshot::default();
    snapshot.report(mode_report("b"), Origin::Live, 5);
    snapshot.answer(state("a"), 4, 6);
    assert_eq!((mode(&snapshot).as_deref(), snapshot.get().modes.len()), (Some("b"), 2));
    snapshot.answer(state("a"), 6, 7);
    assert_eq!(mode(&snapshot).as_deref(), Some("a"));
}

#[test]
fn history_counts_for_less_than_the_answer_and_the_past_for_less_than_anything() {
    let mut snapshot = TrackedSnapshot::default();
    snapshot.report(mode_report("old"), Origin::Replayed, 1);
    assert_eq!(mode(&snapshot).as_deref(), Some("old"), "it is better than nothing");
    snapshot.report(mode_report("b"), Origin::History, 2);
    snapshot.answer(state("a"), 1, 3);
    assert_eq!(mode(&snapshot).as_deref(), Some("a"));
    snapshot.report(mode_report("old"), Origin::Replayed, 4);
    assert_eq!(mode(&snapshot).as_deref(), Some("a"));
    snapshot.report(mode_report("b"), Origin::History, 5);
    assert_eq!(mode(&snapshot).as_deref(), Some("b"), "a session that is loaded again tells of itself again");
}

#[test]
fn a_session_that_is_made_has_nothing_of_an_earlier_one_of_the_same_name() {
    let mut snapshot = TrackedSnapshot::default();
    let commands =
        json!({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "x"}]});
    snapshot.report(report(commands.clone()), Origin::Live, 1);
    snapshot.answer(Patch::of_state(&json!({"title": "old", "odd": 1})), 1, 2);
    snapshot.report(mode_report("b"), Origin::Live, 4);
    snapshot.begin(Patch::of_state(&json!({})), 3, 5);
    let now = snapshot.get();
    assert!(now.commands.is_empty() && now.title.is_none());
    assert_eq!(now.current_mode.as_deref(), Some("b"), "this came after the call began");
    snapshot.report(report(commands), Origin::Live, 6);
    assert_eq!(snapshot.get().commands.len(), 1);
}

#[test]
fn modes_and_models_are_made_of_options_where_there_is_nothing_else() {
    let options = |mode: &str| {
        json!({"configOptions": [
            {"id": "m", "category": "mode", "currentValue": mode, "options": [{"value": "ask", "name": "Ask"}, {"value": "code"}]},
            {"id": "n", "category": "model", "currentValue": "big", "options": [{"value": "big"}]}]})
    };
    let mut snapshot = TrackedSnapshot::default();
    snapshot.answer(Patch::of_state(&options("ask")), 0, 1);
    let now = snapshot.get();
    assert_eq!(now.mode().and_then(|mode| mode.name.as_deref()), Some("Ask"));
    assert_eq!((now.modes.len(), now.model().map(|model| model.id.as_str())), (2, Some("big")));
    snapshot.answer(
        Patch::of_options(crate::update::ConfigOption::read_all(&options("code")).unwrap()),
        1,
        2,
    );
    assert_eq!(mode(&snapshot).as_deref(), Some("code"));
    snapshot.report(mode_report("ask"), Origin::Live, 3);
    assert_eq!(snapshot.get().option_for("mode").unwrap().current, "ask");
    snapshot.report(mode_report("unheard of"), Origin::Live, 4);
    assert_eq!(
        snapshot.get().option_for("mode").unwrap().current,
        "ask",
        "an option has only its own values"
    );
    assert_eq!(mode(&snapshot).as_deref(), Some("unheard of"));
}

#[test]
fn a_title_can_be_taken_away() {
    let mut snapshot = TrackedSnapshot::default();
    snapshot.answer(Patch::default().with_metadata(SessionMetadata::new().with_title("T")), 0, 1);
    assert_eq!(snapshot.get().title.as_deref(), Some("T"));
    snapshot.report(
        report(json!({"sessionUpdate": "session_info_update", "updatedAt": "now"})),
        Origin::Live,
        2,
    );
    assert_eq!(snapshot.get().title.as_deref(), Some("T"), "what is not mentioned stays");
    snapshot.report(report(json!({"sessionUpdate": "session_info_update", "title": null})), Origin::Live, 3);
    assert_eq!(
        (snapshot.get().title.clone(), snapshot.get().last_activity.clone()),
        (None, Some("now".to_owned()))
    );
}

#[test]
fn whatever_is_not_understood_is_kept_in_its_place() {
    let mut snapshot = TrackedSnapshot::default();
    let odd = json!({
        "modes": {"currentModeId": "a", "availableModes": [{"id": "a"}, 5], "beside": 1, "_meta": {"m": 1}},
        "models": {"currentModelId": 7, "availableModels": [{"modelId": "x"}, null], "beside": 2},
        "tools": ["shell", {"no": "name"}], "brandNew": true,
    });
    snapshot.answer(Patch::of_state(&odd), 0, 1);
    let now = snapshot.get();
    assert_eq!((now.modes.len(), now.models.available.len(), now.tools.len()), (1, 1, 1));
    assert_eq!(now.other["modes"], json!({"availableModes": [5], "beside": 1, "_meta": {"m": 1}}));
    assert_eq!(now.other["models"], json!({"availableModels": [null], "currentModelId": 7}));
    assert_eq!((&now.models.other["beside"], now.models.other.len()), (&json!(2), 1));
    assert_eq!((&now.other["tools"], &now.other["brandNew"]), (&json!([{"no": "name"}]), &json!(true)));
    // Once there is nothing odd about it, nothing odd is left.
    snapshot.answer(Patch::of_state(&json!({"modes": {"availableModes": []}, "tools": []})), 1, 2);
    let now = snapshot.get();
    assert!(!now.other.contains_key("modes") && !now.other.contains_key("tools"));
    assert!(
        now.other.contains_key("models") && now.other.contains_key("brandNew"),
        "nobody has spoken of these"
    );
}

#[test]
fn what_is_older_does_not_replace_members_that_are_newer() {
    let state = |number: u64| {
        json!({"new": number, "modes": {"beside": number}, "models": {"beside": number},
            "_meta": {"sandboxagent.dev": {"ticket": number}, "other.dev": number}})
    };
    let all = |snapshot: &TrackedSnapshot| {
        let now = snapshot.get();
        let ticket = now.metadata.get("ticket").cloned().unwrap_or_default();
        [
            now.other["new"].clone(),
            now.other["modes"]["beside"].clone(),
            now.other["_meta"]["other.dev"].clone(),
            now.models.other["beside"].clone(),
            ticket,
        ]
    };
    let is =
        |snapshot: &TrackedSnapshot, number: u64| assert_eq!(all(snapshot), [(); 5].map(|()| json!(number)));
    let mut snapshot = TrackedSnapshot::default();
    snapshot.report(Patch::of_state(&state(1)), Origin::Replayed, 1);
    snapshot.report(Patch::of_state(&state(2)), Origin::Replayed, 2);
    is(&snapshot, 2);
    snapshot.report(Patch::of_state(&state(3)), Origin::Live, 5);
    is(&snapshot, 3);
    snapshot.report(Patch::of_state(&state(4)), Origin::Replayed, 6);
    is(&snapshot, 3);
    snapshot.answer(Patch::of_state(&state(5)), 4, 7);
    is(&snapshot, 3);
    snapshot.answer(Patch::of_state(&state(6)), 7, 8);
    is(&snapshot, 6);
    // Nothing of an earlier session of the same name is left, except what was told since the call began.
    snapshot.begin(Patch::of_state(&state(7)), 8, 9);
    is(&snapshot, 7);
    snapshot.begin(Patch::default(), 8, 10);
    is(&snapshot, 7);
    snapshot.begin(Patch::default(), 10, 11);
    let now = snapshot.get();
    assert!(now.other.is_empty() && now.models.other.is_empty() && now.metadata.is_empty());
}

#[test]
fn history_does_not_undo_what_was_told_since_the_load_began() {
    let mut snapshot = TrackedSnapshot::default();
    snapshot.report(mode_report("before"), Origin::Live, 1);
    snapshot.load(1);
    snapshot.report(mode_report("past"), Origin::History, 2);
    assert_eq!(mode(&snapshot).as_deref(), Some("past"));
    snapshot.report(state("a"), Origin::Live, 3);
    snapshot.report(mode_report("past"), Origin::History, 4);
    assert_eq!(mode(&snapshot).as_deref(), Some("a"));
    snapshot.report(mode_report("old"), Origin::Replayed, 5);
    snapshot.loaded();
    assert_eq!(mode(&snapshot).as_deref(), Some("a"));
}
