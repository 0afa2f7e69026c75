//! Messages between a client and a server: a proxy that can hold back events and record messages, and a server that
//! replays a recording.

mod capture;
mod entry;
mod event_lines;
mod proxy;
mod recorder;
mod replay;

pub use capture::Capture;
pub use entry::{Entry, Pass};
pub use proxy::Proxy;
pub use recorder::Recorder;
pub use replay::Replay;
