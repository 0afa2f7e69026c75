//! Server-sent events without I/O: bytes to frames, frames to new events, failures to delays.

mod backoff;
mod decoder;
#[cfg(test)]
mod differential;
mod event_id;
mod fingerprint;
mod identity;
mod prints;
mod sequence;
mod tail;

pub(crate) use backoff::Backoff;
pub use backoff::ReconnectPolicy;
#[cfg(feature = "fuzzing")]
pub(crate) use decoder::RETRY_DIGITS;
pub(crate) use decoder::{Decoder, Frame};
pub use event_id::EventId;
pub(crate) use fingerprint::Fingerprint;
pub(crate) use identity::Identity;
pub(crate) use sequence::{Flow, Sequenced};
