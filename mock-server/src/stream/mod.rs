//! The event stream: a numbered log with a replay buffer, and the bodies that read it.

mod body;
mod log;
mod seat;

pub(crate) use body::{Framing, StreamCount, Tap};
pub(crate) use log::Log;
pub(crate) use seat::Seat;
