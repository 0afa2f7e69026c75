//! One session of a connection.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll},
};

use agent_client_protocol_schema::v1::{CancelNotification, ContentBlock, PromptRequest, PromptResponse};
use futures::{Stream, StreamExt, future::BoxFuture};
use tokio::sync::oneshot;

use super::handle::AcpHttpClient;
use crate::{Error, Event, Events, RequestOptions, SessionId, Typed, events::peek_session};

/// A handle to a session. It is cheap to create and to clone. Creating one sends nothing; dropping one ends nothing.
#[derive(Clone)]
pub struct SessionHandle {
    client: AcpHttpClient,
    id: SessionId,
}

impl SessionHandle {
    pub(super) fn new(client: AcpHttpClient, id: SessionId) -> Self {
        Self { client, id }
    }

    /// Returns the id of the session.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Runs one turn. Returns a stream of its events, with its response.
    ///
    /// Nothing happens before the turn is first polled. Its events begin when the prompt is sent, after earlier messages
    /// about the session. Dropping the turn before its response cancels it.
    pub fn prompt(&self, content: Vec<ContentBlock>) -> PromptTurn {
        self.prompt_with(content, RequestOptions::new())
    }

    /// Like [`prompt`](Self::prompt), with request options such as a timeout.
    pub fn prompt_with(&self, content: Vec<ContentBlock>, options: RequestOptions) -> PromptTurn {
        let request = self.client.prompt(PromptRequest::new(self.id.clone(), content)).options(options);
        let (request, sent) = request.subscribing();
        let response = Response::Pending(request.into_future());
        PromptTurn { session: self.id.clone(), sent, events: None, response }
    }

    /// Cancels the turn of the session. See [`AcpHttpClient::cancel`].
    pub fn cancel(&self) -> BoxFuture<'static, Result<(), Error>> {
        self.client.cancel(CancelNotification::new(self.id.clone()))
    }

    /// Subscribes to all later events of the session and of the connection, such as gaps, in order.
    pub fn events(&self) -> SessionEvents {
        SessionEvents { events: self.client.events(), session: self.id.clone() }
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionHandle").field(&self.id).finish()
    }
}

/// The events of one session, and those of the whole connection.
#[derive(Debug)]
#[must_use = "an unread subscription only counts the events that it misses"]
pub struct SessionEvents {
    events: Events,
    session: SessionId,
}

impl SessionEvents {
    /// Returns the next event, or `None` after the last one.
    pub async fn recv(&mut self) -> Option<Event> {
        self.next().await
    }

    /// Returns the next event if one is queued, without waiting.
    pub fn try_recv(&mut self) -> Option<Event> {
        loop {
            let event = self.events.try_recv()?;
            if self.concerns(&event) {
                return Some(event);
            }
        }
    }

    fn concerns(&self, event: &Event) -> bool {
        match event {
            Event::Update(update) => update.session_id().as_ref() == Some(&self.session),
            Event::Notification(notification) | Event::AgentRequest { request: notification, .. } => {
                peek_session(notification.params.as_bytes()).is_none_or(|session| self.session == *session)
            }
            Event::UnmatchedResponse { .. } => false,
            _ => true,
        }
    }
}

impl Stream for SessionEvents {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            match std::task::ready!(self.events.poll_next_unpin(context)) {
                Some(event) if !self.concerns(&event) => {}
                event => return Poll::Ready(event),
            }
        }
    }
}

/// One turn: a stream of events that ends with its response.
///
/// It includes events of the whole connection, such as [`Event::Gap`] and [`Event::Restarted`]. Agent requests are
/// reported here and also passed to the handler of the client.
#[must_use = "a turn is sent when it is polled"]
pub struct PromptTurn {
    session: SessionId,
    /// Receives the subscription when the prompt is sent.
    sent: oneshot::Receiver<Events>,
    events: Option<SessionEvents>,
    response: Response,
}

type Outcome = Result<Typed<PromptResponse>, Error>;

enum Response {
    Pending(Pin<Box<dyn Future<Output = Outcome> + Send>>),
    Done(Box<Outcome>),
}

impl PromptTurn {
    /// Returns the next event of the turn, or `None` after the last one.
    ///
    /// It returns `None` when the response has arrived and all events before it were read.
    pub async fn recv(&mut self) -> Option<Event> {
        self.next().await
    }

    /// Waits for the response. Unread events are dropped.
    ///
    /// # Errors
    /// The errors of [`AcpHttpClient::prompt`].
    pub async fn response(self) -> Result<Typed<PromptResponse>, Error> {
        match self.response {
            Response::Pending(response) => response.await,
            Response::Done(outcome) => *outcome,
        }
    }
}

impl Stream for PromptTurn {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let Self { session, sent, events, response } = self.get_mut();
        if let Response::Pending(pending) = response
            && let Poll::Ready(outcome) = pending.as_mut().poll(context)
        {
            *response = Response::Done(Box::new(outcome));
        }
        if events.is_none() {
            let begun = sent.try_recv().ok();
            *events = begun.map(|events| SessionEvents { events, session: session.clone() });
        }
        match (response, events) {
            (Response::Pending(_), Some(events)) => events.poll_next_unpin(context),
            // The prompt is not sent yet.
            (Response::Pending(_), None) => Poll::Pending,
            // Every update of the turn was published before its response was returned.
            (Response::Done(_), Some(events)) => Poll::Ready(events.try_recv()),
            (Response::Done(_), None) => Poll::Ready(None),
        }
    }
}

impl fmt::Debug for PromptTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = matches!(self.response, Response::Done(_));
        f.debug_struct("PromptTurn").field("session", &self.session).field("over", &over).finish()
    }
}
