//! Reads a part of the server's stream again.

use std::collections::HashMap;

use serde_json::Value;

use super::entry::Entry;
use super::remote::ended;
use super::store::StoredEventKind;
use crate::error::RpcError;
use crate::stream::{LogEntry, LogRecord, StreamPosition as Position, StreamReader};
use crate::{Error, Event};

/// How many bytes of a session's messages are read at most.
const MAX_BYTES: usize = 256 << 20;

/// The response to a prompt.
pub(super) type Response = Result<Value, RpcError>;

/// The parameters of a scan.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The id of the agent's session.
    pub(super) agent_session: String,
    /// The last message that is stored.
    pub(super) behind: Position,
    /// Where to begin, at or before that message: agent requests after it are received again.
    pub(super) from: Position,
    /// Where the latest turn began, if that is known. Another process may have numbered the server differently.
    pub(super) begun: Option<Position>,
    /// The ids of prompts whose responses are searched for.
    pub(super) responses: Vec<String>,
    /// Whether the response to the latest prompt may be missing from what is stored.
    pub(super) may_miss_response: bool,
    /// Whether the stream of this server has the response to every request.
    pub(super) is_echoing: bool,
}

/// What the server's stream has after a position, up to the response to a request that was sent after it.
#[derive(Debug)]
pub(super) struct Scan {
    /// Whether the message at the position is still the same one: the server has not restarted since.
    pub(super) is_proven: bool,
    /// Whether the server is known to have restarted.
    pub(super) is_other: bool,
    /// The entries of the session.
    pub(super) entries: Vec<Entry>,
    /// The responses that were looked for, by the id of their request, with how many entries precede each.
    pub(super) responses: HashMap<String, (usize, Response)>,
    /// Whether the response to the latest prompt may be among messages that the server no longer has: nothing after
    /// them proves that the turn still runs. Each gap is among the entries, in order.
    pub(super) may_miss_response: bool,
    /// Whether the stream has the message at which the latest turn began.
    pub(super) has_begun: bool,
    /// The last message.
    pub(super) end: Option<Position>,
    /// The ids and offsets of agent requests of the session. They are answered or offered through the reader.
    pub(super) requests: Vec<(String, Option<u64>)>,
    pub(super) reader: StreamReader,
}

impl Scan {
    /// Reads the stream.
    ///
    /// # Errors
    /// If the server cannot be read a second time.
    pub(super) async fn run(reader: StreamReader, wanted: &Wanted) -> Result<Self, Error> {
        let mut scan = Self {
            is_proven: false,
            is_other: false,
            entries: Vec::new(),
            responses: HashMap::new(),
            may_miss_response: wanted.may_miss_response,
            has_begun: false,
            end: None,
            requests: Vec::new(),
            reader,
        };
        let (mut bytes, mut is_incomplete) = (0, false);
        // Nothing was stored of the stream. The process that created the session did so on this server if the stream has a
        // response to it, which each of its requests has where the server echoes responses.
        let is_first = wanted.behind.offset == 0 && wanted.is_echoing && !wanted.responses.is_empty();
        let mut is_of_creator = false;
        while let Some(entry) = scan.reader.next().await {
            let entry = entry?;
            is_incomplete |= matches!(
                entry.record,
                LogRecord::Missing(_)
                    | LogRecord::Event(Event::Lagged(_) | Event::Malformed { lost: true, .. })
            );
            if let LogRecord::Response { request_id, .. } = &entry.record {
                is_of_creator |= wanted.responses.iter().any(|id| sender_of(id) == sender_of(request_id));
            }
            scan.take(entry, wanted, &mut bytes);
        }
        if is_first {
            scan.is_proven |= is_of_creator;
            scan.is_other |= !is_of_creator && !is_incomplete;
        }
        let is_same = scan.reader.is_same_stream();
        scan.is_other |= is_same == Some(false);
        scan.is_proven |= is_same == Some(true) && wanted.from.is_same_event(&wanted.behind);
        // The same server still has the message at the position, or reports that it no longer has it. Its event
        // numbers continue from there.
        let is_short = wanted.is_echoing && scan.end.is_none_or(|end| end.offset < wanted.behind.offset);
        scan.is_other |= !scan.is_proven && (!is_incomplete || is_short) && wanted.behind.offset > 0;
        scan.is_proven &= !scan.is_other;
        if bytes > MAX_BYTES
            && let Some(end) = scan.end
        {
            scan.may_miss_response = true;
            scan.entries.push(Entry::gap(Some(wanted.behind.offset + 1), Some(end.offset)));
        }
        Ok(scan)
    }

    fn take(&mut self, entry: LogEntry, wanted: &Wanted, bytes: &mut usize) {
        if let Some(position) = entry.position {
            if position.offset == wanted.behind.offset {
                self.is_proven = position.is_same_event(&wanted.behind);
                self.is_other |= !self.is_proven;
            }
            self.has_begun |= wanted.begun.is_some_and(|begun| position.is_same_event(&begun));
            if self.end.is_none_or(|end| end.offset < position.offset) {
                self.end = Some(position);
            }
        }
        match &entry.record {
            LogRecord::Event(Event::ServerRestarted) => self.is_other = true,
            LogRecord::Missing(gap) if gap.to > wanted.behind.offset => {
                self.may_miss_response = true;
                self.entries.push(Entry::gap(Some(gap.from.max(wanted.behind.offset + 1)), Some(gap.to)));
            }
            // Losses before the position are already stored as lost.
            LogRecord::Event(Event::Lagged(_) | Event::Malformed { lost: true, .. })
                if self.end.map_or(wanted.from.offset, |end| end.offset) >= wanted.behind.offset =>
            {
                self.may_miss_response = true;
                self.entries.extend(Entry::of_record(&entry.record, None));
            }
            record if ended(record).is_some() => {
                let ended = ended(record).map(|ended| Entry { position: entry.position, ..ended });
                let is_new = entry.position.is_none_or(|position| position.offset > wanted.behind.offset);
                self.entries.extend(ended.filter(|_| is_new));
            }
            LogRecord::Response { request_id, result } if wanted.responses.contains(request_id) => {
                self.responses.insert(request_id.clone(), (self.entries.len(), result.clone()));
            }
            _ => {}
        }
        if entry.session_id() != Some(&wanted.agent_session) {
            return;
        }
        if let LogRecord::AgentRequest { request_id, .. } = &entry.record {
            self.requests.push((request_id.clone(), entry.position.map(|position| position.offset)));
        }
        let is_new = entry.position.is_none_or(|position| position.offset > wanted.behind.offset);
        if is_new && matches!(entry.record, LogRecord::AgentRequest { .. }) {
            // An agent sends no requests after its response, but it may send reports.
            self.may_miss_response = false;
        }
        let Some(read) = Entry::of_record(&entry.record, entry.position).filter(|_| is_new) else { return };
        if is_within(&read, bytes) {
            self.entries.push(read);
        }
    }
}

/// Counts an entry. Returns whether it is within the limit, which does not apply to the end of the session.
fn is_within(entry: &Entry, bytes: &mut usize) -> bool {
    *bytes = bytes.saturating_add(entry.weight);
    *bytes <= MAX_BYTES || entry.kind == StoredEventKind::Ended
}

/// The part of a request id that is the same for all requests of a client.
fn sender_of(id: &str) -> Option<&str> {
    id.rsplit_once('-').map(|(sender, _)| sender)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Entry, MAX_BYTES, is_within};
    use crate::sessions::store::StoredEventKind;

    #[test]
    fn messages_are_read_up_to_the_limit_and_the_end_of_the_session_above_it() {
        let entry = |kind, weight| Entry { weight, ..Entry::own(kind, json!({})) };
        for (weight, fits) in [(MAX_BYTES - 2, true), (MAX_BYTES - 1, true), (MAX_BYTES, false)] {
            let mut bytes = 1;
            assert_eq!(is_within(&entry(StoredEventKind::Update, weight), &mut bytes), fits, "{weight}");
            assert!(is_within(&entry(StoredEventKind::Ended, usize::MAX), &mut bytes));
            assert!(!is_within(&entry(StoredEventKind::Update, 0), &mut bytes));
        }
    }
}
