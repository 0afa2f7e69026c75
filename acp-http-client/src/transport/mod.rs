//! HTTP: the only user of reqwest.

mod connector;
mod cookies;
mod http;
mod metered;
mod post;
mod retry_after;
mod stream;

pub(crate) use connector::default_client;
pub use connector::{http_client_builder, http_client_builder_trusting};
pub(crate) use http::{Transport, TransportConfig};
pub(crate) use post::{Post, PostFailure, Posted, Sent};
pub(crate) use stream::{StreamFailure, Trouble};
