-- What stores look into gets columns; the rest of a record stays in its document. Members of a document that have a
-- column are ignored, and are gone when the record is written again.
ALTER TABLE sessions RENAME TO sandbox_agent_sessions;
ALTER TABLE events RENAME TO sandbox_agent_events;
ALTER TABLE sandbox_agent_sessions RENAME COLUMN last_active TO last_active_at;
ALTER TABLE sandbox_agent_sessions ADD COLUMN user_key TEXT;
ALTER TABLE sandbox_agent_sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandbox_agent_sessions ADD COLUMN owner TEXT;
ALTER TABLE sandbox_agent_sessions ADD COLUMN caught_up INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandbox_agent_sessions ADD COLUMN endpoint TEXT;
ALTER TABLE sandbox_agent_sessions ADD COLUMN agent_session_id TEXT;
ALTER TABLE sandbox_agent_sessions ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandbox_agent_sessions ADD COLUMN position_incarnation INTEGER;
ALTER TABLE sandbox_agent_sessions ADD COLUMN position_offset INTEGER;
ALTER TABLE sandbox_agent_sessions ADD COLUMN position_fingerprint INTEGER;
UPDATE sandbox_agent_sessions SET
    epoch = CASE json_type(document, '$.epoch') WHEN 'integer' THEN max(0, json_extract(document, '$.epoch')) ELSE 0 END,
    agent_session_id = CASE
        WHEN json_type(document, '$.agentSessionId') = 'text'
            AND length(CAST(json_extract(document, '$.agentSessionId') AS BLOB)) BETWEEN 1 AND 512
            AND instr(json_extract(document, '$.agentSessionId'), char(0)) = 0
        THEN json_extract(document, '$.agentSessionId')
    END
    WHERE CASE WHEN typeof(document) = 'text' THEN json_valid(document) ELSE 0 END;
CREATE INDEX sandbox_agent_sessions_by_user_key ON sandbox_agent_sessions (user_key, status, created_at, id)
    WHERE user_key IS NOT NULL;
CREATE INDEX sandbox_agent_sessions_by_endpoint ON sandbox_agent_sessions (endpoint, status, created_at, id)
    WHERE endpoint IS NOT NULL;
CREATE INDEX sandbox_agent_sessions_by_owner ON sandbox_agent_sessions (owner, status, created_at, id)
    WHERE owner IS NOT NULL;
CREATE INDEX sandbox_agent_sessions_by_agent_session ON sandbox_agent_sessions (agent_session_id, endpoint, incarnation)
    WHERE agent_session_id IS NOT NULL;

-- The key of an event is its id, or the incarnation and offset of its message in the stream; its id is empty then.
ALTER TABLE sandbox_agent_events ADD COLUMN incarnation INTEGER;
ALTER TABLE sandbox_agent_events ADD COLUMN stream_offset INTEGER;
ALTER TABLE sandbox_agent_events ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandbox_agent_events ADD COLUMN turn_id TEXT;
ALTER TABLE sandbox_agent_events ADD COLUMN rpc_id TEXT;
ALTER TABLE sandbox_agent_events ADD COLUMN is_open INTEGER NOT NULL DEFAULT 0;
DROP INDEX events_by_id;
CREATE UNIQUE INDEX sandbox_agent_events_by_id ON sandbox_agent_events (session_id, id) WHERE id <> '';
CREATE UNIQUE INDEX sandbox_agent_events_by_offset ON sandbox_agent_events (session_id, incarnation, stream_offset)
    WHERE stream_offset IS NOT NULL;
CREATE INDEX sandbox_agent_events_open ON sandbox_agent_events (session_id, position) WHERE is_open = 1;

CREATE TABLE sandbox_agent_incarnations (
    endpoint TEXT NOT NULL PRIMARY KEY,
    incarnation INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE sandbox_agent_scanned (
    owner TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    stream_offset INTEGER NOT NULL,
    fingerprint INTEGER NOT NULL,
    PRIMARY KEY (owner, endpoint)
) WITHOUT ROWID;
