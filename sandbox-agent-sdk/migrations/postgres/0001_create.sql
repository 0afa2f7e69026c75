-- Ids are ordered by their bytes, as everywhere else, and not by the rules of a language.
CREATE TABLE sandbox_agent_sessions (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    agent TEXT COLLATE "C" NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    last_active BIGINT NOT NULL,
    last_index BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX sandbox_agent_sessions_by_status ON sandbox_agent_sessions (status, created_at, id);
CREATE INDEX sandbox_agent_sessions_by_agent ON sandbox_agent_sessions (agent, status, created_at, id);
CREATE INDEX sandbox_agent_sessions_by_activity ON sandbox_agent_sessions (status, last_active, id);
CREATE TABLE sandbox_agent_events (
    session_id TEXT COLLATE "C" NOT NULL REFERENCES sandbox_agent_sessions (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    id TEXT NOT NULL,
    recorded_at BIGINT NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (session_id, position)
);
