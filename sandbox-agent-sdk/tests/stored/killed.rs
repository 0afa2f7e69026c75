//! What the next owner of a session finds after its program was killed.

use std::process::{Command, Stdio};
use std::time::Duration;

use mock_server::{Fault, Permission, Script, State, Step, ToolCall};
use sandbox_agent_sdk::requests::ClaimedRequest;
use sandbox_agent_sdk::sessions::{
    RestoredBy, SessionStore as _, SqliteStore, StoreOptions, StoredClient, StoredEventKind,
};
use sandbox_agent_sdk::{DropPolicy, Error, Event, NewSession, SandboxAgentClient, ServerKind};
use serde_json::json;

use crate::gated::Gated;
use crate::support::{event, timeouts, within};
use crate::world::{Ability, World, counting, options, said, stored};

const URL: &str = "KILLED_TEST_SERVER_URL";
const FILE: &str = "KILLED_TEST_STORE_FILE";
const RELEASED: &str = "KILLED_TEST_RELEASED_SERVER";

/// The program that is killed: it is this test, started again.
#[tokio::test]
async fn a_program_that_prompts() {
    let (Ok(url), Ok(file)) = (std::env::var(URL), std::env::var(FILE)) else { return };
    let store = SqliteStore::open(file).await.unwrap();
    let kind = std::env::var(RELEASED).map_or(ServerKind::Shared, |_| ServerKind::PerAgent);
    let options = SandboxAgentClient::builder(url).agent("mock").server(kind);
    let client = options.timeouts(timeouts()).build().unwrap().with_store(store);
    let _deciding = client.events().deciding();
    // Another session of the same process, in which nothing happens.
    within(client.new_session_as("other", NewSession::in_dir("/"))).await.unwrap();
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("go")).await.unwrap();
    within(turn.outcome()).await.unwrap();
}

/// Starts the program, and kills it when it has stored an event of this kind.
pub(crate) async fn kill_a_program(world: &World, kind: StoredEventKind) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "killed::a_program_that_prompts", "--nocapture"])
        .env(URL, world.server.url())
        .env(FILE, world.directory.path().join("sessions.db"))
        .stdout(Stdio::null());
    if world.kind == ServerKind::PerAgent {
        command.env(RELEASED, "");
    }
    let mut child = command.spawn().unwrap();
    let store = world.store().await;
    within(async {
        while !stored(&store, "mine").await.iter().any(|event| event.kind == kind) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
}

/// An agent that says something to the prompt of the program that is killed, and then waits for a cancel.
pub(crate) fn waiting(ability: Ability) -> Script {
    let script = Script::new(|turn| {
        let prompt = turn.params["prompt"].as_array().unwrap().last().unwrap();
        let mut steps = vec![Step::Say("first".to_owned())];
        steps.extend((prompt["text"] == "go").then_some(Step::WaitForCancel));
        steps
    });
    script.initialize(ability.initialize())
}

/// Another client cancels the turn of an agent's session, and the server loses the response to its prompt.
pub(crate) async fn lose_response(world: &World, agent_session: &str) {
    let other =
        SandboxAgentClient::builder(world.server.url()).agent("mock").server(world.kind).build().unwrap();
    within(other.list_models(None)).await.unwrap();
    let response = world.server.last_event_id() + 1;
    world.server.inject(Fault::Hole { id: response });
    within(other.raw_notify("session/cancel", json!({ "sessionId": agent_session }))).await.unwrap();
    within(async {
        while world.server.last_event_id() < response {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Waits until the session has stored an event of this kind.
pub(crate) async fn has_stored(client: &StoredClient, id: &str, kind: StoredEventKind) {
    within(async {
        loop {
            client.flush().await.unwrap();
            if stored(&**client.store(), id).await.iter().any(|event| event.kind == kind) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn of_forty_busy_sessions_nothing_is_lost() {
    const SESSIONS: usize = 40;
    const COUNT: usize = 15;
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
    let client = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let mut turns = Vec::new();
    for n in 0..SESSIONS {
        let session = within(client.new_session_as(format!("s{n}"), NewSession::in_dir("/"))).await.unwrap();
        turns.push(within(session.prompt("count")).await.unwrap());
    }
    // It ends without releasing anything.
    drop((turns, client));
    let (_client, sessions) = world.program().await;
    for n in 0..SESSIONS {
        let id = format!("s{n}");
        within(sessions.resume(&id)).await.unwrap();
        has_stored(&sessions, &id, StoredEventKind::TurnEnded).await;
        let kept = stored(&**sessions.store(), &id).await;
        let numbers: Vec<usize> = said(&kept).iter().map(|text| text.trim().parse().unwrap()).collect();
        assert_eq!(numbers, (1..=COUNT).collect::<Vec<_>>(), "{id}");
        assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{id}");
    }
}

#[tokio::test]
async fn an_open_permission_is_offered_again_by_its_id() {
    let script = Script::new(|_| {
        let call = ToolCall::new("call-1", "Remove everything");
        vec![Step::AskPermission(Permission::new(call)), Step::Say("done".to_owned())]
    });
    let world = World::new(ServerKind::Shared, script).await;
    kill_a_program(&world, StoredEventKind::Permission).await;
    let before = stored(&world.store().await, "mine").await;
    let asked = before.iter().find(|event| event.kind == StoredEventKind::Permission).unwrap();

    let (client, sessions) = world.program().await;
    let mut events = client.events().deciding();
    let session = sessions.session("mine");
    let restored = within(session.resume()).await.unwrap().unwrap();
    assert_eq!(restored.by, RestoredBy::Attach, "nothing is asked of an agent that waits");
    let request = event(&mut events, |event| match event {
        Event::Permission(request) => Some(request),
        _ => None,
    })
    .await;
    assert_eq!(asked.rpc_id.as_deref(), Some(format!("{:?}", request.id()).as_str()));
    request.allow_once().unwrap();
    within(session.open_turn_ended()).await;
    has_stored(&sessions, "mine", StoredEventKind::TurnEnded).await;
    let kept = stored(&**sessions.store(), "mine").await;
    let count = |kind| kept.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(StoredEventKind::Permission), count(StoredEventKind::Answered)), (1, 1));
    assert_eq!(said(&kept), ["permission: allow_once", "done"]);
    assert!(sessions.store().open("mine").await.unwrap().is_empty(), "nothing is open any more");
}

#[tokio::test]
async fn a_permission_that_is_read_with_the_end_of_its_turn_is_closed() {
    let script = Script::new(|_| {
        let call = ToolCall::new("call-1", "Remove everything");
        let wait = Step::Wait(Duration::from_millis(300));
        vec![Step::Say("first".to_owned()), wait, Step::AskPermission(Permission::new(call))]
    });
    let world = World::new(ServerKind::Shared, script).await;
    // It answers for the program that is killed, and stores nothing.
    let other = SandboxAgentClient::builder(world.server.url()).agent("mock").server(ServerKind::Shared);
    let other = other.timeouts(timeouts()).build().unwrap();
    within(other.list_models(None)).await.unwrap();
    let mut events = other.events().deciding();
    kill_a_program(&world, StoredEventKind::Update).await;
    let request = event(&mut events, |event| match event {
        Event::UnclaimedRequest(request) => Some(request),
        _ => None,
    })
    .await;
    let asked_at = world.server.last_event_id();
    let ClaimedRequest::Permission(permission) = request.claim().unwrap() else { panic!("not a permission") };
    permission.allow_once().unwrap();
    // The agent says what was decided, and the response to the prompt follows.
    within(async {
        while world.server.last_event_id() < asked_at + 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;

    let (_client, sessions) = world.program().await;
    within(sessions.session("mine").resume()).await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(kept.iter().any(|event| event.kind == StoredEventKind::Permission));
    let open = sessions.store().open("mine").await.unwrap();
    assert!(open.is_empty(), "{open:?}");
}

#[tokio::test]
async fn a_permission_that_arrives_between_the_scan_and_the_claim_is_offered_once() {
    let script = Script::new(|_| {
        let call = ToolCall::new("call-1", "Remove everything");
        let wait = Step::Wait(Duration::from_millis(600));
        vec![Step::Say("first".to_owned()), wait, Step::AskPermission(Permission::new(call))]
    });
    let world = World::new(ServerKind::Shared, script).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let store = Gated::new(world.store().await);
    let sessions = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let mut events = sessions.client().events().deciding();
    let session = sessions.session("mine");
    // What was read cannot be stored before the agent has asked.
    let gate = store.appending.lock().await;
    let resuming = tokio::spawn({
        let session = session.clone();
        async move { session.resume().await }
    });
    let (mut requests, mut gate) = (Vec::new(), Some(gate));
    while requests.is_empty() {
        match within(events.next()).await.unwrap() {
            Event::Permission(request) => requests.push(request),
            Event::UnclaimedRequest(_) => {}
            _ => continue,
        }
        gate = None;
    }
    drop(gate);
    within(resuming).await.unwrap().unwrap();
    requests.remove(0).allow_once().unwrap();
    within(session.open_turn_ended()).await;
    has_stored(&sessions, "mine", StoredEventKind::TurnEnded).await;
    let kept = stored(&*store, "mine").await;
    let count = |kind| kept.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(StoredEventKind::Permission), count(StoredEventKind::Answered)), (1, 1));
    assert!(sessions.store().open("mine").await.unwrap().is_empty(), "nothing is open any more");
    let again = std::iter::from_fn(|| events.try_next()).find(|event| matches!(event, Event::Permission(_)));
    assert!(again.is_none(), "{again:?}");
}

#[tokio::test]
async fn a_turn_with_reports_is_not_given_up_because_it_is_silent_now() {
    let world = World::new(
        ServerKind::Shared,
        Script::steps(vec![Step::Say("first".to_owned()), Step::WaitForCancel]),
    )
    .await;
    kill_a_program(&world, StoredEventKind::Update).await;
    world.server.inject(Fault::post_status(503).on_method("session/cancel"));
    let limits = |options: StoreOptions| options.open_turn_timeout(Duration::from_millis(50));
    let sessions = world.options().await.stored(limits).build().unwrap();
    let session = sessions.session("mine");
    let error = within(session.prompt("again")).await.unwrap_err();
    assert!(matches!(error, Error::TurnInProgress { .. }), "{error:?}");
    assert!(session.open_turn().is_some(), "it is running");
}

#[tokio::test]
async fn text_under_an_id_that_is_used_again_is_stored_in_the_session_that_has_the_id_now() {
    const COUNT: usize = 150;
    // After a restart the agent reuses the id of its first session.
    let script = Script::new(|turn| {
        let prompt = turn.params["prompt"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap();
        let count = |n| [Step::Say(format!("{prompt} {n}")), Step::Wait(Duration::from_millis(3))];
        (1..=COUNT).flat_map(count).collect()
    });
    let script = script.initialize(Ability::Neither.initialize()).session_ids(|number| match number {
        1 | 4 => "same".to_owned(),
        _ => format!("other-{number}"),
    });
    let world = World::new(ServerKind::Shared, script).await;
    let program = || async { world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap() };
    let first = program().await;
    let old = within(first.new_session_as("old", NewSession::in_dir("/"))).await.unwrap();
    let witness = within(first.new_session_as("witness", NewSession::in_dir("/"))).await.unwrap();
    for (session, name) in [(&old, "old"), (&witness, "witness")] {
        within(within(session.prompt(name)).await.unwrap().outcome()).await.unwrap();
    }
    first.flush().await.unwrap();
    world.server.restart(State::Lost).await;
    // This program stores that the server has restarted.
    within(within(witness.prompt("witness")).await.unwrap().outcome()).await.unwrap();
    drop((old, witness, first));
    let second = program().await;
    let new = within(second.new_session_as("new", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(new.prompt("new")).await.unwrap();
    has_stored(&second, "new", StoredEventKind::Update).await;
    // It ends without releasing anything.
    drop((turn, new, second));

    let store = Gated::new(world.store().await);
    let third = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    // Both acquire their sessions, and cannot store what they read while the agent reports more.
    let gate = store.appending.lock().await;
    let mut resuming = Vec::new();
    for name in ["old", "new"] {
        let session = third.session(name);
        resuming.push(tokio::spawn(async move { session.resume().await }));
        within(async {
            while store.get(name).await.unwrap().unwrap().epoch < 2 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }
    let reported = world.server.last_event_id();
    within(async {
        while world.server.last_event_id() < reported + 10 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    drop(gate);
    let mut by = Vec::new();
    for resumed in resuming {
        by.push(within(resumed).await.unwrap().unwrap().unwrap().by);
    }
    assert_eq!(by, [RestoredBy::Replay, RestoredBy::Attach]);
    has_stored(&third, "new", StoredEventKind::TurnEnded).await;
    for name in ["old", "new"] {
        let numbered: Vec<_> = (1..=COUNT).map(|n| format!("{name} {n}")).collect();
        assert_eq!(said(&stored(&**third.store(), name).await), numbered, "{name}");
    }
}

#[tokio::test]
async fn a_turn_gets_its_end_and_its_late_text_is_its_own() {
    const COUNT: usize = 300;
    let world = World::new(ServerKind::Shared, counting(Ability::Load, COUNT)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let (_client, sessions) = world.program().await;
    let session = sessions.session("mine");
    within(session.resume()).await.unwrap();
    let open = session.open_turn().expect("it is running");
    assert_eq!(world.server.messages("session/load").len(), 0, "nothing is loaded during a turn");
    // The prompt waits for the end of that turn.
    within(within(session.prompt("again")).await.unwrap().outcome()).await.unwrap();
    assert_eq!(session.open_turn(), None);
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    let of_turn = |id: &str| {
        let events = kept.iter().filter(|event| event.turn_id.as_deref() == Some(id)).cloned();
        events.collect::<Vec<_>>()
    };
    let first = of_turn(&open.turn_id);
    assert_eq!(said(&first).len(), COUNT, "all of its text is its own");
    assert_eq!(first.last().unwrap().kind, StoredEventKind::TurnEnded);
    let end = first.last().unwrap().turn_end().unwrap();
    assert_eq!(end.stop_reason.map(|reason| reason.as_str().to_owned()).as_deref(), Some("end_turn"));
    let second = kept.iter().rev().find_map(|event| event.turn_id.clone()).unwrap();
    assert_eq!(said(&of_turn(&second)).len(), COUNT);
}
