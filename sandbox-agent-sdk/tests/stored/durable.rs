//! Events that are delivered after they were stored.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::poll_immediate;
use mock_server::{Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::sessions::{Durability, MemoryStore, StoredClient, StoredEventKind};
use sandbox_agent_sdk::stream::LogRecord;
use sandbox_agent_sdk::turns::TurnEvent;
use sandbox_agent_sdk::update::Missed;
use sandbox_agent_sdk::{DropPolicy, Error, Event, NewSession, ServerKind, StopReason, UpdateKind};
use serde_json::json;

use crate::endpoints::endpoint_in;
use crate::gated::Gated;
use crate::killed::{has_stored, kill_a_program};
use crate::support::{KINDS, LIMIT, event, within};
use crate::world::{Ability, World, counting, options, said, stored};

/// How long a store that fails is tried again.
const RETRY_FOR: Duration = Duration::from_millis(300);

fn program(world: &World, kind: ServerKind, store: &Arc<Gated>, retry_for: Duration) -> StoredClient {
    let program = options(&world.server, kind).shared_store(Arc::<Gated>::clone(store));
    let program = program.stored(|stored| stored.durability(Durability::BeforeDelivery).retry_for(retry_for));
    program.build().unwrap()
}

fn script() -> Script {
    Script::steps(vec![Step::Say("one".into()), Step::Say("two".into()), Step::Say("three".into())])
}

#[tokio::test]
async fn nothing_is_delivered_before_it_is_stored() {
    for kind in KINDS {
        let world = World::new(kind, script()).await;
        let store = Gated::new(MemoryStore::new());
        let client = program(&world, kind, &store, LIMIT);
        let session = within(client.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let (mut all, mut of_session) = (client.events(), session.events());
        let mut log = client.client().events_from(None);
        let gate = store.appending.lock().await;
        let mut turn = within(session.prompt("go")).await.unwrap();
        // Everything has arrived, up to the end of the turn.
        let ended = async {
            while !matches!(log.next().await.unwrap().record, LogRecord::Event(Event::TurnEnded(_))) {}
        };
        within(ended).await;
        assert!(turn.next().now_or_never().is_none(), "{kind}: an update that is not stored");
        assert!(turn.outcome().now_or_never().is_none(), "{kind}: an end that is not stored");
        let is_update = |event: Option<Event>| matches!(event, Some(Event::Update(_)));
        assert!(!is_update(of_session.try_next()) && !is_update(all.try_next()), "{kind}");
        drop(gate);
        let mut seen = Vec::new();
        while let Some(update) = within(turn.next()).await {
            seen.push(update.to_string());
            let kept = stored(&*store, "s").await;
            assert!(said(&kept).len() >= seen.len() && said(&kept)[..seen.len()] == seen[..], "{kind}");
        }
        assert_eq!(seen, ["one", "two", "three"], "{kind}");
        within(turn.outcome()).await.unwrap();
        let kept = stored(&*store, "s").await;
        assert_eq!(kept.last().unwrap().kind, StoredEventKind::TurnEnded, "{kind}");
        for events in [&mut of_session, &mut all] {
            let mut followed = Vec::new();
            while followed.len() < 3 {
                if let Event::Update(update) = within(events.next()).await.unwrap() {
                    followed.push(update.to_string());
                }
            }
            assert_eq!(followed, seen, "{kind}");
        }
        client.disconnect().await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_fails_after_a_turn_ends_it_as_executed_and_nothing_is_delivered() {
    for kind in KINDS {
        let world = World::new(kind, script()).await;
        let store = Gated::new(MemoryStore::new());
        let client = program(&world, kind, &store, RETRY_FOR);
        let session = within(client.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        for stalls in [false, true] {
            let gate = if stalls { Some(store.appending.lock().await) } else { None };
            store.refusing.store(!stalls, Ordering::SeqCst);
            let began = Instant::now();
            let mut turn = within(session.prompt("go")).await.unwrap();
            let mut missed = 0;
            while let Some(update) = within(turn.next()).await {
                match update.kind() {
                    UpdateKind::Missed(Missed::Lagged(count)) => missed += count,
                    kind => panic!("{kind:?} is not stored"),
                }
            }
            assert_eq!(missed, 3, "{kind}: what is not delivered is counted");
            let outcome = within(turn.outcome()).await;
            let error = outcome.unwrap_err();
            assert!(
                matches!(&error, Error::AfterTurn { source, .. } if matches!(**source, Error::Store(_))),
                "{kind}: {error:?}"
            );
            assert!(error.maybe_executed() && !error.is_retryable(), "{kind}: it ran: {error:?}");
            assert!(began.elapsed() < Duration::from_secs(5), "one deadline: {:?}", began.elapsed());
            drop(gate);
            store.refusing.store(false, Ordering::SeqCst);
            assert!(within(client.flush()).await.is_err(), "{kind}: what was given up is reported");
            let text = within(within(session.prompt("go")).await.unwrap().text()).await.unwrap();
            assert_eq!(text, "onetwothree", "{kind}: the next turn is stored and delivered");
        }
        let kept = stored(&*store, "s").await;
        let count = |kind| kept.iter().filter(|event| event.kind == kind).count();
        assert_eq!((count(StoredEventKind::Prompt), count(StoredEventKind::Update)), (4, 6), "{kind}");
        assert!(count(StoredEventKind::Lost) >= 2, "{kind}");
        client.disconnect().await.unwrap();
    }
}

#[tokio::test]
async fn an_agent_request_is_shown_after_it_was_stored() {
    let call = ToolCall::new("c1", "write");
    let steps = vec![
        Step::Say("before".into()),
        Step::AskPermission(Permission::new(call)),
        Step::Say("after".into()),
    ];
    let world = World::new(ServerKind::Shared, Script::steps(steps)).await;
    let store = Gated::new(MemoryStore::new());
    let client = program(&world, ServerKind::Shared, &store, LIMIT);
    let session = within(client.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    let mut log = client.client().events_from(None);
    let gate = store.appending.lock().await;
    let mut turn = within(session.prompt("go")).await.unwrap();
    let asked = async {
        while !matches!(log.next().await.unwrap().record, LogRecord::Event(Event::Permission(_))) {}
    };
    within(asked).await;
    assert!(turn.next_event().now_or_never().is_none());
    drop(gate);
    let mut seen = Vec::new();
    while let Some(event) = within(turn.next_event()).await {
        let kept = stored(&*store, "s").await;
        let has = |kind| kept.iter().any(|event| event.kind == kind);
        match event {
            TurnEvent::Permission(request) => {
                assert!(has(StoredEventKind::Permission));
                request.allow_once().unwrap();
                seen.push("permission".to_owned());
            }
            TurnEvent::Ended(outcome) => {
                outcome.unwrap();
                assert!(has(StoredEventKind::TurnEnded));
            }
            TurnEvent::Update(update) => seen.push(update.to_string()),
            event => panic!("{event:?}"),
        }
    }
    let order: Vec<_> = seen.iter().map(String::as_str).filter(|text| !text.starts_with('[')).collect();
    assert_eq!((order.first(), order.last()), (Some(&"before"), Some(&"after")), "{seen:?}");
    assert!(order.contains(&"permission"), "{seen:?}");
}

#[tokio::test]
async fn text_of_a_turn_on_another_endpoint_is_delivered_after_it_was_stored() {
    let world = World::new(ServerKind::PerAgent, counting(Ability::Load, 300)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let store = Gated::new(world.store().await);
    let client = program(&world, ServerKind::PerAgent, &store, LIMIT);
    let session = client.session("mine");
    let mut events = session.events();
    within(session.resume()).await.unwrap();
    assert!(session.open_turn().is_some(), "it is running");
    let is_update = |event: &Event| matches!(event, Event::Update(_));
    let text = |event: Event| match event {
        Event::Update(update) => update.message_text().map(str::to_owned),
        _ => None,
    };
    event(&mut events, |event| is_update(&event).then_some(())).await;
    let gate = store.appending.lock().await;
    // What was being stored arrives, and nothing more.
    let mut seen = 0;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let new = std::iter::from_fn(|| events.try_next()).filter_map(text);
        let kept = stored(&*store, "mine").await;
        for text in new {
            seen += 1;
            assert!(said(&kept).contains(&text.as_str()), "`{text}` is delivered and not stored");
        }
    }
    assert!(seen < 150, "{seen} updates were delivered");
    drop(gate);
    let last = |event| text(event).filter(|text| text == "300 ");
    event(&mut events, last).await;
    within(session.open_turn_ended()).await;
}

#[tokio::test]
async fn a_turn_on_another_endpoint_can_be_cancelled_while_its_request_waits_for_the_store() {
    let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
    let world = World::new(ServerKind::PerAgent, Script::steps(steps)).await;
    let store = Gated::new(MemoryStore::new());
    let first =
        options(&world.server, world.kind).shared_store(store.clone()).on_turn_drop(DropPolicy::Detach);
    let first = first.build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::Update).await;
    let agent_session = session.agent_session().unwrap().id().to_owned();
    let left = endpoint_in(&world, &*store, "mine").await;
    // It ends without releasing anything.
    drop((turn, session, first));

    let second = options(&world.server, world.kind).shared_store(store.clone()).cancel_timeout(LIMIT);
    let second = second.stored(|stored| stored.durability(Durability::BeforeDelivery)).build().unwrap();
    let session = second.session("mine");
    within(session.resume()).await.unwrap();
    assert!(session.open_turn().is_some(), "it is running");
    let emit = |value| assert!(world.server.emit_to(left.strip_prefix("/v1/acp/").unwrap(), value));
    let gate = store.appending.lock().await;
    let text = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}});
    emit(json!({"jsonrpc": "2.0", "method": "session/update",
        "params": {"sessionId": agent_session, "update": text}}));
    within(async {
        while store.waiting.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // The cancel comes before the request in the mailbox of the session.
    let mut cancelling = Box::pin(session.cancel());
    assert!(poll_immediate(&mut cancelling).await.is_none(), "the store is stuck");
    emit(json!({"jsonrpc": "2.0", "id": "late", "method": "session/request_permission",
        "params": {"sessionId": agent_session, "toolCall": {"toolCallId": "c"}, "options": []}}));
    // If the request is not there yet when the gate opens, the cancel has nothing to wait for.
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut cancelling).await.is_err());
    drop(gate);
    within(cancelling).await.unwrap();
    has_stored(&second, "mine", StoredEventKind::TurnEnded).await;
    let kept = stored(&*store, "mine").await;
    let end = kept.iter().find_map(|event| event.turn_end()).unwrap();
    assert_eq!(end.stop_reason, Some(StopReason::Cancelled), "{kept:#?}");
    assert!(kept.iter().any(|event| event.kind == StoredEventKind::Permission), "{kept:#?}");
}
