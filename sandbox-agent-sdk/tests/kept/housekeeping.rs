//! Idle agents, old sessions, shutting down.

use std::time::{Duration, SystemTime};

use sandbox_agent_sdk::{
    NewSession, RecordQuery, RetentionPolicy, SessionRecord, SessionStatus, SessionStore, Suspend, Timestamp,
};

use crate::support::{KINDS, within};
use crate::world::{Ability, World, agent, said, stored};

const DAY: u64 = 24 * 60 * 60 * 1000;

#[tokio::test]
async fn an_idle_agent_is_ended_and_its_session_stays_active_and_goes_on() {
    for kind in KINDS {
        for ability in Ability::ALL {
            let world = World::new(kind, agent(ability)).await;
            let (_client, sessions) = world.program().await;
            let session = within(sessions.create_as("s", NewSession::in_dir("/"))).await.unwrap();
            within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
            let policy = RetentionPolicy::default();
            let now: Timestamp = SystemTime::now().into();
            assert_eq!(within(sessions.end_idle(&policy, now)).await.unwrap(), Vec::<String>::new());
            let later = now.saturating_add(policy.idle + Duration::from_secs(60));
            assert_eq!(sessions.idle(&policy, later), ["s"], "a look changes nothing");
            assert_eq!(sessions.idle(&policy, later), ["s"]);
            assert_eq!(within(sessions.end_idle(&policy, later)).await.unwrap(), ["s"], "{kind} {ability:?}");
            assert_eq!(sessions.idle(&policy, later), Vec::<String>::new());
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
        (record.status, record.resumable) = (status, resumable);
        sessions.store().put(record).await.unwrap();
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
            record.status = status;
            sessions.store().put(record).await.unwrap();
        }
        let session = within(sessions.create_as("own", NewSession::in_dir("/"))).await.unwrap();
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
async fn a_task_of_the_application_keeps_house_until_it_is_ended() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let mut old = SessionRecord::new("old", "mock", Timestamp::from_millis(1));
    old.status = SessionStatus::Error;
    sessions.store().put(old).await.unwrap();
    let session = within(sessions.create_as("s", NewSession::in_dir("/"))).await.unwrap();
    let mut policy = RetentionPolicy::default();
    (policy.idle, policy.idle_check) = (Duration::ZERO, Duration::from_millis(10));
    let house = tokio::spawn({
        let sessions = sessions.clone();
        async move { sessions.keep_house(policy).await }
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
