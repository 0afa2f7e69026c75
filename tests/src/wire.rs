//! The wire between a client and a server: a proxy that can hold events back and record what passes, and a server
//! that does what was recorded.

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
