//! The client: its handle, its builder, its methods, and the core they share.

mod builder;
mod control;
mod core;
mod handle;
mod methods;
mod probe;
mod request;
mod session;
mod spans;
mod tasks;

pub use builder::AcpHttpClientBuilder;
pub use control::Control;
pub(crate) use core::Core;
pub use handle::{AcpHttpClient, CloseOutcome};
pub(crate) use probe::probe;
pub use request::Request;
pub use session::{PromptTurn, SessionEvents, SessionHandle};
