//! Agent requests other than permissions and questions are executed once, whichever process owns the session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mock_server::{Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::requests::{
    AgentRequest, ClaimedRequest, PermissionRequest, Registration, UnclaimedRequest,
};
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::sessions::{SessionStatus, SessionStore as _, StoredClient, StoredEventKind};
use sandbox_agent_sdk::{DropPolicy, Event, NewSession, ServerKind};
use serde_json::json;

use crate::gated::Gated;
use crate::killed::{has_stored, kill_a_program};
use crate::support::{LIMIT, event, within};
use crate::world::{World, options, said, stored};

fn write(path: &str) -> Step {
    let params = json!({"path": path, "content": "text"});
    Step::Request { method: "fs/write_text_file".into(), params }
}

/// Counts the writes that a program executes.
fn count_writes(client: &StoredClient, writes: &Arc<AtomicUsize>) -> Registration {
    let writes = Arc::clone(writes);
    client.client().requests().register(
        |request: &AgentRequest| request.method() == "fs/write_text_file",
        move |_| {
            writes.fetch_add(1, Ordering::SeqCst);
            async { Ok(json!({})) }
        },
    )
}

#[tokio::test]
async fn a_write_runs_once_although_another_process_acquires_the_session() {
    for (kind, is_alive) in
        [(ServerKind::Shared, true), (ServerKind::Shared, false), (ServerKind::PerAgent, false)]
    {
        let script = Script::new(|_| {
            let call = ToolCall::new("call-1", "Go on?");
            let ask = Step::AskPermission(Permission::new(call));
            vec![write("/one"), ask, write("/two"), Step::Say("done".into())]
        });
        let world = World::new(kind, script).await;
        let writes = Arc::new(AtomicUsize::new(0));
        let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
        let _counting = count_writes(&first, &writes);
        let _deciding = first.events().deciding();
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let turn = within(session.prompt("go")).await.unwrap();
        has_stored(&first, "mine", StoredEventKind::Permission).await;
        assert_eq!(writes.load(Ordering::SeqCst), 1);
        let first = is_alive.then_some((first, turn));

        let (client, second) = world.program().await;
        let _counting = count_writes(&second, &writes);
        let mut events = client.events().deciding();
        let session = second.session("mine");
        within(session.resume()).await.unwrap();
        event(&mut events, permission).await.allow_once().unwrap();
        within(session.open_turn_ended()).await;
        assert_eq!(writes.load(Ordering::SeqCst), 2, "{kind}: each write ran once");
        second.flush().await.unwrap();
        let events = stored(&**second.store(), "mine").await;
        assert_eq!(said(&events).last(), Some(&"done"));
        let open = second.store().open("mine").await.unwrap();
        assert!(open.is_empty(), "{kind}: {open:#?}");
        drop(first);
    }
}

#[tokio::test]
async fn a_request_of_a_session_that_was_deleted_during_its_turn_is_executed() {
    for deletes_itself in [true, false] {
        let script = Script::new(|_| {
            let call = ToolCall::new("call-1", "Go on?");
            vec![Step::AskPermission(Permission::new(call)), write("/one"), Step::Say("done".into())]
        });
        let world = World::new(ServerKind::Shared, script).await;
        let writes = Arc::new(AtomicUsize::new(0));
        let (client, sessions) = world.program().await;
        let _counting = count_writes(&sessions, &writes);
        let mut events = client.events().deciding();
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("go")).await.unwrap();
        let request = event(&mut events, |event| match event {
            Event::Permission(request) => Some(request),
            _ => None,
        })
        .await;
        match deletes_itself {
            true => assert!(within(sessions.delete("mine")).await.unwrap()),
            false => assert!(within(world.store().await.delete("mine")).await.unwrap()),
        }
        request.allow_once().unwrap();
        within(turn.outcome()).await.unwrap();
        assert_eq!(writes.load(Ordering::SeqCst), 1, "by itself: {deletes_itself}");
    }
}

#[tokio::test]
async fn the_turn_of_a_session_that_is_archived_ends_and_executes_nothing() {
    for (kind, by_itself) in [
        (ServerKind::Shared, true),
        (ServerKind::Shared, false),
        (ServerKind::PerAgent, true),
        (ServerKind::PerAgent, false),
    ] {
        let script = Script::new(|_| {
            let call = ToolCall::new("call-1", "Go on?");
            vec![Step::AskPermission(Permission::new(call)), write("/one"), Step::Say("done".into())]
        });
        let world = World::new(kind, script).await;
        let writes = Arc::new(AtomicUsize::new(0));
        let (client, sessions) = world.program().await;
        let _counting = count_writes(&sessions, &writes);
        let mut events = client.events().deciding();
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("go")).await.unwrap();
        let request = event(&mut events, permission).await;
        match by_itself {
            true => within(session.archive()).await.map(drop).unwrap(),
            false => {
                let (_client, other) = world.program().await;
                within(other.archive("mine")).await.unwrap();
                // On a released server the agent is ended with its last session.
                let is_given = request.allow_once().is_ok();
                assert!(is_given || kind == ServerKind::PerAgent, "the agent still waits");
            }
        }
        // How it ends depends on what the server and the agent can do.
        let _ = within(turn.outcome()).await;
        assert_eq!(writes.load(Ordering::SeqCst), 0, "{kind}, by itself: {by_itself}");
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Archived);
    }
}

#[tokio::test]
async fn a_write_of_a_turn_that_ends_while_its_session_is_acquired_does_not_run_again() {
    let script = Script::new(|_| {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Continue?")));
        vec![write("/one"), ask, Step::Say("done".into())]
    })
    .on_request(|method, _| (method == "_x/hang").then(|| vec![Step::Hang]));
    let world = Arc::new(World::new(ServerKind::Shared, script).await);
    let writes = Arc::new(AtomicUsize::new(0));
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let _counting = count_writes(&first, &writes);
    let _deciding = first.events().deciding();
    // It answers for the first program, and stores nothing.
    let other = crate::support::options(&world.server, world.kind).build().unwrap();
    within(other.list_models(None)).await.unwrap();
    let mut unclaimed = other.events().deciding();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("go")).await.unwrap();
    let asks = |request: &UnclaimedRequest| request.method() == "session/request_permission";
    let request = event(&mut unclaimed, |event| match event {
        Event::UnclaimedRequest(request) => Some(request).filter(asks),
        _ => None,
    })
    .await;
    has_stored(&first, "mine", StoredEventKind::Permission).await;

    let store = Gated::new(world.store().await);
    let second = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let _counting_too = count_writes(&second, &writes);
    let reading = second.client().clone();
    let params = json!({"sessionId": session.agent_session().unwrap().id()});
    let calling = Arc::clone(&world);
    // The scan has found the running turn. The turn ends before the acquire is complete.
    *store.before_binding.lock().unwrap() = Some(Box::new(move || {
        Box::pin(async move {
            let ClaimedRequest::Permission(request) = request.claim().unwrap() else {
                panic!("a permission")
            };
            request.allow_once().unwrap();
            within(turn.outcome()).await.unwrap();
            // Everything before the response to this has been received here.
            let _ = within(reading.list_sessions(ListSessions::all()).all()).await;
            // Agent requests of the session are addressed to this program while a call about it is pending.
            tokio::spawn(async move { reading.raw_request("_x/hang", params).await });
            assert!(calling.server.wait_for(|_| !calling.server.messages("_x/hang").is_empty(), LIMIT).await);
        })
    }));
    within(second.session("mine").resume()).await.unwrap();
    let session = second.session("mine");
    within(session.open_turn_ended()).await;
    let mut answer = within(session.prompt("again")).await.unwrap();
    let mut again = second.events().deciding();
    event(&mut again, permission).await.allow_once().unwrap();
    within(answer.outcome()).await.unwrap();
    assert_eq!(writes.load(Ordering::SeqCst), 2, "each turn writes once");
    second.flush().await.unwrap();
    let open = second.store().open("mine").await.unwrap();
    assert!(open.is_empty(), "{open:#?}");
}

#[tokio::test]
async fn a_write_of_an_earlier_turn_does_not_run_again_in_the_turn_of_a_killed_program() {
    let script = Script::new(|turn| {
        let path = turn.params["prompt"][0]["text"].as_str().unwrap().to_owned();
        let last = if path == "/two" { Step::WaitForCancel } else { Step::Say("done".into()) };
        vec![write(&path), last]
    });
    let world = World::new(ServerKind::Shared, script).await;
    let writes = Arc::new(AtomicUsize::new(0));
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let counted = Arc::clone(&writes);
    // It does not respond to the second write, like a program that is killed.
    let _writing = first.client().requests().register(
        |request: &AgentRequest| request.method() == "fs/write_text_file",
        move |request: AgentRequest| {
            counted.fetch_add(1, Ordering::SeqCst);
            let responds = request.params()["path"] != "/two";
            async move { if responds { Ok(json!({})) } else { std::future::pending().await } }
        },
    );
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("/one")).await.unwrap().outcome()).await.unwrap();
    first.flush().await.unwrap();
    // What a session reports that is not stored lies between the two turns.
    let other = within(first.client().new_session(NewSession::in_dir("/"))).await.unwrap();
    within(other.prompt("/other").outcome()).await.unwrap();
    let _turn = within(session.prompt("/two")).await.unwrap();
    within(async {
        while writes.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;

    let (_, second) = world.program().await;
    let _counting = count_writes(&second, &writes);
    let session = second.session("mine");
    within(session.resume()).await.unwrap();
    assert!(session.open_turn().is_some());
    within(session.cancel()).await.unwrap();
    within(session.open_turn_ended()).await;
    assert_eq!(writes.load(Ordering::SeqCst), 3, "each write ran once");
}

#[tokio::test]
async fn a_write_that_no_process_has_begun_is_offered_to_the_owner_after_the_one_that_read_past_it() {
    let script = Script::new(|_| vec![Step::Say("first".into()), write("/one"), Step::Say("done".into())]);
    let world = World::new(ServerKind::Shared, script).await;
    let observer = world.options().await.build().unwrap();
    let mut observed = observer.events();
    let writes = Arc::new(AtomicUsize::new(0));
    // The first program cannot store that it begins with the write.
    let store = Gated::new(world.store().await);
    let first = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let _counting = count_writes(&first, &writes);
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(observer.client().list_sessions(ListSessions::all()).all()).await.unwrap();
    let _gate = store.appending.lock().await;
    let _turn = within(session.prompt("go")).await.unwrap();
    event(&mut observed, |event| matches!(event, Event::UnclaimedRequest(_)).then_some(())).await;

    // The second one stores the agent's messages, and is killed before it offers the write.
    let store = Gated::new(world.store().await);
    let second = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let _counting_too = count_writes(&second, &writes);
    let (gone, mut is_gone) = tokio::sync::mpsc::channel(1);
    let (hooks, end) = (store.clone(), gone);
    *store.before_binding.lock().unwrap() = Some(Box::new(move || {
        *hooks.before_binding.lock().unwrap() = Some(Box::new(move || {
            Box::pin(async move {
                let _ = end.send(()).await;
                std::future::pending().await
            })
        }));
        Box::pin(async {})
    }));
    let session = second.session("mine");
    tokio::spawn(async move { session.resume().await });
    within(is_gone.recv()).await.unwrap();
    assert_eq!(said(&stored(&*store, "mine").await), ["first"]);

    let (_, third) = world.program().await;
    let _counting_last = count_writes(&third, &writes);
    let session = third.session("mine");
    within(session.resume()).await.unwrap();
    within(session.open_turn_ended()).await;
    assert_eq!(writes.load(Ordering::SeqCst), 1);
    third.flush().await.unwrap();
    assert_eq!(said(&stored(&**third.store(), "mine").await), ["first", "done"]);
}

#[tokio::test]
async fn a_write_that_arrives_while_its_session_is_acquired_is_stored_with_its_turn() {
    let script = Script::new(|_| {
        let wait = Step::Wait(Duration::from_millis(600));
        vec![Step::Say("first".into()), wait, write("/one"), Step::Say("done".into())]
    });
    let world = World::new(ServerKind::Shared, script).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let observer = world.options().await.build().unwrap();
    let mut observed = observer.events();
    within(observer.client().list_sessions(ListSessions::all()).all()).await.unwrap();
    let writes = Arc::new(AtomicUsize::new(0));
    let store = Gated::new(world.store().await);
    let sessions = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let _counting = count_writes(&sessions, &writes);
    let session = sessions.session("mine");
    // What was read cannot be stored before the agent has asked.
    let gate = store.appending.lock().await;
    let resuming = tokio::spawn({
        let session = session.clone();
        async move { session.resume().await }
    });
    event(&mut observed, |event| matches!(event, Event::UnclaimedRequest(_)).then_some(())).await;
    // Everything before the response to this has been received here.
    within(sessions.client().list_sessions(ListSessions::all()).all()).await.unwrap();
    drop(gate);
    within(resuming).await.unwrap().unwrap();
    within(session.open_turn_ended()).await;
    sessions.flush().await.unwrap();
    let events = stored(&*store, "mine").await;
    let of_kind = |kind| events.iter().find(|event| event.kind == kind).unwrap();
    assert_eq!(
        of_kind(StoredEventKind::AgentRequest).turn_id,
        of_kind(StoredEventKind::Prompt).turn_id,
        "{events:#?}"
    );
    assert_eq!(writes.load(Ordering::SeqCst), 1);
}

fn permission(event: Event) -> Option<PermissionRequest> {
    match event {
        Event::Permission(request) => Some(request),
        _ => None,
    }
}
