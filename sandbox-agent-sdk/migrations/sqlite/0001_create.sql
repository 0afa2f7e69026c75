CREATE TABLE sessions (
    id TEXT NOT NULL PRIMARY KEY,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    last_active INTEGER NOT NULL,
    last_index INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX sessions_by_status ON sessions (status, created_at, id);
CREATE INDEX sessions_by_agent ON sessions (agent, status, created_at, id);
CREATE INDEX sessions_by_activity ON sessions (status, last_active, id);
CREATE TABLE events (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    id TEXT NOT NULL,
    recorded_at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (session_id, position)
) WITHOUT ROWID;
