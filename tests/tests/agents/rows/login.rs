//! Connecting and logging in.

use sdk_tests::{
    agents::{KEY, Login, RealAgent},
    model::ScriptedModel,
};

use crate::{
    bench::{Bench, RETRIES, ask, chain, in_time, read},
    cell::{Cell, Seen},
};

pub(super) async fn a_key_is_enough_to_log_in(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let capabilities = &connected.capabilities;
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "hello there").await;
    assert_eq!(log.ended().text(), "echo: hello there");
    assert_eq!(key(&bench.model), Some(KEY.to_owned()));
    assert!(bench.model.unknown().is_empty(), "{:?}", bench.model.unknown());
    let name = capabilities.agent_name.clone().unwrap_or_default();
    let version = capabilities.agent_version.clone().unwrap_or_default();
    if cell.agent == RealAgent::Claude || cell.agent == RealAgent::OpenCode {
        assert_eq!(version, cell.agent.version(), "{capabilities:?}");
    }
    Seen::note(format!("calls itself `{name}` `{version}`"))
}

fn key(model: &ScriptedModel) -> Option<String> {
    model.turns().first().and_then(|request| request.key.clone())
}

pub(super) async fn a_wrong_key_is_reported(cell: Cell) -> Seen {
    let bench = Bench::with_login(cell, Login::WrongKey).await;
    let connected = bench.client().await;
    let session = connected.session(bench.new_session()).await;
    let mut turn = session.prompt("hello there");
    if tokio::time::timeout(RETRIES, turn.outcome()).await.is_err() {
        assert!(bench.model.turns().len() > 1, "it neither fails nor tries again");
        in_time("cancelling", turn.cancel()).await.expect("the turn can be cancelled");
        let log = read(turn).await;
        assert!(!log.cancelled().text().contains("echo:"), "{}", log.text());
        let noticed = if log.has_notices() { ", with a notice for each" } else { " silently" };
        return Seen::cannot(format!("retries for more than {} s{noticed}", RETRIES.as_secs()));
    }
    let log = read(turn).await;
    assert!(!log.text().contains("echo:"), "{}", log.text());
    assert_eq!(key(&bench.model).as_deref(), Some("wrong-key"));
    match &log.outcome {
        Err(error) => {
            let text = chain(error);
            assert!(text.contains("401") || text.contains("key"), "{text}");
            Seen::note("the turn fails and says why")
        }
        Ok(_) => {
            let text = log.text().to_lowercase();
            assert!(text.contains("401") || text.contains("key"), "{text:?} {:?}", log.outcome);
            Seen::note("the turn succeeds, and its text says why")
        }
    }
}

pub(super) async fn a_missing_key_is_reported(cell: Cell) -> Seen {
    let bench = Bench::with_login(cell, Login::Missing).await;
    let connected = bench.client().await;
    let made = in_time("a session", connected.client.new_session(bench.new_session())).await;
    let session = match made {
        Err(error) => {
            assert!(error.is_login_required(), "{}", chain(&error));
            return Seen::note("`session/new` fails: login required");
        }
        Ok(session) => session,
    };
    let log = ask(&session, "hello there").await;
    match &log.outcome {
        Err(error) if error.is_login_required() => Seen::note("the prompt fails: login required"),
        Err(error) => {
            assert_eq!(cell.agent, RealAgent::Codex);
            assert!(chain(error).contains("SCRIPTED_KEY"), "{}", chain(error));
            Seen::note("the prompt fails and names the variable")
        }
        Ok(_) if log.text() == "echo: hello there" => {
            // A custom provider needs no key unless its configuration requires one.
            assert!(matches!(cell.agent, RealAgent::OpenCode), "{}", cell.agent);
            Seen::note("its provider needs none")
        }
        Ok(outcome) => panic!("{outcome:?}: {}", log.text()),
    }
}

/// Logins by a key, as the agents call them.
const KEY_LOGINS: [&str; 3] = ["gemini-api-key", "openai", "openai-api-key"];

pub(super) async fn authenticate_logs_in_by_a_key(cell: Cell) -> Seen {
    let bench = Bench::with_login(cell, Login::Other).await;
    let connected = bench.connect(bench.options().auto_authenticate(false)).await;
    let offered = &connected.capabilities.auth_methods;
    let method = offered.iter().find(|id| KEY_LOGINS.contains(&id.as_str()));
    let refused = match in_time("a session", connected.client.new_session(bench.new_session())).await {
        Err(error) => Some(("`session/new`", error)),
        Ok(session) => ask(&session, "hello there").await.outcome.err().map(|error| ("the prompt", error)),
    };
    let Some((what, error)) = refused else {
        // Otherwise the row would not show that the login changes anything.
        assert_eq!(method, None, "nothing requires the login");
        return Seen::cannot("offers no login by a key, and needs none");
    };
    assert!(error.is_login_required(), "{}", chain(&error));
    let method = method.unwrap_or_else(|| panic!("a login is required, and not offered: {offered:?}"));
    let login = in_time("authenticate", connected.client.authenticate(method)).await;
    login.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let session = connected.session(bench.new_session()).await;
    assert_eq!(ask(&session, "hello there").await.ended().text(), "echo: hello there");
    assert_eq!(key(&bench.model), Some(KEY.to_owned()));
    Seen::note(format!("`{method}`, without which {what} fails"))
}
