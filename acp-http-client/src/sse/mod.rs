//! Server-sent events without I/O: bytes to frames, frames to a gap-free sequence, failures to delays.

mod backoff;
mod cursor;
mod decoder;
#[cfg(test)]
mod differential;
mod event_id;

pub(crate) use backoff::Backoff;
pub use backoff::ReconnectPolicy;
pub(crate) use cursor::{Cursor, Fingerprint, Flow, Position, Sequenced};
pub(crate) use decoder::{Decoder, Frame};
pub use event_id::EventId;
