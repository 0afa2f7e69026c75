//! Prompts that are cancelled before they are sent.

use std::time::Duration;

use mock_server::{Fault, Reply};
use sandbox_agent_sdk::sessions::{SessionStore as _, StoredEventKind};
use sandbox_agent_sdk::{NewSession, StopReason};
use tokio::sync::oneshot;

use crate::gated::{Gated, Response};
use crate::support::{KINDS, LIMIT, within};
use crate::world::{Ability, World, agent, ask, ends, options, stored, unknown_session};

#[tokio::test]
async fn a_prompt_that_is_cancelled_while_it_is_stored_has_not_run() {
    for kind in KINDS {
        for is_taken in [false, true] {
            let world = World::new(kind, agent(Ability::Neither)).await;
            let store = Gated::new(world.store().await);
            let sessions = options(&world.server, kind).shared_store(store.clone()).build().unwrap();
            let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
            let (storing, is_storing) = oneshot::channel();
            *store.before_prompt.lock().unwrap() = Some(Box::new(move || {
                storing.send(()).unwrap();
                Box::pin(async move {
                    if !is_taken {
                        std::future::pending().await
                    }
                })
            }));
            // The response of the store never arrives.
            *store.prompt_response.lock().unwrap() = Response::Hangs;
            let prompting = tokio::spawn(session.prompt("unsent"));
            within(is_storing).await.unwrap();
            if is_taken {
                within(async {
                    while store.open("mine").await.unwrap().turns.is_empty() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                })
                .await;
            } else {
                *store.prompt_response.lock().unwrap() = Response::Arrives;
            }
            within(session.cancel()).await.unwrap();
            let outcome = within(within(prompting).await.unwrap().unwrap().outcome()).await.unwrap();
            assert_eq!(outcome.stop_reason, StopReason::Cancelled);
            within(sessions.flush()).await.unwrap();
            let kept = stored(&*store, "mine").await;
            let prompt = kept.iter().position(|event| event.kind == StoredEventKind::Prompt);
            let end = kept.iter().position(|event| event.kind == StoredEventKind::TurnEnded);
            assert!(prompt.is_some() && prompt < end, "{kind}, {is_taken}: {kept:#?}");
            assert_eq!(kept[end.unwrap()].payload["executed"], false, "{kind}, {is_taken}");
            assert_eq!(kept[end.unwrap()].turn_id, kept[prompt.unwrap()].turn_id);
            ask(&session, "next").await;
            assert_eq!(world.server.messages("session/prompt").len(), 1);
        }
    }
}

#[tokio::test]
async fn a_prompt_that_is_cancelled_before_the_server_takes_it_has_not_run() {
    for kind in KINDS {
        for is_restored in [false, true] {
            let world = World::new(kind, agent(Ability::Neither)).await;
            let (_client, sessions) = world.program().await;
            let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
            ask(&session, "first").await;
            if is_restored {
                // The agent has a new session, and gets the history with the next prompt.
                world.server.inject(unknown_session());
            }
            let reply = Reply { headers: vec![("retry-after".into(), "30".into())], ..Reply::default() };
            let busy = Fault::PostStatus { status: 429, execute: false, reply: Some(reply) };
            world.server.inject(busy.on_method("session/prompt").times(1));
            let mut turn = within(session.prompt("unsent")).await.unwrap();
            let refused = 1 + usize::from(is_restored);
            assert!(world.server.wait_for(|_| world.server.fired("PostStatus") == refused, LIMIT).await);
            within(session.cancel()).await.unwrap();
            assert_eq!(within(turn.outcome()).await.unwrap().stop_reason, StopReason::Cancelled);
            within(sessions.flush()).await.unwrap();
            let kept = stored(&**sessions.store(), "mine").await;
            let [_, end] = ends(&kept)[..] else { panic!("{kept:#?}") };
            assert_eq!(end.payload["executed"], false, "{kind}: {end:#?}");
            world.server.clear_faults();
            if !is_restored {
                world.server.inject(unknown_session());
            }
            ask(&session, "next").await;
            let sent = world.server.messages("session/prompt");
            let last = sent.last().unwrap()["params"]["prompt"].to_string();
            assert!(last.contains("re: first"), "{kind}: the agent gets the history: {last}");
            assert!(!last.contains("unsent"), "{kind}: the agent never got it: {last}");
        }
    }
}
