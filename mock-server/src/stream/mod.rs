//! The event stream: a numbered log with a ring, and the bodies that read it.

mod body;
mod log;
mod seat;

pub(crate) use body::{Framing, StreamCount, Tap};
pub(crate) use log::Log;
pub(crate) use seat::Seat;
