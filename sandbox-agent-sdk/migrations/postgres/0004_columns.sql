-- What stores look into gets columns; the rest of a record stays in its document. Members of a document that have a
-- column are ignored, and are gone when the record is written again.
ALTER TABLE sandbox_agent_sessions RENAME COLUMN last_active TO last_active_at;
ALTER TABLE sandbox_agent_sessions
    ADD COLUMN user_key TEXT COLLATE "C",
    ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN owner TEXT COLLATE "C",
    ADD COLUMN caught_up BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN endpoint TEXT COLLATE "C",
    ADD COLUMN agent_session_id TEXT COLLATE "C",
    ADD COLUMN incarnation BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN position_incarnation BIGINT,
    ADD COLUMN position_offset BIGINT,
    ADD COLUMN position_fingerprint BIGINT;
-- An epoch stands before everything that a user or an agent wrote. A quote inside of a text is escaped.
UPDATE sandbox_agent_sessions SET epoch = substring(document from '"epoch":([0-9]{1,18})')::bigint
    WHERE document ~ '"epoch":[0-9]{1,18}[,}]';
DO $$
DECLARE
    session RECORD;
    found TEXT;
BEGIN
    FOR session IN SELECT id, document FROM sandbox_agent_sessions LOOP
        BEGIN
            -- The database has no NUL characters in texts.
            found := replace(session.document, '\u0000', '')::json ->> 'agentSessionId';
            UPDATE sandbox_agent_sessions SET agent_session_id = found
                WHERE id = session.id AND octet_length(found) BETWEEN 1 AND 512;
        EXCEPTION WHEN others THEN
            -- A damaged document has no session of the agent.
            NULL;
        END;
    END LOOP;
END $$;
CREATE INDEX sandbox_agent_sessions_by_user_key ON sandbox_agent_sessions (user_key, status, created_at, id)
    WHERE user_key IS NOT NULL;
CREATE INDEX sandbox_agent_sessions_by_endpoint ON sandbox_agent_sessions (endpoint, status, created_at, id)
    WHERE endpoint IS NOT NULL;
CREATE INDEX sandbox_agent_sessions_by_owner ON sandbox_agent_sessions (owner, status, created_at, id)
    WHERE owner IS NOT NULL;
CREATE INDEX sandbox_agent_sessions_by_agent_session ON sandbox_agent_sessions (agent_session_id, endpoint, incarnation)
    WHERE agent_session_id IS NOT NULL;

-- The key of an event is its id, or the incarnation and offset of its message in the stream; its id is empty then.
ALTER TABLE sandbox_agent_events
    ADD COLUMN incarnation BIGINT,
    ADD COLUMN stream_offset BIGINT,
    ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN turn_id TEXT COLLATE "C",
    ADD COLUMN rpc_id TEXT COLLATE "C",
    ADD COLUMN is_open BIGINT NOT NULL DEFAULT 0;
DROP INDEX sandbox_agent_events_by_id;
CREATE UNIQUE INDEX sandbox_agent_events_by_id ON sandbox_agent_events (session_id, id) WHERE id <> '';
CREATE UNIQUE INDEX sandbox_agent_events_by_offset ON sandbox_agent_events (session_id, incarnation, stream_offset)
    WHERE stream_offset IS NOT NULL;
CREATE INDEX sandbox_agent_events_open ON sandbox_agent_events (session_id, position) WHERE is_open = 1;

CREATE TABLE sandbox_agent_incarnations (
    endpoint TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    incarnation BIGINT NOT NULL
);
CREATE TABLE sandbox_agent_scanned (
    owner TEXT COLLATE "C" NOT NULL,
    endpoint TEXT COLLATE "C" NOT NULL,
    incarnation BIGINT NOT NULL,
    stream_offset BIGINT NOT NULL,
    fingerprint BIGINT NOT NULL,
    PRIMARY KEY (owner, endpoint)
);
