//! Transcripts: sessions as lines of JSON.

use std::collections::HashSet;

use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::client::StoredClient;
use super::store::{
    EventKey, EventQuery, MAX_PAGE, NewEvent, PAGE_BYTES, SessionRecord, StoreError, StoredEvent,
    StoredEventKind, read_json,
};
use super::unique::unique_id;
use crate::Error;
use crate::session::Timestamp;

/// The format version that this version writes, and the newest one that it reads.
const VERSION: u64 = 1;

/// One line of a transcript.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum Line {
    /// The first line.
    Session { version: u64, record: Box<SessionRecord> },
    /// An event, in order.
    Event { event: StoredEvent },
    /// The last line. It distinguishes a complete transcript from a truncated one.
    End { events: u64 },
}

/// The part of the first line that is the same in every version.
#[derive(Debug, Deserialize)]
struct Header {
    version: Option<u64>,
}

/// The progress of writing a transcript.
#[derive(Debug, Clone, Copy)]
struct Written {
    made_at: Timestamp,
    /// The last index when the export began.
    goal: u64,
    /// The last index that was written.
    index: u64,
    count: u64,
}

/// The progress, once the first line was written; `None` at the end.
type Stage = Option<Option<Written>>;

impl StoredClient {
    /// Exports a session with all its events as lines of JSON, without line endings. The events are read page by page
    /// while the stream is polled.
    ///
    /// The stream ends after the first error, for example if the session is deleted during the export. A transcript
    /// without its last line is incomplete and cannot be imported.
    pub fn export(&self, id: impl Into<String>) -> BoxStream<'static, Result<String, Error>> {
        let (client, id) = (self.clone(), id.into());
        let pages = stream::try_unfold(Some(None), move |stage: Stage| {
            let (client, id) = (client.clone(), id.clone());
            async move {
                let Some(written) = stage else { return Ok(None) };
                client.export_page(&id, written).await.map(Some)
            }
        });
        pages.map_ok(|lines| stream::iter(lines).map(Ok)).try_flatten().boxed()
    }

    /// Returns the next lines, and the progress after them unless they are the last.
    async fn export_page(&self, id: &str, written: Option<Written>) -> Result<(Vec<String>, Stage), Error> {
        let Some(mut written) = written else {
            self.flush_session(id).await;
            let record = Box::new(self.shared.record(id).await?);
            let (made_at, goal) = (record.created_at, record.last_index);
            let line = write(&Line::Session { version: VERSION, record })?;
            return Ok((vec![line], Some(Some(Written { made_at, goal, index: 0, count: 0 }))));
        };
        let query = EventQuery::of(id).after(written.index).limit(MAX_PAGE).max_bytes(PAGE_BYTES);
        let page = self.shared.events(&query).await?;
        let mut lines = Vec::with_capacity(page.events.len() + 1);
        for event in page.events {
            (written.index, written.count) = (event.index, written.count + 1);
            lines.push(write(&Line::Event { event })?);
        }
        if page.next.is_some() {
            return Ok((lines, Some(Some(written))));
        }
        let record = self.shared.record(id).await?;
        if record.created_at != written.made_at || written.index < written.goal {
            return Err(changed(id));
        }
        lines.push(write(&Line::End { events: written.count })?);
        Ok((lines, None))
    }

    /// Imports a transcript into the store under its original id, completely or not at all. This holds even if the
    /// future is dropped or the program is killed.
    ///
    /// The events get indexes starting at 1. If the store had already dropped events when the transcript was written,
    /// events of the kind [`StoredEventKind::Lost`] replace them. The next prompt determines whether the
    /// agent still has the session.
    ///
    /// # Errors
    /// [`StoreError::Transcript`] with the first invalid line, [`StoreError::Exists`] if the session already exists.
    pub async fn import(
        &self,
        lines: impl IntoIterator<Item = impl AsRef<str>> + Send,
    ) -> Result<SessionRecord, Error> {
        let (record, events) = read_all(lines)?;
        Ok(self.shared.in_time(self.shared.store.create(record, events)).await?)
    }
}

fn write(line: &Line) -> Result<String, Error> {
    serde_json::to_string(line).map_err(|error| StoreError::Invalid(error.to_string()).into())
}

fn changed(id: &str) -> Error {
    StoreError::NotFound { id: id.to_owned() }.into()
}

fn bad(line: usize, reason: impl ToString) -> StoreError {
    StoreError::Transcript { line, reason: reason.to_string() }
}

/// Reads a whole transcript before anything is stored.
pub(crate) fn read_all(
    lines: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<(SessionRecord, Vec<NewEvent>), StoreError> {
    let mut last = 0;
    let mut reading: Option<Reading> = None;
    for (number, text) in (1..).zip(lines) {
        last = number;
        let text = text.as_ref();
        if text.trim().is_empty() {
            continue;
        }
        match &mut reading {
            Some(reading) => reading.take(text).map_err(|reason| bad(number, reason))?,
            None => reading = Some(Reading::begin(text).map_err(|reason| bad(number, reason))?),
        }
    }
    match reading {
        None => Err(bad(1, "the transcript is empty")),
        Some(Reading { is_whole: false, .. }) => Err(bad(last, "the last line of the transcript is missing")),
        Some(Reading { record, events, .. }) => Ok((record, events)),
    }
}

/// A transcript of which some lines were read.
#[derive(Debug)]
struct Reading {
    record: SessionRecord,
    events: Vec<NewEvent>,
    keys: HashSet<EventKey>,
    /// The index of the last event.
    index: u64,
    is_whole: bool,
}

impl Reading {
    /// Reads the first line.
    fn begin(text: &str) -> Result<Self, String> {
        let header: Result<Header, _> = serde_json::from_str(text);
        match header.map_err(|error| error.to_string())?.version {
            Some(1..=VERSION) => {}
            Some(0) | None => return Err("the transcript does not start with a session".to_owned()),
            Some(_) => return Err("a newer version wrote the transcript".to_owned()),
        }
        let Line::Session { mut record, .. } = read_json(text).map_err(|error| error.to_string())? else {
            return Err("the transcript does not start with a session".to_owned());
        };
        (record.revision, record.last_index, record.epoch) = (0, 0, 0);
        (record.owner, record.caught_up) = (None, false);
        Ok(Self { record: *record, events: Vec::new(), keys: HashSet::new(), index: 0, is_whole: false })
    }

    /// Reads a later line.
    fn take(&mut self, text: &str) -> Result<(), String> {
        let line: Line = read_json(text).map_err(|error| error.to_string())?;
        let refuse = |reason: &str| Err(reason.to_owned());
        match line {
            _ if self.is_whole => refuse("there are lines after the end of the transcript"),
            Line::Session { .. } => refuse("the transcript contains a second session"),
            Line::Event { event } if event.session_id != self.record.id => {
                refuse("the event belongs to another session")
            }
            Line::Event { event } if event.index == 0 => refuse("the event has no index"),
            Line::Event { event } if event.index <= self.index => refuse("the event is out of order"),
            Line::Event { event } if !self.keys.insert(event.key.clone()) => {
                refuse("the event is a duplicate")
            }
            Line::Event { event } => {
                let missing = event.index - self.index - 1;
                self.events.extend((missing > 0).then(|| dropped(missing, &event)));
                self.index = event.index;
                self.events.push(event.into_new());
                Ok(())
            }
            Line::End { events } if events != self.keys.len() as u64 => refuse("events are missing"),
            Line::End { .. } => {
                self.is_whole = true;
                Ok(())
            }
        }
    }
}

/// The event that replaces events that the store had dropped before this one.
fn dropped(count: u64, next: &StoredEvent) -> NewEvent {
    NewEvent::new(unique_id(), next.recorded_at, StoredEventKind::Lost, json!({ "count": count }))
}
