//! Stores of every schema that was released, opened by this version.

use sandbox_agent_sdk::sessions::SessionStatus;
use sandbox_agent_sdk::sessions::store::{
    Acquire, AgentSession, EventKey, PostgresStore, RecordQuery, SessionStore, SqliteStore, StoreError,
};
use sdk_tests::Cluster;
use serde_json::json;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::support::{all_events, all_ids, append, assert_gap_free, at, event};

/// The schemas before this one, as they were released.
const SQLITE: [&str; 3] = [
    include_str!("../../../sandbox-agent-sdk/migrations/sqlite/0001_create.sql"),
    include_str!("../../../sandbox-agent-sdk/migrations/sqlite/0002_four_statuses.sql"),
    include_str!("../../../sandbox-agent-sdk/migrations/sqlite/0003_unique_event_ids.sql"),
];
const POSTGRES: [&str; 3] = [
    include_str!("../../../sandbox-agent-sdk/migrations/postgres/0001_create.sql"),
    include_str!("../../../sandbox-agent-sdk/migrations/postgres/0002_four_statuses.sql"),
    include_str!("../../../sandbox-agent-sdk/migrations/postgres/0003_unique_event_ids.sql"),
];
const STATUSES: [&str; 6] = ["completed", "cancelled", "active", "suspended", "archived", "error"];

/// The statements that make a store of an old version and fill it, with these names of tables.
fn old_store(schemas: &[&str], sessions: &str, events: &str) -> String {
    let mut sql = schemas.concat();
    let mut insert = |id: &str, status: &str, document: &str| {
        let document = document.replace('\'', "''");
        sql.push_str(&format!(
            "INSERT INTO {sessions} VALUES ('{id}', 'mock', '{status}', 5, 9, 6, 4, '{document}');"
        ));
    };
    let document = json!({
        "id": "s", "agent": "mock", "status": "active", "epoch": 3, "takenAt": "5-abc", "takenBy": "x",
        "agentSessionId": "agent's", "resumable": true, "title": "\u{0} \"epoch\":77, it's", "init": {"cwd": "/w"},
        "configOptions": [1], "modes": {"currentModeId": "ask"}, "termination": {"reason": "error", "exitCode": 3},
        "replayPending": true, "metadata": {"epoch": 99, "n": 0.1}, "createdAt": 5, "lastActive": 9,
        "lastIndex": 6, "revision": 4,
    });
    insert("s", "active", &document.to_string());
    insert("damaged", "active", "{\"id\":");
    insert(
        "plain",
        "active",
        "{\"id\":\"plain\",\"agent\":\"mock\",\"status\":\"active\",\"createdAt\":5,\"lastActive\":9}",
    );
    insert(
        "nameless",
        "active",
        &json!({"agentSessionId": "x".repeat(513), "epoch": -1, "title": 5}).to_string(),
    );
    for status in STATUSES {
        // There were five statuses in the first version.
        let stored = if schemas.len() == 1 { status } else { "active" };
        insert(status, stored, "{}");
    }
    for n in 1..=6 {
        // Before the third version an id could be stored twice.
        let id = if schemas.len() < 3 { (n % 2).to_string() } else { format!("3.0:{n}-f") };
        sql.push_str(&format!("INSERT INTO {events} VALUES ('s', {n}, '{id}', 7, 'prompt', '{n}');"));
    }
    sql
}

/// Checks a store that was of this version, as this version reads it.
async fn assert_migrated(store: &dyn SessionStore, version: usize) {
    let session = store.get("s").await.unwrap().unwrap();
    assert_eq!((session.epoch, session.owner.as_deref(), session.caught_up), (3, None, false));
    let agent_session = AgentSession { id: "agent's".to_owned(), incarnation: 0 };
    assert_eq!(session.agent_session.as_ref(), Some(&agent_session));
    assert_eq!((session.position, session.endpoint.as_deref()), (None, None));
    assert_eq!((session.last_active_at, session.last_index, session.revision), (at(9), 6, 4));
    let details = &session.details;
    assert_eq!(details.title.as_deref(), Some("\u{0} \"epoch\":77, it's"));
    assert!(details.supports_resume && details.replay_pending);
    assert_eq!(details.termination_info.as_ref().unwrap().exit_code, Some(3));
    assert_eq!(details.modes, Some(json!({"currentModeId": "ask"})));
    assert_eq!(details.config_options, Some(json!([1])));
    assert_eq!((&details.init["cwd"], &details.metadata["n"]), (&json!("/w"), &json!(0.1)));

    assert!(matches!(store.get("damaged").await, Err(StoreError::Unreadable { .. })));
    let plain = store.get("plain").await.unwrap().unwrap();
    assert_eq!((plain.epoch, plain.agent_session), (0, None));
    assert!(
        matches!(store.get("nameless").await, Err(StoreError::Unreadable { .. })),
        "its title is a number"
    );
    if version == 1 {
        for (status, ids) in [
            (SessionStatus::Active, &["completed", "active"][..]),
            (SessionStatus::Archived, &["cancelled", "archived"]),
            (SessionStatus::Suspended, &["suspended"]),
            (SessionStatus::Error, &["error"]),
        ] {
            let found = all_ids(store, RecordQuery::all().statuses([status])).await;
            assert_eq!(found.iter().filter(|id| STATUSES.contains(&id.as_str())).collect::<Vec<_>>(), ids);
        }
    }

    // Nothing is lost or moved, and nothing is open.
    let events = all_events(store, "s").await;
    assert_gap_free(&events);
    let payloads: Vec<u64> = events.iter().filter_map(|event| event.payload.as_u64()).collect();
    assert_eq!(payloads, [1, 2, 3, 4, 5, 6]);
    let ids: std::collections::HashSet<_> = events.iter().map(|event| event.key.clone()).collect();
    assert_eq!(ids.len(), 6, "a repeat has an id of its own");
    assert!(events.iter().all(|event| (event.epoch, &event.turn_id) == (0, &None)));
    assert!(store.open("s").await.unwrap().is_empty());
    let EventKey::Id { id } = &events[1].key else { panic!("{:?}", events[1].key) };
    assert_eq!(append(store, "s", [event(id, 9), event("new", 9)]).await.unwrap(), [2, 7]);
    let acquired = store.acquire("s", Acquire::by("p")).await.unwrap();
    assert_eq!((acquired.epoch, acquired.owner.as_deref()), (4, Some("p")));
    assert_eq!(store.get("s").await.unwrap().unwrap(), acquired, "it is written as it is read");
    assert!(store.delete("damaged").await.unwrap());
}

#[tokio::test]
async fn files_of_every_released_schema_are_migrated() {
    for version in 1..=3 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessions.db");
        let connect = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut connection = connect.connect().await.unwrap();
        let sql = old_store(&SQLITE[..version], "sessions", "events");
        let blob = "UPDATE sessions SET document = x'ff7b' WHERE id = 'damaged';";
        let sql = format!("{sql}{blob}PRAGMA user_version = {version};");
        sqlx::raw_sql(&sql).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let store = SqliteStore::open(&path).await.unwrap();
        assert_migrated(&store, version).await;
        store.close().await;
        // A second program finds it migrated.
        SqliteStore::open(&path).await.unwrap().close().await;
    }
}

#[tokio::test]
async fn databases_of_every_released_schema_are_migrated() {
    let Some(cluster) = Cluster::find().await else { return };
    for version in 1..=3 {
        let schema = cluster.schema().await;
        let pool = schema.pool().await;
        let sql = old_store(&POSTGRES[..version], "sandbox_agent_sessions", "sandbox_agent_events");
        let versions = "CREATE TABLE sandbox_agent_schema (version BIGINT NOT NULL PRIMARY KEY, \
                        applied_at TIMESTAMPTZ NOT NULL DEFAULT now());";
        let applied: Vec<String> = (1..=version).map(|n| format!("({n})")).collect();
        let applied = format!("INSERT INTO sandbox_agent_schema (version) VALUES {};", applied.join(", "));
        sqlx::raw_sql(&format!("{sql}{versions}{applied}")).execute(&pool).await.unwrap();
        let store = PostgresStore::open(&schema.url).await.unwrap();
        assert_migrated(&store, version).await;
        store.close().await;
        pool.close().await;
        schema.remove().await;
    }
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_and_left_alone() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    PostgresStore::open(&schema.url).await.unwrap().close().await;
    let pool = schema.pool().await;
    sqlx::raw_sql("INSERT INTO sandbox_agent_schema (version) VALUES (9)").execute(&pool).await.unwrap();
    let error = PostgresStore::open(&schema.url).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 9, known: 4 }), "{error:?}");
    pool.close().await;
    schema.remove().await;
}
