//! What an application does with its sessions.

use mock_server::{Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::{
    ArchivedSessions, RecordQuery, SessionRecord, SessionStatus, StoreError, StoredEventKind, UserAction,
};
use sandbox_agent_sdk::{Error, Event, NewSession, PermissionPolicy};
use serde_json::json;

use crate::gated::{Gated, Slowness};
use crate::support::{KINDS, event, within};
use crate::world::{Ability, World, agent, kinds, options, said, stored};

#[tokio::test]
async fn a_turn_is_stored_with_its_prompt_its_reports_and_its_end() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Resume)).await;
        let (client, sessions) = world.program().await;
        let session = within(sessions.new_session(NewSession::in_dir("/").title("build"))).await.unwrap();
        let text = within(within(session.prompt("one")).await.unwrap().text()).await.unwrap();
        assert_eq!(text, "re: one; ");
        sessions.flush().await.unwrap();
        let events = stored(&**sessions.store(), session.id()).await;
        assert_eq!(kinds(&events), ["prompt", "update", "update", "turn_ended"], "{kind}");
        assert_eq!(events[0].payload["prompt"][0]["text"], "one");
        assert_eq!(events[3].payload["stopReason"], "end_turn");
        assert_eq!(events[3].payload["isTerminalError"], false, "{kind}");
        assert!(events[3].payload["resultSubtype"].is_string(), "{kind}");
        let update = events[1].update().unwrap();
        assert_eq!(update.message_text(), Some("re: one; "), "{kind}: as it was live");
        assert!(events[0].update().is_none());
        assert_eq!(said(&events), ["re: one; "]);
        let record = session.record().await.unwrap();
        assert_eq!((record.agent.as_str(), record.details.title.as_deref()), ("mock", Some("build")));
        assert_eq!(
            (record.status, record.details.supports_resume, record.last_index),
            (SessionStatus::Active, true, 4)
        );
        assert!(record.details.modes.is_some() && record.details.config_options.is_some());
        client.disconnect().await.unwrap();
    }
}

#[tokio::test]
async fn a_plain_client_stores_nothing_and_a_stored_one_everything() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (client, stored_client) = world.program().await;
    let plain = within(client.new_session(NewSession::in_dir("/"))).await.unwrap();
    within(plain.prompt("one").outcome()).await.unwrap();
    assert_eq!(stored_client.store().count(&RecordQuery::all()).await.unwrap(), 0);
    let session = within(stored_client.new_session(NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
    // A clean end loses nothing.
    within(stored_client.disconnect()).await.unwrap();
    let events = stored(&**stored_client.store(), session.id()).await;
    assert_eq!(events.iter().filter(|event| event.kind.as_str() == "turn_ended").count(), 1);
}

#[tokio::test]
async fn a_list_hides_what_is_archived_or_failed_and_a_badge_does_not_count_it() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    for (n, status) in SessionStatus::ALL.iter().chain(SessionStatus::ALL).enumerate() {
        let mut record = SessionRecord::new(format!("s{n}"), "mock", Timestamp::from_millis(n as u64));
        record.status = *status;
        sessions.store().create(record, Vec::new()).await.unwrap();
    }
    let ids = async |query| {
        let page = sessions.list(query).await.unwrap();
        page.records.into_iter().map(|record| record.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(RecordQuery::default()).await, ["s5", "s4", "s1", "s0"]);
    let shown = RecordQuery::listed(ArchivedSessions::Shown);
    assert_eq!(ids(shown).await, ["s6", "s5", "s4", "s2", "s1", "s0"]);
    assert_eq!(ids(RecordQuery::all().statuses([SessionStatus::Error])).await, ["s7", "s3"]);
    assert_eq!(sessions.badge_count().await.unwrap(), 4);
}

#[tokio::test]
async fn only_an_active_session_takes_input_and_only_a_call_archives_it() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    assert_eq!(session.archive().await.unwrap().status, SessionStatus::Archived);
    let refused = within(session.prompt("more")).await.unwrap_err();
    let archived = SessionStatus::Archived;
    assert!(
        matches!(refused, Error::NotAllowed { action: UserAction::Send, status, .. } if status == archived)
    );
    let refused = within(session.resume()).await.unwrap_err();
    assert!(
        matches!(refused, Error::NotAllowed { action: UserAction::Resume, status, .. } if status == archived)
    );
    assert!(matches!(session.cancel().await, Err(Error::NotAllowed { action: UserAction::Cancel, .. })));
    let again = session.archive().await.unwrap_err();
    assert!(matches!(again, Error::Status(error) if (error.from(), error.to()) == (archived, archived)));
    let taken = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap_err();
    assert!(matches!(taken, Error::Store(StoreError::Exists { id }) if id == "mine"));
    assert!(session.delete().await.unwrap());
    assert!(!session.delete().await.unwrap());
    let gone = within(session.prompt("more")).await.unwrap_err();
    assert!(matches!(gone, Error::Store(StoreError::NotFound { id }) if id == "mine"));
    assert_eq!(world.server.messages("session/prompt").len(), 0, "nothing was sent");
}

#[tokio::test]
async fn what_a_status_does_not_allow_is_a_typed_refusal() {
    use SessionStatus::{Archived, Error as Failed, Suspended};
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    for status in [Failed, Suspended, Archived] {
        let id = status.as_str();
        let session = within(sessions.new_session_as(id, NewSession::in_dir("/"))).await.unwrap();
        sessions.flush().await.unwrap();
        let mut record = session.record().await.unwrap();
        // By the back door: another program moved it.
        assert!(sessions.store().delete(id).await.unwrap());
        record.status = status;
        let record = sessions.store().create(record, Vec::new()).await.unwrap();
        let not_allowed = |error: Error, action: UserAction| {
            let typed = matches!(&error, Error::NotAllowed { action: refused, status: of, .. }
                if (*refused, *of) == (action, status));
            assert!(typed, "{status} {action:?}: {error:?}");
        };
        not_allowed(within(session.prompt("more")).await.unwrap_err(), UserAction::Send);
        not_allowed(within(session.cancel()).await.unwrap_err(), UserAction::Cancel);
        // Whether a suspended one can be resumed is for the agent to say.
        if status != Suspended {
            not_allowed(within(session.resume()).await.unwrap_err(), UserAction::Resume);
        }
        for (to, refused) in [(Archived, sessions.archive(id).await), (Failed, sessions.fail(id).await)] {
            let error = refused.unwrap_err();
            let typed = matches!(&error, Error::Status(error) if (error.from(), error.to()) == (status, to));
            assert!(typed, "{status} to {to}: {error:?}");
        }
        assert_eq!(session.record().await.unwrap(), record, "a refusal changes nothing");
    }
    assert_eq!(world.server.messages("session/prompt").len(), 0, "nothing was sent");
}

#[tokio::test]
async fn resume_or_create_makes_one_session_however_many_ask() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let asking = (0..8).map(|_| sessions.resume_or_create("thread-7", NewSession::in_dir("/")));
    let made = within(futures::future::try_join_all(asking)).await.unwrap();
    assert!(made.iter().all(|session| session.id() == "thread-7"));
    assert_eq!(world.server.messages("session/new").len(), 1);
    assert_eq!(sessions.badge_count().await.unwrap(), 1);
}

#[tokio::test]
async fn a_second_turn_is_refused_while_one_is_running() {
    use mock_server::{Script, Step};
    let world = World::new(KINDS[0], Script::steps(vec![Step::WaitForCancel])).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    let mut first = within(session.prompt("one")).await.unwrap();
    let second = within(session.prompt("two")).await.unwrap_err();
    assert!(matches!(second, Error::TurnInProgress { session_id, .. } if session_id == "s"));
    within(session.cancel()).await.unwrap();
    within(first.outcome()).await.unwrap();
    sessions.flush().await.unwrap();
    let events = stored(&**sessions.store(), "s").await;
    assert_eq!(kinds(&events), ["prompt", "turn_ended"], "what was refused is not stored");
}

#[tokio::test]
async fn agent_requests_are_stored_with_their_answers_whatever_decides() {
    let ask = || {
        Script::new(|_| {
            let call = ToolCall::new("call-1", "Remove everything");
            vec![Step::AskPermission(Permission::new(call)), Step::Say("done".to_owned())]
        })
    };
    for kind in KINDS {
        for policy in [PermissionPolicy::Ask, PermissionPolicy::BypassPermissions, PermissionPolicy::Deny] {
            let is_asked = matches!(policy, PermissionPolicy::Ask);
            let chosen = if matches!(policy, PermissionPolicy::Deny) { "reject" } else { "allow" };
            let world = World::new(kind, ask()).await;
            let client = world.options().await.permissions(policy).build().unwrap();
            let mut events = client.events().deciding();
            let sessions = client.clone();
            let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
            let mut turn = within(session.prompt("go")).await.unwrap();
            if is_asked {
                let request = event(&mut events, |event| match event {
                    Event::Permission(request) => Some(request),
                    _ => None,
                });
                request.await.allow_once().unwrap();
            }
            within(turn.outcome()).await.unwrap();
            sessions.flush().await.unwrap();
            let kept = stored(&**sessions.store(), "mine").await;
            let of = |kind| kept.iter().filter(|event| event.kind == kind).collect::<Vec<_>>();
            let [asked] = of(StoredEventKind::Permission)[..] else { panic!("{kept:#?}") };
            let [answered] = of(StoredEventKind::Answered)[..] else { panic!("{kept:#?}") };
            assert!(asked.index < answered.index, "{kind}");
            assert_eq!(answered.payload["toolCallId"], "call-1", "{kind}");
            let option = answered.payload["result"]["outcome"]["optionId"].as_str().unwrap();
            assert!(option.contains(chosen), "{kind}: {option}");
        }
    }
}

#[tokio::test]
async fn invalid_arguments_are_refused_before_the_store_is_used() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let store = Gated::new(world.store().await);
    let sessions = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    // Every call of the store waits forever.
    *store.slowness.lock().unwrap() = Slowness::Stuck;
    let relative = || NewSession::in_dir("work");
    let results = [
        within(sessions.new_session(relative())).await.map(drop),
        within(sessions.resume_or_create("other", relative())).await.map(drop),
        within(session.prompt("")).await.map(drop),
    ];
    for result in results {
        assert!(matches!(result, Err(Error::Config(_))), "{result:?}");
    }
    *store.slowness.lock().unwrap() = Slowness::None;
}

#[tokio::test]
async fn an_update_is_stored_with_all_its_members() {
    let update = json!({"sessionUpdate": "agent_message_chunk", "turnId": "of the agent",
                        "content": {"type": "text", "text": "hello"}});
    let sent = update.clone();
    let world = World::new(KINDS[0], Script::new(move |_| vec![Step::Update(sent.clone())])).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("go")).await.unwrap().outcome()).await.unwrap();
    sessions.flush().await.unwrap();
    let page = session.stored_events(0).await.unwrap();
    let stored = page.events.iter().find_map(|event| event.update()).unwrap();
    assert_eq!(stored.raw(), &update);
}
