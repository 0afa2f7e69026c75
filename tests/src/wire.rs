//! The wire between a client and a server: a proxy that can hold events back and record what passes.

mod entry;
mod event_lines;
mod proxy;
mod recorder;

pub use entry::{Entry, Pass};
pub use proxy::Proxy;
pub use recorder::Recorder;
