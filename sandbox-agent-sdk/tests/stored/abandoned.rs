//! What becomes of a turn whose program has ended, and of what its agent forgot.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mock_server::{Fault, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::limits::Limits;
use sandbox_agent_sdk::sessions::{
    RestoredBy, SessionStatus, SessionStore as _, StoredClient, StoredEventKind,
};
use sandbox_agent_sdk::thread::{ResultRules, Severity};
use sandbox_agent_sdk::{DropPolicy, Error, Event, NewSession, ServerKind};
use serde_json::{Value, json};

use crate::endpoints::{ended, endpoint};
use crate::killed::has_stored;
use crate::support::{event, within};
use crate::world::{Ability, World, said, stored};

/// Prompts in a program that ends without releasing the session, as if it were killed.
async fn abandon(world: &World, prompts: &[&str]) {
    let client = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    // Its user does not answer permission requests.
    let _deciding = client.events().deciding();
    let session = within(client.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    let (last, before) = prompts.split_last().unwrap();
    for text in before {
        within(async { session.prompt(*text).await?.outcome().await }).await.unwrap();
    }
    drop(within(session.prompt(*last)).await.unwrap());
    has_stored(&client, "s", StoredEventKind::Update).await;
}

async fn status(client: &StoredClient) -> SessionStatus {
    client.get("s").await.unwrap().unwrap().status
}

#[tokio::test]
async fn the_turn_of_a_process_that_ended_can_be_cancelled_by_any_process() {
    for kind in [ServerKind::Shared, ServerKind::PerAgent] {
        let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
        let world = World::new(kind, Script::steps(steps).initialize(Ability::Resume.initialize())).await;
        abandon(&world, &["go"]).await;
        let (_client, second) = world.program().await;
        within(second.session("s").cancel()).await.unwrap();
        second.flush().await.unwrap();
        let events = stored(&**second.store(), "s").await;
        let end = events.iter().find_map(|event| event.turn_end()).expect("the turn has an end");
        assert_eq!(end.stop_reason.unwrap().as_str(), "cancelled", "{kind}");
        assert!(second.store().open("s").await.unwrap().is_empty(), "{kind}");
    }
}

#[tokio::test]
async fn a_final_result_of_an_abandoned_turn_fails_the_session() {
    let kinds = [ServerKind::Shared, ServerKind::PerAgent];
    for (kind, is_running) in kinds.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let script = Script::new(move |_| {
            let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Go on?")));
            let ask = if is_running { ask } else { Step::Wait(Duration::from_millis(300)) };
            let end = Step::Finish(json!({"stopReason": "max_turn_requests"}));
            vec![Step::Say("begun".into()), ask, end]
        });
        let world = World::new(kind, script.initialize(Ability::Resume.initialize())).await;
        abandon(&world, &["go"]).await;
        // If that process has stored the end of its turn, it ends its endpoint.
        let record = world.store().await.get("s").await.unwrap().unwrap();
        let is_left = kind == ServerKind::PerAgent && record.owner.is_some();
        let left = is_left.then_some(endpoint(&world, "s").await);
        let (client, second) = world.program().await;
        let mut events = client.events().deciding();
        let resumed = within(second.session("s").resume()).await;
        if is_running {
            resumed.unwrap();
            let request = event(&mut events, |event| match event {
                Event::Permission(request) => Some(request),
                _ => None,
            });
            request.await.allow_once().unwrap();
        } else if let Err(error) = resumed {
            assert!(matches!(error, Error::NotAllowed { status: SessionStatus::Error, .. }), "{error:?}");
        }
        within(async {
            while status(&second).await != SessionStatus::Error {
                second.flush().await.unwrap();
            }
        })
        .await;
        // Nothing else names the endpoint of that process.
        within(async {
            while left.iter().any(|left| !ended(&world).contains(left)) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_response_that_cannot_be_decoded_ends_its_turn() {
    let script = Script::new(|_| {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Go on?")));
        // It is much larger in memory than on the wire.
        let end = Step::Finish(json!({"stopReason": "end_turn", "_meta": {"n": vec![1; 20_000]}}));
        vec![Step::Say("begun".into()), ask, end]
    });
    let world = World::new(ServerKind::Shared, script.initialize(Ability::Resume.initialize())).await;
    abandon(&world, &["go"]).await;
    let limits = Limits::default().message(64 << 10).expansion(1);
    let second = world.options().await.limits(limits).build().unwrap();
    let mut events = second.events().deciding();
    let session = second.session("s");
    within(session.resume()).await.unwrap();
    let request = event(&mut events, |event| match event {
        Event::Permission(request) => Some(request),
        _ => None,
    });
    request.await.allow_once().unwrap();
    within(session.open_turn_ended()).await;
    has_stored(&second, "s", StoredEventKind::TurnEnded).await;
    let events = stored(&**second.store(), "s").await;
    let end = events.iter().find_map(|event| event.turn_end()).unwrap();
    assert!(end.executed && end.error.is_some_and(|error| error.message.contains("decoded")));
}

#[tokio::test]
async fn a_turn_that_runs_when_its_session_is_archived_is_stored_as_interrupted() {
    for is_own in [true, false] {
        let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
        let world = World::new(ServerKind::Shared, Script::steps(steps)).await;
        let (_client, second) = world.program().await;
        let mut own = None;
        if is_own {
            let session = within(second.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
            own = Some(within(session.prompt("go")).await.unwrap());
            has_stored(&second, "s", StoredEventKind::Update).await;
        } else {
            abandon(&world, &["go"]).await;
        }
        within(second.archive("s")).await.unwrap();
        drop(own);
        let events = stored(&**second.store(), "s").await;
        let turn = &events.iter().find(|event| event.kind == StoredEventKind::Prompt).unwrap().turn_id;
        let of_turn =
            |kind: StoredEventKind| events.iter().any(|event| event.kind == kind && event.turn_id == *turn);
        assert!(of_turn(StoredEventKind::Gap) && of_turn(StoredEventKind::TurnEnded), "{events:#?}");
        assert!(second.store().open("s").await.unwrap().is_empty());
    }
}

/// An agent that can load sessions, and replays these messages of the user with its answers.
fn loading(replayed: &Arc<Mutex<Vec<&'static str>>>) -> Script {
    let replayed = Arc::clone(replayed);
    let script = Script::new(|_| vec![Step::Say("yes".into())]).initialize(Ability::Load.initialize());
    script.history(move |_| {
        let chunk = |kind: &str, text: &str| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
        let turn = |text: &&str| [chunk("user_message_chunk", text), chunk("agent_message_chunk", "yes")];
        replayed.lock().unwrap().iter().flat_map(turn).collect::<Vec<Value>>()
    })
}

#[tokio::test]
async fn what_an_agent_forgot_is_reported() {
    const PROMPTS: [&str; 3] = ["begin", "continue", "continue"];
    for (replayed, unknown) in [
        (vec![], 3),
        (vec!["begin"], 2),
        (vec!["begin", "continue"], 1),
        (vec!["begin", "continue", "continue"], 0),
    ] {
        let history = Arc::new(Mutex::new(replayed.clone()));
        let world = World::new(ServerKind::Shared, loading(&history)).await;
        let (client, first) = world.program().await;
        let session = within(first.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        for text in PROMPTS {
            within(async { session.prompt(text).await?.outcome().await }).await.unwrap();
        }
        first.flush().await.unwrap();
        world.kill_agent();
        within(client.events().next()).await;
        let restored = within(async {
            loop {
                // The end of the agent may not have arrived yet.
                if let Some(restored) = session.resume().await.unwrap() {
                    return restored;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(
            (restored.by, restored.unknown_prompts, restored.unknown_answers),
            (RestoredBy::Load, Some(unknown), Some(unknown)),
            "{replayed:?}"
        );
    }
}

#[tokio::test]
async fn what_an_agent_replays_behind_its_response_is_not_stored_again() {
    let chunk = |kind: &str, text: &str| {
        Step::Update(json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}))
    };
    // The first message comes before the response, and the others behind it, as of gemini.
    let replay = vec![
        chunk("user_message_chunk", "one"),
        Step::Answer("end_turn".to_owned()),
        chunk("agent_message_chunk", "yes"),
        chunk("user_message_chunk", "two"),
    ];
    let script = Script::new(|_| vec![Step::Say("yes".into())]).initialize(Ability::Load.initialize());
    let script = script.on_request(move |method, _| (method == "session/load").then(|| replay.clone()));
    let world = World::new(ServerKind::Shared, script).await;
    let (_client, first) = world.program().await;
    let session = within(first.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    for text in ["one", "two"] {
        within(async { session.prompt(text).await?.outcome().await }).await.unwrap();
    }
    first.flush().await.unwrap();
    drop((session, first));
    let (_client, second) = world.program().await;
    let session = second.session("s");
    let restored = within(session.resume()).await.unwrap().unwrap();
    let unknown = (restored.unknown_prompts, restored.unknown_answers);
    assert_eq!((restored.by, unknown), (RestoredBy::Load, (Some(0), Some(1))));
    within(async { session.prompt("three").await?.outcome().await }).await.unwrap();
    second.flush().await.unwrap();
    assert_eq!(said(&stored(&**second.store(), "s").await), ["yes"; 3]);
}

#[tokio::test]
async fn the_severity_of_a_result_is_that_of_the_options() {
    for is_own in [true, false] {
        let script = Script::new(|_| {
            let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Go on?")));
            let end = Step::Finish(json!({"stopReason": "max_turn_requests"}));
            vec![Step::Say("begun".into()), ask, end]
        });
        let world = World::new(ServerKind::Shared, script.initialize(Ability::Resume.initialize())).await;
        let rules = ResultRules::default().with_subtype("error_max_turns", Severity::Recoverable);
        let options = world.options().await.stored(|options| options.result_rules(rules));
        let client = options.build().unwrap();
        let mut events = client.events().deciding();
        let mut own = None;
        if is_own {
            let session = within(client.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
            own = Some(within(session.prompt("go")).await.unwrap());
        } else {
            abandon(&world, &["go"]).await;
            within(client.session("s").resume()).await.unwrap();
        }
        let request = event(&mut events, |event| match event {
            Event::Permission(request) => Some(request),
            _ => None,
        });
        request.await.allow_once().unwrap();
        has_stored(&client, "s", StoredEventKind::TurnEnded).await;
        drop(own);
        let events = stored(&**client.store(), "s").await;
        let end = events.iter().find_map(|event| event.turn_end()).expect("the turn has an end");
        assert!(!end.is_terminal_error && end.stop_reason.is_some(), "own: {is_own}: {end:?}");
        assert_eq!(status(&client).await, SessionStatus::Active, "own: {is_own}");
    }
}

#[tokio::test]
async fn a_title_that_arrived_while_the_session_had_no_owner_is_in_its_record() {
    let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
    let world = World::new(ServerKind::Shared, Script::steps(steps)).await;
    abandon(&world, &["go"]).await;
    let (_client, second) = world.program().await;
    let agent_session = second.get("s").await.unwrap().unwrap().agent_session.unwrap().id;
    let update = json!({"sessionUpdate": "session_info_update", "title": "Found out"});
    let params = json!({"sessionId": agent_session, "update": update});
    world.server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    within(second.session("s").resume()).await.unwrap();
    assert_eq!(second.session("s").title().await.unwrap().as_deref(), Some("Found out"));
}

#[tokio::test]
async fn a_server_that_allows_no_second_reader_gets_a_gap() {
    for status in [400, 405] {
        let steps = vec![Step::Say("begun".into())];
        let world =
            World::new(ServerKind::Shared, Script::steps(steps).initialize(Ability::Resume.initialize()))
                .await;
        abandon(&world, &["go"]).await;
        let (_client, second) = world.program().await;
        within(second.new_session_as("other", NewSession::in_dir("/"))).await.unwrap();
        world.server.inject(Fault::StreamRefused { status });
        within(second.session("s").resume()).await.unwrap_or_else(|error| panic!("{status}: {error:?}"));
        let events = stored(&**second.store(), "s").await;
        assert!(events.iter().any(|event| event.kind == StoredEventKind::Gap), "{status}: {events:#?}");
        assert!(second.store().open("s").await.unwrap().is_empty());
    }
}
