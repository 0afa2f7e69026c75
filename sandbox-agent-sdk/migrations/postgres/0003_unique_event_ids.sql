-- An event that was written again could be stored twice. Indexes are referred to elsewhere and cannot change, so a repeat
-- stays where it is, under an id of its own.
UPDATE sandbox_agent_events SET id = 'repeat-' || md5(random()::text) || '-' || position
    WHERE (session_id, position) IN (
        SELECT session_id, position FROM (
            SELECT session_id, position, ROW_NUMBER() OVER (PARTITION BY session_id, id ORDER BY position) AS time
            FROM sandbox_agent_events
        ) AS numbered WHERE time > 1
    );
ALTER TABLE sandbox_agent_events ALTER COLUMN id TYPE TEXT COLLATE "C";
CREATE UNIQUE INDEX sandbox_agent_events_by_id ON sandbox_agent_events (session_id, id);
