//! A session as lines of JSON.

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use serde::{Deserialize, Serialize};

use super::handle::Sessions;
use crate::{Error, EventQuery, MAX_PAGE, NewEvent, SessionRecord, StoreError, StoredEvent};

/// The form of transcripts that this version writes, and the newest one that it reads.
const VERSION: u32 = 1;

/// One line of a transcript.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum Line {
    /// The first line.
    Session { version: u32, record: Box<SessionRecord> },
    /// An event, in order.
    Event { event: StoredEvent },
    /// The last line, so that a transcript that was cut off is not taken for a whole one.
    End { events: u64 },
}

impl Sessions {
    /// A session with everything that happened in it, as lines of JSON without their ends. It is read as it is written
    /// out, page by page.
    ///
    /// The stream ends with the first failure; a transcript without its last line is none.
    pub fn export(&self, id: impl Into<String>) -> BoxStream<'static, Result<String, Error>> {
        enum Place {
            Start,
            Behind(u64),
            End(u64),
        }
        let (sessions, id) = (self.clone(), id.into());
        let pages = stream::unfold(Some((Place::Start, 0u64)), move |state| {
            let (sessions, id) = (sessions.clone(), id.clone());
            async move {
                let (place, count) = state?;
                let lines = async {
                    match place {
                        Place::Start => {
                            sessions.flush().await?;
                            let record = Box::new(sessions.ledger.record(&id).await?);
                            let line = Line::Session { version: VERSION, record };
                            Ok::<_, Error>((vec![write(&line)?], Some((Place::Behind(0), 0))))
                        }
                        Place::Behind(index) => {
                            let query = EventQuery::of(&id).after(index).limit(MAX_PAGE);
                            let page = sessions.ledger.store.events(&query).await?;
                            let count = count + page.events.len() as u64;
                            let next = page.next.map_or(Place::End(count), Place::Behind);
                            let lines = page.events.into_iter().map(|event| write(&Line::Event { event }));
                            Ok((lines.collect::<Result<_, _>>()?, Some((next, count))))
                        }
                        Place::End(events) => Ok((vec![write(&Line::End { events })?], None)),
                    }
                };
                match lines.await {
                    Ok((lines, next)) => Some((lines.into_iter().map(Ok).collect::<Vec<_>>(), next)),
                    Err(error) => Some((vec![Err(error)], None)),
                }
            }
        });
        pages.flat_map(stream::iter).boxed()
    }

    /// Takes a transcript into the store, under the id it has. A failure takes back what was
    /// written of it; a future that is dropped does not.
    ///
    /// The agent's session is not known to have come along, so the next prompt finds out.
    ///
    /// # Errors
    /// [`StoreError::Transcript`] with the line that cannot be read, [`StoreError::Exists`] if there is such a session.
    pub async fn import(
        &self,
        lines: impl IntoIterator<Item = impl AsRef<str>> + Send,
    ) -> Result<SessionRecord, Error> {
        let lines = lines.into_iter().map(|line| line.as_ref().to_owned()).collect::<Vec<_>>();
        let (record, events) = read_all(&lines)?;
        let id = record.id.clone();
        let (last_active, store) = (record.last_active, &self.ledger.store);
        store.put(record).await?;
        for batch in events.chunks(MAX_PAGE) {
            if let Err(error) = store.append(batch.to_vec()).await {
                // What was begun is taken back; if that fails too, the first failure says more.
                let _ = store.delete(&id).await;
                return Err(error.into());
            }
        }
        let record = self.ledger.record(&id).await?;
        debug_assert!(record.last_active >= last_active);
        Ok(record)
    }
}

fn write(line: &Line) -> Result<String, Error> {
    serde_json::to_string(line).map_err(|error| StoreError::Invalid(error.to_string()).into())
}

/// Reads a whole transcript before anything is stored.
fn read_all(lines: &[String]) -> Result<(SessionRecord, Vec<NewEvent>), StoreError> {
    let bad = |line: usize, reason: &str| StoreError::Transcript { line, reason: reason.to_owned() };
    let written = lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut read = written.map(|(number, line)| {
        let parsed: Result<Line, _> = serde_json::from_str(line);
        parsed.map(|line| (number + 1, line)).map_err(|error| bad(number + 1, &error.to_string()))
    });
    let mut record = match read.next().transpose()? {
        Some((_, Line::Session { version, record })) if version <= VERSION => *record,
        Some((line, Line::Session { .. })) => return Err(bad(line, "it is of a newer version")),
        Some((line, _)) => return Err(bad(line, "it does not begin with a session")),
        None => return Err(bad(1, "there is nothing")),
    };
    (record.revision, record.last_index) = (0, 0);
    let mut events: Vec<NewEvent> = Vec::new();
    let (mut index, mut whole) = (None, false);
    for line in read {
        match line? {
            (line, _) if whole => return Err(bad(line, "it goes on behind its end")),
            (line, Line::Session { .. }) => return Err(bad(line, "there is a second session")),
            (line, Line::Event { event }) => {
                if index.is_some_and(|before: u64| before.checked_add(1) != Some(event.index)) {
                    return Err(bad(line, "an event is missing or out of order"));
                }
                if event.session_id != record.id {
                    return Err(bad(line, "the event belongs to another session"));
                }
                index = Some(event.index);
                events.push(event.into_new());
            }
            (line, Line::End { events: count }) => {
                if count != events.len() as u64 {
                    return Err(bad(line, "events are missing"));
                }
                whole = true;
            }
        }
    }
    if whole { Ok((record, events)) } else { Err(bad(lines.len(), "it was cut off")) }
}
