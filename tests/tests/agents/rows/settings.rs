//! Modes, models and options.

use sandbox_agent_sdk::session::SessionSnapshot;
use sandbox_agent_sdk::{Error, Session};
use sdk_tests::agents::RealAgent;

use crate::{
    bench::{Answering, Bench, Connected, ask, chain, in_time},
    cell::{Cell, Seen},
};

/// A mode that is not the first one, and whose effect can be seen.
fn mode_of(agent: RealAgent) -> &'static str {
    match agent {
        RealAgent::OpenCode => "plan",
        RealAgent::Codex => "auto",
        RealAgent::Claude => "acceptEdits",
        RealAgent::Gemini => "autoEdit",
        RealAgent::Qwen => "auto-edit",
    }
}

/// Fails the row unless the mode of `mode_of` has its effect in a session, or has none if it is not set.
async fn assert_mode(bench: &Bench, session: &Session, answering: &Answering, is_set: bool) {
    if bench.cell.agent == RealAgent::OpenCode {
        // It tells the model. The permissions of its configuration override those of the mode.
        let prompt = format!("the mode is set: {is_set}");
        assert_eq!(ask(session, &prompt).await.ended().text(), format!("echo: {prompt}"));
        let asked = bench.model.asked(&prompt).await;
        assert_eq!(asked.contains("Plan Mode"), is_set, "{}", asked.body);
        return;
    }
    // The others write files without a permission.
    let before = answering.requests().len();
    let path = bench.in_project(&format!("mode-is-set-{is_set}.txt"));
    ask(session, &format!("write {}", path.display())).await.ended();
    assert!(path.exists());
    let asked = answering.requests().split_off(before);
    assert_eq!(asked.len(), usize::from(!is_set), "{asked:?}");
}

/// Allows everything that the sessions of a client ask for.
fn allowing(connected: &Connected) -> Answering {
    Answering::start(&connected.client, |request| {
        request.allow_once().expect("it can be allowed");
    })
}

fn other_model(snapshot: &SessionSnapshot) -> Option<String> {
    let current = snapshot.models.current.clone();
    let mut ids = snapshot.models.available.iter().map(|model| &model.id);
    ids.find(|id| Some(*id) != current.as_ref() && reachable(id, current.as_deref())).cloned()
}

/// Whether the scripted model serves this one: others are those of another provider, or of an account in a browser.
fn reachable(id: &str, current: Option<&str>) -> bool {
    let provider = |id: &str| id.split_once('/').map(|(provider, _)| provider.to_owned());
    !id.contains("oauth") && provider(id) == current.and_then(provider)
}

/// Fails the row unless the provider was asked for this model in the turn `still there`.
async fn assert_asked_for(bench: &Bench, model: &str) {
    let asked = bench.model.asked("still there").await;
    let sent = asked.body["model"].as_str().unwrap_or(&asked.path).to_owned();
    let name = model.rsplit('/').next().unwrap_or(model);
    let name = name.split('[').next().unwrap_or(name);
    assert!(sent.contains(name), "the model was {sent}, not {model}");
}

pub(super) async fn a_session_has_the_model_and_mode_it_was_made_with(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let answering = allowing(&connected);
    let first = connected.session(bench.new_session()).await;
    assert_mode(&bench, &first, &answering, false).await;
    let (mode, model) = (mode_of(cell.agent), other_model(&first.snapshot()));
    let mut new = bench.new_session().mode(mode);
    if let Some(model) = &model {
        new = new.model(model);
    }
    let session = connected.session(new).await;
    let snapshot = session.snapshot();
    let model_now = model.clone().or(first.snapshot().models.current.clone());
    assert_eq!(snapshot.current_mode.as_deref(), Some(mode));
    assert_eq!(snapshot.models.current, model_now);
    assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
    assert_mode(&bench, &session, &answering, true).await;
    match model {
        Some(model) => {
            assert_asked_for(&bench, &model).await;
            Seen::Works
        }
        None => {
            assert_eq!(cell.agent, RealAgent::Qwen, "no models: {snapshot:?}");
            Seen::note("a mode; it has one model")
        }
    }
}

pub(super) async fn the_mode_is_set(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let answering = allowing(&connected);
    let session = connected.session(bench.new_session()).await;
    assert_mode(&bench, &session, &answering, false).await;
    let mode = mode_of(cell.agent);
    in_time("setting the mode", session.set_mode(mode)).await.expect("the mode is set");
    assert_eq!(session.snapshot().current_mode.as_deref(), Some(mode));
    assert_mode(&bench, &session, &answering, true).await;
    assert_eq!(session.snapshot().current_mode.as_deref(), Some(mode));
    Seen::Works
}

pub(super) async fn an_unknown_mode_is_refused(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let mode = session.snapshot().current_mode.clone();
    let set = in_time("setting the mode", session.set_mode("no-such-mode")).await;
    let seen = match set {
        Err(error) => {
            assert!(matches!(error, Error::Rpc { .. }), "{}", chain(&error));
            assert_eq!(session.snapshot().current_mode, mode, "{}", chain(&error));
            Seen::Works
        }
        Ok(()) => {
            assert_eq!(cell.agent, RealAgent::Qwen, "{:?}", session.snapshot());
            assert_eq!(session.snapshot().current_mode.as_deref(), Some("no-such-mode"));
            Seen::cannot("accepts any mode, which is then the current one")
        }
    };
    assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
    seen
}

pub(super) async fn the_model_is_set(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let Some(model) = other_model(&session.snapshot()) else {
        assert_eq!(cell.agent, RealAgent::Qwen, "{:?}", session.snapshot());
        let only = session.snapshot().models.current.clone().expect("a model");
        in_time("setting the model", session.set_model(&only))
            .await
            .unwrap_or_else(|error| panic!("{}", chain(&error)));
        assert_eq!(session.snapshot().models.current.as_deref(), Some(only.as_str()));
        let refused = in_time("setting an unknown model", session.set_model("no-such-model")).await;
        let error = refused.expect_err("an unknown model is refused");
        assert!(matches!(error, Error::Rpc { .. }), "{}", chain(&error));
        assert_eq!(session.snapshot().models.current.as_deref(), Some(only.as_str()), "{}", chain(&error));
        assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
        // Its id names the login and the provider too.
        let asked = bench.model.asked("still there").await.body["model"].as_str().map(str::to_owned);
        assert!(asked.is_some_and(|name| only.contains(&name)), "{only}");
        return Seen::cannot("has one model; an unknown one is refused with an error of the agent");
    };
    in_time("setting the model", session.set_model(&model))
        .await
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(session.snapshot().models.current.as_deref(), Some(model.as_str()));
    assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
    assert_eq!(session.snapshot().models.current.as_deref(), Some(model.as_str()));
    assert_asked_for(&bench, &model).await;
    Seen::Works
}

pub(super) async fn an_option_is_set(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let snapshot = session.snapshot();
    let choice = snapshot.config_options.iter().find_map(|option| {
        let values = option.values.iter().map(|value| &value.value);
        let usable = |value: &&String| {
            let current = option.current.as_str();
            current != Some(value.as_str())
                && !value.contains("bypass")
                && !value.contains("full")
                && reachable(value, current)
        };
        Some((option.id.clone(), values.into_iter().find(usable)?.clone()))
    });
    let Some((option, value)) = choice else {
        assert_eq!(cell.agent, RealAgent::Gemini, "{snapshot:?}");
        let set = session.set_config_option("mode", "plan".to_owned());
        let error =
            in_time("setting an option", set).await.expect_err("an agent without options refuses one");
        assert!(matches!(error, Error::Unsupported { .. }), "{}", chain(&error));
        assert!(session.snapshot().config_options.is_empty());
        assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
        return Seen::cannot("has no options: `Unsupported`");
    };
    let set = session.set_config_option(&option, value.clone());
    in_time("setting an option", set).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let now = || session.snapshot().config_option(&option).map(|option| option.current.clone());
    assert_eq!(now(), Some(value.clone().into()));
    assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
    assert_eq!(now(), Some(value.into()));
    Seen::note(format!("`{option}`"))
}
