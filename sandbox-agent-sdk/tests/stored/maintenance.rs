//! Idle agents, old sessions, shutting down.

use std::time::{Duration, Instant, SystemTime};

use mock_server::{Fault, Script, Step};
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::store::{Append, Change, NewEvent, RecordPatch};
use sandbox_agent_sdk::sessions::{
    RecordQuery, RetentionPolicy, SessionRecord, SessionStatus, SessionStore, SqliteStore, Suspend,
};
use sandbox_agent_sdk::turns::TurnState;
use sandbox_agent_sdk::{ConnectionState, Error, NewSession, SandboxAgentClient, ServerKind};
use serde_json::json;

use crate::gated::{Gated, Slowness};
use crate::support::{KINDS, LIMIT, within};
use crate::world::{Ability, World, agent, options, said, stored};

const DAY: u64 = 24 * 60 * 60 * 1000;
const TERMINATE: &str = "_sandboxagent/session/terminate";

/// So many days from now.
fn in_days(days: i64) -> Timestamp {
    let now = Timestamp::from(SystemTime::now()).as_millis();
    Timestamp::from_millis(now.saturating_add_signed(days * DAY as i64))
}

/// The DELETEs that a server was sent: each ends the agent of a connection.
fn deletes(world: &World) -> usize {
    world.server.requests().iter().filter(|request| request.method == "DELETE").count()
}

#[tokio::test]
async fn an_idle_agent_is_ended_and_its_session_stays_active_and_continues() {
    for kind in KINDS {
        for ability in Ability::ALL {
            let world = World::new(kind, agent(ability)).await;
            let (_client, sessions) = world.program().await;
            let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
            within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
            let policy = RetentionPolicy::default();
            let now: Timestamp = SystemTime::now().into();
            assert_eq!(within(sessions.end_idle(&policy, now)).await.unwrap(), Vec::<String>::new());
            assert_eq!((world.server.messages(TERMINATE).len(), deletes(&world)), (0, 0));
            let agent_session = session.agent_session().unwrap().id().to_owned();
            let later = now.saturating_add(policy.idle + Duration::from_secs(60));
            assert_eq!(sessions.idle(&policy, later), ["s"], "a look changes nothing");
            assert_eq!(sessions.idle(&policy, later), ["s"]);
            assert_eq!(within(sessions.end_idle(&policy, later)).await.unwrap(), ["s"], "{kind} {ability:?}");
            assert_eq!(sessions.idle(&policy, later), Vec::<String>::new());
            // The end was requested once.
            let told = world.server.messages(TERMINATE);
            match kind {
                ServerKind::Shared => {
                    assert_eq!((told.len(), deletes(&world)), (1, 0), "{ability:?}");
                    assert_eq!(told[0]["params"]["sessionId"], agent_session, "{ability:?}");
                }
                _ => assert_eq!((told.len(), deletes(&world)), (0, 1), "{ability:?}"),
            }
            assert!(session.agent_session().is_none());
            assert_eq!(session.record().await.unwrap().status, SessionStatus::Active);
            let answer = within(async { session.prompt("two").await?.text().await }).await;
            assert_eq!(answer.unwrap(), "re: two; ", "{kind} {ability:?}");
            sessions.flush().await.unwrap();
            let kept = stored(&**sessions.store(), "s").await;
            assert_eq!(said(&kept), ["re: one; ", "re: two; "], "{kind} {ability:?}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_cannot_be_ended_does_not_keep_the_others_running() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    for id in ["a", "b"] {
        within(sessions.new_session_as(id, NewSession::in_dir("/"))).await.unwrap();
    }
    let policy = RetentionPolicy::default();
    let later = Timestamp::from(SystemTime::now()).saturating_add(policy.idle * 2);
    world.server.inject(Fault::post_status(400).on_method(TERMINATE).times(1));
    let ended = within(sessions.end_idle(&policy, later)).await.unwrap();
    let left = sessions.idle(&policy, later);
    assert_eq!((ended.len(), left.len()), (1, 1), "it is tried again the next time");
    assert_ne!(ended, left);
    // If no agent could be ended, the call returns the error.
    world.server.inject(Fault::post_status(400).on_method(TERMINATE).times(1));
    within(sessions.end_idle(&policy, later)).await.unwrap_err();
    assert_eq!(within(sessions.end_idle(&policy, later)).await.unwrap(), left);
    assert_eq!(world.server.messages(TERMINATE).len(), 4);
}

#[tokio::test]
async fn an_agent_that_was_not_ended_is_not_reported_as_ended() {
    for already_ended in [false, true] {
        let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
        let (_client, sessions) = world.program().await;
        within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let policy = RetentionPolicy::default();
        let later = Timestamp::from(SystemTime::now()).saturating_add(policy.idle * 2);
        // The server accepts the message, and its response arrives on the stream.
        world.server.inject(Fault::post_status(202).on_method(TERMINATE).times(1));
        let answering = async {
            assert!(world.server.wait_for(|_| !world.server.messages(TERMINATE).is_empty(), LIMIT).await);
            let id = &world.server.messages(TERMINATE)[0]["id"];
            let result = json!({"terminated": false, "alreadyEnded": already_ended});
            world.server.emit(json!({"jsonrpc": "2.0", "id": id, "result": result}));
        };
        let (ended, ()) = within(async { tokio::join!(sessions.end_idle(&policy, later), answering) }).await;
        assert_eq!(ended.unwrap(), Vec::<String>::new());
        // An agent that no longer has the session needs no further request.
        let idle = if already_ended { vec![] } else { vec!["s".to_owned()] };
        assert_eq!(sessions.idle(&policy, later), idle);
    }
}

#[tokio::test]
async fn a_failed_session_is_stored_for_a_day_after_its_failure() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    sessions.store().create(SessionRecord::new("s", "mock", in_days(-5)), Vec::new()).await.unwrap();
    let failed = sessions.fail("s").await.unwrap();
    assert_eq!(failed.status, SessionStatus::Error);
    let policy = RetentionPolicy::default();
    let day = failed.last_active_at.saturating_add(Duration::from_millis(DAY));
    for early in [SystemTime::now().into(), day] {
        assert_eq!(sessions.delete_expired(&policy, early).await.unwrap(), []);
        assert_eq!(sessions.get("s").await.unwrap().as_ref(), Some(&failed));
    }
    let late = day.saturating_add(Duration::from_millis(1));
    assert_eq!(sessions.delete_expired(&policy, late).await.unwrap(), [failed]);
    assert_eq!(sessions.get("s").await.unwrap(), None);
}

#[tokio::test]
async fn the_retention_of_a_suspended_session_begins_with_the_shutdown() {
    for which in [Suspend::All, Suspend::Own] {
        let world = World::new(KINDS[0], agent(Ability::Neither)).await;
        let (_client, sessions) = world.program().await;
        within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        sessions.flush().await.unwrap();
        // By the back door, because no store moves the last activity back.
        let mut record = sessions.get("s").await.unwrap().unwrap();
        assert!(sessions.store().delete("s").await.unwrap());
        record.last_active_at = in_days(-8);
        sessions.store().create(record, Vec::new()).await.unwrap();
        let before = SystemTime::now().into();
        assert_eq!(within(sessions.shut_down(which)).await.unwrap(), 1, "{which:?}");
        let (_client, sessions) = world.program().await;
        let kept = sessions.get("s").await.unwrap().unwrap();
        assert_eq!(kept.status, SessionStatus::Suspended);
        assert!(
            kept.last_active_at >= before && kept.last_active_at <= SystemTime::now().into(),
            "{which:?}"
        );
        let policy = RetentionPolicy::default();
        let week = kept.last_active_at.saturating_add(Duration::from_millis(7 * DAY));
        for early in [SystemTime::now().into(), week] {
            assert_eq!(sessions.expired(&policy, early).await.unwrap(), [], "{which:?}");
        }
        let late = week.saturating_add(Duration::from_millis(1));
        assert_eq!(sessions.expired(&policy, late).await.unwrap(), [kept], "{which:?}");
    }
}

#[tokio::test]
async fn a_shutdown_suspends_any_number_of_sessions_in_one_step_of_the_store() {
    const COUNT: usize = sandbox_agent_sdk::sessions::store::MAX_PAGE + 200;
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let store = Gated::new(sandbox_agent_sdk::sessions::MemoryStore::with_bounds(2 * COUNT, 10));
    let client = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    for n in 0..COUNT {
        store
            .create(SessionRecord::new(format!("s{n}"), "mock", Timestamp::from_millis(n as u64)), Vec::new())
            .await
            .unwrap();
    }
    assert_eq!(within(client.shut_down(Suspend::All)).await.unwrap(), COUNT as u64);
    let suspended = RecordQuery::all().statuses([SessionStatus::Suspended]);
    assert_eq!(store.count(&suspended).await.unwrap(), COUNT as u64);
}

#[tokio::test]
async fn what_happened_is_stored_before_a_shutdown_suspends_anything() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Resume)).await;
        let store = Gated::new(world.store().await);
        let client = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
        let sessions = client.clone();
        let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let gate = store.appending.lock().await;
        within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
        let (sender, stored_then) = tokio::sync::oneshot::channel();
        let looking = world.store().await;
        *store.before_suspending.lock().unwrap() = Some(Box::new(move || {
            Box::pin(async move { sender.send(stored(&looking, "s").await).unwrap() })
        }));
        let opening = async { drop(gate) };
        let (suspended, ()) = within(async { tokio::join!(sessions.shut_down(Suspend::All), opening) }).await;
        assert_eq!(suspended.unwrap(), 1, "{kind}");
        let stored_then = stored_then.await.unwrap();
        assert_eq!(stored_then.last().unwrap().kind.as_str(), "turn_ended", "{kind}");
        assert_eq!(said(&stored_then), ["re: one; "], "{kind}");
    }
}

#[tokio::test]
async fn what_has_outlived_its_time_is_listed_first_and_then_deleted() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let now = Timestamp::from_millis(1_000 * DAY);
    // Status, whether it can be resumed, age in days, whether it goes.
    let table = [
        (SessionStatus::Active, false, 400, false),
        (SessionStatus::Archived, false, 400, false),
        (SessionStatus::Suspended, false, 7, false),
        (SessionStatus::Suspended, false, 8, true),
        (SessionStatus::Suspended, true, 8, false),
        (SessionStatus::Suspended, true, 30, false),
        (SessionStatus::Suspended, true, 31, true),
        (SessionStatus::Error, true, 1, false),
        (SessionStatus::Error, true, 2, true),
        (SessionStatus::Error, false, 2, true),
    ];
    let mut expected = Vec::new();
    for (n, (status, resumable, age, goes)) in table.into_iter().enumerate() {
        let moment = Timestamp::from_millis((1_000 - age) * DAY);
        let mut record = SessionRecord::new(format!("s{n}"), "mock", moment);
        record.status = status;
        record.details.supports_resume = resumable;
        sessions.store().create(record, Vec::new()).await.unwrap();
        if goes {
            expected.push(format!("s{n}"));
        }
    }
    let ids = |records: Vec<SessionRecord>| {
        let mut ids: Vec<String> = records.into_iter().map(|record| record.id).collect();
        ids.sort();
        ids
    };
    let policy = RetentionPolicy::default();
    assert_eq!(ids(sessions.expired(&policy, now).await.unwrap()), expected);
    assert_eq!(sessions.store().count(&RecordQuery::all()).await.unwrap(), 10, "a dry run deletes nothing");
    assert_eq!(ids(sessions.delete_expired(&policy, now).await.unwrap()), expected);
    assert_eq!(ids(sessions.delete_expired(&policy, now).await.unwrap()), Vec::<String>::new());
    assert_eq!(sessions.store().count(&RecordQuery::all()).await.unwrap(), 10 - expected.len() as u64);
}

#[tokio::test]
async fn a_graceful_shutdown_suspends_all_active_sessions_or_only_its_own() {
    for (which, others) in [(Suspend::All, SessionStatus::Suspended), (Suspend::Own, SessionStatus::Active)] {
        let world = World::new(KINDS[0], agent(Ability::Resume)).await;
        let (_client, sessions) = world.program().await;
        for status in SessionStatus::ALL {
            let mut record = SessionRecord::new(status.as_str(), "mock", Timestamp::from_millis(1));
            record.status = *status;
            sessions.store().create(record, Vec::new()).await.unwrap();
        }
        let session = within(sessions.new_session_as("own", NewSession::in_dir("/"))).await.unwrap();
        within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
        let suspended = within(sessions.shut_down(which)).await.unwrap();
        assert_eq!(suspended, if which == Suspend::All { 2 } else { 1 });
        let status = async |id: &str| world.store().await.get(id).await.unwrap().unwrap().status;
        assert_eq!(status("own").await, SessionStatus::Suspended);
        assert_eq!(status("active").await, others);
        for same in [SessionStatus::Suspended, SessionStatus::Archived, SessionStatus::Error] {
            assert_eq!(status(same.as_str()).await, same);
        }
        // What happened was stored before the end.
        assert_eq!(said(&stored(&world.store().await, "own").await), ["re: one; "]);
    }
}

#[tokio::test]
async fn maintenance_runs_as_a_task_until_it_is_ended() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let mut old = SessionRecord::new("old", "mock", Timestamp::from_millis(1));
    old.status = SessionStatus::Error;
    sessions.store().create(old, Vec::new()).await.unwrap();
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    let mut policy = RetentionPolicy::default();
    (policy.idle, policy.idle_check) = (Duration::ZERO, Duration::from_millis(10));
    let house = tokio::spawn({
        let sessions = sessions.clone();
        async move { sessions.run_maintenance(policy).await }
    });
    within(async {
        while session.agent_session().is_some() || sessions.get("old").await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    house.abort();
    assert!(house.await.unwrap_err().is_cancelled());
    assert_eq!(session.record().await.unwrap().status, SessionStatus::Active);
}

#[tokio::test]
async fn an_agent_is_not_ended_while_any_of_its_sessions_is_busy_stored_or_not() {
    for kind in KINDS {
        let world = World::new(kind, Script::steps(vec![Step::WaitForCancel])).await;
        let (client, sessions) = world.program().await;
        within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let plain = within(client.new_session(NewSession::in_dir("/"))).await.unwrap();
        let mut turn = plain.prompt("for a long time");
        let policy = RetentionPolicy::default();
        let later = Timestamp::from(SystemTime::now()).saturating_add(policy.idle * 2);
        let ended = within(sessions.end_idle(&policy, later)).await.unwrap();
        // Where each session can be ended alone, the other one need not suffer either way.
        let alone = kind == ServerKind::Shared;
        assert_eq!(ended, if alone { vec!["s"] } else { vec![] }, "{kind}");
        assert_eq!(plain.turn_state(), TurnState::Running, "{kind}");
        within(plain.cancel()).await.unwrap();
        within(turn.outcome()).await.unwrap();
        let ended = within(sessions.end_idle(&policy, later)).await.unwrap();
        assert_eq!(ended, if alone { vec![] } else { vec!["s"] }, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_begins_while_idle_agents_are_ended_is_not_cut_off() {
    let mut policy = RetentionPolicy::default();
    policy.idle = Duration::ZERO;
    let later = Timestamp::from(SystemTime::now()).saturating_add(Duration::from_secs(3600));
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Resume)).await;
        let (client, sessions) = world.program().await;
        let kept = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        for round in 0..15 {
            let text = format!("kept {round}");
            let prompting = async { kept.prompt(text.as_str()).await?.text().await };
            let (answer, ended) =
                within(async { tokio::join!(prompting, sessions.end_idle(&policy, later)) }).await;
            assert_eq!(answer.unwrap(), format!("re: {text}; "), "{kind}");
            ended.unwrap();
            if kind == ServerKind::Shared {
                continue;
            }
            let woken = within(async { kept.prompt("awake").await?.text().await }).await;
            assert_eq!(woken.unwrap(), "re: awake; ");
            // A session that is not stored fails before anything is sent, or not at all.
            let plain = within(client.new_session(NewSession::in_dir("/"))).await.unwrap();
            let text = format!("plain {round}");
            let mut turn = None;
            let beginning = async { turn.insert(plain.prompt(text.as_str())).outcome().await };
            let (outcome, ended) =
                within(async { tokio::join!(beginning, sessions.end_idle(&policy, later)) }).await;
            ended.unwrap();
            let sent = world.server.messages("session/prompt");
            let sent = sent.iter().any(|prompt| prompt["params"]["prompt"][0]["text"] == text.as_str());
            match outcome {
                Ok(_) => assert!(sent),
                Err(Error::NotConnected) => assert!(!sent, "it was not sent"),
                Err(error) => panic!("{error:?}"),
            }
        }
        sessions.flush().await.unwrap();
        let kept = stored(&**sessions.store(), "s").await;
        for round in 0..15 {
            let text = format!("re: kept {round}; ");
            assert_eq!(said(&kept).iter().filter(|said| **said == text).count(), 1, "{kind}");
        }
    }
}

#[tokio::test]
async fn times_of_any_size_are_safe() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    for (idle, check) in [
        (Duration::MAX, Duration::ZERO),
        (Duration::MAX, Duration::MAX),
        (Duration::ZERO, Duration::ZERO),
        (Duration::from_nanos(1), Duration::from_nanos(1)),
    ] {
        let period = idle;
        let mut policy = RetentionPolicy::default();
        (policy.idle, policy.idle_check) = (idle, check);
        (policy.suspended, policy.resumable, policy.error) = (period, period, period);
        // It never ends by itself, and must not end by a panic either.
        let house = tokio::time::timeout(Duration::from_millis(50), sessions.run_maintenance(policy)).await;
        assert!(house.is_err());
        let ends = Timestamp::from_millis(u64::MAX);
        for now in [Timestamp::from_millis(0), ends] {
            sessions.expired(&policy, now).await.unwrap();
            assert!(sessions.idle(&policy, now).len() <= 1);
        }
    }
    assert_eq!(sessions.get("s").await.unwrap().unwrap().status, SessionStatus::Active);
}

#[tokio::test]
async fn a_session_acquired_between_the_query_and_the_deletion_is_not_deleted() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    for taken_up in [true, false] {
        let inner = std::sync::Arc::new(world.store().await);
        let store = Gated::new(world.store().await);
        let client = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
        let mut record = SessionRecord::new("s", "mock", Timestamp::from_millis(1));
        record.status = SessionStatus::Error;
        let record = inner.create(record, Vec::new()).await.unwrap();
        let id = record.id.clone();
        let other = std::sync::Arc::clone(&inner);
        *store.after_look.lock().unwrap() = Some(Box::new(move || {
            Box::pin(async move {
                if taken_up {
                    let mut patch = RecordPatch::default();
                    patch.title = Change::Set("somebody looks into it".to_owned());
                    other.append(Append::to(id).patch(patch)).await.unwrap();
                } else {
                    let event = NewEvent::new("e", Timestamp::from_millis(2), "note", ());
                    other.append(Append::to(id).events([event])).await.unwrap();
                }
            })
        }));
        let now = Timestamp::from_millis(100 * DAY);
        let deleted = client.delete_expired(&RetentionPolicy::default(), now).await.unwrap();
        assert_eq!(deleted, []);
        assert!(inner.get("s").await.unwrap().is_some());
        // The next time it goes.
        let deleted = client.delete_expired(&RetentionPolicy::default(), now).await.unwrap();
        assert_eq!(deleted.len(), 1);
    }
}

#[tokio::test]
async fn a_session_that_is_deleted_in_the_middle_of_a_turn_leaves_nothing_to_be_stored() {
    for kind in KINDS {
        let world = World::new(kind, Script::steps(vec![Step::WaitForCancel])).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("for a long time")).await.unwrap();
        let agent_session = session.agent_session().unwrap();
        within(sessions.flush()).await.unwrap();
        assert!(within(sessions.delete("s")).await.unwrap());
        within(agent_session.cancel()).await.unwrap();
        within(turn.outcome()).await.unwrap();
        within(sessions.flush()).await.unwrap();
        assert_eq!(within(sessions.shut_down(Suspend::Own)).await.unwrap(), 0, "{kind}");
    }
}

#[tokio::test]
async fn a_program_that_disconnects_from_an_agent_that_sleeps_stays_disconnected() {
    let world = World::new(ServerKind::PerAgent, agent(Ability::Resume)).await;
    let (client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    let policy = RetentionPolicy::default();
    let later = Timestamp::from(SystemTime::now()).saturating_add(policy.idle * 2);
    assert_eq!(within(sessions.end_idle(&policy, later)).await.unwrap(), ["s"]);
    within(client.disconnect()).await.unwrap();
    let refused = within(session.prompt("one")).await.unwrap_err();
    assert!(matches!(refused, Error::NotConnected), "{refused:?}");
    // Connecting makes it go on.
    within(client.connect()).await.unwrap();
    let answer = within(async { session.prompt("two").await?.text().await }).await;
    assert_eq!(answer.unwrap(), "re: two; ");
}

#[tokio::test]
async fn a_session_whose_turn_cannot_be_cancelled_is_archived_and_the_error_is_returned() {
    for kind in KINDS {
        let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
        let world = World::new(kind, Script::steps(steps)).await;
        let client = world.options().await.cancel_timeout(Duration::from_millis(300)).build().unwrap();
        let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let _turn = within(session.prompt("go")).await.unwrap();
        world.server.inject(Fault::post_status(503).on_method("session/cancel"));
        let error = within(session.cancel_session()).await.unwrap_err();
        assert!(error.is_timeout(), "{kind}: {error:?}");
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Archived, "{kind}");
    }
}

#[tokio::test]
async fn a_shutdown_leaves_sessions_alone_that_are_not_active() {
    for status in [SessionStatus::Suspended, SessionStatus::Archived, SessionStatus::Error] {
        let world = World::new(KINDS[0], agent(Ability::Resume)).await;
        let (_client, sessions) = world.program().await;
        within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        within(sessions.flush()).await.unwrap();
        let mut record = sessions.get("s").await.unwrap().unwrap();
        // By the back door, because no store moves a status like that.
        assert!(sessions.store().delete("s").await.unwrap());
        (record.status, record.last_active_at) = (status, Timestamp::from_millis(1));
        let record = sessions.store().create(record, Vec::new()).await.unwrap();
        assert_eq!(within(sessions.shut_down(Suspend::Own)).await.unwrap(), 0, "{status:?}");
        assert_eq!(world.store().await.get("s").await.unwrap().unwrap(), record, "{status:?}");
    }
}

#[tokio::test]
async fn a_shutdown_ends_although_the_store_does_not_answer() {
    for which in [Suspend::Own, Suspend::All] {
        let world = World::new(KINDS[0], agent(Ability::Resume)).await;
        let store = Gated::new(world.store().await);
        let client = options(&world.server, world.kind).shared_store(store.clone());
        let retry_for = Duration::from_secs(2);
        let client = client.stored(|options| options.retry_for(retry_for)).build().unwrap();
        let session = within(client.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let agent_session = session.agent_session().unwrap();
        *store.slowness.lock().unwrap() = Slowness::Stuck;
        *store.before_suspending.lock().unwrap() = Some(Box::new(|| Box::pin(std::future::pending())));
        within(agent_session.prompt("one").outcome()).await.unwrap();
        // Each of the three waits for the store may take up to twice that time.
        let began = Instant::now();
        within(client.shut_down(which)).await.unwrap_err();
        let took = began.elapsed();
        assert!(took < retry_for * 2 + retry_for / 4, "{which:?}: {took:?}, twice {retry_for:?} is promised");
        assert_eq!(client.client().state(), ConnectionState::Disconnected, "{which:?}");
        within(client.disconnect()).await.unwrap_or(());
    }
}

#[tokio::test]
async fn a_session_that_is_archived_or_has_failed_is_not_followed_any_more() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    for id in ["archived", "failed"] {
        let session = within(sessions.new_session_as(id, NewSession::in_dir("/"))).await.unwrap();
        assert!(session.agent_session().is_some());
        match id {
            "archived" => session.archive().await.map(drop).unwrap(),
            _ => sessions.fail(id).await.map(drop).unwrap(),
        }
        assert!(session.agent_session().is_none(), "{id}");
    }
    let policy = RetentionPolicy::default();
    let later = Timestamp::from(SystemTime::now()).saturating_add(policy.idle * 2);
    assert_eq!(sessions.idle(&policy, later), Vec::<String>::new());
}

#[tokio::test]
async fn a_result_that_ends_the_run_permanently_fails_the_session_and_any_other_failure_does_not() {
    for kind in KINDS {
        let script = Script::new(|turn| match turn.params["prompt"][0]["text"].as_str() {
            Some("recoverable") => vec![Step::Fail {
                code: -32603,
                message: "not now".to_owned(),
                data: Some(json!({"tool": "x"})),
            }],
            _ => vec![Step::Finish(json!({"stopReason": "max_turn_requests"}))],
        });
        let world = World::new(kind, script).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        within(async { session.prompt("recoverable").await?.outcome().await }).await.unwrap_err();
        sessions.flush().await.unwrap();
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Active, "{kind}");
        within(async { session.prompt("too many").await?.outcome().await }).await.unwrap();
        sessions.flush().await.unwrap();
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Error, "{kind}");
        let ends: Vec<_> =
            stored(&**sessions.store(), "s").await.iter().filter_map(|event| event.turn_end()).collect();
        assert_eq!(ends[1].result_subtype.as_deref(), Some("error_max_turns"));
        assert!(ends[1].is_terminal_error && !ends[0].is_terminal_error);
    }
}

#[tokio::test]
async fn cancelling_a_session_stops_its_turn_and_archives_it() {
    for kind in KINDS {
        let world = World::new(kind, Script::steps(vec![Step::WaitForCancel])).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("for a long time")).await.unwrap();
        let record = within(session.cancel_session()).await.unwrap();
        assert_eq!(record.status, SessionStatus::Archived, "{kind}");
        within(turn.outcome()).await.unwrap();
        let refused = within(session.cancel_session()).await.unwrap_err();
        assert!(matches!(refused, Error::NotAllowed { .. }), "{refused:?}");
    }
}

const SIGNALLED: &str = "SIGNAL_TEST_STORE_FILE";
const SERVER: &str = "SIGNAL_TEST_SERVER_URL";

/// The program that gets a signal: it is this test, started again.
#[tokio::test]
async fn a_program_that_shuts_down_on_a_signal() {
    let (Ok(url), Ok(file)) = (std::env::var(SERVER), std::env::var(SIGNALLED)) else { return };
    assert_eq!(RetentionPolicy::from_env().idle, Duration::from_secs(7 * 60));
    let client = SandboxAgentClient::builder(url).agent("mock").server(ServerKind::Shared).build().unwrap();
    let sessions = client.with_store(SqliteStore::open(file).await.unwrap());
    let waiting = sessions.shut_down_on_signal(Suspend::Own);
    let prompting = async {
        let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        within(async { session.prompt("one").await?.outcome().await }).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        // It is polled first, and sees every signal from then on.
        biased;
        suspended = waiting => assert_eq!(suspended.unwrap(), 1),
        () = prompting => {}
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_signal_suspends_the_sessions_of_a_program_and_ends_it_in_order() {
    for signal in ["-TERM", "-INT"] {
        let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "maintenance::a_program_that_shuts_down_on_a_signal", "--nocapture"])
            .env(SERVER, world.server.url())
            .env(SIGNALLED, world.directory.path().join("sessions.db"))
            .env("AGENT_SESSION_IDLE_TIMEOUT", "7")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let store = world.store().await;
        within(async {
            while !stored(&store, "s").await.iter().any(|event| event.turn_end().is_some()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let status = within(async {
            loop {
                if let Some(status) = child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert!(status.success(), "{signal}: {status}");
        let record = store.get("s").await.unwrap().unwrap();
        assert_eq!(record.status, SessionStatus::Suspended, "{signal}");
        assert_eq!(said(&stored(&store, "s").await), ["re: one; "]);
    }
}
