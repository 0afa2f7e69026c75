//! Listing and finding sessions.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::calls::Needs;
use super::connection::Connection;
use super::lifecycle::Inner;
use super::names::{EXTENDED_GET, EXTENDED_LIST, LIST};
use crate::client::limits::BodyKind;
use crate::control::{Call, Route};
use crate::convert::decoded::value_size;
use crate::error::MissingMember;
use crate::extensions::Extension;
use crate::session::{ListSessions, SessionInfo, SessionPage};
use crate::{Error, ServerKind, TerminationInfo};

/// A stream of the server's sessions. Pages are fetched on demand.
#[must_use = "nothing is fetched until the stream is read"]
pub struct SessionList {
    sessions: BoxStream<'static, Result<SessionInfo, Error>>,
}

impl SessionList {
    pub(super) fn new(inner: Arc<Inner>, which: ListSessions) -> Self {
        let pages = Pages {
            inner,
            which,
            cursor: Some(None),
            progress: ListProgress::default(),
            ready: VecDeque::new(),
            ends: None,
        };
        let sessions = stream::unfold(pages, |mut pages| async move { Some((pages.next().await?, pages)) });
        Self { sessions: sessions.fuse().boxed() }
    }

    /// Returns the next session, or `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<SessionInfo, Error>> {
        self.sessions.next().await
    }

    /// Collects all sessions.
    ///
    /// # Errors
    /// The first error of the stream.
    pub async fn all(mut self) -> Result<Vec<SessionInfo>, Error> {
        let mut all = Vec::new();
        while let Some(session) = self.next().await {
            all.push(session?);
        }
        Ok(all)
    }
}

impl Stream for SessionList {
    type Item = Result<SessionInfo, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.sessions.poll_next_unpin(context)
    }
}

impl fmt::Debug for SessionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionList")
    }
}

/// How far a list has been read.
struct Pages {
    inner: Arc<Inner>,
    which: ListSessions,
    /// Where the next page starts; the outer `None` means that there is none.
    cursor: Option<Option<String>>,
    progress: ListProgress,
    ready: VecDeque<Result<SessionInfo, Error>>,
    /// How sessions ended, if the list itself does not contain it.
    ends: Option<HashMap<String, TerminationInfo>>,
}

impl Pages {
    async fn next(&mut self) -> Option<Result<SessionInfo, Error>> {
        loop {
            if let Some(session) = self.ready.pop_front() {
                return Some(session);
            }
            let cursor = self.cursor.take()?;
            match self.fetch(cursor).await {
                Ok(page) => self.take(page),
                Err(error) => self.ready.push_back(Err(error)),
            }
        }
    }

    fn take(&mut self, page: SessionPage) {
        let empty = page.sessions.is_empty() && page.unreadable.is_empty();
        let invalid = page
            .next_cursor
            .as_deref()
            .and_then(|next| self.progress.check(next, empty).map(|why| (why, next)));
        let invalid = invalid.map(|(source, next)| Error::Decode {
            what: LIST.to_owned(),
            raw: next.to_owned(),
            source: Arc::new(source),
        });
        self.cursor = if invalid.is_some() { None } else { page.next_cursor.clone().map(Some) };
        if self.cursor.is_some() {
            page.sessions.iter().for_each(|session| self.progress.give(&session.session_id));
        }
        let unreadable = page.unreadable.into_iter().map(|entry| {
            let source = Arc::new(MissingMember { object: "a session", member: "sessionId" });
            Err(Error::Decode { what: LIST.to_owned(), raw: entry.to_string(), source })
        });
        self.ready = page.sessions.into_iter().map(Ok).chain(unreadable).chain(invalid.map(Err)).collect();
    }

    async fn fetch(&mut self, cursor: Option<String>) -> Result<SessionPage, Error> {
        self.which.check()?;
        let (pages, bytes) = (self.progress.pages, self.progress.bytes);
        if pages >= self.inner.options.limits.list_pages {
            return Err(Error::ListTooLong { what: LIST.to_owned(), pages, bytes });
        }
        self.progress.pages += 1;
        let this = &*self;
        let (connection, mut page) = match &cursor {
            // The list of another agent has no such page.
            Some(cursor) => this.page(this.inner.connection().await?, Some(cursor)).await?,
            None => this.inner.call(|connection| this.page(connection, None)).await?,
        };
        self.progress.bytes = bytes.saturating_add(page_size(&page));
        let limits = &self.inner.options.limits;
        if self.progress.bytes > limits.session_list.saturating_mul(limits.expansion) {
            return Err(Error::ListTooLong { what: LIST.to_owned(), pages: self.progress.pages, bytes });
        }
        let lacking = |session: &SessionInfo| session.has_ended() && session.termination_info.is_none();
        if page.sessions.iter().any(lacking) && self.ends.is_none() {
            self.ends = Some(ends(&self.inner, &connection).await);
        }
        for session in &mut page.sessions {
            if session.termination_info.is_none() && session.ended != Some(false) {
                let known = self.ends.as_ref().and_then(|ends| ends.get(&session.session_id));
                session.termination_info = known.cloned();
            }
            complete(&self.inner, session);
        }
        Ok(page)
    }

    async fn page(
        &self,
        connection: Arc<Connection>,
        cursor: Option<&str>,
    ) -> Result<(Arc<Connection>, SessionPage), Error> {
        connection.check()?;
        let page = match paged(&connection, &self.which, cursor).await {
            Err(Error::Unsupported { .. }) => {
                let mut whole = self.whole(&connection).await?;
                // The other method starts from the beginning, so its result repeats entries that were already returned.
                whole.sessions.retain(|session| !self.progress.gave(&session.session_id));
                whole
            }
            page => page?,
        };
        Ok((connection, page))
    }

    /// All sessions in one page, from servers with another list method.
    async fn whole(&self, connection: &Connection) -> Result<SessionPage, Error> {
        let mut page = match extended(connection).await {
            Err(Error::Unsupported { .. }) => plain(&self.inner, connection).await?,
            page => page?,
        };
        if let Some(directory) = &self.which.directory {
            page.sessions.retain(|session| session.directory.as_ref() == Some(directory));
        }
        Ok(page)
    }
}

/// The progress of reading a list. It detects lists that repeat or have no end.
#[derive(Debug, Default)]
struct ListProgress {
    hasher: RandomState,
    /// The hashes of the cursors so far.
    seen: HashSet<u64>,
    /// The hashes of the ids of the returned sessions.
    given: HashSet<u64>,
    /// How many pages there were since the last one with an entry.
    empty: usize,
    /// How many pages were requested.
    pages: usize,
    /// The approximate memory of the entries.
    bytes: usize,
}

/// How many pages without an entry may follow each other.
const EMPTY_PAGES: usize = 100;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum CursorError {
    #[error("the list of sessions repeats a page")]
    Circle,
    #[error("the list of sessions has too many empty pages in a row")]
    Nothing,
}

impl ListProgress {
    /// Returns why the list must not be followed to this cursor, if so.
    fn check(&mut self, next: &str, empty: bool) -> Option<CursorError> {
        self.empty = if empty { self.empty + 1 } else { 0 };
        if !self.seen.insert(self.hasher.hash_one(next)) {
            return Some(CursorError::Circle);
        }
        (self.empty >= EMPTY_PAGES).then_some(CursorError::Nothing)
    }

    fn give(&mut self, session: &str) {
        self.given.insert(self.hasher.hash_one(session));
    }

    fn gave(&self, session: &str) -> bool {
        self.given.contains(&self.hasher.hash_one(session))
    }
}

async fn paged(
    connection: &Connection,
    which: &ListSessions,
    cursor: Option<&str>,
) -> Result<SessionPage, Error> {
    let mut params = json!({});
    if let Some(directory) = &which.directory {
        params["cwd"] = directory.as_str().into();
    }
    if let Some(cursor) = cursor {
        params["cursor"] = cursor.into();
    }
    let answer = connection.optional(LIST, params, None, Needs::Nothing).await?;
    SessionPage::from_value(&answer).ok_or_else(|| unreadable(LIST, &answer))
}

async fn extended(connection: &Connection) -> Result<SessionPage, Error> {
    if !supports(connection, Extension::SessionList) {
        return Err(Error::Unsupported { method: EXTENDED_LIST.to_owned() });
    }
    let answer = connection.optional(EXTENDED_LIST, json!({}), None, Needs::Nothing).await?;
    SessionPage::from_value(&answer).ok_or_else(|| unreadable(EXTENDED_LIST, &answer))
}

async fn plain(inner: &Inner, connection: &Connection) -> Result<SessionPage, Error> {
    if connection.kind() == ServerKind::PerAgent {
        return Err(Error::Unsupported { method: LIST.to_owned() });
    }
    match get(inner, "list sessions", Ok(Route::new("/v1/sessions")), BodyKind::SessionPage).await {
        Ok(answer) => SessionPage::from_value(&answer).ok_or_else(|| unreadable("list sessions", &answer)),
        Err(error) if error.is_not_found() => Err(Error::Unsupported { method: LIST.to_owned() }),
        Err(error) => Err(error),
    }
}

/// Returns how sessions ended, from the list that contains it. A failure is ignored, because this is optional.
async fn ends(inner: &Inner, connection: &Connection) -> HashMap<String, TerminationInfo> {
    let page = match extended(connection).await {
        Err(Error::Unsupported { .. }) => plain(inner, connection).await,
        page => page,
    };
    let sessions = page.map(|page| page.sessions).unwrap_or_default().into_iter();
    sessions.filter_map(|session| Some((session.session_id, session.termination_info?))).collect()
}

/// Returns the record of one session, by the best method that the server has.
pub(super) async fn find_session(inner: &Arc<Inner>, id: &str) -> Result<SessionInfo, Error> {
    let find = |connection: Arc<Connection>| async move {
        connection.check()?;
        ask(inner, &connection, id).await
    };
    let mut info = match inner.call(find).await {
        Err(Error::Unsupported { .. }) => search(inner, id).await?,
        info => info?,
    };
    complete(inner, &mut info);
    Ok(info)
}

/// Applies this client's own record of an end, which also knows whether the end was requested. A session that the server
/// reports as active was opened again by another client.
fn complete(inner: &Inner, session: &mut SessionInfo) {
    if session.ended != Some(false)
        && let Some(info) = inner.hub.ended(&session.session_id)
    {
        session.termination_info = Some(info);
    }
}

async fn ask(inner: &Inner, connection: &Connection, id: &str) -> Result<SessionInfo, Error> {
    if supports(connection, Extension::SessionGet) {
        let answer = connection.optional(EXTENDED_GET, json!({"sessionId": id}), None, Needs::Nothing).await;
        match answer {
            Err(Error::Unsupported { .. }) => {}
            answer => return super::methods::read(EXTENDED_GET, answer?),
        }
    }
    if connection.kind() == ServerKind::PerAgent {
        return Err(Error::Unsupported { method: EXTENDED_GET.to_owned() });
    }
    match get(inner, "get session", Route::new("/v1/sessions").segment(id), BodyKind::Control).await {
        Ok(answer) => super::methods::read("get session", answer),
        // Only a server with this route reports which session is missing.
        Err(error)
            if error.is_not_found()
                && error.problem().is_none_or(|problem| problem.session_id().is_none()) =>
        {
            Err(Error::Unsupported { method: EXTENDED_GET.to_owned() })
        }
        Err(error) => Err(error),
    }
}

/// Searches the list. Without a list, uses what this client knows.
async fn search(inner: &Arc<Inner>, id: &str) -> Result<SessionInfo, Error> {
    let mut list = SessionList::new(Arc::clone(inner), ListSessions::all());
    while let Some(session) = list.next().await {
        match session {
            Ok(session) if session.session_id == id => return Ok(session),
            Ok(_) | Err(Error::Decode { .. }) => {}
            Err(Error::Unsupported { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    let known = Map::from_iter([("sessionId".to_owned(), Value::from(id))]);
    match (SessionInfo::try_from(known), inner.hub.is_there(id)) {
        (Ok(info), true) => Ok(info),
        _ => Err(Error::Unsupported { method: EXTENDED_GET.to_owned() }),
    }
}

/// The approximate memory of the entries of a page.
fn page_size(page: &SessionPage) -> usize {
    let sessions = page.sessions.iter().map(|session| value_size(&Map::from(session.clone()).into()));
    sessions.chain(page.unreadable.iter().map(value_size)).sum()
}

async fn get(
    inner: &Inner,
    what: &'static str,
    route: Result<Route, Error>,
    kind: BodyKind,
) -> Result<Value, Error> {
    inner.control.http().value(route.map(|route| Call::new(what, Method::GET, route).kind(kind))).await
}

fn supports(connection: &Connection, extension: Extension) -> bool {
    connection.capabilities().is_some_and(|capabilities| capabilities.extensions.supports(extension))
}

fn unreadable(what: &str, answer: &Value) -> Error {
    let source = Arc::new(MissingMember { object: "a list of sessions", member: "sessions" });
    Error::Decode { what: what.to_owned(), raw: answer.to_string(), source }
}
