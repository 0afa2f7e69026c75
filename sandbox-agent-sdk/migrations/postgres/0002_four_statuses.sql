-- There were five statuses once: sessions no longer complete, and only archiving puts them away.
UPDATE sandbox_agent_sessions SET status = CASE status WHEN 'completed' THEN 'active' ELSE 'archived' END
    WHERE status IN ('completed', 'cancelled');
