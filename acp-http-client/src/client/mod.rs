//! The client: its handle, its builder, its methods, and the core they share.

mod builder;
mod call;
mod core;
mod courier;
mod gate;
mod handle;
mod held;
mod methods;
mod request;
mod tasks;
mod ticket;

pub use builder::AcpHttpClientBuilder;
pub use call::RequestOptions;
pub(crate) use call::send_one_way;
pub(crate) use core::{Core, Echo, Settled};
pub use handle::{AcpHttpClient, CloseOutcome};
pub use request::Request;
