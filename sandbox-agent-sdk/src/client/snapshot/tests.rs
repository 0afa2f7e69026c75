//! Which reports take precedence over others.

use serde_json::{Value, json};

use super::{Patch, SessionSnapshot, TrackedSnapshot};
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
fn a_response_does_not_undo_reports_since_its_call_began() {
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
    assert_eq!(mode(&snapshot).as_deref(), Some("b"), "a session that is loaded again is reported again");
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
fn values_that_cannot_be_parsed_are_preserved_under_their_names() {
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
    // A valid report leaves no unparsed entries.
    snapshot.answer(Patch::of_state(&json!({"modes": {"availableModes": []}, "tools": []})), 1, 2);
    let now = snapshot.get();
    assert!(!now.other.contains_key("modes") && !now.other.contains_key("tools"));
    assert!(
        now.other.contains_key("models") && now.other.contains_key("brandNew"),
        "nothing has reported these"
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
    // Nothing of an earlier session with the same id is left, except what was reported since the call began.
    snapshot.begin(Patch::of_state(&state(7)), 8, 9);
    is(&snapshot, 7);
    snapshot.begin(Patch::default(), 8, 10);
    is(&snapshot, 7);
    snapshot.begin(Patch::default(), 10, 11);
    let now = snapshot.get();
    assert!(now.other.is_empty() && now.models.other.is_empty() && now.metadata.is_empty());
}

#[test]
fn history_does_not_undo_reports_since_the_load_began() {
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

fn metadata(name: &str, value: &str) -> Patch {
    report(json!({"sessionUpdate": "session_info_update", "_meta": {"sandboxagent.dev": {name: value}}}))
}

#[test]
fn unknown_fields_and_lists_are_stored_up_to_the_limit_and_ignored_above_it() {
    let text = "x".repeat(1 << 10);
    let commands =
        json!({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": text}]});
    let state = Patch::of_state;
    type Make<'a> = Box<dyn Fn() -> Patch + 'a>;
    let table: [(&str, Make<'_>); 5] = [
        ("metadata", Box::new(|| metadata("key", &text))),
        ("another field", Box::new(|| state(&json!({"odd": text})))),
        ("a field of the models", Box::new(|| state(&json!({"models": {"odd": text}})))),
        ("a list", Box::new(|| report(commands.clone()))),
        ("a text", Box::new(|| state(&json!({"title": text})))),
    ];
    for (name, patch) in table {
        let mut probe = TrackedSnapshot::new(usize::MAX);
        probe.report(patch(), Origin::Live, 1);
        let size = probe.bytes();
        assert!(size > text.len() && *probe.get() != SessionSnapshot::default(), "{name}");
        for (limit, fits) in [(size - 1, false), (size, true), (size + 1, true)] {
            let mut snapshot = TrackedSnapshot::new(limit);
            snapshot.report(patch(), Origin::Live, 1);
            assert_eq!(*snapshot.get() != SessionSnapshot::default(), fits, "{name} {limit}");
            assert_eq!(snapshot.bytes(), if fits { size } else { 0 }, "{name} {limit}");
        }
    }
}

#[test]
fn ever_new_names_and_values_stay_within_the_limit_and_smaller_ones_are_still_stored() {
    let mut snapshot = TrackedSnapshot::new(1 << 20);
    for number in 0..20_u64 {
        snapshot.report(metadata(&format!("key{number}"), &"x".repeat(200 << 10)), Origin::Live, number);
    }
    snapshot.report(metadata("small", "1"), Origin::Live, 30);
    let now = snapshot.get();
    let stored = now.metadata.clone().into_map();
    assert_eq!(stored.len(), 6, "five large ones, and the small one");
    assert!(stored.contains_key("small") && snapshot.bytes() <= 1 << 20);
    // A value of the same size replaces the earlier one, and frees what it took.
    snapshot.report(metadata("key0", "new"), Origin::Live, 31);
    snapshot.report(metadata("key7", &"x".repeat(200 << 10)), Origin::Live, 32);
    let stored = snapshot.get().metadata.clone().into_map();
    assert!(stored["key0"] == "new" && stored.contains_key("key7"));
    snapshot.begin(Patch::of_state(&json!({})), 40, 41);
    assert_eq!(snapshot.bytes(), 0);
}

#[test]
fn an_update_copies_the_snapshot_only_while_a_reader_has_it() {
    let mut snapshot = TrackedSnapshot::default();
    snapshot.report(metadata("key", "value"), Origin::Live, 1);
    let place = std::sync::Arc::as_ptr(&snapshot.get());
    snapshot.report(mode_report("a"), Origin::Live, 2);
    assert_eq!(std::sync::Arc::as_ptr(&snapshot.get()), place);
    let reader = snapshot.get();
    snapshot.report(mode_report("b"), Origin::Live, 3);
    assert_eq!(reader.current_mode.as_deref(), Some("a"), "a reader's snapshot does not change");
    assert_eq!(mode(&snapshot).as_deref(), Some("b"));
}
