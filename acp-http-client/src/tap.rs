//! Functions of the application that see messages, and what happens when they panic.

use std::{
    collections::BTreeMap,
    error::Error as StdError,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::FutureExt;

use crate::{EventId, Json, Origin, SessionId};

/// One message, as passed to a [tap](crate::AcpHttpClientBuilder::tap).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Envelope<'a> {
    /// The direction of the message.
    pub direction: Direction,
    /// The id of the event; `None` for outbound messages and for messages in a response body.
    pub event_id: Option<&'a EventId>,
    /// The bytes of the message: JSON text, unless the server sent something else.
    pub raw: &'a [u8],
}

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this client to the server.
    Outbound,
    /// From the server to this client.
    Inbound,
}

/// A notification, as passed to the [hook](crate::AcpHttpClientBuilder::on_notification).
#[derive(Debug)]
#[non_exhaustive]
pub struct Inbound<'a> {
    /// The method of the notification.
    pub method: &'a str,
    /// The parameters of the notification.
    pub params: &'a Json,
    /// Whether the notification is live, replayed or history.
    pub origin: Origin,
}

/// The decision of a hook. It takes effect after the notification was delivered.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Verdict {
    /// No effect.
    Pass,
    /// Fails pending requests at once with this reason: those of one session, or all of them.
    FailCalls {
        /// The session whose requests fail; `None` for all requests.
        session: Option<SessionId>,
        /// The reason of the failure. See [`Error::custom`](crate::Error::custom).
        reason: Arc<dyn StdError + Send + Sync>,
    },
    /// Ends the connection with this reason. Every pending request fails.
    End(Arc<dyn StdError + Send + Sync>),
}

/// Runs code of the application; `None` if it panicked. A panic is logged and not propagated.
pub(crate) fn catch<R>(what: &'static str, code: impl FnOnce() -> R) -> Option<R> {
    // What the code owns belongs to the application; nothing of this crate is left half changed.
    caught(what, catch_unwind(AssertUnwindSafe(code)))
}

/// [`catch`] for a future.
pub(crate) async fn catch_async<R>(what: &'static str, future: impl Future<Output = R>) -> Option<R> {
    caught(what, AssertUnwindSafe(future).catch_unwind().await)
}

fn caught<R>(what: &'static str, outcome: std::thread::Result<R>) -> Option<R> {
    if outcome.is_err() {
        tracing::error!(what, "code of the application panicked");
    }
    outcome.ok()
}

/// A function that sees every message once. It runs on the task that passes the message on.
#[derive(Clone)]
pub(crate) struct Tap(Arc<dyn Fn(Envelope<'_>) + Send + Sync>);

impl Tap {
    pub(crate) fn new(tap: impl Fn(Envelope<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tap))
    }

    /// Shows a message. It never panics.
    pub(crate) fn call(&self, envelope: Envelope<'_>) {
        let _ = catch("tap", || (self.0)(envelope));
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

/// How many responses may wait for their echo on the stream before the oldest is shown without it.
const AWAITED_ECHOES: usize = 1024;
/// Ensures that a response which arrives in a body and is echoed on the stream is shown once, in stream order.
#[derive(Debug)]
pub(crate) struct TapBook {
    /// Guards what was shown of each request number; held for a look-up.
    bodies: Mutex<Bodies>,
    /// How many bytes the responses that wait may take together.
    limit: usize,
}

#[derive(Debug, Default)]
struct Bodies {
    shown: BTreeMap<u64, Shown>,
    /// How many bytes wait.
    bytes: usize,
}

impl Bodies {
    fn insert(&mut self, number: u64, shown: Shown) {
        self.bytes += shown.bytes();
        if let Some(before) = self.shown.insert(number, shown) {
            self.bytes -= before.bytes();
        }
    }

    fn remove(&mut self, number: u64) -> Option<Shown> {
        self.shown.remove(&number).inspect(|shown| self.bytes -= shown.bytes())
    }

    /// Removes the oldest bodies that exceed the limits.
    fn excess(&mut self, limit: usize) -> Vec<Bytes> {
        let mut excess = Vec::new();
        while self.shown.len() > AWAITED_ECHOES || self.bytes > limit {
            let Some((_, oldest)) = self.shown.pop_first() else { break };
            self.bytes -= oldest.bytes();
            excess.extend(oldest.into_body());
        }
        excess
    }
}

#[derive(Debug)]
enum Shown {
    /// The body was shown: its echo must not be.
    Body,
    /// The body is shown when its echo arrives.
    Not(Bytes),
}

impl Shown {
    fn bytes(&self) -> usize {
        match self {
            Self::Body => 0,
            Self::Not(body) => body.len(),
        }
    }

    fn into_body(self) -> Option<Bytes> {
        match self {
            Self::Body => None,
            Self::Not(body) => Some(body),
        }
    }
}

impl TapBook {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bodies: Mutex::default(), limit }
    }

    /// A response arrived in a body. Returns what to show now: this response, or the oldest ones if the limits are
    /// exceeded.
    pub(crate) fn body(&self, number: u64, body: &Bytes, echo_expected: bool) -> Vec<Bytes> {
        let mut bodies = self.lock();
        let shown = if echo_expected { Shown::Not(body.clone()) } else { Shown::Body };
        bodies.insert(number, shown);
        let mut now = bodies.excess(self.limit);
        if !echo_expected {
            now.push(body.clone());
        }
        now
    }

    /// The echo arrived on the stream. Returns whether to show it.
    pub(crate) fn copy(&self, number: u64) -> bool {
        !matches!(self.lock().remove(number), Some(Shown::Body))
    }

    /// No more echoes arrive. Returns the bodies that were not shown.
    pub(crate) fn end(&self) -> Vec<Bytes> {
        let bodies = std::mem::take(&mut *self.lock());
        bodies.shown.into_values().filter_map(Shown::into_body).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A function that decides what a notification means for the pending requests.
#[derive(Clone)]
pub(crate) struct Hook(Arc<dyn Fn(&Inbound<'_>) -> Verdict + Send + Sync>);

impl Hook {
    pub(crate) fn new(hook: impl Fn(&Inbound<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Asks for a verdict. It never panics: a hook that does passes the notification.
    pub(crate) fn call(&self, inbound: &Inbound<'_>) -> Verdict {
        catch("notification hook", || (self.0)(inbound)).unwrap_or(Verdict::Pass)
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

/// Which agent requests over a limit are refused. By default all are.
#[derive(Clone, Default)]
pub(crate) struct Refusals(Option<Arc<RefusalFilter>>);

type RefusalFilter = dyn Fn(&Json) -> bool + Send + Sync;

impl Refusals {
    pub(crate) fn new(filter: impl Fn(&Json) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(filter)))
    }

    /// Whether a request with these parameters is refused. A filter that panics selects none.
    pub(crate) fn select(&self, params: Bytes) -> bool {
        let Some(filter) = &self.0 else { return true };
        catch("refusal filter", || filter(&Json::new(params))).unwrap_or(false)
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusals")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_wait_for_their_echo_are_bounded_in_number_and_bytes() {
        const LIMIT: usize = 12_000;
        let third = Bytes::from(vec![0; LIMIT / 3]);
        for (bodies, shown) in [(2, 0), (3, 0), (4, 1), (5, 2)] {
            let book = TapBook::new(LIMIT);
            let now: usize = (0..bodies).map(|number| book.body(number, &third, true).len()).sum();
            assert_eq!(now, shown, "of {bodies}");
            assert_eq!(book.end().len() as u64, bodies - shown as u64);
        }
        let book = TapBook::new(LIMIT);
        let small = Bytes::from_static(b"{}");
        let count = AWAITED_ECHOES as u64;
        assert!((0..count).all(|number| book.body(number, &small, true).is_empty()));
        assert_eq!(book.body(count, &small, true).len(), 1);
        // A body that was shown at once takes no memory, and its echo is not shown.
        assert_eq!(book.body(count + 1, &third, false).len(), 2);
        assert!(!book.copy(count + 1) && book.copy(count));
        assert!(book.lock().bytes < LIMIT / 3);
    }

    #[tokio::test]
    async fn a_panic_of_the_application_goes_no_further() {
        assert_eq!(catch("test", || 1), Some(1));
        assert_eq!(catch("test", || -> u8 { panic!("a bug") }), None);
        assert_eq!(catch_async("test", async { 1 }).await, Some(1));
        let late = async {
            tokio::task::yield_now().await;
            panic!("a bug")
        };
        assert_eq!(catch_async::<u8>("test", late).await, None);
        let tap = Tap::new(|_| panic!("a bug"));
        tap.call(Envelope { direction: Direction::Inbound, event_id: None, raw: b"{}" });
        let hook = Hook::new(|_| panic!("a bug"));
        let params = Json::new(Bytes::from_static(b"{}"));
        let verdict = hook.call(&Inbound { method: "m", params: &params, origin: Origin::Live });
        assert!(matches!(verdict, Verdict::Pass));
        assert!(!Refusals::new(|_| panic!("a bug")).select(Bytes::from_static(b"{}")));
    }
}
