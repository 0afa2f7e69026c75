-- An event that was written again could be stored twice. Indexes are referred to elsewhere and cannot change, so a repeat
-- stays where it is, under an id of its own.
UPDATE events SET id = 'repeat-' || hex(randomblob(8)) || '-' || position WHERE (session_id, position) IN (
    SELECT session_id, position FROM (
        SELECT session_id, position, ROW_NUMBER() OVER (PARTITION BY session_id, id ORDER BY position) AS time
        FROM events
    ) WHERE time > 1
);
CREATE UNIQUE INDEX events_by_id ON events (session_id, id);
