//! Ways to look at messages as they pass.

use std::{
    collections::BTreeMap,
    error::Error as StdError,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use crate::{Json, Origin};

/// One message on its way, as an envelope tap sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Envelope<'a> {
    /// Which way it goes.
    pub direction: Direction,
    /// The id of the event that brought it; `None` for what is sent and for what came in a response body.
    pub event_id: Option<&'a str>,
    /// The message: JSON text, or whatever the server sent instead.
    pub raw: &'a [u8],
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this client to the server.
    Outbound,
    /// From the server to this client.
    Inbound,
}

/// A notification as the [hook](crate::AcpHttpClientBuilder::on_notification) sees it, before its subscribers.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inbound<'a> {
    /// The method.
    pub method: &'a str,
    /// The parameters.
    pub params: &'a Json,
    /// Whether it is new.
    pub origin: Origin,
}

/// What a hook wants to happen after a notification was delivered.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing.
    Pass,
    /// Pending calls fail at once with this reason: those of one session, or all of them.
    FailCalls {
        /// The session whose calls fail; `None` for all calls.
        session: Option<Arc<str>>,
        /// What they fail with, see [`Error::custom`](crate::Error::custom).
        reason: Arc<dyn StdError + Send + Sync>,
    },
    /// The connection ends with this reason, and every call with it.
    End(Arc<dyn StdError + Send + Sync>),
}

/// A function that sees every message once. It runs on the task that moves the message: keep it short.
#[derive(Clone)]
pub(crate) struct Tap(pub(crate) Arc<dyn Fn(Envelope<'_>) + Send + Sync>);

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

/// How many answers may wait for their copy on the stream before the oldest is shown without it.
const AWAITED_COPIES: usize = 1024;

/// Sees to it that an answer which comes in a body and again on the stream is shown once, and in the place that
/// the stream gives it where there is one.
#[derive(Debug, Default)]
pub(crate) struct TapBook {
    /// Guards what was shown of each request number; held for a look-up.
    bodies: Mutex<BTreeMap<u64, Shown>>,
}

#[derive(Debug)]
enum Shown {
    /// The body was shown: its copy must not be.
    Body,
    /// The body is kept back until its copy comes.
    Not(Bytes),
}

impl TapBook {
    /// An answer came in a body. Gives what is to be shown now.
    pub(crate) fn body(&self, number: u64, body: &Bytes, copy_expected: bool) -> Option<Bytes> {
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = if copy_expected { Shown::Not(body.clone()) } else { Shown::Body };
        bodies.insert(number, shown);
        let oldest = if bodies.len() > AWAITED_COPIES { bodies.pop_first() } else { None };
        match oldest {
            Some((_, Shown::Not(kept))) if copy_expected => Some(kept),
            _ => (!copy_expected).then(|| body.clone()),
        }
    }

    /// The copy came on the stream: is it to be shown?
    pub(crate) fn copy(&self, number: u64) -> bool {
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        !matches!(bodies.remove(&number), Some(Shown::Body))
    }

    /// No copy will come any more: gives the bodies that were kept back.
    pub(crate) fn end(&self) -> Vec<Bytes> {
        let bodies = std::mem::take(&mut *self.bodies.lock().unwrap_or_else(PoisonError::into_inner));
        let kept = bodies.into_values().filter_map(|shown| match shown {
            Shown::Not(body) => Some(body),
            Shown::Body => None,
        });
        kept.collect()
    }
}

/// A function that decides what a notification means for the calls that are pending.
#[derive(Clone)]
pub(crate) struct Hook(pub(crate) Arc<dyn Fn(&Inbound<'_>) -> Verdict + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
