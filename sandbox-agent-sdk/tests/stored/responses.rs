//! The agent gets one response to each of its requests, and the one that is stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mock_server::{Fault, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::requests::{AgentRequest, PermissionRequest};
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::sessions::{SessionStore as _, StoredEventKind};
use sandbox_agent_sdk::{DropPolicy, Event, NewSession, PermissionPolicy, ServerKind};
use serde_json::json;

use crate::gated::{Gated, Response};
use crate::killed::has_stored;
use crate::support::{LIMIT, event, within};
use crate::world::{World, options, said, stored};

/// How long nothing may happen.
const QUIET: Duration = Duration::from_millis(500);

fn permission(event: Event) -> Option<PermissionRequest> {
    match event {
        Event::Permission(request) => Some(request),
        _ => None,
    }
}

#[tokio::test]
async fn a_request_whose_response_was_not_sent_is_answered_by_the_next_owner() {
    let script = Script::new(|_| {
        let params = json!({"path": "/one", "content": "text"});
        let write = Step::Request { method: "fs/write_text_file".into(), params };
        vec![Step::Say("first".into()), write, Step::Say("done".into())]
    });
    let world = Arc::new(World::new(ServerKind::Shared, script).await);
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let failing = Arc::clone(&world);
    let writing = first.client().requests().register(
        |request: &AgentRequest| request.method() == "fs/write_text_file",
        move |_| {
            // The response to this request does not arrive.
            failing.server.inject(Fault::PostResetAfterRead { execute: false });
            async { Ok(json!({})) }
        },
    );
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    assert!(world.server.wait_for(|_| world.server.fired("PostResetAfterRead") > 0, LIMIT).await);
    has_stored(&first, "mine", StoredEventKind::AgentRequest).await;
    drop((turn, session, writing, first));
    world.server.clear_faults();

    let (_client, second) = world.program().await;
    let session = second.session("mine");
    within(session.resume()).await.unwrap();
    within(session.open_turn_ended()).await;
    second.flush().await.unwrap();
    assert_eq!(said(&stored(&**second.store(), "mine").await), ["first", "done"]);
    let open = second.store().open("mine").await.unwrap();
    assert!(open.is_empty(), "{open:#?}");
}

#[tokio::test]
async fn a_stored_response_that_two_owners_could_not_send_is_sent_by_the_third() {
    let script = Script::new(|_| {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Continue?")));
        vec![ask, Step::Say("done".into())]
    });
    let world = World::new(ServerKind::Shared, script).await;
    let reset = || Fault::PostResetAfterRead { execute: false };
    let is_reset = async |before: usize| {
        assert!(world.server.wait_for(|_| world.server.fired("PostResetAfterRead") > before, LIMIT).await);
    };
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let mut asked = first.client().events().deciding();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    let request = event(&mut asked, permission).await;
    has_stored(&first, "mine", StoredEventKind::Permission).await;
    world.server.inject(reset());
    request.allow_once().unwrap();
    is_reset(0).await;
    drop((turn, session, asked, first));
    world.server.clear_faults();

    let (client, second) = world.program().await;
    within(client.list_models(None)).await.unwrap();
    let before = world.server.fired("PostResetAfterRead");
    // The reader of the stream sends one request first.
    world.server.inject(reset().skip(1));
    within(second.session("mine").resume()).await.unwrap();
    is_reset(before).await;
    let open = second.store().open("mine").await.unwrap();
    assert_eq!(open.requests.len(), 1, "the agent waits for the response: {open:#?}");
    drop((client, second));
    world.server.clear_faults();

    let (_client, third) = world.program().await;
    let session = third.session("mine");
    within(session.resume()).await.unwrap();
    within(session.open_turn_ended()).await;
    third.flush().await.unwrap();
    assert_eq!(said(&stored(&**third.store(), "mine").await), ["permission: allow_once", "done"]);
    let open = third.store().open("mine").await.unwrap();
    assert!(open.is_empty(), "{open:#?}");
}

#[tokio::test]
async fn the_response_of_a_process_that_lost_the_session_is_not_sent() {
    let script = Script::new(|_| {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Continue?")));
        vec![ask, Step::Say("done".into())]
    });
    let world = World::new(ServerKind::Shared, script).await;
    let (client, first) = world.program().await;
    let mut asked = client.events().deciding();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let _turn = within(session.prompt("go")).await.unwrap();
    let here = event(&mut asked, permission).await;
    has_stored(&first, "mine", StoredEventKind::Permission).await;

    let (client, second) = world.program().await;
    let mut asked = client.events().deciding();
    let session = second.session("mine");
    within(session.resume()).await.unwrap();
    let there = event(&mut asked, permission).await;
    // The first process stores nothing any more, so that its user decides nothing.
    here.reject_once().unwrap();
    let is_answered = world.server.wait_for_answers(|answers| !answers.is_empty(), QUIET).await;
    assert!(!is_answered, "the agent got the response of the first process");
    there.allow_once().unwrap();
    within(session.open_turn_ended()).await;
    second.flush().await.unwrap();
    let kept = stored(&**second.store(), "mine").await;
    assert_eq!(said(&kept), ["permission: allow_once", "done"]);
    let answers: Vec<_> = kept.iter().filter(|event| event.kind == StoredEventKind::Answered).collect();
    assert_eq!(answers.len(), 1, "{answers:#?}");
    assert_eq!(answers[0].payload["result"]["outcome"]["optionId"], "allow_once", "{answers:#?}");
}

#[tokio::test]
async fn a_response_that_is_given_after_a_release_is_left_to_the_next_owner() {
    let script = Script::new(|_| {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Continue?")));
        vec![ask, Step::Say("done".into())]
    });
    // The process that prompted releases the session, or another one that had it since.
    for is_own in [true, false] {
        let world = World::new(ServerKind::Shared, script.clone()).await;
        let (client, first) = world.program().await;
        let mut asked = client.events().deciding();
        let own = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let _turn = within(own.prompt("go")).await.unwrap();
        let here = event(&mut asked, permission).await;
        has_stored(&first, "mine", StoredEventKind::Permission).await;

        let (client, second) = world.program().await;
        let mut asked = client.events().deciding();
        let session = second.session("mine");
        let mut there = None;
        if is_own {
            within(own.release()).await.unwrap();
        } else {
            within(session.resume()).await.unwrap();
            there = Some(event(&mut asked, permission).await);
            within(session.release()).await.unwrap();
        }
        // The process that released the session may have closed it.
        let _ = here.reject_once();
        let is_answered = world.server.wait_for_answers(|answers| !answers.is_empty(), QUIET).await;
        assert!(!is_answered, "the agent got a response that is not stored: {:?}", world.server.answers());
        drop(there);
        within(session.resume()).await.unwrap();
        let again = event(&mut asked, permission).await;
        again.allow_once().unwrap();
        within(session.open_turn_ended()).await;
        second.flush().await.unwrap();
        assert_eq!(said(&stored(&**second.store(), "mine").await), ["permission: allow_once", "done"]);
    }
}

#[tokio::test]
async fn a_request_that_arrives_after_a_release_is_left_to_the_next_owner() {
    let script = Script::new(|_| {
        let wait = Step::Wait(Duration::from_millis(600));
        let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Continue?")));
        vec![Step::Say("first".into()), wait, ask, Step::Say("done".into())]
    });
    // The process that prompted releases the session, or another one that had it since.
    for is_own in [true, false] {
        let world = World::new(ServerKind::Shared, script.clone()).await;
        let observer = world.options().await.build().unwrap();
        let mut observed = observer.events();
        within(observer.client().list_sessions(ListSessions::all()).all()).await.unwrap();
        let first = world.options().await.permissions(PermissionPolicy::BypassPermissions).build().unwrap();
        let own = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(own.prompt("go")).await.unwrap();
        within(turn.next()).await.unwrap();

        let (client, second) = world.program().await;
        let mut asked = client.events().deciding();
        let session = second.session("mine");
        if is_own {
            within(own.release()).await.unwrap();
        } else {
            within(session.resume()).await.unwrap();
            within(session.release()).await.unwrap();
        }
        event(&mut observed, |event| matches!(event, Event::UnclaimedRequest(_)).then_some(())).await;
        let is_answered = world.server.wait_for_answers(|answers| !answers.is_empty(), QUIET).await;
        assert!(!is_answered, "no process owns the session: {:?}", world.server.answers());
        within(session.resume()).await.unwrap();
        event(&mut asked, permission).await.allow_once().unwrap();
        within(session.open_turn_ended()).await;
        within(turn.outcome()).await.unwrap();
        second.flush().await.unwrap();
        let kept = stored(&**second.store(), "mine").await;
        assert_eq!(said(&kept), ["first", "permission: allow_once", "done"]);
    }
}

#[tokio::test]
async fn a_write_is_executed_although_the_store_failed_at_first() {
    let script = Script::new(|_| {
        let params = json!({"path": "/one", "content": "text"});
        let write = Step::Request { method: "fs/write_text_file".into(), params };
        vec![write, Step::Say("done".into())]
    });
    for is_lost in [false, true] {
        let world = World::new(ServerKind::Shared, script.clone()).await;
        let store = Gated::new(world.store().await);
        let client = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&writes);
        let _writing = client.client().requests().register(
            |request: &AgentRequest| request.method() == "fs/write_text_file",
            move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                async { Ok(json!({})) }
            },
        );
        let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        // The request is refused, or is stored and nothing says so.
        *store.request_response.lock().unwrap() = if is_lost { Response::Lost } else { Response::Refused };
        within(within(session.prompt("go")).await.unwrap().outcome()).await.unwrap();
        assert_eq!(writes.load(Ordering::SeqCst), 1, "lost: {is_lost}");
    }
}

#[tokio::test]
async fn a_response_that_could_not_be_stored_is_not_sent() {
    for is_killed in [true, false] {
        let script = Script::new(|_| {
            let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Continue?")));
            vec![ask, Step::Say("done".into())]
        });
        let world = World::new(ServerKind::Shared, script).await;
        let store = Gated::new(world.store().await);
        let first = options(&world.server, world.kind).shared_store(store.clone());
        let first = first.stored(|options| options.retry_for(Duration::from_millis(200)));
        let first = first.on_turn_drop(DropPolicy::Detach).build().unwrap();
        let mut asked = first.client().events().deciding();
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("go")).await.unwrap();
        let request = event(&mut asked, permission).await;
        has_stored(&first, "mine", StoredEventKind::Permission).await;
        store.refusing.store(true, Ordering::SeqCst);
        let refused = store.refusals();
        request.allow_once().unwrap();
        within(store.refused(refused + 1)).await;
        let is_answered = world.server.wait_for_answers(|answers| !answers.is_empty(), QUIET).await;
        assert!(!is_answered, "the agent got a response that is not stored: {:?}", world.server.answers());
        let expected = if is_killed {
            drop((turn, session, asked, first));
            let (client, second) = world.program().await;
            let mut asked = client.events().deciding();
            let session = second.session("mine");
            within(session.resume()).await.unwrap();
            event(&mut asked, permission).await.reject_once().unwrap();
            within(session.open_turn_ended()).await;
            second.flush().await.unwrap();
            "reject_once"
        } else {
            store.refusing.store(false, Ordering::SeqCst);
            within(turn.outcome()).await.unwrap();
            // The failure is reported, and nothing is lost.
            within(first.flush()).await.unwrap_err();
            within(first.flush()).await.unwrap();
            "allow_once"
        };
        let kept = stored(&*store, "mine").await;
        assert_eq!(said(&kept), [format!("permission: {expected}").as_str(), "done"]);
        let answers: Vec<_> = kept.iter().filter(|event| event.kind == StoredEventKind::Answered).collect();
        assert_eq!(answers.len(), 1, "{answers:#?}");
        assert_eq!(answers[0].payload["result"]["outcome"]["optionId"], expected, "{answers:#?}");
        assert!(kept.iter().all(|event| event.kind != StoredEventKind::Lost), "{kept:#?}");
        assert!(store.open("mine").await.unwrap().is_empty());
    }
}
